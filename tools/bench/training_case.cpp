#include "tools/bench/training_case.h"

#include "lockstep/base/text.h"

namespace lockstep::bench {

std::optional<TrainingModel> parse_training_model(std::string_view name) {
  if (name == "resnet18") return TrainingModel{.kind = ModelKind::kResNet18};
  if (name == "gpt-small") return TrainingModel{.kind = ModelKind::kGptSmall};
  constexpr std::string_view kMlp = "mlp-";
  const std::size_t times = name.find('x');
  if (!name.starts_with(kMlp) || times == std::string_view::npos) return std::nullopt;
  const auto width = base::parse_integer<int>(name.substr(kMlp.size(), times - kMlp.size()));
  const auto depth = base::parse_integer<int>(name.substr(times + 1));
  if (!width || !depth || *width < 1 || *width > 16384 || *depth < 1 || *depth > 256) return std::nullopt;
  return TrainingModel{.kind = ModelKind::kMlp, .width = *width, .depth = *depth};
}

}  // namespace lockstep::bench
