// A World over shared memory and TCP. Made by World::join().
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/backend/members.h"
#include "lockstep/backend/native/facilities.h"
#include "lockstep/backend/window.h"
#include "lockstep/backend/world.h"
#include "lockstep/base/mutex.h"
#include "lockstep/transport/link/socket_calls.h"

namespace lockstep::backend {

class NativeWorld final : public World, public WindowMaker {
 public:
  using SocketCalls = transport::link::SocketCalls;

  // As World::join(). The links between hosts make their calls through `calls`, which outlives the world and
  // its groups; a test can spoil them there.
  static Result<std::unique_ptr<World>> join(const WorldOptions& options, const Environment& environment,
                                             SocketCalls& calls);
  static Result<std::unique_ptr<NativeWorld>> make(const WorldOptions& options, Rendezvous rendezvous,
                                                   const Clock& clock,
                                                   SocketCalls& calls = SocketCalls::kernel());
  ~NativeWorld() override;

  const Rendezvous& rendezvous() const override { return facilities_->rendezvous(); }
  Backend& group() override { return *all_; }
  Result<std::unique_ptr<Backend>> new_group(const std::vector<Rank>& members,
                                             const GroupOptions& options) override;
  Result<std::unique_ptr<Backend>> shrink(const ShrinkOptions& options) override;
  Result<SharedMemory> allocate(Bytes size) override;
  Result<std::unique_ptr<Window>> open_window(const std::vector<Rank>& members, Bytes size,
                                              const GroupOptions& options) override;

 private:
  class Shrink;
  explicit NativeWorld(std::shared_ptr<Facilities> facilities) : facilities_(std::move(facilities)) {}

  Status set_up();
  // Why this rank can make no group.
  Status refuse(std::string_view what) const;
  // None of them was left out.
  Status check_left(const std::vector<Rank>& members) const;
  // The error of a group that could not be made; a rank that the others go on without hears that instead.
  Status explain(const Status& error);

  const std::shared_ptr<Facilities> facilities_;  // shared with the groups
  GroupNames names_;
  mutable Mutex mutex_;
  std::vector<Rank> left_ LOCKSTEP_GUARDED_BY(mutex_);  // who has not been left out, ascending
  int shrinks_ LOCKSTEP_GUARDED_BY(mutex_) = 0;         // how often the world has been shrunk
  Status left_out_ LOCKSTEP_GUARDED_BY(mutex_);         // if it is this rank that was
  std::unique_ptr<Backend> all_;
};

}  // namespace lockstep::backend
