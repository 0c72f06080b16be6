#include "lockstep/launch/spawned_ranks.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "lockstep/base/crypto.h"
#include "lockstep/base/net.h"
#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/child_process.h"

namespace lockstep::launch {
namespace {

// As in WorkerGroup: how long a failure that blames a rank which still runs waits for that rank's own.
constexpr Duration kSettle = std::chrono::seconds(1);

// Then the kernel tells nobody how a child has ended.
bool throws_statuses_away() {
  struct sigaction action {};
  return sigaction(SIGCHLD, nullptr, &action) == 0 &&
         (action.sa_handler == SIG_IGN || (action.sa_flags & SA_NOCLDWAIT) != 0);
}

std::string error_path(int fd) { return cat("/proc/self/fd/", fd); }

}  // namespace

Result<SpawnedRanks> SpawnedRanks::make(WorldSize size, const Variables& inherited,
                                        const SpawnOptions& options) {
  if (size.value < 1) return Status::invalid(cat("a world of ", size.value, " ranks cannot be spawned"));
  if (throws_statuses_away()) {
    return Status::unsupported(
        "this process ignores SIGCHLD, so it would not hear how its ranks end: call signal(SIGCHLD, SIG_DFL) "
        "before");
  }
  SpawnedRanks ranks(size, inherited, options);
  for (Process& process : ranks.processes_) {
    process.error = UniqueFd(memfd_create("lockstep-error", MFD_CLOEXEC));
    if (!process.error) return Status::from_errno("the memory for a rank's error cannot be made", errno);
  }
  LOCKSTEP_ASSIGN(ranks.secret_, Secret::generate().to_memfd());
  std::array<std::byte, 6> random{};
  base::random_bytes(random);
  JobSetting& job = ranks.job_;
  job.job_id = cat("spawn-", base::hex(random));
  job.run_id = job.job_id;
  LOCKSTEP_ASSIGN(const auto loopback, base::SocketAddress::parse("127.0.0.1", 0));
  LOCKSTEP_ASSIGN(ranks.master_port_, hold_master_port(loopback, job));
  LOCKSTEP_ASSIGN(ranks.store_listener_, base::listen_on(loopback.with_port(0)));
  LOCKSTEP_ASSIGN(const base::SocketAddress store, base::local_address(ranks.store_listener_.get()));
  job.store = {.host = store.host(), .port = store.port()};
  ranks.places_ = place_ranks({{.host = base::host_name(), .nproc = size.value}});
  return ranks;
}

SpawnedRanks::~SpawnedRanks() {
  for (const Process& process : processes_) {
    if (!is_running(process)) continue;
    signal_group(process.pid, SIGKILL);
    while (waitpid(process.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

SpawnedRanks::Grant SpawnedRanks::grant(Rank rank) const {
  const auto index = static_cast<std::size_t>(rank.value);
  const int error = processes_[index].error.get();
  RankGrant given{
      .secret_fd = secret_.get(), .error_file = error_path(error), .torch_error_file = error_path(error)};
  Grant grant{.inherited = {secret_.get(), error}};
  if (rank == Rank{0}) {
    given.store_fd = store_listener_.get();
    grant.inherited.push_back(store_listener_.get());
  }
  grant.environment =
      worker_environment(inherited_, options_.env, rank_variables(job_, places_[index], given));
  return grant;
}

Status SpawnedRanks::add(Rank rank, pid_t pid) {
  Process& process = processes_[static_cast<std::size_t>(rank.value)];
  process.pid = pid;
  LOCKSTEP_ASSIGN(process.pidfd, base::open_pidfd(pid));
  return {};
}

bool SpawnedRanks::any_running() const {
  return std::any_of(processes_.begin(), processes_.end(),
                     [this](const Process& p) { return is_running(p); });
}

std::vector<EndedRank> SpawnedRanks::wait_for_some(const Deadline& deadline) {
  std::vector<pollfd> entries;
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    if (!is_running(processes_[i])) continue;
    entries.push_back({.fd = processes_[i].pidfd.get(), .events = POLLIN, .revents = 0});
    indices.push_back(i);
  }
  poll(entries.data(), entries.size(), deadline.poll_millis());
  std::vector<EndedRank> failed;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].revents == 0) continue;
    Process& process = processes_[indices[i]];
    int status = 0;
    while (waitpid(process.pid, &status, 0) < 0) {
      if (errno == EINTR) continue;
      process.unseen = true;
      break;
    }
    process.wait_status = status;
    auto error = error_of(process);
    if (status != 0 || process.unseen || error)
      failed.push_back({.rank = Rank{static_cast<int>(indices[i])}, .error = std::move(error)});
  }
  return failed;
}

std::optional<ErrorRecord> SpawnedRanks::error_of(const Process& process) const {
  struct stat info {};
  if (fstat(process.error.get(), &info) != 0 || info.st_size == 0) return std::nullopt;
  auto record = base::read_error_file(error_path(process.error.get()));
  if (!record.ok()) return std::nullopt;
  return *std::move(record);
}

Status SpawnedRanks::failure_of(const EndedRank& ended) const {
  const Process& process = processes_[static_cast<std::size_t>(ended.rank.value)];
  const std::string who = cat("rank ", ended.rank, " (pid ", process.pid, ")");
  if (ended.error) {
    const Status& status = ended.error->status;
    Cause cause = status.cause();
    if (!cause.rank) cause.rank = ended.rank;
    return status.with_cause(std::move(cause)).with_prefix(cat(who, " failed: "));
  }
  if (process.unseen) {
    return Status::unsupported(
        cat(who,
            " has ended, and how is not known: something else in this process waits for "
            "all of its children, or ignores SIGCHLD"));
  }
  const int status = *process.wait_status;
  return Status(Code::kDisconnected,
                cat(who, " ", WIFSIGNALED(status) ? "was " : "", base::exit_text(status)),
                {.failure = Failure::kPeerDied, .peer = ended.rank, .pid = process.pid});
}

Status SpawnedRanks::wait_for_first_failure() {
  const Clock& clock = *options_.clock;
  const Deadline forever = clock.in(std::chrono::hours(24 * 365 * 100));
  const Deadline deadline = options_.deadline.value_or(forever);
  std::vector<EndedRank> failures;
  std::optional<Deadline> settle_until;
  while (any_running()) {
    const std::vector<EndedRank> more = wait_for_some(settle_until.value_or(deadline));
    failures.insert(failures.end(), more.begin(), more.end());
    if (!failures.empty()) {
      const EndedRank& chosen = failures[choose_first_failure(failures)];
      if (!blamed_rank(chosen) || (settle_until && settle_until->expired())) return failure_of(chosen);
      if (!settle_until) settle_until = clock.in(kSettle);
    } else if (deadline.expired()) {
      std::vector<Rank> missing;
      for (std::size_t i = 0; i < processes_.size(); ++i) {
        if (is_running(processes_[i])) missing.emplace_back(static_cast<int>(i));
      }
      return Status::timeout(cat("ranks ", base::ranks_text(missing), " had not ended at the deadline"),
                             {.failure = Failure::kMissingRanks, .missing = missing});
    }
  }
  return failures.empty() ? Status() : failure_of(failures[choose_first_failure(failures)]);
}

void SpawnedRanks::stop_all() {
  const Deadline deadline = options_.clock->in(options_.grace);
  const auto tell = [this](int signal) {
    for (const Process& process : processes_) {
      if (!is_running(process)) continue;
      signal_group(process.pid, signal);
      signal_group(process.pid, SIGCONT);
    }
  };
  tell(SIGTERM);
  while (any_running() && !deadline.expired()) wait_for_some(deadline);
  tell(SIGKILL);
  while (any_running()) wait_for_some(options_.clock->in(std::chrono::hours(1)));
}

Status SpawnedRanks::wait() {
  store_listener_.reset();  // rank 0's alone: when it dies, nobody is left waiting in its queue
  Status first = wait_for_first_failure();
  stop_all();
  return first;
}

}  // namespace lockstep::launch
