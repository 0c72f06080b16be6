#include "lockstep/tensor/gradient_slot.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::tensor {
namespace {

using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));
using torch::autograd::variable_list;

class OwnGradient final : public GradientSlot {
 public:
  explicit OwnGradient(const at::Tensor& parameter)
      : parameter_(parameter), accumulator_(torch::autograd::impl::grad_accumulator(parameter)) {}
  ~OwnGradient() override {
    for (const auto& [node, hook] : hooks_) node->del_post_hook(hook);
  }
  OwnGradient(const OwnGradient&) = delete;
  OwnGradient& operator=(const OwnGradient&) = delete;

  at::Tensor local() const override { return parameter_; }
  at::Tensor gradient() const override { return parameter_.grad(); }
  void set_gradient(const at::Tensor& gradient) override { parameter_.mutable_grad() = gradient; }
  bool may_alias() const override { return accumulator_->post_hooks().size() <= 1; }  // the hook here
  const torch::autograd::Node* accumulator() const override { return accumulator_.get(); }
  void when_accumulated(std::function<void()> then) override {
    then_ = std::move(then);
    listen();
  }
  bool follow() override {
    Accumulator now = torch::autograd::impl::grad_accumulator(parameter_);
    if (!now || now == accumulator_) return false;  // none while it needs no gradient
    accumulator_ = std::move(now);
    std::erase_if(hooks_, [](const auto& hook) { return hook.first.use_count() == 1; });  // in no graph
    if (then_) listen();
    return true;
  }

 private:
  void listen() {
    const std::uintptr_t hook =
        accumulator_->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
            [then = then_](const variable_list& outputs, const variable_list&) {
              then();
              return outputs;
            }));
    hooks_.emplace_back(accumulator_, hook);
  }

  const at::Tensor parameter_;
  Accumulator accumulator_;  // shared: the graph alone would let it go after each backward
  std::function<void()> then_;
  std::vector<std::pair<Accumulator, std::uintptr_t>>
      hooks_;  // the last is that of accumulator_; the others are those of graphs that were made before
};

}  // namespace

std::unique_ptr<GradientSlot> own_gradient(const at::Tensor& parameter) {
  return std::make_unique<OwnGradient>(parameter);
}

}  // namespace lockstep::tensor
