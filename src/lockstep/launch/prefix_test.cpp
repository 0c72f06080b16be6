#include "lockstep/launch/prefix.h"

#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

std::string rendered(std::string_view text) {
  const auto places = place_ranks({{"node7", 2, "actor"}, {"node8", 2, "actor"}});
  const auto prefix = PrefixTemplate::parse(text);
  return prefix.ok() ? prefix->render(places[3]) : prefix.status().text();
}

TEST(PrefixTemplate, FillsItsFields) {
  EXPECT_EQ(rendered("[rank {rank}] "), "[rank 3] ");
  EXPECT_EQ(rendered("{host}/{node}:{role}{local_rank}|"), "node8/1:actor1|");
  EXPECT_EQ(rendered(""), "");
  EXPECT_EQ(rendered("{{{rank}}} "), "{3} ");
}

TEST(PrefixTemplate, SaysWhatIsWrong) {
  EXPECT_THAT(PrefixTemplate::parse("{rnak}"), StatusIs(Code::kInvalid, HasSubstr("no field {rnak}")));
  EXPECT_THAT(PrefixTemplate::parse("{rank"), StatusIs(Code::kInvalid, HasSubstr("a { has no }")));
  EXPECT_THAT(PrefixTemplate::parse("rank}"), StatusIs(Code::kInvalid, HasSubstr("a } has no {")));
  EXPECT_THAT(PrefixTemplate::parse("a\nb"), StatusIs(Code::kInvalid, HasSubstr("line break")));
}

TEST(RankColour, NeighboursDifferAndNothingStaysUncoloured) {
  EXPECT_NE(in_rank_colour("x", Rank{0}), in_rank_colour("x", Rank{1}));
  EXPECT_THAT(in_rank_colour("x", Rank{12345}), ::testing::MatchesRegex("\x1b.[0-9]+mx\x1b.0m"));
  EXPECT_EQ(in_rank_colour("", Rank{0}), "");
}

}  // namespace
}  // namespace lockstep::launch
