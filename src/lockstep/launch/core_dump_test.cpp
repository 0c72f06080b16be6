#include "lockstep/launch/core_dump.h"

#include <gmock/gmock.h>

#include <csignal>

namespace lockstep::launch {
namespace {

const CrashedProcess kCrashed{
    .pid = 4711, .name = "train_with_a_long_name", .host = "node7", .folder = "/home/u", .signal = SIGSEGV};

TEST(CoreDumpGlob, FollowsThePattern) {
  EXPECT_EQ(core_dump_glob("core", false, kCrashed), "/home/u/core");
  EXPECT_EQ(core_dump_glob("core", true, kCrashed), "/home/u/core.4711");
  EXPECT_EQ(core_dump_glob("core.%p", true, kCrashed), "/home/u/core.4711");
  EXPECT_EQ(core_dump_glob("/cores/%e-%s-%h-%t%%", false, kCrashed), "/cores/train_with_a_lo-11-node7-*%");
  EXPECT_EQ(core_dump_glob("%f", false, kCrashed), "/home/u/train_with_a_long_name");
  EXPECT_EQ(core_dump_glob("%", false, kCrashed), "/home/u/");
}

TEST(CoreDumpGlob, AProgramThatTakesDumpsHasNoPath) {
  EXPECT_EQ(core_dump_glob("|/usr/lib/systemd/systemd-coredump %P", false, kCrashed), "");
  EXPECT_EQ(core_dump_glob("", false, kCrashed), "");
}

TEST(CoreDumpText, SaysNothingForASignalThatMakesNone) {
  CrashedProcess process = kCrashed;
  process.signal = SIGKILL;
  EXPECT_EQ(core_dump_text(process, false), "");
}

}  // namespace
}  // namespace lockstep::launch
