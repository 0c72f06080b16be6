// 06: a backend of one's own, under torch.distributed's calls: what the ranks have to say goes through the
// store in which they have met. Slow, and short enough to read.
//
// Run:
//   lockstep run --nproc 3 build/release/examples/06_own_backend
//
// Prints what is in expected_output.txt (the order of the lines differs).
//
// A project of its own needs find_package(Lockstep REQUIRED COMPONENTS torch) and
// target_link_libraries(... Lockstep::torch).

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <cstring>
#include <iostream>
#include <string>

#include "lockstep/backend/backend.h"
#include "lockstep/backend/held_call.h"
#include "lockstep/backend/membership.h"
#include "lockstep/backend/op_queue.h"
#include "lockstep/base/text.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/init.h"

namespace {

using namespace lockstep;

// One group. Membership knows who is in it; OpQueue runs its operations in their order, on the thread that
// calls or on one of its own.
class StoreBackend final : public Backend {
 public:
  explicit StoreBackend(const GroupPlan& plan)
      : who_(plan, Clock::steady()), store_(plan.store), queue_(Clock::steady(), who_.text()) {}
  ~StoreBackend() override { queue_.fail(Status::aborted("the group was destroyed")); }

  Rank rank() const override { return who_.rank(); }
  WorldSize size() const override { return who_.size(); }
  const std::string& name() const override { return who_.name(); }
  Rank world_rank(Rank member) const override { return who_.world_rank(member); }

  Status run(const Call& call, const OpOptions& options) override {
    LOCKSTEP_TRY(who_.admit(call));
    const Deadline deadline = who_.deadline_of(options);
    return queue_.run({.deadline = deadline, .name = collective::name_of(call.kind)},
                      [&](std::uint64_t number) { return perform(call, number, deadline); });
  }
  WorkPtr start(const Call& call, const OpOptions& options) override {
    if (Status admitted = who_.admit(call); !admitted.ok()) return queue_.ended(admitted);
    const Deadline deadline = who_.deadline_of(options);
    const auto held = std::make_shared<const backend::HeldCall>(call, options.keep);
    return queue_.start(
        [this, held, deadline](std::uint64_t number) { return perform(held->call, number, deadline); },
        deadline);
  }
  Status monitored_barrier(const OpOptions& /*options*/) override { return cannot("monitored_barrier"); }
  WorkPtr send(Rank /*to*/, std::uint64_t /*tag*/, ByteView /*bytes*/,
               const OpOptions& /*options*/) override {
    return queue_.ended(cannot("send"));
  }
  WorkPtr recv(std::optional<Rank> /*from*/, std::uint64_t /*tag*/, ByteSpan /*bytes*/,
               const OpOptions& /*options*/) override {
    return queue_.ended(cannot("recv"));
  }

  Duration timeout() const override { return who_.timeout(); }
  void set_timeout(Duration timeout) override { who_.set_timeout(timeout); }
  std::uint64_t sequence() const override { return queue_.last_sequence(); }
  Status failure() const override { return queue_.failure(); }
  void abort(const Status& why) override { queue_.fail(why); }

 private:
  static Status cannot(std::string_view what) {
    return Status::unsupported(cat("the backend \"store\" of this example has no ", what));
  }

  // Every rank puts its bytes into the store, and gets those of all. Whoever comes back from operation 7
  // knows that all have begun it, so that nobody needs those of operation 6 any more.
  Status perform(const Call& call, std::uint64_t number, const Deadline& deadline) {
    const bool sums = call.dtype == DType::kFloat32 && call.reduce_op == ReduceOp::kSum;
    if (call.kind == OpKind::kAllReduce ? !sums
                                        : call.kind != OpKind::kBroadcast && call.kind != OpKind::kBarrier)
      return cannot(cat(collective::name_of(call.kind), " of this kind"));
    const ByteSpan data = call.outputs.empty() ? ByteSpan() : call.outputs[0];
    LOCKSTEP_TRY(store_->set(cat(number, "/", rank()), data, deadline));
    for (int r = 0; r < size().value; ++r) {
      LOCKSTEP_ASSIGN(const Buffer theirs, store_->get(cat(number, "/", r), deadline));
      if (call.kind == OpKind::kBroadcast && r == call.root.value)
        std::memcpy(data.data(), theirs.data(), data.size());
      if (call.kind == OpKind::kAllReduce) add(theirs, r == 0, data);
    }
    if (number > 1) LOCKSTEP_TRY(store_->delete_key(cat(number - 1, "/", rank()), deadline).status());
    return {};
  }

  static void add(const Buffer& theirs, bool is_first, ByteSpan sum) {
    for (std::size_t i = 0; i < sum.size(); i += sizeof(float)) {
      float total = 0;
      float more = 0;
      std::memcpy(&total, &sum[i], sizeof(float));
      std::memcpy(&more, &theirs[i], sizeof(float));
      total = is_first ? more : total + more;
      std::memcpy(&sum[i], &total, sizeof(float));
    }
  }

  Membership who_;
  const std::shared_ptr<Store> store_;
  backend::OpQueue queue_;
};

void say(const std::string& what) {
  std::cout << ("rank " + std::to_string(get_rank()) + ": " + what + "\n") << std::flush;
}

}  // namespace

int main() {
  const auto make = [](const GroupPlan& plan) -> Result<std::unique_ptr<Backend>> {
    return std::unique_ptr<Backend>(std::make_unique<StoreBackend>(plan));
  };
  const auto world = init_process_group({.backend = "store", .backends = {{"store", own_backend(make)}}});

  const at::Tensor tensor = at::full({4}, static_cast<float>(get_rank() + 1));
  all_reduce(tensor);
  say("the sum over " + std::to_string(get_world_size()) + " ranks on " + get_backend_config() + " is " +
      std::to_string(tensor[0].item<int>()));

  const ProcessGroup ends = new_group({0, get_world_size() - 1});
  if (ends.is_member()) {
    const WorkHandle work =
        broadcast(tensor.fill_(get_rank() + 10), {.group_src = 1, .group = ends, .async_op = true});
    work.wait();
    say("the last rank sent " + std::to_string(tensor[0].item<int>()));
  }
  try {
    all_reduce(tensor, {.op = ReduceOp::kMax});
  } catch (const Unsupported& error) {
    say(std::string(error.message()));
  }
  barrier();
}
