// A ProcessGroup is some ranks of the world that communicate with each other on tensors.
//
// It is a handle: copies are the same group. One that is made with no argument stands for the default group,
// as None does in torch, and is looked up whenever it is used.
// A rank that is not a member of a group has the handle non_member(): its rank and size are -1, and every
// collective or message with it logs a warning and does nothing, as in torch.
//
// Ranks: those of the default group are called global. Where a function takes `src` or `dst` it is a global
// rank; `group_src` and `group_dst` are ranks in the group.
// Lifetime: the group ends with destroy_process_group(), or when its last handle is gone and what runs in it
// is complete. What is used after that says so with InvalidArgument.
//
// Thread safety: any thread.
#pragma once

#include <c10/core/DeviceType.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/base/clock.h"

namespace lockstep::tensor {

class GroupState;

class ProcessGroup {
 public:
  ProcessGroup() = default;
  explicit ProcessGroup(std::shared_ptr<GroupState> state) : state_(std::move(state)) {}
  static ProcessGroup non_member();

  bool is_member() const;
  // In this group; -1 for a non-member.
  int rank() const;
  int size() const;
  std::string name() const;
  std::string description() const;
  // The global ranks of its members, by their rank in it.
  std::vector<int> ranks() const;
  // "native".
  std::string backend_name(c10::DeviceType device = c10::DeviceType::CPU) const;
  // "cpu:native".
  std::string backend_config() const;
  Duration timeout() const;
  void set_timeout(Duration timeout) const;
  // What runs the operations on tensors of that device. Shared: an operation that runs keeps it.
  std::shared_ptr<Backend> backend(c10::DeviceType device = c10::DeviceType::CPU) const;
  // The same group; two handles for the default group are equal whichever way they were got.
  bool operator==(const ProcessGroup& other) const;

  // What the handle stands for; never null. `call` is who asks, for the error before init_process_group().
  std::shared_ptr<GroupState> state(const char* call) const;

 private:
  std::shared_ptr<GroupState> state_;  // shared by all handles; nothing: the default group
};

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::ProcessGroup;
}
