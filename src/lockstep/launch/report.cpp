#include "lockstep/launch/report.h"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <nlohmann/json.hpp>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/exit_codes.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

std::string killed_suffix(const FailureReport& report) {
  const bool by_kill = report.first.wait_status && WIFSIGNALED(*report.first.wait_status) &&
                       WTERMSIG(*report.first.wait_status) == SIGKILL;
  if (!by_kill || report.first.told == SIGKILL) return {};
  const std::uint64_t kills = report.oom_kills.value_or(0);
  if (kills > 0) {
    return cat(", possibly out of memory: the cgroup counted ", kills, " OOM kill", kills == 1 ? "" : "s");
  }
  return ", possibly out of memory, or killed by hand: the launcher did not send it";
}

std::string pad(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

// Rows of equal columns, two blanks between them.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += ' ';
      line += i + 1 < row.size() ? cat(pad(row[i], widths[i]), " ") : row[i];
    }
    out += cat(line, "\n");
  }
  return out;
}

void add_error(std::string& out, const ErrorRecord& error) {
  // A torch message may be a whole traceback: each line is indented.
  out += cat("  error       ", error.status.failure() == Failure::kNone
                                   ? cat(base::code_name(error.status.code()), ": ")
                                   : cat(base::code_name(error.status.code()), " (",
                                         base::failure_name(error.status.failure()), "): "));
  std::string indented(error.status.message());
  while (!indented.empty() && indented.back() == '\n') indented.pop_back();
  for (auto at = indented.find('\n'); at != std::string::npos; at = indented.find('\n', at + 1)) {
    indented.insert(at + 1, "              ");
  }
  out += cat(indented, "\n");
  if (!error.where.empty()) out += cat("  made at     ", error.where, "\n");
}

// More than this many ranks are summed up, not listed.
constexpr std::size_t kMaxRows = 64;

std::string here_text(const std::vector<RankState>& others) {
  if (others.empty()) return {};
  std::vector<std::vector<std::string>> rows = {{"rank", "pid", "ran", "state"}};
  for (const RankState& other : others) {
    if (rows.size() > kMaxRows) break;
    rows.push_back({cat(other.rank), cat(other.pid), cat(other.ran), state_text(other)});
  }
  std::string out = cat("The other ranks of this host:\n", table(rows));
  if (others.size() > kMaxRows) out += cat("  and ", others.size() - kMaxRows, " more\n");
  return out;
}

// The agents of other hosts print tables of their own: who looks for a rank must know where.
std::string elsewhere_text(const std::vector<RankPlace>& others) {
  if (others.empty()) return {};
  std::vector<std::vector<std::string>> rows;
  for (auto begin = others.begin(); begin != others.end();) {
    const auto end =
        std::find_if(begin, others.end(), [&](const RankPlace& place) { return place.node != begin->node; });
    std::vector<Rank> ranks;
    std::transform(begin, end, std::back_inserter(ranks), [](const RankPlace& place) { return place.rank; });
    rows.push_back({cat(begin->host, " (node ", begin->node, ")"),
                    cat(ranks.size() == 1 ? "rank " : "ranks ", base::ranks_text(ranks))});
    begin = end;
  }
  const std::size_t shown = std::min(rows.size(), kMaxRows);
  const std::size_t left = rows.size() - shown;
  rows.resize(shown);
  return cat("The agents of the other hosts report on their ranks:\n", table(rows),
             left > 0 ? cat("  and ", left, " more hosts\n") : "");
}

std::string others_text(const OtherRanks& others) {
  return here_text(others.here) + elsewhere_text(others.elsewhere);
}

}  // namespace

int exit_code_of(int wait_status) {
  if (WIFEXITED(wait_status)) return WEXITSTATUS(wait_status);
  return WIFSIGNALED(wait_status) ? kExitSignal + WTERMSIG(wait_status) : kExitFailure;
}

int exit_code_of(const FailureReport& report) {
  if (!report.cannot_start.empty()) return report.cannot_start_code;
  return report.first.wait_status ? exit_code_of(*report.first.wait_status) : kExitFailure;
}

std::string headline(const FailureReport& report) {
  const RankState& first = report.first;
  if (!report.cannot_start.empty()) {
    return cat("rank ", first.rank, " (host ", first.host, ") could not be started: ", report.cannot_start);
  }
  const int status = first.wait_status.value_or(0);
  return cat("rank ", first.rank, " (host ", first.host, ", pid ", first.pid, ") ",
             WIFSIGNALED(status) ? "was " : "", base::exit_text(status), killed_suffix(report));
}

std::string state_text(const RankState& state) {
  if (!state.ended()) return "still running";
  const int status = *state.wait_status;
  if (state.told == 0) return base::exit_text(status);
  if (WIFSIGNALED(status) && WTERMSIG(status) == state.told) {
    return cat(state.told == SIGKILL ? "killed" : "terminated", " by the launcher (",
               base::signal_name(state.told), ")");
  }
  return cat(base::exit_text(status), " after the launcher's ", base::signal_name(state.told));
}

std::string report_text(const FailureReport& report, const OtherRanks& others, const ReportStyle& style) {
  const char* red = style.coloured ? "\x1b[1;31m" : "";
  const char* plain = style.coloured ? "\x1b[0m" : "";
  std::string out = cat(red, "lockstep: ", headline(report), ".", plain, "\n");
  if (!report.cannot_start.empty()) return out + others_text(others);
  out += cat("  ended       ", report.first.ran, " after its start, in attempt ", report.epoch + 1, " of ",
             style.max_restarts + 1, "\n");
  if (report.error) add_error(out, *report.error);
  if (!report.core_dump.empty()) out += cat("  core dump   ", report.core_dump, "\n");
  if (!report.log_path.empty()) out += cat("  log         ", report.log_path, "\n");
  if (report.stderr_tail.empty()) {
    out += "  It wrote nothing to stderr.\n";
  } else {
    out += "  The last lines of its stderr:\n";
    for (const std::string& line : report.stderr_tail) out += cat("    | ", line, "\n");
  }
  return out + others_text(others);
}

std::optional<Rank> blamed_rank(const EndedRank& self) {
  if (!self.error) return std::nullopt;
  const auto& peer = self.error->status.cause().peer;
  return peer && *peer != self.rank ? peer : std::nullopt;
}

std::size_t choose_first_failure(const std::vector<EndedRank>& failures) {
  // First of all, one that another of them blames.
  for (const EndedRank& accuser : failures) {
    const auto blamed = blamed_rank(accuser);
    for (std::size_t i = 0; blamed && i < failures.size(); ++i) {
      if (failures[i].rank == *blamed && !blamed_rank(failures[i])) return i;
    }
  }
  for (std::size_t i = 0; i < failures.size(); ++i) {
    if (!blamed_rank(failures[i])) return i;
  }
  return 0;
}

std::string report_to_json(const FailureReport& report) {
  const RankState& first = report.first;
  json out = {{"rank", first.rank.value},
              {"local_rank", first.local_rank},
              {"host", first.host},
              {"pid", first.pid},
              {"told", first.told},
              {"ran_ns", first.ran.count()},
              {"epoch", report.epoch},
              {"stderr_tail", report.stderr_tail},
              {"core_dump", report.core_dump},
              {"log_path", report.log_path},
              {"cannot_start", report.cannot_start},
              {"cannot_start_code", report.cannot_start_code}};
  if (first.wait_status) out["wait_status"] = *first.wait_status;
  if (report.oom_kills) out["oom_kills"] = *report.oom_kills;
  if (report.error) out["error"] = base::error_to_json(*report.error);
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<FailureReport> report_from_json(std::string_view text) {
  const json in = json::parse(text, nullptr, false);
  if (!in.is_object()) return Status::invalid("a failure report of another agent is not a JSON object");
  FailureReport report;
  try {
    report.first = {.rank = Rank{in.at("rank").get<int>()},
                    .local_rank = in.at("local_rank").get<int>(),
                    .host = in.at("host").get<std::string>(),
                    .pid = in.at("pid").get<pid_t>(),
                    .told = in.at("told").get<int>(),
                    .ran = Duration(in.at("ran_ns").get<Duration::rep>())};
    if (in.contains("wait_status")) report.first.wait_status = in.at("wait_status").get<int>();
    report.epoch = in.at("epoch").get<std::uint64_t>();
    if (in.contains("oom_kills")) report.oom_kills = in.at("oom_kills").get<std::uint64_t>();
    report.stderr_tail = in.at("stderr_tail").get<std::vector<std::string>>();
    report.core_dump = in.at("core_dump").get<std::string>();
    report.log_path = in.at("log_path").get<std::string>();
    report.cannot_start = in.at("cannot_start").get<std::string>();
    report.cannot_start_code = in.at("cannot_start_code").get<int>();
    if (in.contains("error")) {
      auto error = base::error_from_json(in.at("error").get<std::string>());
      if (error.ok()) report.error = *std::move(error);
    }
  } catch (const json::exception& error) {
    return Status::invalid(cat("a failure report of another agent does not parse: ", error.what()));
  }
  return report;
}

}  // namespace lockstep::launch
