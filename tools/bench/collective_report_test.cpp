#include "tools/bench/collective_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lockstep::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CollectiveRow some_row() {
  const auto round = [](double micros) {
    return Measured{.micros = micros, .cpu_s = 2e-6, .verified = true};
  };
  return {.op = CollectiveOp::kAllReduce,
          .nproc = 4,
          .bytes = Bytes{1'000'000},
          .memory = "resident",
          .ours = {round(100), round(50), round(200)},
          .peers = {{.name = "gloo", .rounds = {round(1000), round(1000), round(1000)}}, {.name = "mpi"}}};
}

TEST(CollectiveReport, HasBandwidthsAndRatiosOfRounds) {
  const auto row = json_of(some_row());
  EXPECT_EQ(row["op"], "all_reduce");
  EXPECT_EQ(row["nproc"], 4);
  EXPECT_EQ(row["hosts"], 1);
  EXPECT_EQ(row["bytes"], 1'000'000);
  EXPECT_EQ(row["dtype"], "float32");
  EXPECT_EQ(row["memory"], "resident");
  EXPECT_EQ(row["median_us"], 100);
  EXPECT_DOUBLE_EQ(row["algbw_gbs"], 10);
  EXPECT_DOUBLE_EQ(row["busbw_gbs"], 15);
  EXPECT_DOUBLE_EQ(row["cpu_s"], 2e-6);
  EXPECT_EQ(row["verified"], true);
  EXPECT_EQ(row["peers"].size(), 1);
  const auto gloo = row["peers"]["gloo"];
  EXPECT_EQ(gloo["median_us"], 1000);
  EXPECT_EQ(gloo["ratio"], 10);
  EXPECT_EQ(gloo["ratio_low"], 5);
  EXPECT_EQ(gloo["ratio_high"], 20);
}

TEST(CollectiveReport, TableMarksRanksBeyondTheCoresAndWhatAPeerLacks) {
  const TableStyle style{.peers = {"gloo", "mpi"}, .cores = 2};
  const std::string head = table_head(style);
  const std::string line = table_line(style, some_row());
  EXPECT_EQ(head.size(), line.size());
  EXPECT_THAT(head, HasSubstr("gloo us    ratio        low-high"));
  EXPECT_THAT(line, HasSubstr(" 4* "));
  EXPECT_THAT(line, HasSubstr(" 1000     10.0       5.00-20.0"));
  EXPECT_THAT(line, HasSubstr("-        -               -\n"));
  EXPECT_THAT(table_line({.peers = {}, .cores = 4}, some_row()), HasSubstr(" 4 "));
}

TEST(CollectiveReport, SaysWhatTensorsAdd) {
  CollectiveRow row = some_row();
  EXPECT_EQ(added_by_tensors(row), "");
  row.peers.push_back({.name = "tensor", .rounds = row.ours});
  for (Measured& round : row.peers.back().rounds) round.micros += round.micros / 100;
  EXPECT_EQ(added_by_tensors(row), "calls on tensors add 1.00 us (0.500 to 2.00) to 1000000 bytes, resident");
}

TEST(CollectiveReport, ARowWithOneWrongRoundIsNotVerified) {
  CollectiveRow row = some_row();
  row.ours[1].verified = false;
  EXPECT_FALSE(row.verified());
  EXPECT_THAT(table_line({.peers = {}, .cores = 4}, row), HasSubstr(" NO "));
}

TEST(CollectiveReport, PlotHasALineForEachMemoryAndOneForEachPeer) {
  CollectiveRow foreign = some_row();
  foreign.memory = "foreign";
  const Plot plot = plot_of({some_row(), foreign});
  ASSERT_EQ(plot.lines.size(), 3);
  EXPECT_EQ(plot.lines[0].name, "lockstep, resident");
  EXPECT_EQ(plot.lines[1].name, "lockstep, foreign");
  EXPECT_EQ(plot.lines[2].name, "gloo");
  EXPECT_THAT(plot.lines[2].points, ElementsAre(PlotPoint{.x = 1e6, .y = 1000}));
}

}  // namespace
}  // namespace lockstep::bench
