// A Session is one stay in a world, from init_process_group() to destroy_process_group(). Internal.
//
// Thread safety: any thread.
#pragma once

#include <c10/core/DeviceType.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/backend/world.h"
#include "lockstep/base/mutex.h"
#include "lockstep/tensor/group_state.h"
#include "lockstep/tensor/init.h"

namespace lockstep::tensor {

class WindowState;

struct NewGroup {
  std::optional<std::string> name = {};
  std::string description = {};
  std::optional<Duration> timeout = {};
  std::optional<std::string> backend = {};  // else the default group's
};

// Its rank, where the options or the environment say it.
std::optional<Rank> rank_said(const InitOptions& options, const Environment& environment);

class Session {
 public:
  // Joins the world. `environment` and `level` are those of the options, or what stands for them. Throws.
  static std::shared_ptr<Session> open(const InitOptions& options, const Environment& environment,
                                       DebugLevel level);
  ~Session();

  std::shared_ptr<GroupState> default_group() const;
  // The environment that the world was joined with.
  const std::map<std::string, std::string, std::less<>>& variables() const { return variables_; }
  // Among the ranks of its host.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  // Those that are not destroyed, the default group included.
  int group_count() const { return static_cast<int>(groups().size()); }
  std::vector<std::shared_ptr<GroupState>> groups() const;

  // `members` are global ranks, in the order of the group. Non-members get non_member().
  std::shared_ptr<GroupState> make_group(const char* call, const std::vector<int>& members,
                                         const NewGroup& options);
  // Collective of `parent`.
  std::shared_ptr<GroupState> split(const std::shared_ptr<GroupState>& parent, const SplitBy& by,
                                    const NewGroup& options);
  // The world of shared memory and TCP, for what it alone can do. Unsupported, in the name of `call`, where
  // the session has none.
  std::shared_ptr<World> native_world(const char* call) const;
  // Those that are left have a new default group afterwards, and every earlier group is closed.
  std::shared_ptr<GroupState> shrink(const std::vector<int>& exclude, const NewGroup& options);
  // As World::allocate(). kInvalid once it is closed.
  Result<SharedMemory> allocate(Bytes size) const;
  // Collective of `group`. Ends with the session at the latest. Throws.
  std::shared_ptr<WindowState> make_window(const char* call, const std::shared_ptr<GroupState>& group,
                                           Bytes size, std::optional<Duration> timeout);
  DebugLevel debug_level() const;
  void set_debug_level(DebugLevel level);
  // How often it was called with this place, this time included.
  int count_breakpoint(const std::string& place);
  // `work` runs in `group`, which lives until it is complete, whoever has let go of it.
  void keep(std::shared_ptr<GroupState> group, backend::WorkPtr work);
  void forget(const std::shared_ptr<GroupState>& group);
  void close();

 private:
  // What groups are made from, for the tensors of one device.
  struct DeviceWorld {
    c10::DeviceType device;
    std::string backend;
    // Shared with the groups that are made from it, which may be in use longer than the session.
    std::shared_ptr<Groups> groups;
    bool is_for(c10::DeviceType wanted, const std::string& name) const {
      return device == wanted && backend == name;
    }
  };
  struct Worlds {
    std::vector<DeviceWorld> of_devices;  // the default group's; empty once the session is closed
    std::vector<DeviceWorld> of_groups;   // others, for groups that name them
  };
  class Making;
  struct Kept {
    std::shared_ptr<GroupState> group;
    backend::WorkPtr work;
  };

  Session(Worlds worlds, const InitOptions& options, const Environment& environment, DebugLevel level);
  static Worlds join(const InitOptions& options, const Environment& environment);
  // Nothing if there is none.
  static std::shared_ptr<World> find_native(const Worlds& worlds);
  // Those of the default group. InvalidArgument once it is closed.
  std::vector<DeviceWorld> worlds(const char* call) const;
  // That of a session that has joined no other. Unsupported.
  DeviceWorld only_world(const char* call) const;
  // Those that `backend` names, as InitOptions::backend does. InvalidArgument for what was not joined.
  std::vector<DeviceWorld> worlds_of(const char* call, const std::string& backend) const;
  // For the first of them `made`, for the others a new group of the same ranks.
  std::shared_ptr<GroupState> adopt(const char* call, std::unique_ptr<Backend> made,
                                    const std::vector<DeviceWorld>& from, std::string name,
                                    const NewGroup& options);
  // The name that the backend's group has: no two of the same members have the same. Members are ranks of the
  // world, which stay the same when it is shrunk.
  std::string unique_name(const std::string& name, const std::vector<Rank>& members);
  Duration timeout_of(const char* call, const NewGroup& options) const;
  std::vector<Kept> take_completed() const;
  void close_windows();
  std::shared_ptr<GroupWatch> new_watch() const;
  // One line, for the log.
  std::string describe() const;

  const std::string backend_;  // as it was given
  const BackendSources sources_;
  const std::map<std::string, std::string, std::less<>> variables_;
  const int local_rank_;
  const int local_size_;
  const Duration summary_every_;
  std::atomic<DebugLevel> debug_level_;
  mutable Mutex mutex_;
  Worlds worlds_ LOCKSTEP_GUARDED_BY(mutex_);
  std::shared_ptr<GroupState> default_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<GroupState>> groups_ LOCKSTEP_GUARDED_BY(mutex_);
  mutable std::vector<Kept> kept_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::string, int> breakpoints_ LOCKSTEP_GUARDED_BY(mutex_);  // how often each was come to
  std::vector<std::weak_ptr<WindowState>> windows_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::pair<std::string, std::vector<Rank>>, int> made_ LOCKSTEP_GUARDED_BY(mutex_);
  bool making_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // a thread makes a group that has no name of its own
};

}  // namespace lockstep::tensor
