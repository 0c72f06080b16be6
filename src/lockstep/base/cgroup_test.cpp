#include "lockstep/base/cgroup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "lockstep/base/text.h"

namespace lockstep::base {
namespace {

using Files = std::map<std::string, std::string>;

// A folder that stands for the root of a machine, with these files in it; removed at the end.
class Machine {
 public:
  explicit Machine(const Files& files) {
    root_ = (std::filesystem::temp_directory_path() / "cgroup_test.XXXXXX").string();
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
    for (const auto& [path, content] : files) {
      const std::filesystem::path full = root_ + path;
      std::filesystem::create_directories(full.parent_path());
      std::ofstream(full) << content;
    }
  }
  ~Machine() { std::filesystem::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  int cores(int affinity = 64) const { return usable_cores_below(root_, affinity); }
  MemoryLimits memory() const {
    const auto limits = memory_limits_below(root_);
    EXPECT_TRUE(limits.ok()) << limits.status().text();
    return *limits;
  }
  std::optional<std::uint64_t> oom_kills() const { return oom_kills_below(root_); }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

const std::string kMemInfo =
    "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n";

std::string v2_mount(std::string_view group = "/") {
  return cat("30 24 0:26 ", group, " /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
}
std::string v1_mount(std::string_view controllers, std::string_view group = "/") {
  return cat("33 25 0:30 ", group, " /sys/fs/cgroup/", controllers,
             " rw,relatime shared:11 - cgroup cgroup rw,", controllers, "\n");
}

// F29: /sys was mounted anew over the first one, which the list of mounts still has.
TEST(Cgroup, OfSeveralMountsTheOneThatCanBeSeenCounts) {
  const std::string elsewhere = "90 24 0:26 / /mnt/groups rw - cgroup2 cgroup2 rw\n";
  const Machine machine(Files{{"/proc/meminfo", kMemInfo},
                              {"/proc/self/cgroup", "0::/job\n"},
                              {"/proc/self/mountinfo", v2_mount() + elsewhere},
                              {"/mnt/groups/job/cgroup.procs", "1\n"},
                              {"/mnt/groups/job/memory.max", "1073741824\n"}});
  EXPECT_EQ(machine.memory().cgroup_limit, Bytes::gib(1));
}

TEST(Cgroup, WithoutAnyTheMachineIsTheLimit) {
  const Machine machine(Files{{"/proc/meminfo", kMemInfo}});
  EXPECT_EQ(machine.cores(8), 8);
  EXPECT_EQ(machine.memory().total, Bytes::gib(16));
  EXPECT_EQ(machine.memory().available, Bytes::gib(8));
  EXPECT_EQ(machine.memory().cgroup_limit, std::nullopt);
  EXPECT_EQ(machine.oom_kills(), std::nullopt);
}

TEST(Cgroup, V2LimitsOfTheOwnGroup) {
  const Machine machine({{"/proc/meminfo", kMemInfo},
                         {"/proc/self/cgroup", "0::/job\n"},
                         {"/proc/self/mountinfo", v2_mount()},
                         {"/sys/fs/cgroup/job/cpu.max", "250000 100000\n"},
                         {"/sys/fs/cgroup/job/cpuset.cpus.effective", "0-7\n"},
                         {"/sys/fs/cgroup/job/memory.max", "4294967296\n"},
                         {"/sys/fs/cgroup/job/memory.current", "3221225472\n"},
                         {"/sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 1073741824\n"},
                         {"/sys/fs/cgroup/job/memory.events", "low 0\nhigh 0\nmax 4\noom 3\noom_kill 2\n"}});
  EXPECT_EQ(machine.cores(), 3) << "2.5 cores are rounded up";
  EXPECT_EQ(machine.memory().total, Bytes::gib(4));
  EXPECT_EQ(machine.memory().cgroup_limit, Bytes::gib(4));
  EXPECT_EQ(machine.memory().available, Bytes::gib(2)) << "inactive page cache is free";
  EXPECT_EQ(machine.oom_kills(), 2U);
}

TEST(Cgroup, V2EveryLevelCounts) {
  const Machine machine({{"/proc/meminfo", kMemInfo},
                         {"/proc/self/cgroup", "0::/slice/job/worker\n"},
                         {"/proc/self/mountinfo", v2_mount()},
                         {"/sys/fs/cgroup/slice/cpu.max", "400000 100000\n"},
                         {"/sys/fs/cgroup/slice/job/cpu.max", "200000 100000\n"},
                         {"/sys/fs/cgroup/slice/job/worker/cpu.max", "max 100000\n"},
                         {"/sys/fs/cgroup/slice/memory.max", "2147483648\n"},
                         {"/sys/fs/cgroup/slice/memory.current", "2147483648\n"},
                         {"/sys/fs/cgroup/slice/job/memory.max", "8589934592\n"},
                         {"/sys/fs/cgroup/slice/job/memory.current", "1000\n"},
                         {"/sys/fs/cgroup/slice/job/worker/memory.max", "max\n"}});
  EXPECT_EQ(machine.cores(), 2);
  EXPECT_EQ(machine.memory().cgroup_limit, Bytes::gib(2));
  EXPECT_EQ(machine.memory().total, Bytes::gib(2));
  EXPECT_EQ(machine.memory().available, Bytes{0});
}

TEST(Cgroup, V2ContainerWithANamespaceOfItsOwn) {
  // "/" is the container's group: the files at the mount point are its limits.
  const Machine machine({{"/proc/meminfo", kMemInfo},
                         {"/proc/self/cgroup", "0::/\n"},
                         {"/proc/self/mountinfo", v2_mount()},
                         {"/sys/fs/cgroup/cpu.max", "50000 100000\n"},
                         {"/sys/fs/cgroup/memory.max", "1073741824\n"},
                         {"/sys/fs/cgroup/memory.current", "0\n"},
                         {"/sys/fs/cgroup/memory.events", "oom_kill 1\n"}});
  EXPECT_EQ(machine.cores(), 1);
  EXPECT_EQ(machine.memory().total, Bytes::gib(1));
  EXPECT_EQ(machine.memory().available, Bytes::gib(1));
  EXPECT_EQ(machine.oom_kills(), 1U);
}

TEST(Cgroup, V1LimitsOfEveryLevel) {
  const Machine machine(
      {{"/proc/meminfo", kMemInfo},
       {"/proc/self/cgroup", "4:memory:/a/b\n3:cpuset:/set\n2:cpu,cpuacct:/a\n1:name=systemd:/init.scope\n"},
       {"/proc/self/mountinfo", v1_mount("memory") + v1_mount("cpuset") + v1_mount("cpu,cpuacct")},
       {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"},
       {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"},
       {"/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "600000\n"},
       {"/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"},
       {"/sys/fs/cgroup/cpuset/set/cpuset.effective_cpus", "0-3,8\n"},
       {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
       {"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "6442450944\n"},
       {"/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "4294967296\n"},
       {"/sys/fs/cgroup/memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 1073741824\n"},
       {"/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"},
       {"/sys/fs/cgroup/memory/a/b/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"}});
  EXPECT_EQ(machine.cores(), 5) << "the cpuset is the smallest";
  EXPECT_EQ(machine.cores(2), 2) << "the affinity is the smallest";
  EXPECT_EQ(machine.memory().cgroup_limit, Bytes::gib(6));
  EXPECT_EQ(machine.memory().available, Bytes::gib(3));
  EXPECT_EQ(machine.oom_kills(), 5U);
}

TEST(Cgroup, V1ContainerWithoutANamespaceSeesItsGroupAsTheMountPoint) {
  const std::string group = "/kubepods/burstable/pod1/c2";
  const Machine machine({{"/proc/meminfo", kMemInfo},
                         {"/proc/self/cgroup", cat("4:memory:", group, "\n2:cpu:", group, "/inner\n")},
                         {"/proc/self/mountinfo", v1_mount("memory", group) + v1_mount("cpu", group)},
                         {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"},
                         {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n"},
                         {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"},
                         {"/sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "200000\n"},
                         {"/sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000\n"}});
  EXPECT_EQ(machine.memory().total, Bytes::gib(1));
  EXPECT_EQ(machine.cores(), 2);
}

TEST(Cgroup, HybridTakesEachControllerWhereItIs) {
  // memory and cpu are v1; v2 is mounted beside them without controllers.
  const Machine machine(
      {{"/proc/meminfo", kMemInfo},
       {"/proc/self/cgroup", "4:memory:/m\n1:cpu:/\n0::/user.slice\n"},
       {"/proc/self/mountinfo", "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n" +
                                    v1_mount("memory") + v1_mount("cpu")},
       {"/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "2147483648\n"},
       {"/sys/fs/cgroup/memory/m/memory.oom_control", "oom_kill 0\n"},
       {"/sys/fs/cgroup/unified/user.slice/cpu.max", "100000 100000\n"},
       {"/sys/fs/cgroup/unified/user.slice/memory.events", "oom_kill 9\n"}});
  EXPECT_EQ(machine.memory().cgroup_limit, Bytes::gib(2));
  EXPECT_EQ(machine.oom_kills(), 0U);
  EXPECT_EQ(machine.cores(), 64) << "cpu is a v1 controller here";
}

TEST(Cgroup, AMountPointMayHaveSpaces) {
  const Machine machine({{"/proc/meminfo", kMemInfo},
                         {"/proc/self/cgroup", "0::/\n"},
                         {"/proc/self/mountinfo", "30 24 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw\n"},
                         {"/my groups/cpu.max", "100000 100000\n"}});
  EXPECT_EQ(machine.cores(), 1);
}

TEST(Cgroup, GroupsOutsideOfWhatIsMountedLeaveTheMountPoint) {
  for (const char* group : {"/elsewhere", "/jobs-not-this", "/../sibling", "none"}) {
    const Machine machine({{"/proc/meminfo", kMemInfo},
                           {"/proc/self/cgroup", cat("0::", group, "\n")},
                           {"/proc/self/mountinfo", v2_mount("/jobs")},
                           {"/sys/fs/cgroup/cpu.max", "300000 100000\n"}});
    EXPECT_EQ(machine.cores(), 3) << group;
  }
}

TEST(Cgroup, GarbageSetsNoLimit) {
  for (const char* garbage :
       {"", "x", "max", "-1 100000", "0 0", "100000", "1 2 3", "99999999999999999999 1"}) {
    const Machine machine({{"/proc/meminfo", kMemInfo},
                           {"/proc/self/cgroup", "\n:\n0:\n0::/job\n"},
                           {"/proc/self/mountinfo", "\nx - cgroup2\n- - -\n" + v2_mount()},
                           {"/sys/fs/cgroup/job/cpu.max", garbage},
                           {"/sys/fs/cgroup/job/cpuset.cpus.effective", garbage},
                           {"/sys/fs/cgroup/job/memory.max", garbage},
                           {"/sys/fs/cgroup/job/memory.events", garbage}});
    EXPECT_EQ(machine.oom_kills(), std::nullopt);
    if (std::string_view(garbage) == "100000") continue;  // one CPU, and a limit
    EXPECT_EQ(machine.cores(), 64) << garbage;
    EXPECT_EQ(machine.memory().cgroup_limit, std::nullopt) << garbage;
  }
}

TEST(Cgroup, WithoutMemInfoThereIsAnError) {
  const Machine machine(Files{{"/proc/meminfo", "MemTotal: 5 kB\n"}});
  const auto limits = memory_limits_below(machine.root());
  EXPECT_EQ(limits.status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace lockstep::base
