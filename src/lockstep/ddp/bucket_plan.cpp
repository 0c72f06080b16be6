#include "lockstep/ddp/bucket_plan.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/check.h"

namespace lockstep::ddp {
namespace {

// The bucket of one type and device that still takes gradients.
struct Open {
  c10::ScalarType dtype;
  c10::Device device;
  std::vector<std::size_t> parameters = {};
  std::size_t bytes = 0;
  std::size_t closed = 0;  // how many were closed before it
};

enum class Which : std::uint8_t { kPrompt, kDelayed };

void append(BucketPlan& plan, Which which, std::span<const PlannedGradient> gradients,
            std::span<const std::size_t> order, const BucketLimits& limits) {
  std::vector<Open> rows;
  for (const std::size_t parameter : order) {
    const PlannedGradient& gradient = gradients[parameter];
    if (gradient.delayed != (which == Which::kDelayed)) continue;
    if (gradient.sparse) {
      plan.buckets.push_back({parameter});
      continue;
    }
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Open& open) {
      return open.dtype == gradient.dtype && open.device == gradient.device;
    });
    if (row == rows.end()) {
      rows.push_back({.dtype = gradient.dtype, .device = gradient.device});
      row = rows.end() - 1;
    }
    row->parameters.push_back(parameter);
    row->bytes += gradient.bytes();
    if (row->bytes < limits[std::min(row->closed, limits.size() - 1)]) continue;
    plan.buckets.push_back(std::move(row->parameters));
    row->parameters.clear();
    row->bytes = 0;
    ++row->closed;
  }
  for (Open& row : rows) {
    if (!row.parameters.empty()) plan.buckets.push_back(std::move(row.parameters));
  }
}

}  // namespace

BucketPlan plan_in_order(std::span<const PlannedGradient> gradients, std::span<const std::size_t> order,
                         const BucketLimits& limits) {
  LOCKSTEP_CHECK(!limits.empty(), "a plan needs a limit");
  BucketPlan plan;
  append(plan, Which::kPrompt, gradients, order, limits);
  append(plan, Which::kDelayed, gradients, order, limits);
  return plan;
}

BucketPlan plan_before_first_pass(std::span<const PlannedGradient> gradients, const BucketLimits& limits) {
  std::vector<std::size_t> order(gradients.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  BucketPlan plan = plan_in_order(gradients, order, limits);
  // The parameters of a bucket keep their order; the buckets are turned round.
  std::sort(plan.buckets.begin(), plan.buckets.end(), [&](const auto& a, const auto& b) {
    const bool delayed = gradients[a.front()].delayed;
    if (delayed != gradients[b.front()].delayed) return !delayed;
    return *std::min_element(a.begin(), a.end()) > *std::min_element(b.begin(), b.end());
  });
  return plan;
}

std::vector<std::size_t> bucket_sizes(const BucketPlan& plan, std::span<const PlannedGradient> gradients) {
  std::vector<std::size_t> sizes;
  for (const auto& bucket : plan.buckets) {
    std::size_t bytes = 0;
    for (const std::size_t parameter : bucket) bytes += gradients[parameter].bytes();
    sizes.push_back(bytes);
  }
  return sizes;
}

}  // namespace lockstep::ddp
