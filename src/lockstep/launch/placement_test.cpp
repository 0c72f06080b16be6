#include "lockstep/launch/placement.h"

#include <gmock/gmock.h>

namespace lockstep::launch {
namespace {

TEST(PlaceRanks, OneHost) {
  const auto places = place_ranks({{.host = "a", .nproc = 3}});
  ASSERT_EQ(places.size(), 3U);
  EXPECT_EQ(places[2], (RankPlace{.rank = Rank{2},
                                  .world_size = WorldSize{3},
                                  .local_rank = 2,
                                  .local_world_size = WorldSize{3},
                                  .role_rank = Rank{2},
                                  .role_world_size = WorldSize{3},
                                  .host = "a"}));
}

TEST(PlaceRanks, HostsMayDifferInSizeAndRole) {
  const auto places = place_ranks({{"a", 2, "trainer"}, {"b", 1, "reader"}, {"c", 2, "trainer"}});
  ASSERT_EQ(places.size(), 5U);
  EXPECT_EQ(places[2], (RankPlace{.rank = Rank{2},
                                  .world_size = WorldSize{5},
                                  .local_rank = 0,
                                  .local_world_size = WorldSize{1},
                                  .node = 1,
                                  .nodes = 3,
                                  .role = "reader",
                                  .role_rank = Rank{0},
                                  .role_world_size = WorldSize{1},
                                  .host = "b"}));
  EXPECT_EQ(places[4], (RankPlace{.rank = Rank{4},
                                  .world_size = WorldSize{5},
                                  .local_rank = 1,
                                  .local_world_size = WorldSize{2},
                                  .node = 2,
                                  .nodes = 3,
                                  .role = "trainer",
                                  .role_rank = Rank{3},
                                  .role_world_size = WorldSize{4},
                                  .host = "c"}));
}

}  // namespace
}  // namespace lockstep::launch
