// The doctor's probes of the kernel, the processors, the memory and the limits. Those named judge_* are pure,
// so that their tests need no special machine; the others look and then judge.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/process.h"
#include "lockstep/base/status.h"
#include "lockstep/launch/doctor.h"

namespace lockstep::launch {

Finding check_environment(const Result<Environment>& environment);
Finding check_kernel();
Finding judge_clock_source(const std::string& source);
Finding check_clock_source();
Finding check_cores();

struct MemoryState {
  base::MemoryLimits limits;
  std::optional<std::uint64_t> oom_kills = {};
};
Finding judge_memory(const MemoryState& state);
Finding check_memory();
Finding judge_memory_sharing(const Result<Duration>& proof);
Finding check_memory_sharing(const Deadline& deadline);
Finding judge_dev_shm(Bytes size, Bytes free);
Finding check_dev_shm();

// A soft and a hard limit as setrlimit(2) knows them; RLIM_INFINITY is no limit.
struct Limit {
  std::uint64_t soft = 0;
  std::uint64_t hard = 0;
};
Finding judge_open_files(const Limit& limit);
Finding check_open_files();
Finding judge_locked_memory(const Limit& limit);
Finding check_locked_memory();
// `pattern` is the text of /proc/sys/kernel/core_pattern.
Finding judge_core_dumps(const Limit& limit, const std::string& pattern);
Finding check_core_dumps();
// `scope` is the text of /proc/sys/kernel/yama/ptrace_scope; empty where there is none.
Finding judge_debugging(const std::string& scope);
Finding check_debugging();

}  // namespace lockstep::launch
