// A World over shared memory and TCP. Made by World::join().
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/backend/helper_pool.h"
#include "lockstep/backend/members.h"
#include "lockstep/backend/native/mail.h"
#include "lockstep/backend/native/monitor.h"
#include "lockstep/backend/native/native_group.h"
#include "lockstep/backend/window.h"
#include "lockstep/backend/world.h"
#include "lockstep/base/mutex.h"
#include "lockstep/transport/link/door.h"
#include "lockstep/transport/link/socket_calls.h"
#include "lockstep/transport/shm/domain.h"

namespace lockstep::backend {

class NativeWorld final : public World, public WindowMaker {
 public:
  using SocketCalls = transport::link::SocketCalls;

  // As World::join(). The links between hosts make their calls through `calls`, which outlives the world; a
  // test can spoil them there.
  static Result<std::unique_ptr<World>> join(const WorldOptions& options, const Environment& environment,
                                             SocketCalls& calls);
  static Result<std::unique_ptr<NativeWorld>> make(const WorldOptions& options, Rendezvous rendezvous,
                                                   const Clock& clock,
                                                   SocketCalls& calls = SocketCalls::kernel());
  ~NativeWorld() override;

  const Rendezvous& rendezvous() const override { return rendezvous_; }
  Backend& group() override { return *all_; }
  Result<std::unique_ptr<Backend>> new_group(const std::vector<Rank>& members,
                                             const GroupOptions& options) override;
  Result<std::unique_ptr<Backend>> shrink(const ShrinkOptions& options) override;
  Result<SharedMemory> allocate(Bytes size) override;
  Result<std::unique_ptr<Window>> open_window(const std::vector<Rank>& members, Bytes size,
                                              const GroupOptions& options) override;

 private:
  class Shrink;
  NativeWorld(const WorldOptions& options, Rendezvous rendezvous, const Clock& clock, SocketCalls& calls);

  Status set_up();
  Status share_memory(const Deadline& deadline);
  store::Look look_while_joining() const;
  Status tune(const Deadline& deadline);
  Status open_door(const Deadline& deadline);
  Status start_monitor(const Deadline& deadline);
  Status open_mail(const Deadline& deadline);
  // Why this rank can make no group.
  Status refuse(std::string_view what) const;
  // None of them was left out.
  Status check_left(const std::vector<Rank>& members) const;
  // The error of a group that could not be made; a rank that the others go on without hears that instead.
  Status explain(const Status& error);
  // `identity` is the same on all members, and no other group's.
  Result<std::unique_ptr<Backend>> make_group(const std::vector<Rank>& members, const GroupOptions& options,
                                              std::string_view identity, const Deadline& deadline);
  Result<std::unique_ptr<transport::Communicator>> connect(std::uint64_t id, int position,
                                                           const std::vector<Rank>& members,
                                                           const Deadline& deadline);
  // This rank can send and receive no message any more: its groups have failed.
  void lose_messages(const Status& why);
  // Why a group of them cannot be made; ok if nobody is lost.
  Status first_lost(const std::vector<Rank>& members) const;
  transport::shm::Patience patience() const;
  transport::Identity identity() const;
  // The same on all members.
  Bytes staging_of(const transport::Layout& layout) const;

  const WorldOptions options_;
  const Clock& clock_;
  SocketCalls& calls_;
  Rendezvous rendezvous_;
  const std::uint64_t fork_generation_;
  std::vector<int> host_of_;  // by rank; equal for ranks that share memory
  // Shared with the memory that allocate() has given out.
  std::shared_ptr<transport::shm::Domain> domain_;
  HelperPool helpers_;
  collective::Means means_{.tuning = {}, .helpers = helpers_};
  std::unique_ptr<transport::link::Door> door_;
  std::vector<std::vector<base::SocketAddress>> doors_;  // by rank
  GroupNames names_;
  mutable Mutex mutex_;
  std::set<NativeGroup*> groups_ LOCKSTEP_GUARDED_BY(mutex_);
  std::set<NativeGroup*> ending_ LOCKSTEP_GUARDED_BY(mutex_);  // those that a shrink ends: they must not go
  CondVar ended_;
  std::vector<Rank> left_ LOCKSTEP_GUARDED_BY(mutex_);  // who has not been left out, ascending
  int shrinks_ LOCKSTEP_GUARDED_BY(mutex_) = 0;         // how often the world has been shrunk
  Status left_out_ LOCKSTEP_GUARDED_BY(mutex_);         // if it is this rank that was
  std::unique_ptr<Mail> mail_;
  std::unique_ptr<Monitor> monitor_;
  std::unique_ptr<Backend> all_;
};

}  // namespace lockstep::backend
