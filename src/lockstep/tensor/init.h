// init_process_group() and destroy_process_group(): this process's place in the world, and its default group.
//
//   auto world = lockstep::init_process_group();      // env:// by default; alone, a world of one
//   lockstep::all_reduce(gradient);
//
// The default group is the one global of Lockstep. After destroy_process_group(), or when the WorldHandle is
// gone, init_process_group() may be called again at once, on every rank in its own time.
//
// Thread safety: any thread; a second init while one is under way, or done, is InvalidArgument.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/backend/world.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/environment.h"
#include "lockstep/store/store.h"
#include "lockstep/tensor/backend_source.h"
#include "lockstep/tensor/debug_level.h"
#include "lockstep/tensor/process_group.h"

namespace lockstep::tensor {

class Session;

struct InitOptions {
  // Behaviour, as torch's arguments of these names.
  // A name, or a name for each device: "native", "mpi", "cpu:native,cuda:mine". With mpi, rank and world size
  // are MPI's: others that are given are ignored, and the log says so.
  std::string backend = "native";
  std::optional<std::string> init_method = {};  // a URL; else env://
  std::shared_ptr<Store> store = {};            // instead of a URL; shared with the caller
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  std::optional<Duration> timeout = {};  // of an operation; else 30 min
  std::string group_name = "world";
  std::string group_desc = "default group";
  DebugOptions debug = {};
  // Backends that groups may have besides (NewGroupOptions::backend): every rank joins these too.
  std::vector<std::string> group_backends = {};
  // Backends from outside, by name (backend_source.h).
  BackendSources backends = {};
  // What torch calls pg_options. Its rendezvous may not say again what is said above.
  WorldOptions world = {};
  std::optional<Environment> environment = {};  // else the process's own, which also says what is logged
};

// Leaves the world when it goes out of scope, whatever the other ranks do; never throws. It has no effect
// once destroy_process_group() was called, or a new world was joined.
class [[nodiscard]] WorldHandle {
 public:
  explicit WorldHandle(std::shared_ptr<Session> session) : session_(std::move(session)) {}
  ~WorldHandle();
  WorldHandle(WorldHandle&&) noexcept = default;
  WorldHandle& operator=(WorldHandle&& other) noexcept;
  WorldHandle(const WorldHandle&) = delete;
  WorldHandle& operator=(const WorldHandle&) = delete;

  // The default group.
  ProcessGroup group() const { return {}; }

 private:
  std::shared_ptr<Session> session_;  // shared with the global slot, which it must not end twice
};

// Throws what World::join() gives as an error: InvalidArgument, TimeoutError and MissingRanks, SocketError...
WorldHandle init_process_group(const InitOptions& options = {});

// Without an argument: the world and all its groups. Else that group alone; the others of it hear of it if
// they still wait for this rank. Does not wait for anybody.
void destroy_process_group();
void destroy_process_group(const ProcessGroup& group);

bool is_initialized();
inline bool is_available() { return true; }
// Whether torchrun, or a launcher that sets its variables, has started this process.
bool is_torchelastic_launched();

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::destroy_process_group;
using tensor::init_process_group;
using tensor::InitOptions;
using tensor::is_available;
using tensor::is_initialized;
using tensor::is_torchelastic_launched;
using tensor::WorldHandle;
}  // namespace lockstep
