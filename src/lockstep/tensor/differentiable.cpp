#include "lockstep/tensor/differentiable.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

namespace lockstep::tensor {
namespace {

constexpr const char* kDerivative = "derivative";
constexpr std::size_t kOtherArguments = 2;  // of forward(), which have no gradient

// What the node keeps from forward to backward.
struct Kept : torch::CustomClassHolder {
  explicit Kept(Derivative given) : derivative(std::move(given)) {}
  Derivative derivative;
};

struct RecordedStep : torch::autograd::Function<RecordedStep> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                at::TensorList /*inputs*/,
                                                const std::function<std::vector<at::Tensor>()>& forward,
                                                Derivative derivative) {
    context->saved_data[kDerivative] =
        c10::IValue::make_capsule(c10::make_intrusive<Kept>(std::move(derivative)));
    return forward();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(context->saved_data[kDerivative].toCapsule());
    torch::autograd::variable_list results = kept->derivative(gradients);
    results.resize(results.size() + kOtherArguments);
    return results;
  }
};

}  // namespace

bool records(const std::vector<at::Tensor>& inputs) {
  return at::GradMode::is_enabled() && torch::autograd::any_variable_requires_grad(inputs);
}

std::vector<at::Tensor> differentiable(const std::vector<at::Tensor>& inputs,
                                       const std::function<std::vector<at::Tensor>()>& forward,
                                       Derivative derivative) {
  if (records(inputs)) return RecordedStep::apply(at::TensorList(inputs), forward, std::move(derivative));
  const at::NoGradGuard no_grad;
  return forward();
}

}  // namespace lockstep::tensor
