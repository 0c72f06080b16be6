// A communication hook says how the gradients of one bucket become those of all ranks.
//
//   model.register_comm_hook([](lockstep::GradBucket& bucket) {
//     return lockstep::HookWork{lockstep::all_reduce(
//         bucket.buffer(), {.op = ReduceOp::kAvg, .group = bucket.group(), .async_op = true})};
//   });
//
// It is called once for each bucket and synchronised backward pass, in the same order of buckets on all
// ranks, while the rest of the backward pass goes on. It starts the communication and returns; when the
// backward pass is over, the work of each bucket is waited for in that order, and then its `then` is called.
// What then is in the bucket's buffer is what the gradients become: a hook owns its scaling, and the default
// mean is a hook like any other. A hook of several rounds, of which one needs what the last has brought,
// returns one work of all of them: all_reduce_rounds() in tensor/rounds.h, whose rounds follow each other
// while backward goes on, before those of the next bucket.
//
// Thread safety: a hook is called by one thread at a time, with no lock held, but not always by the same.
// Errors: what a hook throws ends the backward pass of this rank, and the group: the other ranks get
// RemoteError with its text.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/ddp/bucket.h"
#include "lockstep/tensor/process_group.h"
#include "lockstep/tensor/work_handle.h"

namespace lockstep::ddp {

struct HookWork {
  tensor::WorkHandle work = {};     // waited for at the end of the backward pass
  std::function<void()> then = {};  // called after that; does not communicate
};

class CommHook {
 public:
  virtual ~CommHook() = default;
  virtual HookWork reduce(GradBucket& bucket) = 0;
  // For logs: "all_reduce".
  virtual std::string name() const = 0;
};

using CommHookPtr = std::shared_ptr<CommHook>;  // shared: a hook may wrap another, and serve several models

// The mean over all ranks of the group, the model's own if none is given: the default.
CommHookPtr all_reduce_hook(const std::optional<tensor::ProcessGroup>& group = {});
// The same, of gradients rounded to 16 bits. Sums are kept in 32 bits, and rounded once.
CommHookPtr fp16_compress_hook(const std::optional<tensor::ProcessGroup>& group = {});
CommHookPtr bf16_compress_hook(const std::optional<tensor::ProcessGroup>& group = {});
// What `hook` does, on gradients rounded to 16 bits; complex and sparse ones stay as they are.
CommHookPtr fp16_compress_wrapper(CommHookPtr hook);
CommHookPtr bf16_compress_wrapper(CommHookPtr hook);
// Every rank keeps its own gradients; for measuring what communication costs.
CommHookPtr noop_hook();
CommHookPtr function_hook(std::function<HookWork(GradBucket&)> function, std::string name = "a function");

}  // namespace lockstep::ddp

namespace lockstep {
using ddp::all_reduce_hook;
using ddp::bf16_compress_hook;
using ddp::bf16_compress_wrapper;
using ddp::CommHook;
using ddp::CommHookPtr;
using ddp::fp16_compress_hook;
using ddp::fp16_compress_wrapper;
using ddp::function_hook;
using ddp::HookWork;
using ddp::noop_hook;
}  // namespace lockstep
