#include "lockstep/ddp/bucket_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::ddp {
namespace {

using Buckets = std::vector<std::vector<std::size_t>>;

std::vector<PlannedGradient> floats(const std::vector<std::size_t>& elements) {
  std::vector<PlannedGradient> gradients;
  for (const std::size_t count : elements) gradients.push_back({.elements = count});
  return gradients;
}

TEST(BucketPlan, ABucketIsClosedWhenItReachesItsLimit) {
  const auto gradients = floats({10, 10, 10, 10});
  const std::vector<std::size_t> order = {3, 2, 1, 0};
  EXPECT_EQ(plan_in_order(gradients, order, {80}).buckets, (Buckets{{3, 2}, {1, 0}}));
  EXPECT_EQ(plan_in_order(gradients, order, {81}).buckets, (Buckets{{3, 2, 1}, {0}}));
  EXPECT_EQ(plan_in_order(gradients, order, {1000}).buckets, (Buckets{{3, 2, 1, 0}}));
  EXPECT_EQ(plan_in_order(gradients, order, {0}).buckets, (Buckets{{3}, {2}, {1}, {0}}));
}

TEST(BucketPlan, TheLastLimitHoldsForAllThatFollow) {
  const auto gradients = floats({1, 1, 1, 1, 1, 1, 1});
  const std::vector<std::size_t> order = {0, 1, 2, 3, 4, 5, 6};
  EXPECT_EQ(plan_in_order(gradients, order, {4, 8, 12}).buckets, (Buckets{{0}, {1, 2}, {3, 4, 5}, {6}}));
}

TEST(BucketPlan, TypesAndDevicesDoNotMixAndHaveLimitsOfTheirOwn) {
  std::vector<PlannedGradient> gradients = floats({4, 4, 4, 4, 4, 4});
  gradients[1].dtype = gradients[3].dtype = gradients[5].dtype = at::ScalarType::Double;
  const std::vector<std::size_t> order = {0, 1, 2, 3, 4, 5};
  EXPECT_EQ(plan_in_order(gradients, order, {16, 64}).buckets, (Buckets{{0}, {1}, {3, 5}, {2, 4}}));
  gradients[4].device = c10::Device(c10::DeviceType::Meta);
  EXPECT_EQ(plan_in_order(gradients, order, {16, 64}).buckets, (Buckets{{0}, {1}, {4}, {3, 5}, {2}}));
}

TEST(BucketPlan, ASparseGradientTravelsAlone) {
  auto gradients = floats({4, 4, 4});
  gradients[1].sparse = true;
  const std::vector<std::size_t> order = {0, 1, 2};
  EXPECT_EQ(plan_in_order(gradients, order, {1000}).buckets, (Buckets{{1}, {0, 2}}));
}

TEST(BucketPlan, BeforeTheFirstPassTheLastParametersComeFirst) {
  const auto gradients = floats({10, 10, 10, 10, 10});
  EXPECT_EQ(plan_before_first_pass(gradients, {80}).buckets, (Buckets{{4}, {2, 3}, {0, 1}}));
}

TEST(BucketPlan, EmptyGradientsTakePart) {
  const auto gradients = floats({0, 0, 3});
  const std::vector<std::size_t> order = {0, 1, 2};
  const BucketPlan plan = plan_in_order(gradients, order, {12});
  EXPECT_EQ(plan.buckets, (Buckets{{0, 1, 2}}));
  EXPECT_THAT(bucket_sizes(plan, gradients), ::testing::ElementsAre(12));
  EXPECT_TRUE(plan_in_order({}, {}, {12}).buckets.empty());
}

}  // namespace
}  // namespace lockstep::ddp
