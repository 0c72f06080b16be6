#include "tools/bench/training_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lockstep::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ReadTrained, GivesLossesAndWhetherReplicasAreEqual) {
  const auto trained = read_trained({"trained 4096 77 0.5 0.25", "trained 4096 77 0.75 0.125"});
  ASSERT_TRUE(trained.ok()) << trained.status().text();
  EXPECT_EQ(trained->gradients, Bytes{4096});
  EXPECT_THAT(trained->losses, ElementsAre(ElementsAre(0.5, 0.25), ElementsAre(0.75, 0.125)));
  EXPECT_TRUE(same_weights(*trained));
  EXPECT_FALSE(same_weights(*read_trained({"trained 1 77 0.5", "trained 1 78 0.5"})));
}

TEST(ReadTrained, AnAnswerThatMakesNoSenseIsAnError) {
  for (const char* answer :
       {"what?", "trained 4096 77", "trained x 77 1", "trained 4096 77 1 x", "trained 1 7 nan"}) {
    EXPECT_EQ(read_trained({answer}).status().code(), Code::kInternal) << answer;
  }
}

TEST(SameLosses, LooksAtAllRanksAndAsManyStepsAsAsked) {
  const Training ours = *read_trained({"trained 1 7 1 2", "trained 1 7 1 3"});
  EXPECT_TRUE(same_losses(ours, *read_trained({"trained 1 8 1.0001 2", "trained 1 8 1 2.9999"}), 2));
  const Training other = *read_trained({"trained 1 7 1 2", "trained 1 7 1 3.1"});
  EXPECT_FALSE(same_losses(ours, other, 2));
  EXPECT_TRUE(same_losses(ours, other, 1));
  EXPECT_FALSE(same_losses(ours, *read_trained({"trained 1 7 1 2"}), 1));
  EXPECT_FALSE(same_losses(ours, ours, 3));
}

TEST(ReadCommunication, IsTheMeanOfTheRanks) {
  const auto mean = read_communication({"communicated 0.5 100", "communicated 1 0"});
  ASSERT_TRUE(mean.ok()) << mean.status().text();
  EXPECT_DOUBLE_EQ(mean->overlap, 0.75);
  EXPECT_DOUBLE_EQ(mean->exposed_us, 50);
  EXPECT_EQ(read_communication({"communicated 1"}).status().code(), Code::kInternal);
}

TrainingRow some_training_row() {
  const auto round = [](double micros) {
    return Measured{.micros = micros, .cpu_s = 2e-3, .verified = true};
  };
  return {.model = "mlp-8x2",
          .option = "default",
          .nproc = 4,
          .batch = 32,
          .gradients = Bytes{576},
          .communication = {.overlap = 0.9, .exposed_us = 12},
          .trained_right = true,
          .ours = {round(1000), round(2000), round(1500)},
          .peers = {{.name = "plain", .rounds = {round(900), round(1900), round(1500)}}}};
}

TEST(TrainingReport, HasTheFieldsOfTheOtherBenchesAndItsOwn) {
  const auto row = json_of(some_training_row());
  EXPECT_EQ(row["op"], "ddp");
  EXPECT_EQ(row["model"], "mlp-8x2");
  EXPECT_EQ(row["bytes"], 576);
  EXPECT_EQ(row["median_us"], 1500);
  EXPECT_EQ(row["overlap"], 0.9);
  EXPECT_EQ(row["exposed_comm_us"], 12);
  EXPECT_EQ(row["verified"], true);
  EXPECT_DOUBLE_EQ(row["peers"]["plain"]["ratio"], 0.95);
  EXPECT_DOUBLE_EQ(row["peers"]["plain"]["ratio_low"], 0.9);
}

TEST(TrainingReport, TableMarksRanksBeyondTheCoresAndWhatWasWrong) {
  TrainingRow row = some_training_row();
  EXPECT_EQ(training_head({"plain"}).size(), training_line(row, 2).size());
  EXPECT_THAT(training_line(row, 2), HasSubstr(" 4* "));
  EXPECT_THAT(training_line(row, 4), HasSubstr(" yes "));
  row.trained_right = false;
  EXPECT_THAT(training_line(row, 4), HasSubstr(" NO "));
}

TEST(TrainingReport, PlotHasALineForEachSideByAscendingBytes) {
  TrainingRow larger = some_training_row();
  larger.gradients = Bytes{1000};
  const Plot plot = plot_of({larger, some_training_row()});
  ASSERT_EQ(plot.lines.size(), 2);
  EXPECT_EQ(plot.lines[0].name, "lockstep");
  EXPECT_THAT(plot.lines[0].points, ElementsAre(PlotPoint{576, 1500}, PlotPoint{1000, 1500}));
  EXPECT_EQ(plot.lines[1].name, "plain");
}

}  // namespace
}  // namespace lockstep::bench
