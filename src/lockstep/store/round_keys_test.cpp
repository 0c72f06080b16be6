#include "lockstep/store/round_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::store {
namespace {

TEST(RoundKeys, JobsEpochsAndRoundsHaveKeysOfTheirOwn) {
  const RoundKeys keys("job", 3, 0);
  EXPECT_NE(keys.prefix(), RoundKeys("other", 3, 0).prefix());
  EXPECT_NE(keys.prefix(), keys.next().prefix());
  EXPECT_NE(keys.prefix(), keys.at(4, 0).prefix());
  EXPECT_EQ(keys.head(), keys.next().head());
  EXPECT_NE(keys.head(), RoundKeys("other", 3, 0).head());
  EXPECT_EQ(keys.next().prefix(), RoundKeys("job", 3, 1).prefix());
  EXPECT_LT(keys.world().size(), 64U) << "leaves most of a key's size to its user";
}

TEST(RoundKeys, HeadsComeBack) {
  const auto head = RoundKeys::parse_head(RoundKeys("job", 18446744073709551615U, 7).head_value());
  ASSERT_TRUE(head);
  EXPECT_EQ(head->epoch, 18446744073709551615U);
  EXPECT_EQ(head->round, 7U);
  for (const char* wrong : {"", ".", "1", "1.", ".1", "1.2.3", "-1.0", "x.y", "1.0 "})
    EXPECT_FALSE(RoundKeys::parse_head(wrong)) << wrong;
}

TEST(RoundKeys, SlotsAreRecognised) {
  const RoundKeys keys("job", 0, 1);
  EXPECT_EQ(keys.rank_of_slot(keys.slot(Rank{12})), Rank{12});
  EXPECT_FALSE(keys.rank_of_slot(keys.next().slot(Rank{12})));
  EXPECT_FALSE(keys.rank_of_slot(keys.founder()));
  EXPECT_FALSE(keys.rank_of_slot(keys.prefix() + "member/-1"));
  EXPECT_FALSE(keys.rank_of_slot(keys.prefix() + "member/1x"));
}

TEST(RoundKeys, ClosingTakesThisRoundAndOlderOnesOfTheJob) {
  const RoundKeys keys("job", 2, 5);
  for (const std::string& key :
       {keys.founder(), keys.slot(Rank{0}), keys.arrived(), keys.seen(), keys.left(), keys.secret(),
        keys.world() + "/mine", keys.at(2, 4).verdict(), keys.at(2, 4).closed(), keys.at(1, 9).founder()})
    EXPECT_TRUE(keys.is_garbage_after_close(key)) << key;
  for (const std::string& key :
       {keys.verdict(), keys.closed(), keys.head(), keys.next().founder(), keys.at(3, 0).slot(Rank{1}),
        RoundKeys("other", 0, 0).founder(), std::string("the user's own"), std::string()})
    EXPECT_FALSE(keys.is_garbage_after_close(key)) << key;
}

TEST(RoundKeys, WhatStaysOfAFinishedJobIsRecognised) {
  const RoundKeys keys("job", 0, 0);
  for (const std::string& key : {keys.head(), keys.verdict(), keys.closed()})
    EXPECT_TRUE(RoundKeys::is_tombstone(key)) << key;
  for (const std::string& key :
       {keys.founder(), keys.slot(Rank{0}), std::string("head"), std::string("a/closed")})
    EXPECT_FALSE(RoundKeys::is_tombstone(key)) << key;
}

}  // namespace
}  // namespace lockstep::store
