#include "lockstep/ddp/comm_hook.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/ddp/options.h"
#include "lockstep/tensor/purpose.h"

namespace lockstep::ddp {
namespace {

class AllReduceHook final : public CommHook {
 public:
  explicit AllReduceHook(std::optional<tensor::ProcessGroup> group) : group_(std::move(group)) {}

  HookWork reduce(GradBucket& bucket) override {
    const at::Tensor& buffer = bucket.buffer();
    const tensor::ProcessGroup& group = group_ ? *group_ : bucket.group();
    if (group.size() == 1) return {};  // a sparse gradient is not even coalesced, as without the hook
    if (!buffer.is_sparse())
      return {tensor::all_reduce_for(bucket.purpose(), buffer,
                                     {.op = ReduceOp::kAvg, .group = group, .async_op = true})};
    return {tensor::all_reduce_for(bucket.purpose(), buffer, {.group = group, .async_op = true}),
            [buffer, size = group.size()] { buffer.div_(size); }};
  }
  std::string name() const override { return "all_reduce"; }

 private:
  const std::optional<tensor::ProcessGroup> group_;
};

class NoopHook final : public CommHook {
 public:
  HookWork reduce(GradBucket&) override { return {}; }
  std::string name() const override { return "noop"; }
};

class FunctionHook final : public CommHook {
 public:
  FunctionHook(std::function<HookWork(GradBucket&)> function, std::string name)
      : function_(std::move(function)), name_(std::move(name)) {}
  HookWork reduce(GradBucket& bucket) override { return function_(bucket); }
  std::string name() const override { return name_; }

 private:
  const std::function<HookWork(GradBucket&)> function_;
  const std::string name_;
};

class CompressHook final : public CommHook {
 public:
  CompressHook(at::ScalarType type, CommHookPtr inner) : type_(type), inner_(std::move(inner)) {}

  HookWork reduce(GradBucket& bucket) override {
    const at::Tensor wide = bucket.buffer();
    if (!wide.is_floating_point() || wide.is_sparse()) return inner_->reduce(bucket);
    const at::Tensor narrow = wide.to(type_);
    bucket.set_buffer(narrow);
    HookWork inner = inner_->reduce(bucket);
    return {std::move(inner.work), [&bucket, wide, narrow, then = std::move(inner.then)] {
              if (then) then();
              const at::Tensor given = bucket.buffer();
              const bool fits = given.defined() && given.sizes() == narrow.sizes() &&
                                given.scalar_type() == narrow.scalar_type();
              if (!fits) return;  // which is said of the bucket's buffer
              wide.copy_(given);
              bucket.set_buffer(wide);
            }};
  }
  std::string name() const override {
    return cat(type_ == at::kHalf ? "fp16_compress(" : "bf16_compress(", inner_->name(), ')');
  }

 private:
  const at::ScalarType type_;
  const CommHookPtr inner_;
};

}  // namespace

CommHookPtr all_reduce_hook(const std::optional<tensor::ProcessGroup>& group) {
  return std::make_shared<AllReduceHook>(group);
}
CommHookPtr fp16_compress_hook(const std::optional<tensor::ProcessGroup>& group) {
  return fp16_compress_wrapper(all_reduce_hook(group));
}
CommHookPtr bf16_compress_hook(const std::optional<tensor::ProcessGroup>& group) {
  return bf16_compress_wrapper(all_reduce_hook(group));
}
CommHookPtr fp16_compress_wrapper(CommHookPtr hook) {
  if (!hook) refuse("fp16_compress_wrapper: the hook is null.");
  return std::make_shared<CompressHook>(at::kHalf, std::move(hook));
}
CommHookPtr bf16_compress_wrapper(CommHookPtr hook) {
  if (!hook) refuse("bf16_compress_wrapper: the hook is null.");
  return std::make_shared<CompressHook>(at::kBFloat16, std::move(hook));
}
CommHookPtr noop_hook() { return std::make_shared<NoopHook>(); }
CommHookPtr function_hook(std::function<HookWork(GradBucket&)> function, std::string name) {
  if (!function) refuse("register_comm_hook: the hook is an empty function.");
  return std::make_shared<FunctionHook>(std::move(function), std::move(name));
}

}  // namespace lockstep::ddp
