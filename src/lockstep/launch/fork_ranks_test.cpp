// fork_ranks() in a process with one thread. That it refuses where there are more is in spawn_test.cpp.
#include <unistd.h>

#include "lockstep/launch/spawn.h"
#include "lockstep/testing/process_world.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

TEST(ForkRanks, RunsACapturingBody) {
  const std::string text = "captured";
  EXPECT_OK(testing::ProcessWorld{3}.run([&](const SpawnedRank& rank) {
    EXPECT_EQ(text, "captured");
    EXPECT_EQ(rank.world_size, WorldSize{3});
    EXPECT_EQ(Environment::read().value().rank, rank.rank.value);
  }));
}

TEST(ForkRanks, AFailedRankEndsTheOthers) {
  const Status status = fork_ranks(WorldSize{3}, [](const SpawnedRank& rank) {
    if (rank.rank == Rank{1}) return Status::invalid("no");
    return pause(), Status();
  });
  EXPECT_THAT(status, StatusIs(Code::kInvalid, HasSubstr("rank 1 (pid ")));
}

}  // namespace
}  // namespace lockstep::launch
