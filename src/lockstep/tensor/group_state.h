// What all handles of one group share. Internal.
//
// Thread safety: any thread.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/types.h"
#include "lockstep/tensor/group_watch.h"

namespace lockstep::tensor {

struct DeviceBackend {
  c10::DeviceType device;
  std::string name;
  // Shared with the operations that run on it, and keeps the world that it was made from.
  std::shared_ptr<Backend> backend;
};

// InvalidArgument, in the name of `call`, if it is negative.
void check_timeout(const char* call, Duration timeout, std::optional<Rank> at);

// Whether torch's profiler is told of a group's operations here, or by whoever has made the group.
enum class Profiling : std::uint8_t { kHere, kElsewhere };

class GroupState {
 public:
  struct Parts {
    std::string name;
    std::string description = {};
    std::string backend = {};            // as it was given to init_process_group()
    std::vector<int> ranks = {};         // global, by rank in the group
    std::vector<Rank> world_ranks = {};  // of the same
    int rank = -1;                       // in the group
    int global_rank = -1;                // this process's
    std::vector<DeviceBackend> backends = {};
    std::shared_ptr<GroupWatch> watch = {};  // nothing: nobody
    Profiling profiling = Profiling::kHere;
  };
  explicit GroupState(Parts parts);
  // Nobody's group: what ranks get that are not members.
  static std::shared_ptr<GroupState> non_member(int global_rank);

  bool is_member() const { return rank_ >= 0; }
  int rank() const { return rank_; }
  int global_rank() const { return global_rank_; }
  int size() const { return is_member() ? static_cast<int>(ranks_.size()) : -1; }
  const std::string& name() const { return name_; }
  const std::string& description() const { return description_; }
  const std::vector<int>& ranks() const { return ranks_; }
  const std::vector<Rank>& world_ranks() const { return world_ranks_; }
  // The rank in the group of a global rank; -1 if that is no member.
  int group_rank_of(int global_rank) const;

  // InvalidArgument, in the name of `call`, if the group was destroyed, has nothing for that device, or was
  // made before this process was forked.
  std::shared_ptr<Backend> backend(const char* call, c10::DeviceType device) const;
  // The first device's, for what moves no tensor.
  std::shared_ptr<Backend> any_backend(const char* call) const;
  // Whether it has one for that device.
  bool takes(c10::DeviceType device) const;
  const std::string& backend_name(c10::DeviceType device) const;
  const std::string& backend_text() const { return backend_text_; }
  std::string config() const;  // "cpu:native"

  // InvalidArgument, in the name of `call`, as for backend(). A non-member's group is open.
  void check_open(const char* call) const;
  bool is_of_this_process() const;

  // Of the backends of all devices.
  void set_timeout(Duration timeout);
  // Never null. Shared with observers and operations, which may outlive the group.
  const std::shared_ptr<GroupWatch>& watch() const { return watch_; }
  bool is_profiled_here() const { return profiling_ == Profiling::kHere; }

  bool is_closed() const;
  // Leaves the group. What runs in another thread meanwhile ends with GroupClosed.
  void close();

 private:
  [[noreturn]] void throw_closed(const char* call) const;
  [[noreturn]] void throw_non_member(const char* call) const;
  void refuse_in_forked_child(const char* call) const;

  const std::string name_;
  const std::string description_;
  const std::string backend_text_;
  const std::vector<int> ranks_;
  const std::vector<Rank> world_ranks_;
  const int rank_;
  const int global_rank_;
  const std::shared_ptr<GroupWatch> watch_;
  const Profiling profiling_;
  const std::uint64_t fork_generation_;
  std::vector<std::pair<c10::DeviceType, std::string>> names_;
  mutable Mutex mutex_;
  std::vector<DeviceBackend> backends_ LOCKSTEP_GUARDED_BY(mutex_);  // empty once it is closed
};

}  // namespace lockstep::tensor
