#include "lockstep/launch/doctor_system.h"

#include <sys/resource.h>

#include <chrono>
#include <string>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(DoctorSystem, AVariableThatDoesNotParseIsUnusableAndNamed) {
  const Finding finding = check_environment(Environment::parse({{"RANK", "first"}}));
  EXPECT_EQ(finding.health, Health::kUnusable);
  EXPECT_THAT(finding.found, HasSubstr("RANK"));
  EXPECT_EQ(check_environment(Environment::parse({{"RANK", "1"}})).health, Health::kOk);
}

TEST(DoctorSystem, InsecureIsAWarning) {
  const Finding finding = check_environment(Environment::parse({{"LOCKSTEP_INSECURE", "1"}}));
  EXPECT_EQ(finding.health, Health::kWarning);
  EXPECT_THAT(finding.advice, HasSubstr("lockstep secret"));
}

TEST(DoctorSystem, ASlowClockIsAWarning) {
  EXPECT_EQ(judge_clock_source("tsc").health, Health::kOk);
  EXPECT_EQ(judge_clock_source("kvm-clock").health, Health::kOk);
  EXPECT_EQ(judge_clock_source("").health, Health::kOk);
  const Finding hpet = judge_clock_source("hpet");
  EXPECT_EQ(hpet.health, Health::kWarning);
  EXPECT_THAT(hpet.advice, Not(IsEmpty()));
}

TEST(DoctorSystem, MemoryIsJudgedByWhatIsLeft) {
  const base::MemoryLimits plenty{.total = Bytes::gib(8), .available = Bytes::gib(4), .cgroup_limit = {}};
  EXPECT_EQ(judge_memory({.limits = plenty}).health, Health::kOk);
  EXPECT_EQ(judge_memory({.limits = plenty, .oom_kills = 0}).health, Health::kOk);

  const Finding killed = judge_memory({.limits = plenty, .oom_kills = 2});
  EXPECT_EQ(killed.health, Health::kWarning);
  EXPECT_THAT(killed.found, HasSubstr("2 OOM kills"));

  const base::MemoryLimits tight{
      .total = Bytes::gib(8), .available = Bytes::mib(100), .cgroup_limit = Bytes::gib(1)};
  const Finding little = judge_memory({.limits = tight});
  EXPECT_EQ(little.health, Health::kWarning);
  EXPECT_THAT(little.found, HasSubstr("cgroup limit 1.0 GiB"));
  EXPECT_EQ(std::get<std::int64_t>(little.facts.at("available")), 100 << 20);
}

TEST(DoctorSystem, ASmallDevShmIsAWarningOnly) {
  EXPECT_EQ(judge_dev_shm(Bytes::gib(1), Bytes::gib(1)).health, Health::kOk);
  const Finding docker = judge_dev_shm(Bytes::mib(64), Bytes::mib(64));
  EXPECT_EQ(docker.health, Health::kWarning);
  EXPECT_THAT(docker.advice, HasSubstr("--shm-size"));
}

TEST(DoctorSystem, OpenFilesAreWarnedOfBeforeTheyStopAJob) {
  EXPECT_EQ(judge_open_files({.soft = 1024, .hard = 1024}).health, Health::kOk);
  EXPECT_EQ(judge_open_files({.soft = RLIM_INFINITY, .hard = RLIM_INFINITY}).health, Health::kOk);
  const Finding few = judge_open_files({.soft = 256, .hard = 4096});
  EXPECT_EQ(few.health, Health::kWarning);
  EXPECT_THAT(few.advice, HasSubstr("ulimit -n 4096"));
  const Finding none = judge_open_files({.soft = 16, .hard = 16});
  EXPECT_EQ(none.health, Health::kUnusable);
  EXPECT_THAT(none.advice, HasSubstr("hard limit"));
}

TEST(DoctorSystem, NoLimitIsMinusOneInTheFacts) {
  const Finding finding = judge_locked_memory({.soft = RLIM_INFINITY, .hard = RLIM_INFINITY});
  EXPECT_EQ(finding.health, Health::kOk);
  EXPECT_THAT(finding.found, HasSubstr("unlimited"));
  EXPECT_EQ(std::get<std::int64_t>(finding.facts.at("soft")), -1);
  EXPECT_EQ(judge_locked_memory({.soft = 0, .hard = 0}).health, Health::kWarning);
}

TEST(DoctorSystem, SaysWhereCoreDumpsGo) {
  EXPECT_THAT(judge_core_dumps({.soft = 0, .hard = 0}, "core").found, HasSubstr("off"));
  EXPECT_THAT(judge_core_dumps({.soft = RLIM_INFINITY, .hard = RLIM_INFINITY}, "|/usr/bin/handler %p").found,
              HasSubstr("handed to /usr/bin/handler"));
  EXPECT_THAT(judge_core_dumps({.soft = 4096, .hard = 4096}, "core").found, HasSubstr("core"));
}

TEST(DoctorSystem, AForbiddenDebuggerIsAWarning) {
  EXPECT_EQ(judge_debugging("").health, Health::kOk);
  EXPECT_EQ(judge_debugging("1").health, Health::kOk);
  EXPECT_EQ(judge_debugging("3").health, Health::kWarning);
}

TEST(DoctorSystem, MemoryThatCannotBeSharedIsUnusable) {
  EXPECT_EQ(judge_memory_sharing(Duration(5us)).health, Health::kOk);
  const Finding finding = judge_memory_sharing(Status::unsupported("memfd_create failed"));
  EXPECT_EQ(finding.health, Health::kUnusable);
  EXPECT_EQ(finding.found, "memfd_create failed");
}

TEST(DoctorSystem, TheMachineOfTheTestsIsUsable) {
  EXPECT_EQ(check_kernel().health, Health::kOk);
  EXPECT_EQ(check_memory_sharing(Clock::steady().in(30s)).health, Health::kOk);
  EXPECT_GE(std::get<std::int64_t>(check_cores().facts.at("usable")), 1);
  EXPECT_GT(std::get<std::int64_t>(check_memory().facts.at("total")), 0);
  EXPECT_LT(check_open_files().health, Health::kUnusable);
}

}  // namespace
}  // namespace lockstep::launch
