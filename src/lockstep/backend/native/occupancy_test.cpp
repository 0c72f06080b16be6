#include "lockstep/backend/native/occupancy.h"

#include <gtest/gtest.h>

#include "lockstep/base/text.h"

namespace lockstep::backend {
namespace {

Cores on(std::string_view cpus) {
  Cores cores = parse_cores(cat(cpus, " 1")).value();
  cores.at_once = static_cast<int>(cores.cpus.size());
  return cores;
}

TEST(Occupancy, FollowsTheTable) {
  struct Row {
    const char* what;
    std::vector<Cores> ranks;
    std::size_t own;
    int unseen;
    int ranks_here, cores, host_cores, threads;
  };
  const std::vector<Cores> bound = {on("0"), on("1"), on("2"), on("3")};
  const std::vector<Cores> mixed = {on("0"), on("0"), on("0"), on("1-7")};
  for (const Row& row :
       {Row{"alone", {on("0-7")}, 0, 0, 1, 8, 8, 4},
        Row{"anywhere", {on("0-3"), on("0-3")}, 1, 0, 2, 4, 4, 2},
        Row{"anywhere, too many", {on("0-1"), on("0-1"), on("0-1")}, 1, 0, 3, 2, 2, 1},
        Row{"each on a core of its own", bound, 2, 0, 1, 1, 4, 1},
        Row{"each on some of its own", {on("0-3,8-11"), on("4-7,12-15")}, 0, 0, 1, 8, 16, 4},
        Row{"two on each half", {on("0-3"), on("4-7"), on("0-3"), on("4-7")}, 3, 0, 2, 4, 8, 2},
        Row{"a chain of them", {on("0-1"), on("1-2"), on("2-3"), on("4")}, 0, 0, 3, 4, 5, 1},
        Row{"three on one core", mixed, 1, 0, 3, 1, 8, 1},
        Row{"and the one beside them", mixed, 3, 0, 1, 7, 8, 4},
        Row{"no more threads than its own cores", {on("0"), on("0-7")}, 0, 0, 2, 8, 8, 1},
        Row{"some that may be anywhere", {on("0"), on("1")}, 0, 1, 3, 2, 2, 1},
        Row{"one of them, and room for it", {on("0-3"), on("4-7")}, 0, 1, 2, 4, 8, 2},
        Row{"a quota", {{{0, 1, 2, 3}, 2}, {{0, 1, 2, 3}, 2}}, 0, 0, 2, 2, 2, 1},
        Row{"a quota that is too small", {{{0, 1, 2, 3}, 1}, {{0, 1, 2, 3}, 1}}, 0, 0, 2, 1, 1, 1}}) {
    const Occupancy occupancy = occupancy_of(row.ranks, row.own, row.unseen);
    EXPECT_EQ(occupancy.ranks, row.ranks_here) << row.what;
    EXPECT_EQ(occupancy.cores, row.cores) << row.what;
    EXPECT_EQ(occupancy.host_cores, row.host_cores) << row.what;
    EXPECT_EQ(occupancy.threads, row.threads) << row.what;
    EXPECT_EQ(occupancy.crowded(), row.ranks_here > row.cores) << row.what;
  }
}

TEST(Occupancy, CoresGoThroughAText) {
  const Cores cores{.cpus = {0, 1, 2, 3, 8}, .at_once = 4};
  EXPECT_EQ(write_cores(cores), "0-3,8 4");
  EXPECT_EQ(parse_cores("0-3,8 4"), cores);
  for (const char* wrong : {"", "0", "0 ", " 1", "0-3", "0 0", "0 -1", "0 x", "x 1", "3-0 1", "0,0 1", "-1 1",
                            "0-9999999 1", "0 1 1"})
    EXPECT_FALSE(parse_cores(wrong)) << wrong;
}

}  // namespace
}  // namespace lockstep::backend
