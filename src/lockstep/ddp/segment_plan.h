// A plan of segments says where to cut a row of stages, so that the gradients of each segment are one bucket.
//
// A segment is what a program runs as a whole: an activation checkpoint, a function that it has compiled. Its
// gradients come together, and where they are one bucket, that travels while backward is in the segment
// before it. torch cuts compiled graphs by the same rule (DDPOptimizer).
//
// Stages are walked from the last to the first, as backward goes. A segment is cut before the stage with
// which the bucket of some type and device reaches its limit; each of these has its own row of limits, as in
// a BucketPlan. Stages are never cut. Those without gradients at the beginning go with the first segment.
// Gradients that are sparse or delayed are left out of account, for they do not travel with others.
//
// Give bucket_cap_mb_list() to the model: then a bucket has the gradients of a segment and no others, after
// the first pass, if they are of one type and find_unused_parameters is off. By the limits alone it may be
// closed in the middle of a stage.
//
// Pure, but for those that read modules. Does not: run, or wrap, anything.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/ddp/options.h"

namespace lockstep::ddp {

struct Segment {
  std::size_t begin = 0;  // its first stage
  std::size_t end = 0;    // the one after its last
  std::size_t bytes = 0;  // of its gradients

  bool operator==(const Segment&) const = default;
};

// In the order of forward, all stages. `stages`: the gradients of each, in the order of forward, and one that
// several share with the first of them: it is final when backward has been there.
std::vector<Segment> plan_segments(std::span<const std::vector<PlannedGradient>> stages,
                                   const BucketLimits& limits);

// Of the options only the sizes of buckets are looked at. InvalidArgument for those that cannot be, and for a
// stage that is null.
std::vector<Segment> plan_segments(const std::vector<std::shared_ptr<torch::nn::Module>>& stages,
                                   const DataParallelOptions& options = {});
std::vector<Segment> plan_segments(const torch::nn::Sequential& stages,
                                   const DataParallelOptions& options = {});
std::vector<Segment> plan_segments(const torch::nn::ModuleList& stages,
                                   const DataParallelOptions& options = {});

// For the option of that name: how much each segment has, in the order of backward.
std::vector<double> bucket_cap_mb_list(std::span<const Segment> segments);

}  // namespace lockstep::ddp

namespace lockstep {
using ddp::bucket_cap_mb_list;
using ddp::plan_segments;
using ddp::Segment;
}  // namespace lockstep
