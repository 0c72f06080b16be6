#include "lockstep/launch/attempt.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <utility>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/core_dump.h"

namespace lockstep::launch {

Attempt::Attempt(LaunchContext& context, std::uint64_t epoch)
    : context_(context),
      epoch_(epoch),
      group_({.poller = context.poller,
              .console = context.console,
              .guard = context.guard,
              .clock = context.clock,
              .grace = context.input.options.shutdown_timeout,
              .spared = context.spared}) {}

Attempt::~Attempt() {
  context_.poller.forget(context_.signals.fd());
  context_.poller.forget(context_.coordinator.fd());
}

Result<Outcome> Attempt::run() {
  LOCKSTEP_TRY(context_.poller.watch(context_.signals.fd(), Poller::Ready::kRead, [this] { on_signals(); }));
  LOCKSTEP_TRY(
      context_.poller.watch(context_.coordinator.fd(), Poller::Ready::kRead, [this] { on_events(); }));
  context_.coordinator.open_round(epoch_);
  context_.console.flush();
  while (!finished()) {
    LOCKSTEP_TRY(context_.poller.wait(group_.wake_at()));
    group_.tick();
    report_progress();
    context_.console.flush();
  }
  for (std::size_t i = 0; i < group_.size(); ++i) {
    const RankState state = group_.state(i);
    if (state.rank != outcome_->report.first.rank) outcome_->others.here.push_back(state);
  }
  for (RankPlace& place : place_ranks(round_.nodes)) {
    const bool here = place.node == round_.node;
    if (!here && place.rank != outcome_->report.first.rank)
      outcome_->others.elsewhere.push_back(std::move(place));
  }
  outcome_->max_restarts = round_.job.max_restarts;
  outcome_->began = started_;
  return *std::move(outcome_);
}

void Attempt::on_signals() {
  for (const int signal : context_.signals.take()) {
    if (signal == SIGCHLD) {
      group_.reap();
    } else if (signal == SIGTSTP) {
      group_.forward(SIGSTOP);
      raise(SIGSTOP);
    } else if (signal == SIGCONT || !ends_the_job(signal)) {
      group_.forward(signal);
    } else {
      on_ending_signal(signal);
    }
  }
}

void Attempt::on_ending_signal(int signal) {
  if (outcome_) {
    context_.hurried = true;  // it was already ending: now it is meant
    group_.kill_all();
    return;
  }
  conclude({.kind = Outcome::Kind::kStopped, .signal = signal, .host = context_.input.setting.host}, signal);
  context_.coordinator.report_stop(signal);
}

void Attempt::on_events() {
  using Kind = AgentEvent::Kind;
  for (AgentEvent& event : context_.coordinator.take()) {
    const bool of_this_round = event.epoch == epoch_;
    if (event.kind == Kind::kRound && of_this_round && !outcome_) {
      on_round(std::move(event.round));
    } else if (event.kind == Kind::kFailure && of_this_round) {
      conclude({.kind = Outcome::Kind::kFailed, .report = std::move(event.report)}, SIGTERM);
    } else if (event.kind == Kind::kAllDone && of_this_round) {
      conclude({.kind = Outcome::Kind::kDone}, 0);
    } else if (event.kind == Kind::kStop) {
      conclude({.kind = Outcome::Kind::kStopped, .signal = event.signal, .host = event.host}, event.signal);
    } else if (event.kind == Kind::kNotice) {
      context_.console.say(event.error.message());
    } else if (event.kind == Kind::kLost) {
      conclude({.kind = Outcome::Kind::kLost, .error = event.error}, SIGTERM);
    }
  }
}

// The first conclusion stands.
void Attempt::conclude(Outcome outcome, int stop_signal) {
  if (outcome_) return;
  outcome_ = std::move(outcome);
  if (stop_signal == 0 || !started_ || group_.gone()) return;
  if (outcome_->kind == Outcome::Kind::kFailed) {
    context_.console.say(cat(headline(outcome_->report), "; the other ranks are told to stop"));
  }
  group_.stop(stop_signal);
}

void Attempt::on_round(Round round) {
  round_ = std::move(round);
  started_ = true;
  oom_kills_before_ = base::oom_kills();
  std::vector<WorkerPlan> plans = plan_workers(context_.input, round_);
  for (const WorkerPlan& plan : plans) {
    const Status made = make_folder(std::filesystem::path(plan.error_file).parent_path());
    if (!made.ok()) {
      started_ = false;
      context_.coordinator.report_failure(describe_failed_start(plan.place.rank, made));
      return;
    }
  }
  const Status status = group_.start(std::move(plans));
  if (!status.ok()) {
    reported_ = true;
    context_.coordinator.report_failure(describe_failed_start(status.cause().rank.value_or(Rank{0}), status));
  }
}

// Says once how the ranks of this host have ended, as soon as it is known.
void Attempt::report_progress() {
  if (!started_ || reported_ || outcome_) return;
  if (group_.first_failure()) {
    reported_ = true;
    context_.coordinator.report_failure(describe_failure(*group_.first_failure()));
  } else if (group_.gone()) {
    reported_ = true;
    context_.coordinator.report_done(epoch_);
  }
}

FailureReport Attempt::describe_failure(std::size_t index) {
  FailureReport report{.first = group_.state(index),
                       .epoch = epoch_,
                       .error = group_.error_of(index),
                       .stderr_tail = group_.stderr_tail(index),
                       .log_path = group_.plan(index).error.log_path};
  const auto kills = base::oom_kills();
  if (kills && oom_kills_before_ && *kills >= *oom_kills_before_)
    report.oom_kills = *kills - *oom_kills_before_;
  const int status = *report.first.wait_status;
  if (WIFSIGNALED(status)) {
    std::error_code ignored;
    report.core_dump =
        core_dump_text({.pid = report.first.pid,
                        .name = std::filesystem::path(context_.input.setting.program.path).filename(),
                        .host = report.first.host,
                        .folder = std::filesystem::current_path(ignored),
                        .signal = WTERMSIG(status)},
                       WCOREDUMP(status));
  }
  return report;
}

FailureReport Attempt::describe_failed_start(Rank rank, const Status& error) const {
  FailureReport report{.epoch = epoch_, .cannot_start = std::string(error.message())};
  report.first.rank = rank;
  report.first.host = context_.input.setting.host;
  report.cannot_start_code = error.code() == Code::kUnsupported ? kExitNotExecutable : kExitUsage;
  return report;
}

}  // namespace lockstep::launch
