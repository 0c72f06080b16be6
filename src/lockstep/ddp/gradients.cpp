#include "lockstep/ddp/gradients.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::ddp {

std::vector<PlannedGradient> Gradients::planned() const {
  std::vector<PlannedGradient> planned;
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
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      locals.push_back(slot(parameters[i]).local());
      places[parameters[i]] = {b, i};
    }
    const bool sparse = all_[parameters.front()].planned.sparse;
    buckets.push_back(std::make_unique<GradBucket>(sparse ? GradBucket::for_sparse(b, locals.front())
                                                          : GradBucket(b, std::move(locals))));
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
