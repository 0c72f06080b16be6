#include "lockstep/launch/doctor_system.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <sstream>

#include "lockstep/base/text.h"
#include "lockstep/base/topology.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/launch/memory_sharing.h"

namespace lockstep::launch {
namespace {

constexpr std::uint64_t kFilesNeeded = 64;    // below this not even a small job starts
constexpr std::uint64_t kFilesWanted = 1024;  // sockets of some hundred ranks, and the program's own files
constexpr Bytes kMemoryWanted = Bytes::mib(512);
constexpr Bytes kDevShmWanted = Bytes::mib(256);
constexpr Bytes kLockedWanted = Bytes::kib(64);

// The trimmed text of a small file of /proc or /sys; empty if it cannot be read.
std::string file_text(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return std::string(base::trim(text.str()));
}

std::int64_t number(std::uint64_t value) { return static_cast<std::int64_t>(value); }

Limit limit_of(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit{};
  ::getrlimit(resource, &limit);
  return {.soft = limit.rlim_cur, .hard = limit.rlim_max};
}

std::string limit_text(std::uint64_t value) { return value == RLIM_INFINITY ? "unlimited" : cat(value); }
std::string limit_bytes(std::uint64_t value) {
  return value == RLIM_INFINITY ? "unlimited" : cat(Bytes{value});
}

// RLIM_INFINITY as a fact is -1: JSON has no infinity.
std::map<std::string, Finding::Fact> limit_facts(const Limit& limit) {
  const auto fact = [](std::uint64_t value) { return value == RLIM_INFINITY ? -1 : number(value); };
  return {{"soft", fact(limit.soft)}, {"hard", fact(limit.hard)}};
}

}  // namespace

Finding check_environment(const Result<Environment>& environment) {
  if (!environment.ok()) {
    return {.topic = "environment",
            .health = Health::kUnusable,
            .found = std::string(environment.status().message()),
            .advice = "Unset or mend that variable: every rank would refuse to start."};
  }
  if (environment->insecure) {
    return {.topic = "environment",
            .health = Health::kWarning,
            .found = "LOCKSTEP_INSECURE is set",
            .advice = "Anyone who reaches a port of the job may join it; use 'lockstep secret' instead."};
  }
  return {.topic = "environment", .found = "every variable of Lockstep that is set can be read"};
}

Finding check_kernel() {
  utsname system{};
  ::uname(&system);
  const bool pidfd = base::open_pidfd(::getpid()).ok();
  const UniqueFd memory(::memfd_create("lockstep-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool memfd = static_cast<bool>(memory);
  Finding finding{.topic = "kernel",
                  .found = cat(system.sysname, " ", system.release, " ", system.machine, ", pidfd ",
                               pidfd ? "works" : "is missing", ", memfd ", memfd ? "works" : "is missing"),
                  .facts = {{"release", std::string(system.release)}, {"pidfd", pidfd}, {"memfd", memfd}}};
  if (!memfd) {
    finding.health = Health::kUnusable;
    finding.advice =
        "The launcher passes the job's secret in a memfd: allow memfd_create(2) in the seccomp profile.";
  } else if (!pidfd) {
    finding.health = Health::kUnusable;
    finding.advice =
        "Deaths are seen by pidfd: use Linux 5.3 or newer, or allow pidfd_open(2) in the sandbox.";
  }
  return finding;
}

Finding judge_clock_source(const std::string& source) {
  Finding finding{.topic = "clock", .found = cat("clock source ", source), .facts = {{"source", source}}};
  constexpr std::array kFast = {"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page",
                                "timebase"};
  if (source.empty()) {
    finding.found = "the clock source is not shown here";
  } else if (std::find(kFast.begin(), kFast.end(), source) == kFast.end()) {
    finding.health = Health::kWarning;
    finding.advice =
        "Reading this clock is a system call: boot with clocksource=tsc if the machine allows it.";
  }
  return finding;
}

Finding check_clock_source() {
  return judge_clock_source(file_text("/sys/devices/system/clocksource/clocksource0/current_clocksource"));
}

Finding check_cores() {
  const int usable = base::usable_cores();
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  Finding finding{.topic = "cores",
                  .found = cat(usable, " usable of ", online, " online"),
                  .facts = {{"usable", std::int64_t{usable}}, {"online", std::int64_t{online}}}};
  const Result<base::Topology> topology = base::read_topology();
  if (!topology.ok()) {
    finding.health = Health::kWarning;
    finding.advice = cat("Ranks cannot be bound to cores: ", topology.status().message());
    return finding;
  }
  finding.found += cat(", ", topology->cores.size(), " physical, ", topology->packages, " package",
                       topology->packages == 1 ? "" : "s", ", ", topology->numa_nodes, " NUMA node",
                       topology->numa_nodes == 1 ? "" : "s");
  finding.facts["physical"] = number(topology->cores.size());
  finding.facts["numa_nodes"] = std::int64_t{topology->numa_nodes};
  return finding;
}

Finding judge_memory(const MemoryState& state) {
  const base::MemoryLimits& limits = state.limits;
  Finding finding{
      .topic = "memory",
      .found = cat(limits.available, " free of ", limits.total),
      .facts = {{"total", number(limits.total.value)}, {"available", number(limits.available.value)}}};
  if (limits.cgroup_limit) {
    finding.found += cat(", cgroup limit ", *limits.cgroup_limit);
    finding.facts["cgroup_limit"] = number(limits.cgroup_limit->value);
  }
  if (state.oom_kills) finding.facts["oom_kills"] = number(*state.oom_kills);
  if (limits.available < kMemoryWanted) {
    finding.health = Health::kWarning;
    finding.advice = "Little is left for a job: stop other programs, or raise the cgroup's limit.";
  } else if (state.oom_kills.value_or(0) > 0) {
    finding.health = Health::kWarning;
    finding.found += cat(", ", *state.oom_kills, " OOM kill", *state.oom_kills == 1 ? "" : "s", " so far");
    finding.advice =
        "The kernel has killed processes of this cgroup for memory: run fewer ranks or raise the limit.";
  }
  return finding;
}

Finding check_memory() {
  const Result<base::MemoryLimits> limits = base::memory_limits();
  if (!limits.ok()) {
    return {.topic = "memory",
            .health = Health::kWarning,
            .found = std::string(limits.status().message()),
            .advice = "Mount /proc: without it nobody knows how much memory a job may take."};
  }
  return judge_memory({.limits = *limits, .oom_kills = base::oom_kills()});
}

Finding judge_memory_sharing(const Result<Duration>& proof) {
  if (proof.ok()) {
    return {.topic = "shared memory",
            .found = cat("two processes passed a memfd and read each other's pages in ", *proof),
            .facts = {{"works", true}}};
  }
  return {.topic = "shared memory",
          .health = Health::kUnusable,
          .found = std::string(proof.status().message()),
          .advice =
              "Ranks of one host share memory: allow memfd_create, abstract unix sockets and SCM_RIGHTS "
              "in the sandbox.",
          .facts = {{"works", false}}};
}

Finding check_memory_sharing(const Deadline& deadline) {
  return judge_memory_sharing(prove_memory_sharing(deadline));
}

Finding judge_dev_shm(Bytes size, Bytes free) {
  Finding finding{.topic = "/dev/shm",
                  .found = cat(free, " free of ", size),
                  .facts = {{"size", number(size.value)}, {"free", number(free.value)}}};
  if (free < kDevShmWanted) {
    finding.health = Health::kWarning;
    finding.advice =
        "Lockstep does not use it, but torch's data loaders do: docker run --shm-size=1g, or remount it "
        "larger.";
  }
  return finding;
}

Finding check_dev_shm() {
  struct statvfs state {};
  if (::statvfs("/dev/shm", &state) != 0) {
    return {.topic = "/dev/shm",
            .health = Health::kWarning,
            .found = "not there",
            .advice = "Lockstep does not use it, but torch's data loaders do: mount a tmpfs there."};
  }
  return judge_dev_shm(Bytes{std::uint64_t{state.f_blocks} * state.f_frsize},
                       Bytes{std::uint64_t{state.f_bavail} * state.f_frsize});
}

Finding judge_open_files(const Limit& limit) {
  Finding finding{.topic = "open files",
                  .found = cat("limit ", limit_text(limit.soft), " (hard ", limit_text(limit.hard), ")"),
                  .facts = limit_facts(limit)};
  if (limit.soft >= kFilesWanted) return finding;
  finding.health = limit.soft < kFilesNeeded ? Health::kUnusable : Health::kWarning;
  finding.advice = limit.hard >= kFilesWanted
                       ? cat("Raise it: ulimit -n ", std::min<std::uint64_t>(limit.hard, 65536), ".")
                       : "Raise the hard limit: /etc/security/limits.conf, LimitNOFILE= of "
                         "a service, or docker run --ulimit nofile=65536.";
  return finding;
}

Finding check_open_files() { return judge_open_files(limit_of(RLIMIT_NOFILE)); }

Finding judge_locked_memory(const Limit& limit) {
  Finding finding{.topic = "locked memory",
                  .found = cat("limit ", limit_bytes(limit.soft), " (hard ", limit_bytes(limit.hard), ")"),
                  .facts = limit_facts(limit)};
  if (limit.soft < kLockedWanted.value) {
    finding.health = Health::kWarning;
    finding.advice = "Pinned buffers will fail: ulimit -l unlimited, or docker run --ulimit memlock=-1.";
  }
  return finding;
}

Finding check_locked_memory() { return judge_locked_memory(limit_of(RLIMIT_MEMLOCK)); }

Finding judge_core_dumps(const Limit& limit, const std::string& pattern) {
  const std::string where = pattern.starts_with("|")
                                ? cat("handed to ", pattern.substr(1, pattern.find(' ') - 1))
                                : cat("written to ", base::quoted(pattern));
  return {.topic = "core dumps",
          .found = limit.soft == 0 ? "off (ulimit -c unlimited turns them on)"
                                   : cat("on (", limit_bytes(limit.soft), "), ", where),
          .facts = {{"enabled", limit.soft != 0}, {"pattern", pattern}}};
}

Finding check_core_dumps() {
  return judge_core_dumps(limit_of(RLIMIT_CORE), file_text("/proc/sys/kernel/core_pattern"));
}

Finding judge_debugging(const std::string& scope) {
  Finding finding{.topic = "debugging", .found = {}, .facts = {{"ptrace_scope", scope}}};
  if (scope.empty() || scope == "0") {
    finding.found = "a debugger may attach to a running rank";
  } else if (scope == "1") {
    finding.found = "a debugger may attach to its own children only (ptrace_scope 1)";
  } else {
    finding.health = Health::kWarning;
    finding.found = cat("a debugger may not attach (ptrace_scope ", scope, ")");
    finding.advice = "To look into a hanging rank as yourself: sysctl kernel.yama.ptrace_scope=1.";
  }
  return finding;
}

Finding check_debugging() { return judge_debugging(file_text("/proc/sys/kernel/yama/ptrace_scope")); }

}  // namespace lockstep::launch
