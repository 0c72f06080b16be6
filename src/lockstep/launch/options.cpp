#include "lockstep/launch/options.h"

#include <algorithm>
#include <cctype>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/prefix.h"
#include "lockstep/launch/signals.h"
#include "lockstep/launch/worker_environment.h"

namespace lockstep::launch {
namespace {

using base::parse_duration;
using base::parse_integer;
using base::quoted;

Status bad(std::string_view option, std::string_view text, std::string_view expected) {
  return Status::invalid(cat(option, " ", quoted(text), " is not valid: give ", expected));
}

Result<int> parse_count(std::string_view option, const std::string& text, int low, int high) {
  const auto value = parse_integer<int>(text);
  if (!value || *value < low || *value > high) {
    return bad(option, text, cat("a number from ", low, " to ", high));
  }
  return *value;
}

Result<Duration> parse_time(std::string_view option, const std::string& text) {
  const auto value = parse_duration(text);
  if (!value || *value < Duration::zero() || *value > std::chrono::hours(24 * 365)) {
    return bad(option, text, "a time such as 30, 1.5s, 250ms or 5min");
  }
  return *value;
}

// Sets `out` from a word, unless that was not given.
Status read_count(std::string_view option, const std::string& word, int low, int high, int& out) {
  if (word.empty()) return {};
  LOCKSTEP_ASSIGN(out, parse_count(option, word, low, high));
  return {};
}

Status read_duration(std::string_view option, const std::string& word, Duration& out) {
  if (word.empty()) return {};
  LOCKSTEP_ASSIGN(out, parse_time(option, word));
  return {};
}

Status read_nnodes(const std::string& text, int& out) {
  const auto colon = text.find(':');
  if (colon != std::string::npos && text.size() > 1) {
    if (text.substr(0, colon) != text.substr(colon + 1)) {
      return Status::invalid(cat("--nnodes ", quoted(text),
                                 " asks for a range, and the number of hosts cannot change while a job runs: "
                                 "give one number"));
    }
    return read_count("--nnodes", text.substr(0, colon), 1, kMaxNodes, out);
  }
  return read_count("--nnodes", text, 1, kMaxNodes, out);
}

Result<Streams> parse_streams(std::string_view option, std::string_view whole, std::string_view text) {
  const auto number = parse_integer<int>(text);
  if (!number || *number < 0 || *number > 3) {
    return bad(option, whole,
               "0 (none), 1 (stdout), 2 (stderr) or 3 (both), or these by local rank as in 0:1,2:3");
  }
  return Streams{.out = (*number & 1) != 0, .error = (*number & 2) != 0};
}

Result<std::vector<int>> parse_local_ranks(std::string_view text) {
  std::vector<int> ranks;
  if (text.empty()) return ranks;
  for (const std::string& part : base::split(text, ',')) {
    const auto rank = parse_integer<int>(base::trim(part));
    if (!rank || *rank < 0 || *rank >= kMaxLocalRanks) {
      return bad("--local-ranks-filter", text, "local ranks with commas between them, as in 0,1");
    }
    ranks.push_back(*rank);
  }
  return ranks;
}

Result<std::pair<std::string, std::string>> parse_assignment(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0) return bad("--env", text, "NAME=VALUE");
  std::string name = text.substr(0, equals);
  if (is_launcher_variable(name)) {
    return Status::invalid(
        cat("--env ", name, " is not possible: the launcher sets ", name, " for each rank"));
  }
  return std::pair(std::move(name), text.substr(equals + 1));
}

// --rdzv-endpoint, or --master-addr with --master-port.
Status read_endpoint(const RunWords& words, RunOptions& options) {
  if (!words.rdzv_endpoint.empty() && (!words.master_addr.empty() || !words.master_port.empty())) {
    return Status::invalid(
        "--rdzv-endpoint and --master-addr/--master-port say the same thing: give one of them");
  }
  std::string text = words.rdzv_endpoint;
  if (!words.master_addr.empty() || !words.master_port.empty()) {
    if (words.master_addr.empty() && options.nnodes > 1) {
      return Status::invalid("--master-port needs --master-addr: give both, or --rdzv-endpoint HOST:PORT");
    }
    const std::string host = words.master_addr.empty() ? "127.0.0.1" : words.master_addr;  // as torchrun
    const bool bare_ipv6 = host.find(':') != std::string::npos && host.front() != '[';
    text = cat(bare_ipv6 ? "[" : "", host, bare_ipv6 ? "]" : "");
    if (!words.master_port.empty()) text += cat(":", words.master_port);
  }
  if (text.empty()) return {};
  constexpr std::uint16_t kDefaultPort = 29400;  // as torchrun's c10d rendezvous
  auto endpoint = base::parse_endpoint(text, kDefaultPort);
  if (!endpoint.ok()) {
    return bad(words.rdzv_endpoint.empty() ? "--master-addr with --master-port" : "--rdzv-endpoint", text,
               "HOST:PORT");
  }
  if (endpoint->port == 0 && options.nnodes > 1) {
    return Status::invalid(
        cat(words.rdzv_endpoint.empty() ? "--master-port 0" : cat("--rdzv-endpoint ", quoted(text)),
            " has no port that the other hosts could know: give one from 1 to 65535"));
  }
  options.rdzv_endpoint = *std::move(endpoint);
  return {};
}

// torchrun's --rdzv-backend and --rdzv-conf: what has a meaning here is taken, the rest is refused by name.
Status read_rdzv(const RunWords& words, RunOptions& options) {
  if (!words.rdzv_backend.empty() && words.rdzv_backend != "c10d" && words.rdzv_backend != "static") {
    return bad("--rdzv-backend", words.rdzv_backend,
               "c10d or static (both mean the launcher's own rendezvous)");
  }
  if (words.rdzv_conf.empty()) return {};
  for (const std::string& part : base::split(words.rdzv_conf, ',')) {
    const auto equals = part.find('=');
    const std::string key(base::trim(part.substr(0, equals)));
    const std::string value =
        equals == std::string::npos ? "" : std::string(base::trim(part.substr(equals + 1)));
    if (key == "join_timeout" || key == "timeout") {
      LOCKSTEP_ASSIGN(options.join_timeout, parse_time("--rdzv-conf " + key, value));
    } else if (key == "rank") {
      LOCKSTEP_ASSIGN(options.node_rank, parse_count("--rdzv-conf rank", value, 0, kMaxNodes - 1));
    } else {
      return bad("--rdzv-conf", part, "join_timeout=SECONDS or rank=NODE_RANK");
    }
  }
  return {};
}

// It becomes the name of a folder and a part of messages.
Status check_id(const std::string& id) {
  const bool plain = std::all_of(id.begin(), id.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  });
  if (plain && id.size() <= 128 && !id.starts_with(".")) return {};
  return bad("--rdzv-id", id, "at most 128 letters, digits, '.', '_' and '-', not starting with '.'");
}

Status read_place(const RunWords& words, RunOptions& options) {
  if (!words.nproc.empty()) {
    LOCKSTEP_ASSIGN(options.nproc, parse_process_count(words.nproc));
  }
  LOCKSTEP_TRY(read_nnodes(words.nnodes, options.nnodes));
  LOCKSTEP_TRY(read_rdzv(words, options));
  if (!words.node_rank.empty()) {
    LOCKSTEP_ASSIGN(options.node_rank, parse_count("--node-rank", words.node_rank, 0, kMaxNodes - 1));
  }
  LOCKSTEP_TRY(read_endpoint(words, options));
  LOCKSTEP_TRY(check_id(words.rdzv_id));
  options.rdzv_id = words.rdzv_id;
  options.local_addr = words.local_addr;
  if (!words.role.empty()) options.role = words.role;
  if (!words.cpu_binding.empty()) {
    const auto binding = base::parse_binding(words.cpu_binding);
    if (!binding) return bad("--cpu-binding", words.cpu_binding, "none, cores or numa");
    options.cpu_binding = *binding;
  }
  return {};
}

Status read_failure_policy(const RunWords& words, RunOptions& options) {
  LOCKSTEP_TRY(read_count("--max-restarts", words.max_restarts, 0, 1'000'000, options.max_restarts));
  LOCKSTEP_TRY(read_duration("--restart-delay", words.restart_delay, options.restart_delay));
  LOCKSTEP_TRY(read_duration("--monitor-interval", words.monitor_interval, options.monitor_interval));
  LOCKSTEP_TRY(read_duration("--join-timeout", words.join_timeout, options.join_timeout));
  LOCKSTEP_TRY(read_duration("--shutdown-timeout", words.shutdown_timeout, options.shutdown_timeout));
  if (options.monitor_interval <= Duration::zero()) {
    return bad("--monitor-interval", words.monitor_interval, "a time above zero");
  }
  LOCKSTEP_ASSIGN(options.signals, parse_signals(words.signals));
  return {};
}

Status read_output(const RunWords& words, RunOptions& options) {
  options.log_dir = words.log_dir;
  if (!words.redirects.empty()) {
    LOCKSTEP_ASSIGN(options.redirects, parse_stream_choice("--redirects", words.redirects));
  }
  if (!words.tee.empty()) {
    LOCKSTEP_ASSIGN(options.tee, parse_stream_choice("--tee", words.tee));
  }
  if (words.prefix) options.prefix = *words.prefix;
  LOCKSTEP_TRY(PrefixTemplate::parse(options.prefix).status());
  LOCKSTEP_ASSIGN(options.local_ranks_filter, parse_local_ranks(words.local_ranks_filter));
  if (!options.log_dir.empty() && words.redirects.empty() && words.tee.empty()) {
    options.tee.all = {.out = true, .error = true};  // whoever names a folder for logs wants logs
  }
  if (options.redirects.any() && options.log_dir.empty()) {
    return Status::invalid("--redirects sends output to log files: give --log-dir DIRECTORY too");
  }
  return {};
}

// What only makes sense, or no sense, together.
Status check_together(const RunWords& words, const RunOptions& options) {
  if (words.module && words.no_python) {
    return Status::invalid("-m and --no-python exclude each other: a module is run by Python");
  }
  if (words.standalone && (options.nnodes > 1 || options.rdzv_endpoint)) {
    return Status::invalid(
        "--standalone means one host: leave out --nnodes and --rdzv-endpoint, or --standalone");
  }
  if (options.nnodes > 1 && !options.rdzv_endpoint) {
    return Status::invalid(
        cat("--nnodes ", options.nnodes,
            " needs --rdzv-endpoint HOST:PORT, the address where the agents meet (HOST is one "
            "of the hosts; the same on all of them)"));
  }
  if (options.node_rank && *options.node_rank >= options.nnodes) {
    return Status::invalid(cat("--node-rank ", *options.node_rank, " does not exist among --nnodes ",
                               options.nnodes, ": give 0 to ", options.nnodes - 1));
  }
  if (options.nnodes > 1 && !options.local_addr.empty() && !options.node_rank) {
    return Status::invalid(
        "--local-addr is the address that node 0 binds, and by arrival no host is node 0 before it has bound "
        "one: "
        "give --node-rank too, on all hosts");
  }
  if (options.insecure && !options.secret_file.empty()) {
    return Status::invalid("--secret-file and --insecure exclude each other: leave one out");
  }
  if (words.command.empty()) {
    return Status::invalid(
        "no program was given: write it after the options, as in lockstep run --nproc 4 ./train");
  }
  return {};
}

}  // namespace

Result<ProcessCount> parse_process_count(std::string_view text) {
  if (text == "auto") return ProcessCount{.kind = ProcessCount::Kind::kAuto};
  if (text == "cpu") return ProcessCount{.kind = ProcessCount::Kind::kCpu};
  if (text == "gpu") return ProcessCount{.kind = ProcessCount::Kind::kGpu};
  const auto number = parse_integer<int>(text);
  if (!number || *number < 1 || *number > kMaxLocalRanks) {
    return bad("--nproc", text, cat("a number from 1 to ", kMaxLocalRanks, ", auto, cpu or gpu"));
  }
  return ProcessCount{.number = *number};
}

Streams StreamChoice::of(int local_rank) const {
  const auto found = by_local_rank.find(local_rank);
  return found == by_local_rank.end() ? all : found->second;
}

bool StreamChoice::any() const {
  const auto chosen = [](const Streams& streams) { return streams.out || streams.error; };
  return chosen(all) || std::any_of(by_local_rank.begin(), by_local_rank.end(),
                                    [&](const auto& entry) { return chosen(entry.second); });
}

Result<StreamChoice> parse_stream_choice(std::string_view option, std::string_view text) {
  StreamChoice choice;
  if (text.find(':') == std::string_view::npos) {
    LOCKSTEP_ASSIGN(choice.all, parse_streams(option, text, text));
    return choice;
  }
  for (const std::string& part : base::split(text, ',')) {
    const auto colon = part.find(':');
    const auto rank = parse_integer<int>(part.substr(0, colon));
    if (colon == std::string::npos || !rank || *rank < 0 || *rank >= kMaxLocalRanks) {
      return bad(option, text, "LOCAL_RANK:STREAMS pairs, as in 0:1,2:3");
    }
    LOCKSTEP_ASSIGN(const Streams streams, parse_streams(option, text, part.substr(colon + 1)));
    if (!choice.by_local_rank.emplace(*rank, streams).second) {
      return Status::invalid(cat(option, " ", quoted(text), " names local rank ", *rank, " twice"));
    }
  }
  return choice;
}

Result<RunOptions> parse_run_options(const RunWords& words) {
  RunOptions options;
  options.command = words.command;
  options.kind = words.module      ? ProgramKind::kModule
                 : words.no_python ? ProgramKind::kDirect
                                   : ProgramKind::kByName;
  options.python = words.python;
  options.secret_file = words.secret_file;
  options.insecure = words.insecure;
  options.dry_run = words.dry_run;
  for (const std::string& text : words.env) {
    LOCKSTEP_ASSIGN(auto assignment, parse_assignment(text));
    options.env.push_back(std::move(assignment));
  }
  LOCKSTEP_TRY(read_place(words, options));
  LOCKSTEP_TRY(read_failure_policy(words, options));
  LOCKSTEP_TRY(read_output(words, options));
  LOCKSTEP_TRY(check_together(words, options));
  return options;
}

Duration restart_delay(Duration first, int restart) {
  Duration delay = std::min(first, kMaxRestartDelay);
  for (int i = 1; i < restart && delay < kMaxRestartDelay; ++i) delay *= 2;
  return std::min(delay, kMaxRestartDelay);
}

}  // namespace lockstep::launch
