#include "lockstep/launch/run.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <iostream>

#include "lockstep/base/crypto.h"
#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/attempt.h"
#include "lockstep/launch/descendants.h"
#include "lockstep/launch/dry_run.h"
#include "lockstep/launch/exit_codes.h"
#include "lockstep/launch/store_coordinator.h"

namespace lockstep::launch {
namespace {

// How long a reader has to take the last lines of a job that was to end at once.
constexpr Duration kHurriedLines = std::chrono::seconds(1);

// 0, 1 and 2 must be open, or a pipe of ours would take their number.
void open_standard_descriptors() {
  for (;;) {
    const int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd > 2 || fd < 0) {
      if (fd >= 0) close(fd);
      return;
    }
    fcntl(fd, F_SETFD, 0);
  }
}

std::string make_job_id(const std::string& name) {
  std::array<std::byte, 6> random{};
  base::random_bytes(random);
  return cat(name.empty() ? "job" : name, "-", base::hex(random));
}

JobSetting make_job(const RunOptions& options, const LocalSetting& setting) {
  const std::string job_id = make_job_id(options.rdzv_id);
  return {.job_id = job_id,
          .run_id = options.rdzv_id.empty() ? job_id : options.rdzv_id,
          .max_restarts = options.max_restarts,
          .insecure = !setting.secret};
}

Result<std::unique_ptr<Coordinator>> make_coordinator(const RunOptions& options, const LocalSetting& setting,
                                                      const Clock& clock) {
  const JobSetting job = make_job(options, setting);
  NodePlan plan{.host = setting.host, .nproc = setting.nproc, .role = options.role};
  if (options.nnodes == 1) {
    LOCKSTEP_ASSIGN(
        std::unique_ptr<Coordinator> local,
        LocalCoordinator::make(job, std::move(plan), setting.secret.value_or(Secret::insecure()), clock));
    return local;
  }
  StoreCoordinatorOptions several{.plan = plan,
                                  .join_timeout = options.join_timeout,
                                  .interval = std::min(options.monitor_interval, StoreCoordinator::kBeat)};
  several.meeting = {.endpoint = *options.rdzv_endpoint,
                     .local_addr = options.local_addr,
                     .node_rank = options.node_rank,
                     .secret = setting.secret.value_or(Secret::insecure()),
                     .card = {.nnodes = options.nnodes,
                              .by_arrival = !options.node_rank,
                              .job_id = job.job_id,
                              .run_id = options.rdzv_id.empty() ? "none" : options.rdzv_id,
                              .max_restarts = options.max_restarts,
                              .host = setting.host},
                     .host = setting.host};
  LOCKSTEP_ASSIGN(std::unique_ptr<Coordinator> coordinator,
                  StoreCoordinator::start(std::move(several), clock));
  return coordinator;
}

// The folder of the error files where there is no --log-dir. Removed at the end, by the guard if need be.
class Scratch {
 public:
  static Result<Scratch> make(const Environment& environment) {
    const auto chosen = environment.all.find("TMPDIR");
    const bool is_chosen = chosen != environment.all.end() && !chosen->second.empty();
    LOCKSTEP_ASSIGN(const std::string folder, base::absolute_path(is_chosen ? chosen->second : "/tmp"));
    std::string path = cat(folder, "/lockstep-XXXXXX");
    if (mkdtemp(path.data()) == nullptr) {
      return Status::from_errno(
          cat("no folder for error files can be made as ", path, " (TMPDIR chooses another)"), errno);
    }
    return Scratch(std::move(path));
  }
  Scratch(Scratch&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  Scratch& operator=(Scratch&&) = delete;
  ~Scratch() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit Scratch(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Waits on the poller until `done` or `deadline`; the signal that ended the job meanwhile, or 0.
template <typename Done>
Result<int> wait_unless_stopped(LaunchContext& context, const Deadline& deadline, Done done) {
  int stopped = 0;
  LOCKSTEP_TRY(context.poller.watch(context.signals.fd(), Poller::Ready::kRead, [&] {
    for (const int signal : context.signals.take()) {
      if (signal == SIGTSTP) {
        raise(SIGSTOP);
      } else if (signal != SIGCHLD && signal != SIGCONT && ends_the_job(signal)) {
        stopped = signal;
      }
    }
  }));
  Status waited;
  context.console.flush();
  while (waited.ok() && stopped == 0 && !done() && !deadline.expired()) {
    waited = context.poller.wait(deadline);
    context.console.flush();
  }
  context.poller.forget(context.signals.fd());
  if (!waited.ok()) return waited;
  return stopped;
}

int say_stopped(LaunchContext& context, int signal, const std::string& host) {
  const bool here = host == context.input.setting.host;
  context.console.say(
      cat("the job was stopped by ", base::signal_name(signal), here ? "" : " on host ", here ? "" : host));
  return kExitSignal + signal;
}

void say_report(LaunchContext& context, const Outcome& outcome) {
  context.console.block(Stream::kError, report_text(outcome.report, outcome.others,
                                                    {.coloured = context.console.coloured(Stream::kError),
                                                     .max_restarts = outcome.max_restarts}));
}

// The delay before a restart. Ends early if the other agents have something to say, for the next attempt to
// hear.
Result<int> wait_for_restart(LaunchContext& context, Duration delay) {
  bool news = false;
  LOCKSTEP_TRY(context.poller.watch(context.coordinator.fd(), Poller::Ready::kRead, [&] {
    news = true;
    context.poller.forget(context.coordinator.fd());
  }));
  auto stopped = wait_unless_stopped(context, context.clock.in(delay), [&news] { return news; });
  context.poller.forget(context.coordinator.fd());
  return stopped;
}

// Attempt after attempt, until one succeeds or no restart is left.
Result<int> run_attempts(LaunchContext& context) {
  std::optional<FailureReport> root_cause;
  for (std::uint64_t epoch = 0;; ++epoch) {
    LOCKSTEP_ASSIGN(const Outcome outcome, Attempt(context, epoch).run());
    switch (outcome.kind) {
      case Outcome::Kind::kDone:
        return 0;
      case Outcome::Kind::kStopped:
        return say_stopped(context, outcome.signal, outcome.host);
      case Outcome::Kind::kLost:
        context.console.say(outcome.error.message());
        return outcome.began || epoch > 0 ? kExitFailure : kExitUsage;
      case Outcome::Kind::kFailed:
        break;
    }
    say_report(context, outcome);
    const bool restart =
        epoch < static_cast<std::uint64_t>(outcome.max_restarts) && outcome.report.cannot_start.empty();
    if (!restart) {
      if (root_cause) {
        context.console.say(
            cat("gave up after ", epoch + 1, " attempts; in the first one, ", headline(*root_cause)));
      }
      return exit_code_of(root_cause.value_or(outcome.report));
    }
    if (!root_cause) root_cause = outcome.report;
    const int number = static_cast<int>(epoch) + 1;
    const Duration delay = restart_delay(context.input.options.restart_delay, number);
    context.console.say(cat("restart ", number, " of ", outcome.max_restarts, " in ", delay));
    LOCKSTEP_ASSIGN(const int stopped, wait_for_restart(context, delay));
    if (stopped != 0) {
      context.coordinator.report_stop(stopped);
      return say_stopped(context, stopped, context.input.setting.host);
    }
  }
}

// More ranks than cores, or nodes, to give to each of them.
void say_unbound(Console& console, const RunOptions& options, const LocalSetting& setting) {
  const bool bound = std::ranges::any_of(setting.cpus, [](const auto& cpus) { return !cpus.empty(); });
  if (options.cpu_binding == base::Binding::kNone || bound) return;
  console.say(cat("--cpu-binding binds nothing: ", setting.nproc, " ranks cannot have cores of their own (",
                  base::usable_cores(), " cores here)"));
}

void say_threads(Console& console, const LocalSetting& setting) {
  if (!setting.omp_num_threads) return;
  console.say(cat("OMP_NUM_THREADS=", *setting.omp_num_threads, " for each of ", setting.nproc,
                  setting.nproc == 1 ? " rank (" : " ranks (", base::usable_cores(),
                  " cores here); set it to choose another number"));
}

void warn_if_insecure(Console& console, const LocalSetting& setting) {
  if (setting.secret) return;
  console.say(
      "warning: the job has no secret, because insecure was asked for: whoever reaches its ports can join "
      "it, "
      "read and write");
}

Result<int> run_job(const RunOptions& options, const Environment& environment, const Clock& clock,
                    const LocalSetting& setting) {
  // Before anything else is started or made: it must be able to clean up after everything.
  const std::vector<pid_t> before = child_processes();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  LOCKSTEP_ASSIGN(const Guard guard, Guard::start());
  LOCKSTEP_ASSIGN(SignalChannel signals, SignalChannel::make(options.signals));
  LOCKSTEP_ASSIGN(Poller poller, Poller::make());
  Console console({.colour_allowed = !environment.all.contains("NO_COLOR")}, poller);
  LOCKSTEP_ASSIGN(const Scratch scratch, Scratch::make(environment));
  guard.add_folder(scratch.path());
  UniqueFd secret_fd;
  if (setting.secret) {
    LOCKSTEP_ASSIGN(secret_fd, setting.secret->to_memfd());
  }
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return Status::from_errno("/dev/null cannot be opened", errno);
  LOCKSTEP_ASSIGN(const std::unique_ptr<Coordinator> coordinator, make_coordinator(options, setting, clock));

  const PlanInput input{
      .options = options,
      .environment = environment,
      .setting = setting,
      .scratch = scratch.path(),
      .coloured = {.out = console.coloured(Stream::kOut), .error = console.coloured(Stream::kError)},
      .null_fd = null.get(),
      .secret_fd = secret_fd ? secret_fd.get() : -1};
  LaunchContext context{.input = input,
                        .clock = clock,
                        .poller = poller,
                        .console = console,
                        .signals = signals,
                        .guard = guard,
                        .coordinator = *coordinator,
                        .spared = {before.begin(), before.end()}};
  say_unbound(console, options, setting);
  say_threads(console, setting);
  warn_if_insecure(console, setting);
  LOCKSTEP_ASSIGN(const int code, run_attempts(context));
  // The last lines, unless whoever reads them has stopped reading and the user has had enough.
  const Deadline last_lines = clock.in(context.hurried ? kHurriedLines : std::chrono::hours(24));
  LOCKSTEP_ASSIGN([[maybe_unused]] const int stopped,
                  wait_unless_stopped(context, last_lines, [&] { return console.empty(); }));
  return code;
}

int say_and_exit(std::string_view message, int code) {
  while (message.ends_with('.')) message.remove_suffix(1);
  const std::string line = cat("lockstep run: ", message, ".\n");
  [[maybe_unused]] const ssize_t wrote = write(2, line.data(), line.size());
  return code;
}

}  // namespace

Result<int> run(const RunOptions& given, const Environment& environment, const Clock& clock) {
  open_standard_descriptors();
  RunOptions options = given;
  // A rank may change its folder before it writes its error file.
  if (!options.log_dir.empty()) {
    LOCKSTEP_ASSIGN(options.log_dir, base::absolute_path(options.log_dir));
  }
  auto program = resolve_program(options, environment.all);
  if (!program.ok()) {
    const Status error = program.status();
    return say_and_exit(error.message(), error.code() == Code::kInvalid ? kExitNotFound : kExitNotExecutable);
  }
  LOCKSTEP_ASSIGN(LocalSetting setting, make_local_setting(options, environment));
  setting.program = *std::move(program);
  if (options.dry_run) {
    std::cout << dry_run_text(options, environment, setting);
    return 0;
  }
  LOCKSTEP_TRY(reserve_descriptors(setting.nproc, options.nnodes));
  auto code = run_job(options, environment, clock, setting);
  if (!code.ok() && code.status().code() != Code::kInvalid) {
    return say_and_exit(code.status().message(), kExitUsage);
  }
  return code;
}

}  // namespace lockstep::launch
