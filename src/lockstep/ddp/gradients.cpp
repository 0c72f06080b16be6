#include "lockstep/ddp/gradients.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::ddp {
namespace {

bool is_in(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The place of a parameter that an option names.
std::size_t find(const NamedTensors& parameters, const char* option, const std::string& name) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].first == name) return i;
  }
  refuse(cat(option, " names ", base::quoted(name),
             ", which is no parameter that needs a gradient. A shared one goes by its first name."));
}

}  // namespace

Gradients::Gradients(const NamedTensors& parameters, const DataParallelOptions& options,
                     const std::vector<std::string>& sparse) {
  for (const std::string& name : options.delay_all_reduce_named_params)
    find(parameters, "delay_all_reduce_named_params", name);
  for (const std::string& name : options.sparse_parameters) find(parameters, "sparse_parameters", name);
  if (!options.param_to_hook_all_reduce.empty())
    delay_ends_with_ = find(parameters, "param_to_hook_all_reduce", options.param_to_hook_all_reduce);
  auto accumulators = std::make_shared<Accumulators>();
  for (const auto& [name, parameter] : parameters) {
    Gradient gradient{
        .name = name,
        .slot = options.gradient_slot ? options.gradient_slot(parameter) : tensor::own_gradient(parameter),
        .planned = {},
        .strides = {}};
    if (!gradient.slot)
      refuse(cat("the option gradient_slot gave none for the parameter ", base::quoted(name), '.'));
    const at::Tensor local = gradient.slot->local();
    gradient.planned = {.elements = static_cast<std::size_t>(local.numel()),
                        .dtype = local.scalar_type(),
                        .device = local.device(),
                        .sparse = is_in(options.sparse_parameters, name) || is_in(sparse, name),
                        .delayed = is_in(options.delay_all_reduce_named_params, name)};
    gradient.strides = gradient_strides(local);
    gradient.sparse_by_module = is_in(sparse, name) && !is_in(options.sparse_parameters, name);
    accumulators->emplace(gradient.slot->accumulator(), all_.size());
    all_.push_back(std::move(gradient));
  }
  accumulators_ = std::move(accumulators);
}

void Gradients::follow_parameters() {
  bool moved = false;
  for (const Gradient& gradient : all_) moved = gradient.slot->follow() || moved;
  if (!moved) return;
  auto now = std::make_shared<Accumulators>();
  for (std::size_t i = 0; i < all_.size(); ++i) now->emplace(all_[i].slot->accumulator(), i);
  accumulators_ = std::move(now);
}

std::vector<PlannedGradient> Gradients::planned() const {
  std::vector<PlannedGradient> planned;
  planned.reserve(size());
  for (const Gradient& gradient : all_) planned.push_back(gradient.planned);
  return planned;
}

std::string Gradients::names_text(const std::vector<std::size_t>& parameters) const {
  constexpr std::size_t kNamed = 20;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(parameters.size(), kNamed); ++i)
    names.push_back(base::quoted(name(parameters[i])));
  std::string text = base::join(names);
  if (parameters.size() > kNamed) text += cat(" and ", parameters.size() - kNamed, " others");
  return text;
}

void Gradients::lay_out(BucketPlan plan) {
  const at::NoGradGuard no_grad;
  std::vector<std::unique_ptr<GradBucket>> buckets;
  std::vector<Place> places(size());
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const std::vector<std::size_t>& parameters = plan.buckets[b];
    std::vector<at::Tensor> locals;
    std::vector<std::vector<std::int64_t>> strides;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      locals.push_back(slot(parameters[i]).local());
      strides.push_back(strides_of(parameters[i]));
      places[parameters[i]] = {b, i};
    }
    const bool sparse = all_[parameters.front()].planned.sparse;
    buckets.push_back(std::make_unique<GradBucket>(sparse ? GradBucket::for_sparse(b, locals.front())
                                                          : GradBucket(b, std::move(locals), strides)));
    buckets.back()->set_last(b + 1 == plan.buckets.size());
  }
  for (std::size_t parameter = 0; parameter < size() && !buckets_.empty(); ++parameter) {
    const auto [bucket, place] = places_[parameter];
    const at::Tensor gradient = slot(parameter).gradient();
    if (!gradient.defined() || buckets_[bucket]->sparse() || !buckets_[bucket]->holds(place, gradient))
      continue;
    const at::Tensor& view = buckets[places[parameter].bucket]->view(places[parameter].place);
    view.copy_(gradient);
    slot(parameter).set_gradient(view);
  }
  plan_ = std::move(plan);
  buckets_ = std::move(buckets);
  places_ = std::move(places);
}

}  // namespace lockstep::ddp
