// A rank of the conformance suite on the adapter to c10d. Under it is a c10d::Backend of the tests' own,
// which hands everything to a native group.
#include <c10/util/Exception.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "lockstep/backend/world.h"
#include "lockstep/tensor/borrowed/borrowed.h"
#include "lockstep/tensor/operation.h"
#include "lockstep/testing/backend_conformance.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
using LentWork = c10::intrusive_ptr<c10d::Work>;

void throw_as_c10d(const Status& status) {
  const std::string text = status.text();
  switch (status.code()) {
    case Code::kOk:
      return;
    case Code::kInvalid:
      C10_THROW_ERROR(ValueError, text);
    case Code::kUnsupported:
      C10_THROW_ERROR(NotImplementedError, text);
    case Code::kDisconnected:
      C10_THROW_ERROR(DistNetworkError, text);
    default:
      C10_THROW_ERROR(DistBackendError, text);
  }
}

class NativeWork final : public c10d::Work {
 public:
  explicit NativeWork(WorkPtr work) : work_(std::move(work)) {}
  bool isCompleted() override { return work_->is_completed(); }
  bool isSuccess() const override { return work_->is_success(); }
  int sourceRank() const override { return work_->source().value_or(Rank{-1}).value; }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool forever = timeout == kNoTimeout;
    throw_as_c10d(forever ? work_->wait() : work_->wait(Clock::steady().in(timeout)));
    return true;
  }

 private:
  const WorkPtr work_;
};

class NativeInC10d final : public c10d::Backend {
 public:
  explicit NativeInC10d(std::unique_ptr<backend::Backend> group)
      : c10d::Backend(group->rank().value, group->size().value), group_(std::move(group)) {}
  const std::string getBackendName() const override { return "native-in-c10d"; }
  void abort() override { group_->abort(Status::aborted("c10d's abort() was called")); }

  LentWork broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    return start({.kind = OpKind::kBroadcast, .root = root(opts)}, {}, tensors);
  }
  LentWork allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return start(reducing(OpKind::kAllReduce, opts.reduceOp), {}, tensors);
  }
  LentWork reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    Call call = reducing(OpKind::kReduce, opts.reduceOp);
    call.root = root(opts);
    return start(call, tensors, getRank() == opts.rootRank ? tensors : Tensors());
  }
  LentWork allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override {
    return start({.kind = OpKind::kAllGather}, inputs, outputs.at(0));
  }
  LentWork gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    return start({.kind = OpKind::kGather, .root = root(opts)}, inputs,
                 outputs.empty() ? Tensors() : outputs[0]);
  }
  LentWork scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& opts) override {
    return start({.kind = OpKind::kScatter, .root = root(opts)}, inputs.empty() ? Tensors() : inputs[0],
                 outputs);
  }
  LentWork reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& opts) override {
    return start(reducing(OpKind::kReduceScatter, opts.reduceOp), inputs.at(0), outputs);
  }
  LentWork alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) override {
    return start({.kind = OpKind::kAllToAll}, inputs, outputs);
  }
  LentWork barrier(const c10d::BarrierOptions&) override { return start({}, {}, {}); }

  LentWork send(Tensors& tensors, int to, int tag) override {
    return lend(group_->send(Rank{to}, static_cast<std::uint64_t>(tag), bytes_of(tensors[0]), kept(tensors)));
  }
  LentWork recv(Tensors& tensors, int from, int tag) override { return receive(tensors, Rank{from}, tag); }
  LentWork recvAnysource(Tensors& tensors, int tag) override { return receive(tensors, {}, tag); }

 private:
  static ByteSpan bytes_of(const at::Tensor& tensor) {
    return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
  }
  static OpOptions kept(Tensors tensors) { return {.keep = std::make_shared<Tensors>(std::move(tensors))}; }
  static LentWork lend(WorkPtr work) { return c10::make_intrusive<NativeWork>(std::move(work)); }
  template <typename Options>
  static Rank root(const Options& options) {
    return Rank(static_cast<int>(options.rootRank));
  }
  static Call reducing(OpKind kind, const c10d::ReduceOp& op) {
    Call call{.kind = kind, .reduce_op = static_cast<ReduceOp>(op.op_)};  // numbered as ours
    if (const auto* const factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get()))
      call.factor = factor->double_factor;
    return call;
  }

  LentWork receive(Tensors& tensors, std::optional<Rank> from, int tag) {
    return lend(group_->recv(from, static_cast<std::uint64_t>(tag), bytes_of(tensors[0]), kept(tensors)));
  }

  LentWork start(Call call, const Tensors& inputs, const Tensors& outputs) {
    std::vector<ByteView> in;
    std::vector<ByteSpan> out;
    Tensors all = inputs;
    all.insert(all.end(), outputs.begin(), outputs.end());
    for (const at::Tensor& tensor : inputs) in.push_back(bytes_of(tensor));
    for (const at::Tensor& tensor : outputs) out.push_back(bytes_of(tensor));
    if (!all.empty()) call.dtype = tensor::dtype_of(all[0].scalar_type()).value();
    call.inputs = in;
    call.outputs = out;
    WorkPtr work = group_->start(call, kept(std::move(all)));
    if (work->is_completed()) throw_as_c10d(work->status());
    return lend(std::move(work));
  }

  const std::unique_ptr<backend::Backend> group_;
};

Result<std::unique_ptr<Groups>> join() {
  // Made with the first group, which is that of all ranks.
  const auto world = std::make_shared<std::unique_ptr<World>>();
  const tensor::BackendSource borrowed = borrowed_backend([world](const GroupPlan& plan) {
    const auto environment = Environment::read();
    throw_as_c10d(environment.status());
    if (!*world) {
      const WorldSize size{static_cast<int>(plan.members.size())};
      auto joined = World::join({.rendezvous = {.store = plan.store, .rank = plan.rank, .world_size = size}},
                                *environment);
      throw_as_c10d(joined.status());
      *world = std::move(*joined);
    }
    // The world has a group "world" of its own.
    auto group = (*world)->new_group(plan.members, {.name = "lent " + plan.name, .timeout = plan.timeout});
    throw_as_c10d(group.status());
    return c10::make_intrusive<NativeInC10d>(std::move(*group));
  });
  LOCKSTEP_ASSIGN(const Environment environment, Environment::read());
  return borrowed.join({}, environment);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::testing::run_backend_conformance(argc, argv, "borrowed", lockstep::join,
                                                    {"a receive that gives up is withdrawn"});
}
