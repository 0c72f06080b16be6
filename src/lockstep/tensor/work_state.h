// What all copies of one WorkHandle share. Internal.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/detail_checks.h"
#include "lockstep/tensor/group_state.h"
#include "lockstep/tensor/work_handle.h"

namespace lockstep::tensor {

class WorkHandle::State {
 public:
  // `call` is of static storage. `buffers` are shared with the operation, which uses their bytes. `stack` is
  // that of the call, for its error; nothing below debug level detail.
  State(const char* call, backend::WorkPtr work, std::shared_ptr<Buffers> buffers,
        std::shared_ptr<GroupState> group, CallStack stack);
  // The operation goes on, and its group with it.
  ~State();

  // Its results, and status(), have the stack behind their errors.
  Status wait(std::optional<Deadline> deadline);
  bool is_completed();
  Status status();
  void on_complete(std::function<void()> then);
  std::vector<at::Tensor> result() const { return buffers_->written(); }
  int source_rank() const;
  const backend::Work& work() const { return *work_; }
  Rank at() const { return Rank{group_->global_rank()}; }

 private:
  Status with_stack(const Status& status) const;

  const char* const call_;
  const backend::WorkPtr work_;
  const std::shared_ptr<Buffers> buffers_;
  const std::shared_ptr<GroupState> group_;  // shared: says who is who, also after it was destroyed
  const CallStack stack_;
};

}  // namespace lockstep::tensor
