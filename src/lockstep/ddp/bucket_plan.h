// A BucketPlan says which gradients travel together, and in which order.
//
// Pure: the same parameters, order and limits give the same plan on every rank. The rule is torch's.
// Gradients are taken in turn and put into the open bucket of their type and device, which is closed as soon
// as it has reached its limit. Every type and device has its own row of limits; the last of a row holds for
// all that follow. A gradient that is sparse travels alone. What is still open at the end is closed in the
// order in which it was opened (torch: in that of a hash table). Those that are delayed travel after all
// others, in buckets of their own.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::ddp {

struct PlannedGradient {
  std::size_t elements = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  bool sparse = false;
  bool delayed = false;

  std::size_t bytes() const { return elements * c10::elementSize(dtype); }
};

struct BucketPlan {
  // Buckets in the order in which they travel; in each the numbers of its parameters.
  std::vector<std::vector<std::size_t>> buckets = {};

  bool operator==(const BucketPlan&) const = default;
};

// Bytes; the last holds for all buckets that follow.
using BucketLimits = std::vector<std::size_t>;

// Before a backward pass has been seen: gradients are expected in the reverse of the parameters' order.
BucketPlan plan_before_first_pass(std::span<const PlannedGradient> gradients, const BucketLimits& limits);

// As they were seen to become ready. `order` has every parameter once.
BucketPlan plan_in_order(std::span<const PlannedGradient> gradients, std::span<const std::size_t> order,
                         const BucketLimits& limits);

// How many bytes each bucket has.
std::vector<std::size_t> bucket_sizes(const BucketPlan& plan, std::span<const PlannedGradient> gradients);

}  // namespace lockstep::ddp
