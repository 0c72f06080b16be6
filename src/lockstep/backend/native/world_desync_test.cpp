// What the ranks of a world hear when they are in different operations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "lockstep/backend/native/world_test_support.h"
#include "lockstep/backend/operations.h"
#include "lockstep/testing/process_world.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST(World, AMonitoredBarrierAndAnotherCallAreADesync) {
  for (const int first : {1, 2}) {  // on two hosts, and on one
    for (const int meets : {0, 1}) {
      EXPECT_OK(run_ranks(2, [first, meets](const SpawnedRank& rank) {
        const auto world = join_on_two_hosts(rank, first);
        ASSERT_TRUE(world);
        ASSERT_OK(barrier(world->group()));
        ASSERT_OK(world->group().monitored_barrier());
        const OpOptions options{.deadline = Clock::steady().in(60s)};
        std::vector<float> data(1000);
        const Status status = rank.rank.value == meets
                                  ? world->group().monitored_barrier(options)
                                  : all_reduce(world->group(), std::span(data), ReduceOp::kSum, options);
        EXPECT_EQ(status.failure(), Failure::kDesync) << status.text();
        EXPECT_THAT(std::string(status.message()), HasSubstr("is in monitored_barrier #3"));
        EXPECT_THAT(std::string(status.message()), HasSubstr("is in all_reduce #3 (3.9 KiB, float32, sum)"));
      }));
    }
  }
}

// Of two ranks the one with the lower position makes the link; in the barrier it expects nothing of the
// other.
TEST(World, AMonitoredBarrierAndAnotherCallBeforeThereIsALinkAreADesync) {
  for (const int root : {0, 2, 3}) {
    for (const bool meets_first : {true, false}) {
      EXPECT_OK(run_ranks(4, [root, meets_first](const SpawnedRank& rank) {
        const auto world = join_on_two_hosts(rank, 2);
        ASSERT_TRUE(world);
        const OpOptions options{.deadline = Clock::steady().in(60s)};
        const std::vector<std::byte> own(8);
        const ByteView input = own;
        std::vector<std::byte> all(32);
        std::vector<ByteSpan> outputs;
        for (std::size_t i = 0; i < 4; ++i) outputs.push_back(ByteSpan(all).subspan(8 * i, 8));
        Call call{.kind = OpKind::kGather, .root = Rank{root}, .inputs = {&input, 1}, .outputs = outputs};
        if (rank.rank.value != root) call.outputs = {};
        const bool meets = (rank.rank.value < 2) == meets_first;
        Status status = meets ? world->group().monitored_barrier(options) : world->group().run(call, options);
        // Who only sends is through with it.
        if (status.ok()) status = barrier(world->group(), options);
        EXPECT_EQ(status.failure(), Failure::kDesync) << status.text();
        EXPECT_THAT(std::string(status.message()), HasSubstr("is in monitored_barrier #1"));
      }));
    }
  }
}

}  // namespace
}  // namespace lockstep::backend
