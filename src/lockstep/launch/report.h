// What the launcher says when a rank has failed: which one was first, how, and what became of the others.
//
// Thread safety: values and pure functions.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/error_file.h"
#include "lockstep/base/status.h"
#include "lockstep/launch/placement.h"

namespace lockstep::launch {

// How one rank stands or has ended.
struct RankState {
  Rank rank;
  int local_rank = 0;
  std::string host = {};
  pid_t pid = 0;
  std::optional<int> wait_status = {};  // empty: still running
  int told = 0;                         // the last signal that the launcher sent before the end; 0: none
  Duration ran{};                       // from start to end, or to now

  bool ended() const { return wait_status.has_value(); }
  // Ended otherwise than with code 0.
  bool failed() const { return ended() && *wait_status != 0; }
};

struct FailureReport {
  RankState first = {};
  std::uint64_t epoch = 0;
  std::optional<std::uint64_t> oom_kills = {};  // that the cgroup counted during the attempt
  std::optional<ErrorRecord> error = {};
  std::vector<std::string> stderr_tail = {};
  std::string core_dump = {};  // where it is, as a sentence; empty: there is none
  std::string log_path = {};   // of its stderr; empty: none
  // Set instead of an exit status if the program could not be started at all; a restart would not help.
  std::string cannot_start = {};
  int cannot_start_code = 0;
};

// 128 + N for a signal, as a shell says it.
int exit_code_of(int wait_status);
int exit_code_of(const FailureReport& report);

// "rank 2 (host node7, pid 4711) was killed by SIGKILL (signal 9), possibly out of memory: the cgroup counted
// 1 OOM kill". Without a full stop.
std::string headline(const FailureReport& report);

// One word or two for the table: "exited with code 0", "terminated by the launcher (SIGTERM)", ...
std::string state_text(const RankState& state);

// What became of the others: those of this host are known here, those elsewhere to their own agents.
struct OtherRanks {
  std::vector<RankState> here = {};
  std::vector<RankPlace> elsewhere = {};  // in the order of ranks
};

// The whole report.
struct ReportStyle {
  bool coloured = false;
  int max_restarts = 0;
};
std::string report_text(const FailureReport& report, const OtherRanks& others, const ReportStyle& style);

// Which of the ranks that were found dead together was the first cause: not one that says itself that another
// rank's failure ended it, if there is any other. `failures` is in the order of their end and not empty; the
// result is an index into it.
struct EndedRank {
  Rank rank;
  std::optional<ErrorRecord> error = {};
};
std::size_t choose_first_failure(const std::vector<EndedRank>& failures);
// The rank that this error blames, if it blames another than `self`.
std::optional<Rank> blamed_rank(const EndedRank& self);

// For the other agents.
std::string report_to_json(const FailureReport& report);
Result<FailureReport> report_from_json(std::string_view text);

}  // namespace lockstep::launch
