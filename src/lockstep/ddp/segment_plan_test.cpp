#include "lockstep/ddp/segment_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/tensor/errors.h"

namespace lockstep::ddp {
namespace {

namespace nn = torch::nn;
using Stages = std::vector<std::vector<PlannedGradient>>;
using Segments = std::vector<Segment>;

PlannedGradient floats(std::size_t elements) { return {.elements = elements}; }
PlannedGradient doubles(std::size_t elements) {
  return {.elements = elements, .dtype = at::ScalarType::Double};
}

TEST(SegmentPlan, StagesAreWalkedFromTheEndAndCutAtTheLimit) {
  struct Case {
    std::vector<std::size_t> elements;  // of each stage
    BucketLimits limits;
    Segments expected;
  };
  const std::vector<Case> cases = {
      {{}, {8}, {}},
      {{10}, {8}, {{0, 1, 40}}},
      {{10, 10, 10, 10}, {80}, {{0, 2, 80}, {2, 4, 80}}},
      {{10, 10, 10, 10}, {81}, {{0, 1, 40}, {1, 4, 120}}},
      {{10, 10, 10, 10}, {1000}, {{0, 4, 160}}},
      {{10, 10, 10}, {0}, {{0, 1, 40}, {1, 2, 40}, {2, 3, 40}}},
      {{1, 1, 1, 1, 1, 1, 1}, {4, 8, 12}, {{0, 1, 4}, {1, 4, 12}, {4, 6, 8}, {6, 7, 4}}},
      {{100, 1, 1}, {8}, {{0, 1, 400}, {1, 3, 8}}},  // a stage is never cut
  };
  for (const Case& each : cases) {
    Stages stages;
    for (const std::size_t count : each.elements) stages.push_back({floats(count)});
    EXPECT_EQ(plan_segments(stages, each.limits), each.expected) << ::testing::PrintToString(each.elements);
  }
}

TEST(SegmentPlan, StagesWithoutGradientsGoWithTheOnesBefore) {
  const Stages stages = {{}, {}, {floats(2)}, {}, {floats(2)}, {}};
  EXPECT_EQ(plan_segments(stages, {8}), (Segments{{0, 4, 8}, {4, 6, 8}}));
  EXPECT_EQ(plan_segments(stages, {0}), (Segments{{0, 4, 8}, {4, 6, 8}}));
  EXPECT_EQ(plan_segments(Stages(3), {8}), (Segments{{0, 3, 0}}));
}

TEST(SegmentPlan, WhatDoesNotTravelWithOthersIsLeftOutOfAccount) {
  PlannedGradient sparse = floats(100);
  sparse.sparse = true;
  PlannedGradient delayed = floats(100);
  delayed.delayed = true;
  EXPECT_EQ(plan_segments(Stages{{sparse}, {floats(2), delayed}, {floats(1)}}, {8}), (Segments{{0, 3, 12}}));
}

TEST(SegmentPlan, EveryTypeHasItsOwnLimits) {
  const Stages stages = {{floats(1)}, {doubles(1)}, {floats(1), doubles(1)}, {floats(1)}};
  EXPECT_EQ(plan_segments(stages, {8, 12}), (Segments{{0, 2, 12}, {2, 4, 16}}));
  EXPECT_EQ(plan_segments(stages, {16}), (Segments{{0, 1, 4}, {1, 4, 24}}));
}

TEST(SegmentPlan, ReadsTheStagesOfModules) {
  nn::Sequential net(nn::Flatten(), nn::Linear(3, 5), nn::ReLU(), nn::Linear(5, 2), nn::ReLU());
  EXPECT_EQ(plan_segments(net), (Segments{{0, 5, 128}}));
  const Segments two = {{0, 3, 80}, {3, 5, 48}};
  EXPECT_EQ(plan_segments(net, {.bucket_cap_mb = 1e-6}), two);
  EXPECT_THAT(bucket_cap_mb_list(two), ::testing::ElementsAre(48. / (1 << 20), 80. / (1 << 20)));
  EXPECT_THROW(plan_segments(net, {.bucket_cap_mb = -1}), tensor::InvalidArgument);
  net[3]->as<nn::Linear>()->bias.requires_grad_(false);
  EXPECT_EQ(plan_segments(net, {.bucket_cap_mb = 1e-6}), (Segments{{0, 3, 80}, {3, 5, 40}}));

  // One that two stages share is the first one's, for backward is there last.
  const nn::Linear shared(4, 4);
  const nn::ModuleList list(shared, nn::Linear(4, 4), shared,
                            nn::Embedding(nn::EmbeddingOptions(9, 4).sparse(true)));
  EXPECT_EQ(plan_segments(list, {.bucket_cap_mb = 1e-6}), (Segments{{0, 1, 80}, {1, 4, 80}}));
  EXPECT_TRUE(bucket_cap_mb_list(plan_segments(nn::ModuleList())).empty());
  EXPECT_THROW(plan_segments({std::make_shared<nn::LinearImpl>(1, 1), nullptr}), tensor::InvalidArgument);
}

}  // namespace
}  // namespace lockstep::ddp
