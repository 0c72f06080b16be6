#include "lockstep/launch/doctor.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

DoctorReport report_of(Health health) {
  return {.host = "node7",
          .findings = {
              {.topic = "memory", .found = "1.0 GiB free"},
              {.topic = "torch",
               .health = health,
               .found = "broken \xff",
               .advice = "Mend it.",
               .facts = {{"version", std::string("2.9")}, {"gloo", true}, {"devices", std::int64_t{2}}}}}};
}

TEST(Doctor, AReportIsAsHealthyAsItsWorstFinding) {
  for (const Health health : {Health::kOk, Health::kWarning, Health::kUnusable}) {
    EXPECT_EQ(report_of(health).health(), health);
  }
}

TEST(Doctor, TextHasOneLinePerTopicAndTheAdviceBelow) {
  EXPECT_EQ(report_of(Health::kWarning).text(DoctorReport::Colour::kNever),
            "ok        memory         1.0 GiB free\n"
            "warning   torch          broken \xff\n"
            "                         Mend it.\n"
            "\n"
            "node7: 1 ok, 1 warning, 0 unusable.\n");
}

TEST(Doctor, LongLinesAreWrappedBehindTheColumns) {
  std::string words = "word";
  for (int i = 0; i < 40; ++i) words += " word";
  const DoctorReport report{.host = "h", .findings = {{.topic = "memory", .found = words}}};
  std::istringstream lines(report.text(DoctorReport::Colour::kNever));
  std::string line;
  std::getline(lines, line);
  EXPECT_LE(line.size(), 100U);
  EXPECT_GT(line.size(), 90U);
  std::getline(lines, line);
  EXPECT_THAT(line, StartsWith(std::string(25, ' ') + "word"));
}

TEST(Doctor, ColoursAreThereOnlyIfAskedFor) {
  EXPECT_THAT(report_of(Health::kUnusable).text(DoctorReport::Colour::kAlways), HasSubstr("\033[31m"));
  EXPECT_THAT(report_of(Health::kUnusable).text(DoctorReport::Colour::kNever), Not(HasSubstr("\033")));
}

TEST(Doctor, JsonSaysTheSameToAProgram) {
  const auto json = nlohmann::json::parse(report_of(Health::kUnusable).json());
  EXPECT_EQ(json["host"], "node7");
  EXPECT_EQ(json["status"], "unusable");
  ASSERT_EQ(json["checks"].size(), 2U);
  EXPECT_EQ(json["checks"][0]["status"], "ok");
  EXPECT_EQ(json["checks"][1]["advice"], "Mend it.");
  EXPECT_EQ(json["checks"][1]["facts"]["version"], "2.9");
  EXPECT_EQ(json["checks"][1]["facts"]["gloo"], true);
  EXPECT_EQ(json["checks"][1]["facts"]["devices"], 2);
}

TEST(Doctor, ExaminesEveryTopicOnceAndAdvisesWhereItIsNotContent) {
  const DoctorOptions options{.master = "127.0.0.1", .python = "false"};  // an interpreter that fails at once
  const DoctorReport report = examine(options, Environment::parse({}), Clock::steady());
  std::set<std::string> topics;
  for (const Finding& finding : report.findings) {
    EXPECT_TRUE(topics.insert(finding.topic).second) << finding.topic << " twice";
    EXPECT_FALSE(finding.found.empty()) << finding.topic;
    EXPECT_EQ(finding.advice.empty(), finding.health == Health::kOk) << finding.topic;
  }
  EXPECT_THAT(topics,
              IsSupersetOf({"environment", "kernel", "clock", "cores", "memory", "shared memory", "/dev/shm",
                            "open files", "locked memory", "interfaces", "master", "torch", "gpu", "mpi"}));
  EXPECT_GE(report.health(), Health::kWarning);  // that interpreter
}

TEST(Doctor, AProbeThatHangsCostsItsDeadlineOnly) {
  const std::filesystem::path hangs = std::filesystem::path(::testing::TempDir()) / "doctor_test_hangs";
  std::ofstream(hangs) << "#!/bin/sh\nexec sleep 1000\n";
  std::filesystem::permissions(hangs, std::filesystem::perms::owner_all);
  const DoctorOptions options{.python = hangs.string(), .probe_timeout = 200ms};
  const DoctorReport report = examine(options, Environment::parse({}), Clock::steady());
  std::filesystem::remove(hangs);
  const auto torch = std::find_if(report.findings.begin(), report.findings.end(),
                                  [](const Finding& finding) { return finding.topic == "torch"; });
  ASSERT_NE(torch, report.findings.end());
  EXPECT_EQ(torch->health, Health::kWarning);
  EXPECT_THAT(torch->found, MatchesRegex("'import torch' in .* did not end in time and was killed"));
}

}  // namespace
}  // namespace lockstep::launch
