#include "lockstep/tensor/rounds.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/collective/dtype.h"
#include "lockstep/tensor/operation.h"

namespace lockstep::tensor {
namespace {

// What the rounds of one operation refer to.
class ReduceRounds {
 public:
  ReduceRounds(const Operation& op, Reduction reduction, at::Tensor first)
      : call_(op.call()), at_(op.state()->global_rank()), reduction_(reduction), tensor_(std::move(first)) {}

  Result<Call> reduce() {
    bytes_ = {static_cast<std::byte*>(tensor_.mutable_data_ptr()), tensor_.nbytes()};
    return Call{.kind = OpKind::kAllReduce,
                .dtype = *dtype_of(tensor_.scalar_type()),
                .reduce_op = reduction_.op,
                .factor = reduction_.factor,
                .outputs = {&bytes_, 1}};
  }
  Result<Call> reduce_next(const std::function<at::Tensor()>& next) {
    Status failed;
    guarded(failed, [&] {
      const c10::Device device = tensor_.device();
      tensor_ = next();
      if (const std::string wrong = misfit(device); !wrong.empty()) failed = status(wrong);
    });
    if (!failed.ok()) return failed;
    return reduce();
  }
  Status finish(const std::function<void()>& last) {
    Status failed;
    guarded(failed, last);
    return failed;
  }

 private:
  Status status(const std::string& what) const {
    return Status::aborted(cat("rank ", at_, ": ", call_, ": ", what),
                           {.failure = Failure::kRemoteError, .peer = at_, .op = call_});
  }
  // torch's exceptions end here: another thread than the caller's may run this.
  template <typename Body>
  void guarded(Status& failed, const Body& body) {
    const at::ThreadLocalStateGuard state(here_);
    const at::NoGradGuard no_grad;
    try {
      body();
    } catch (const std::exception& error) {
      failed = status(cat("what is computed between its rounds has thrown: ", error.what()));
    } catch (...) {
      failed = status("what is computed between its rounds has thrown something that is no std::exception");
    }
  }
  std::string misfit(c10::Device device) const {
    if (!tensor_.defined()) return "the tensor of a round is undefined.";
    if (tensor_.layout() != at::kStrided || !tensor_.is_contiguous())
      return cat("the tensor of a round, of shape ", shape_text(tensor_), ", is not contiguous.");
    if (tensor_.device() != device)
      return cat("the tensor of a round is on ", tensor_.device().str(), ", that of the round before on ",
                 device.str(), '.');
    const std::optional<DType> dtype = dtype_of(tensor_.scalar_type());
    if (!dtype) return cat("the tensor of a round is of type ", no_dtype_text(tensor_.scalar_type()));
    return std::string(collective::check_reducible(*dtype, reduction_.op).message());
  }

  const char* const call_;
  const Rank at_;
  const Reduction reduction_;
  const at::ThreadLocalState here_;
  at::Tensor tensor_;  // of the round that runs
  ByteSpan bytes_;
};

}  // namespace

WorkHandle all_reduce_rounds(const at::Tensor& first, std::vector<std::function<at::Tensor()>> next,
                             std::function<void()> finish, const ReduceOptions& options) {
  Operation op("all_reduce_rounds", options.group);
  if (!op.member()) return {};
  op.in_place(first, {"first"});
  op.check_together();
  if (!first.is_contiguous()) op.refuse("first is not contiguous; its rounds work in place.");
  for (const auto& each : next) {
    if (!each) op.refuse("next has an empty function.");
  }
  const Status possible = collective::check_reducible(op.dtype(), options.op.op);
  if (!possible.ok()) op.refuse("op: ", possible.message());
  const auto all = std::make_shared<ReduceRounds>(op, options.op, first);
  Rounds rounds;
  rounds.calls.emplace_back([all] { return all->reduce(); });
  for (auto& each : next)
    rounds.calls.emplace_back([all, each = std::move(each)] { return all->reduce_next(each); });
  if (finish) rounds.finish = [all, finish = std::move(finish)] { return all->finish(finish); };
  return op.issue_rounds(std::move(rounds), all, first, {options.async_op, options.timeout});
}

}  // namespace lockstep::tensor
