#include "tools/bench/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Plot, PutsPowersWhereTheyBelongOnBothAxes) {
  const std::string svg =
      svg_of({.title = "a < b", .lines = {{.name = "ours", .points = {{1024, 1}, {2048, 10}, {4096, 100}}}}});
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  // From the lower left corner to the upper right one, half way in the middle.
  EXPECT_THAT(svg, HasSubstr("points=\"80.0,385.0 335.0,212.5 590.0,40.0\""));
  for (const char* label : {">1 KiB<", ">2 KiB<", ">4 KiB<", ">1 us<", ">10 us<", ">100 us<", ">ours<"}) {
    EXPECT_THAT(svg, HasSubstr(label));
  }
}

TEST(Plot, NamesSmallAndLargeValues) {
  const std::string svg = svg_of({.lines = {{.points = {{1, 0.1}, {1 << 30, 1e6}}}}});
  for (const char* label : {">1 B<", ">100 ns<", ">1 ms<", ">1 s<"}) EXPECT_THAT(svg, HasSubstr(label));
}

TEST(Plot, LeavesOutWhatHasNoLogarithm) {
  const std::string svg = svg_of({.lines = {{.points = {{0, 5}, {1024, 3}}}}});
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_THAT(svg, HasSubstr("<circle"));
}

TEST(Plot, OfNothingIsAnEmptyPicture) {
  const std::string svg = svg_of({});
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

}  // namespace
}  // namespace lockstep::bench
