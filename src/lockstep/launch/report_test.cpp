#include "lockstep/launch/report.h"

#include <csignal>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// As waitpid gives them.
constexpr int exited(int code) { return code << 8; }
constexpr int killed(int signal) { return signal; }

RankState ended(int rank, int wait_status, int told = 0) {
  return {.rank = Rank{rank},
          .local_rank = rank,
          .host = "node7",
          .pid = 4000 + rank,
          .wait_status = wait_status,
          .told = told,
          .ran = 3200ms};
}

TEST(ExitCode, IsThatOfAShell) {
  EXPECT_EQ(exit_code_of(exited(0)), 0);
  EXPECT_EQ(exit_code_of(exited(3)), 3);
  EXPECT_EQ(exit_code_of(killed(SIGKILL)), 137);
  EXPECT_EQ(exit_code_of(killed(SIGSEGV) | 0x80), 139);
  EXPECT_EQ(exit_code_of(FailureReport{.cannot_start = "no", .cannot_start_code = 126}), 126);
}

TEST(Headline, NamesRankHostPidAndCode) {
  EXPECT_EQ(headline({.first = ended(2, exited(3))}), "rank 2 (host node7, pid 4002) exited with code 3");
}

TEST(Headline, AKillMayBeTheOomKillers) {
  FailureReport report{.first = ended(2, killed(SIGKILL)), .oom_kills = 1};
  EXPECT_EQ(
      headline(report),
      "rank 2 (host node7, pid 4002) was killed by SIGKILL (signal 9), possibly out of memory: the cgroup "
      "counted 1 OOM kill");
  report.oom_kills = 2;
  EXPECT_THAT(headline(report), HasSubstr("counted 2 OOM kills"));
  report.oom_kills.reset();
  EXPECT_THAT(headline(report), AllOf(HasSubstr("possibly out of memory"), Not(HasSubstr("counted"))));
  report.first.wait_status = killed(SIGSEGV);
  EXPECT_THAT(headline(report), AllOf(HasSubstr("SIGSEGV"), Not(HasSubstr("memory"))));
}

TEST(StateText, TellsWhoEndedIt) {
  EXPECT_EQ(state_text({.rank = Rank{1}}), "still running");
  EXPECT_EQ(state_text(ended(1, exited(0))), "exited with code 0");
  EXPECT_EQ(state_text(ended(1, killed(SIGTERM), SIGTERM)), "terminated by the launcher (SIGTERM)");
  EXPECT_EQ(state_text(ended(1, killed(SIGKILL), SIGKILL)), "killed by the launcher (SIGKILL)");
  EXPECT_EQ(state_text(ended(1, exited(0), SIGTERM)), "exited with code 0 after the launcher's SIGTERM");
}

TEST(ReportText, HasEverythingThatIsKnown) {
  FailureReport report{.first = ended(2, exited(3)), .epoch = 1};
  report.error =
      ErrorRecord{.status = Status::disconnected("rank 2 lost\nrank 0", {.failure = Failure::kPeerDied}),
                  .where = "tcp.cpp:42"};
  report.stderr_tail = {"one", "two"};
  report.core_dump = "/cores/core.4002";
  report.log_path = "/logs/2/stderr.log";
  const std::string text = report_text(
      report, {.here = {ended(0, exited(0)), ended(1, killed(SIGTERM), SIGTERM)}}, {.max_restarts = 3});
  EXPECT_EQ(text,
            "lockstep: rank 2 (host node7, pid 4002) exited with code 3.\n"
            "  ended       3.2 s after its start, in attempt 2 of 4\n"
            "  error       disconnected (peer_died): rank 2 lost\n"
            "              rank 0\n"
            "  made at     tcp.cpp:42\n"
            "  core dump   /cores/core.4002\n"
            "  log         /logs/2/stderr.log\n"
            "  The last lines of its stderr:\n"
            "    | one\n"
            "    | two\n"
            "The other ranks of this host:\n"
            "  rank  pid   ran    state\n"
            "  0     4000  3.2 s  exited with code 0\n"
            "  1     4001  3.2 s  terminated by the launcher (SIGTERM)\n");
}

TEST(ReportText, HasColoursOnlyIfAsked) {
  const FailureReport report{.first = ended(0, exited(1))};
  EXPECT_THAT(report_text(report, {}, {}), Not(HasSubstr("\x1b")));
  EXPECT_THAT(report_text(report, {}, {.coloured = true}), HasSubstr("\x1b[1;31m"));
}

TEST(ReportText, SumsUpThousandsOfRanks) {
  const OtherRanks others{.here = std::vector<RankState>(1000, ended(1, exited(0)))};
  const std::string text = report_text({.first = ended(0, exited(1))}, others, {});
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 80);
  EXPECT_THAT(text, HasSubstr("and 936 more"));
}

TEST(ReportText, SaysWhichAgentsReportOnTheOtherRanks) {
  const auto places = place_ranks({{.host = "a", .nproc = 2}, {.host = "bb"}, {.host = "c", .nproc = 3}});
  EXPECT_THAT(report_text({.first = ended(9, exited(1))}, {.elsewhere = places}, {}),
              HasSubstr("The agents of the other hosts report on their ranks:\n"
                        "  a (node 0)   ranks 0, 1\n"
                        "  bb (node 1)  rank 2\n"
                        "  c (node 2)   ranks 3-5\n"));
  const std::string many =
      report_text({.first = ended(9, exited(1))},
                  {.elsewhere = place_ranks(std::vector<NodePlan>(100, NodePlan{.host = "h"}))}, {});
  EXPECT_THAT(many, HasSubstr("and 36 more hosts\n"));
}

EndedRank blaming(int rank, int peer) {
  return {.rank = Rank{rank},
          .error = ErrorRecord{
              .status = Status::disconnected("lost", {.failure = Failure::kPeerDied, .peer = Rank{peer}})}};
}

TEST(FirstFailure, IsNotOneThatBlamesAnother) {
  EXPECT_EQ(choose_first_failure({{.rank = Rank{4}}, {.rank = Rank{1}}}), 0U);
  EXPECT_EQ(choose_first_failure({blaming(0, 2), {.rank = Rank{2}}}), 1U);
  EXPECT_EQ(choose_first_failure({{.rank = Rank{5}}, blaming(0, 2), {.rank = Rank{2}}}), 2U);
  EXPECT_EQ(choose_first_failure({blaming(0, 2), {.rank = Rank{1}}}), 1U);
  EXPECT_EQ(choose_first_failure({blaming(0, 1), blaming(1, 0)}), 0U);
  EXPECT_EQ(choose_first_failure({blaming(0, 3)}), 0U);
  EXPECT_EQ(blamed_rank(blaming(0, 0)), std::nullopt);
}

TEST(ReportJson, ComesBackAsItWas) {
  FailureReport report{.first = ended(2, killed(SIGKILL)), .epoch = 4, .oom_kills = 1};
  report.error = ErrorRecord{.status = Status::timeout("waited", {.failure = Failure::kMissingRanks}),
                             .where = "x.cpp:1"};
  report.stderr_tail = {"a", "b"};
  report.core_dump = "/core";
  report.log_path = "/log";
  ASSERT_OK_AND_ASSIGN(const FailureReport back, report_from_json(report_to_json(report)));
  EXPECT_EQ(report_text(back, {}, {}), report_text(report, {}, {}));
  EXPECT_EQ(exit_code_of(back), 137);
}

TEST(ReportJson, GarbageIsAnError) {
  for (const char* text : {"", "{}", "[1]", R"({"rank": "x"})"}) {
    EXPECT_THAT(report_from_json(text), testing::StatusIs(Code::kInvalid)) << text;
  }
}

}  // namespace
}  // namespace lockstep::launch
