#include "tools/bench/comparison.h"

#include <gtest/gtest.h>

namespace lockstep::bench {
namespace {

TEST(ReadAnswers, TimesFromTheLastRankInToTheLastRankOut) {
  // Three batches of 10 operations: 2, 3 and 4 us for all of them.
  const auto measured = read_answers(
      {"ran 1 6000 1000 3000 5000 8500 10000 14500", "ran 1 3000 1500 3500 6000 9000 11000 15000"},
      {.operations = 10});
  ASSERT_TRUE(measured.ok()) << measured.status().text();
  EXPECT_DOUBLE_EQ(measured->micros, 0.3);
  EXPECT_DOUBLE_EQ(measured->cpu_s, 9000e-9 / 30);
  EXPECT_TRUE(measured->verified);
}

TEST(ReadAnswers, OneWrongRankIsWrong) {
  const auto measured = read_answers({"ran 1 0 0 10", "ran 0 0 0 10"}, {});
  ASSERT_TRUE(measured.ok()) << measured.status().text();
  EXPECT_FALSE(measured->verified);
}

TEST(ReadAnswers, ABarrierThatARankLeavesBeforeAllHaveComeIsWrong) {
  const std::vector<std::string> answers = {"ran 1 0 0 10", "ran 1 0 20 30"};
  EXPECT_FALSE(read_answers(answers, {.ends_together = true})->verified);
  EXPECT_TRUE(read_answers(answers, {})->verified);
}

TEST(ReadAnswers, WhatASideLacksIsUnsupported) {
  const auto measured = read_answers({"lacks bfloat16", "lacks bfloat16"}, {});
  EXPECT_EQ(measured.status().code(), Code::kUnsupported);
  EXPECT_EQ(measured.status().message(), "bfloat16");
}

TEST(ReadAnswers, AnAnswerThatMakesNoSenseIsAnError) {
  for (const std::vector<std::string>& answers :
       {std::vector<std::string>{"what?"}, {"ran 1 0"}, {"ran 1 0 1 2", "ran 1 0 1 2 3 4"}}) {
    EXPECT_EQ(read_answers(answers, {}).status().code(), Code::kInternal);
  }
}

}  // namespace
}  // namespace lockstep::bench
