#include "lockstep/launch/job_log.h"

#include <csignal>

#include "lockstep/launch/options.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = AgentMessage::Kind;

AgentMessage ready(int node, std::uint64_t epoch = 0) {
  return {.kind = Kind::kReady, .epoch = epoch, .node = node, .plan = {.host = "h", .nproc = node + 1}};
}
AgentMessage of(Kind kind, int node, std::uint64_t epoch = 0) {
  return {.kind = kind, .epoch = epoch, .node = node};
}

// A log of two nodes whose first round has begun.
JobLog begun() {
  JobLog log(2, 1);
  for (const AgentMessage& message : {ready(0), ready(1), of(Kind::kRound, 0)}) log.apply(message);
  return log;
}

TEST(JobLog, TheRoundWaitsForAllNodes) {
  JobLog log(2, 1);
  EXPECT_THAT(log.missing(), ElementsAre(0, 1));
  EXPECT_FALSE(log.apply(ready(1)));
  EXPECT_THAT(log.missing(), ElementsAre(0));
  EXPECT_FALSE(log.wants_round());
  EXPECT_FALSE(log.apply(ready(0)));
  EXPECT_TRUE(log.wants_round());
  EXPECT_THAT(log.missing(), IsEmpty());
  EXPECT_EQ(log.plans()[1].nproc, 2);

  AgentMessage round = of(Kind::kRound, 0);
  round.job.job_id = "j";
  round.nodes = log.plans();
  const auto event = log.apply(round);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, AgentEvent::Kind::kRound);
  EXPECT_EQ(event->round.job.job_id, "j");
  EXPECT_EQ(event->round.node, 1);
  EXPECT_FALSE(log.wants_round());
  EXPECT_FALSE(log.apply(round)) << "a round is begun once";
}

TEST(JobLog, TheFirstFailureOfARoundIsTheOnlyOne) {
  JobLog log = begun();
  AgentMessage failed = of(Kind::kFailed, 1);
  failed.report.first.rank = Rank{3};
  const auto event = log.apply(failed);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, AgentEvent::Kind::kFailure);
  EXPECT_EQ(event->report.first.rank, Rank{3});
  EXPECT_FALSE(log.apply(of(Kind::kFailed, 0)));
  EXPECT_FALSE(log.apply(of(Kind::kDone, 0)));
}

TEST(JobLog, DoneMeansAllNodes) {
  JobLog log = begun();
  EXPECT_FALSE(log.apply(of(Kind::kDone, 0)));
  EXPECT_FALSE(log.apply(of(Kind::kDone, 0)));
  const auto event = log.apply(of(Kind::kDone, 1));
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, AgentEvent::Kind::kAllDone);
}

TEST(JobLog, AFailureAfterSomeAreDoneStillCounts) {
  JobLog log = begun();
  log.apply(of(Kind::kDone, 0));
  EXPECT_TRUE(log.apply(of(Kind::kFailed, 1)));
}

TEST(JobLog, TheNextAttemptForgetsTheLast) {
  JobLog log = begun();
  log.apply(of(Kind::kDone, 0));
  log.apply(of(Kind::kFailed, 1));
  log.apply(ready(1, 1));
  EXPECT_EQ(log.epoch(), 1U);
  EXPECT_THAT(log.missing(), ElementsAre(0));
  EXPECT_FALSE(log.apply(of(Kind::kFailed, 0, 0))) << "a late word on the last attempt";
  log.apply(ready(0, 1));
  EXPECT_TRUE(log.wants_round());
  EXPECT_TRUE(log.apply(of(Kind::kRound, 0, 1)));
  EXPECT_FALSE(log.apply(of(Kind::kDone, 1, 1)));
  EXPECT_TRUE(log.apply(of(Kind::kDone, 0, 1)));
}

TEST(JobLog, StopAndLossCountAtAnyTime) {
  JobLog log(2, 0);
  AgentMessage stop = of(Kind::kStop, 1);
  stop.signal = SIGINT;
  stop.host = "b";
  const auto stopped = log.apply(stop);
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->signal, SIGINT);
  EXPECT_EQ(stopped->host, "b");
  AgentMessage lost = of(Kind::kLost, 0, 7);
  lost.text = "gone";
  EXPECT_EQ(log.apply(lost)->error.message(), "gone");
}

TEST(JobLog, ANodeThatDoesNotExistIsIgnored) {
  JobLog log(2, 0);
  EXPECT_FALSE(log.apply(ready(2)));
  EXPECT_FALSE(log.apply(of(Kind::kStop, -1)));
}

TEST(AgentMessage, ComesBackAsItWas) {
  AgentMessage round = of(Kind::kRound, 0, 3);
  round.job = {.job_id = "j",
               .run_id = "r",
               .epoch = 3,
               .max_restarts = 4,
               .master = {"10.0.0.1", 1},
               .store = {"::1", 2},
               .insecure = true};
  round.nodes = {{"a", 2, "x"}, {"b", 1, "y"}};
  ASSERT_OK_AND_ASSIGN(const AgentMessage back, message_from_json(message_to_json(round)));
  EXPECT_EQ(back.kind, round.kind);
  EXPECT_EQ(back.epoch, 3U);
  EXPECT_EQ(back.job, round.job);
  EXPECT_EQ(back.nodes, round.nodes);
  for (const Kind kind : {Kind::kReady, Kind::kFailed, Kind::kDone, Kind::kStop, Kind::kLost}) {
    AgentMessage message = of(kind, 1, 2);
    message.signal = kind == Kind::kStop ? SIGTERM : 0;
    ASSERT_OK_AND_ASSIGN(const AgentMessage other, message_from_json(message_to_json(message)));
    EXPECT_EQ(other.kind, kind);
    EXPECT_EQ(other.node, 1);
  }
}

TEST(AgentMessage, GarbageIsAnError) {
  for (const char* text :
       {"", "{}", "[]", R"({"kind": "ready", "epoch": 0, "node": 0})",
        R"({"kind": "what", "epoch": 0, "node": 0})", R"({"kind": "done", "epoch": "x", "node": 0})"}) {
    EXPECT_THAT(message_from_json(text), testing::StatusIs(Code::kInvalid)) << text;
  }
}

TEST(AgentMessage, WhatNoAgentCanMeanIsAnError) {
  AgentMessage ready = of(Kind::kReady, 1, 0);
  AgentMessage round = of(Kind::kRound, 0, 0);
  for (const int nproc : {0, -1, kMaxLocalRanks + 1}) {
    ready.plan.nproc = nproc;
    round.nodes = {{"a", nproc, "x"}};
    EXPECT_THAT(message_from_json(message_to_json(ready)), testing::StatusIs(Code::kInvalid)) << nproc;
    EXPECT_THAT(message_from_json(message_to_json(round)), testing::StatusIs(Code::kInvalid)) << nproc;
  }
  round.nodes.assign(kMaxNodes + 1, {"a", 1, "x"});
  EXPECT_THAT(message_from_json(message_to_json(round)), testing::StatusIs(Code::kInvalid));
  AgentMessage stop = of(Kind::kStop, 1, 0);
  for (const int signal : {0, -9, 100'000}) {
    stop.signal = signal;
    EXPECT_THAT(message_from_json(message_to_json(stop)), testing::StatusIs(Code::kInvalid)) << signal;
  }
}

TEST(JobCard, ComesBackAsItWas) {
  const JobCard card{
      .nnodes = 2, .by_arrival = true, .job_id = "j", .run_id = "r", .max_restarts = 3, .host = "a"};
  EXPECT_THAT(card_from_json(card_to_json(card)), testing::IsOkAnd(card));
  EXPECT_THAT(card_from_json("{}"), testing::StatusIs(Code::kInvalid));
}

}  // namespace
}  // namespace lockstep::launch
