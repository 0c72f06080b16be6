#include "lockstep/ddp/segment_plan.h"

#include <algorithm>
#include <unordered_set>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/ddp/module_view.h"
#include "lockstep/ddp/parameters.h"

namespace lockstep::ddp {
namespace {

// Of one type and device: what has not reached the limit yet.
struct Row {
  c10::ScalarType dtype;
  c10::Device device;
  std::size_t gradients = 0;
  std::size_t bytes = 0;
  std::size_t closed = 0;  // buckets before
};

// How many bytes the stage has.
std::size_t add(std::vector<Row>& rows, const std::vector<PlannedGradient>& stage) {
  std::size_t bytes = 0;
  for (const PlannedGradient& gradient : stage) {
    if (gradient.sparse || gradient.delayed) continue;
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& each) {
      return each.dtype == gradient.dtype && each.device == gradient.device;
    });
    if (row == rows.end())
      row = rows.insert(rows.end(), {.dtype = gradient.dtype, .device = gradient.device});
    ++row->gradients;
    row->bytes += gradient.bytes();
    bytes += gradient.bytes();
  }
  return bytes;
}

// Whether there was one to close.
bool close_full(std::vector<Row>& rows, const BucketLimits& limits) {
  bool any = false;
  for (Row& row : rows) {
    if (row.gradients == 0 || row.bytes < limits[std::min(row.closed, limits.size() - 1)]) continue;
    any = true;
    row.gradients = row.bytes = 0;
    ++row.closed;
  }
  return any;
}

}  // namespace

std::vector<Segment> plan_segments(std::span<const std::vector<PlannedGradient>> stages,
                                   const BucketLimits& limits) {
  LOCKSTEP_CHECK(!limits.empty(), "a plan needs a limit");
  std::vector<Row> rows;
  std::vector<Segment> segments;  // from the last
  Segment open{.begin = stages.size(), .end = stages.size()};
  while (open.begin > 0) {
    --open.begin;
    open.bytes += add(rows, stages[open.begin]);
    if (!close_full(rows, limits)) continue;
    segments.push_back(open);
    open = {.begin = open.begin, .end = open.begin};
  }
  if (open.bytes == 0 && !segments.empty()) {
    segments.back().begin = 0;
  } else if (open.end > 0) {
    segments.push_back(open);
  }
  std::reverse(segments.begin(), segments.end());
  return segments;
}

std::vector<Segment> plan_segments(const std::vector<std::shared_ptr<torch::nn::Module>>& stages,
                                   const DataParallelOptions& options) {
  check(options);
  std::unordered_set<const c10::TensorImpl*> counted;
  std::vector<std::vector<PlannedGradient>> planned;
  for (const auto& stage : stages) {
    if (!stage) refuse(cat("plan_segments: stage ", planned.size(), " is null."));
    const std::unique_ptr<ModuleView> view = view_of(stage);
    const std::vector<std::string> sparse = view->sparse_parameters();
    std::vector<PlannedGradient>& own = planned.emplace_back();
    for (const auto& [name, parameter] : without_repeats(view->parameters(), names_to_ignore(*view, {}))) {
      if (!parameter.requires_grad() || !counted.insert(parameter.unsafeGetTensorImpl()).second) continue;
      own.push_back({.elements = static_cast<std::size_t>(parameter.numel()),
                     .dtype = parameter.scalar_type(),
                     .device = parameter.device(),
                     .sparse = std::find(sparse.begin(), sparse.end(), name) != sparse.end()});
    }
  }
  return plan_segments(planned, limits_of(options));
}

std::vector<Segment> plan_segments(const torch::nn::Sequential& stages, const DataParallelOptions& options) {
  return plan_segments(stages->children(), options);
}
std::vector<Segment> plan_segments(const torch::nn::ModuleList& stages, const DataParallelOptions& options) {
  return plan_segments(stages->children(), options);
}

std::vector<double> bucket_cap_mb_list(std::span<const Segment> segments) {
  constexpr double kMiB = 1 << 20;
  std::vector<double> caps;
  for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
    if (segment->bytes > 0) caps.push_back(static_cast<double>(segment->bytes) / kMiB);
  }
  return caps;
}

}  // namespace lockstep::ddp
