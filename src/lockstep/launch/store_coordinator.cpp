#include "lockstep/launch/store_coordinator.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "lockstep/base/beat_watch.h"
#include "lockstep/base/text.h"
#include "lockstep/base/thread.h"

namespace lockstep::launch {
namespace {

// When nothing has come of the meeting for so long, the user is told what is being waited for.
constexpr Duration kPatience = std::chrono::seconds(5);
constexpr Duration kFarewell = std::chrono::seconds(3);

std::string beat_key(int node) { return cat("beat/", node); }
std::string bye_key(int node) { return cat("bye/", node); }

std::string nodes_text(const std::vector<int>& nodes) {
  std::vector<Rank> ranks(nodes.size());
  std::transform(nodes.begin(), nodes.end(), ranks.begin(), [](int node) { return Rank{node}; });
  return cat(nodes.size() == 1 ? "node " : "nodes ", base::ranks_text(ranks));
}

// The store is node 0's: what does not work there means that node 0 is gone.
Status of_node_0(const Status& status) { return status.with_prefix("the agent of node 0 is gone: "); }

}  // namespace

struct StoreCoordinator::Session {
  Meeting meeting;
  SharedLog shared;
  JobLog log;
  base::BeatWatch watch;
  Deadline join_by;
  Deadline beat_at;
  Deadline notice_at;
  bool noticed = false;
  std::uint64_t waiting_epoch = 0;               // of join_by
  std::optional<std::uint64_t> round_made = {};  // node 0: the last epoch that it made a round of
  std::set<int> came = {};                       // node 0: the nodes that have beaten
  std::optional<int> lost = {};                  // node 0: the node that it said is gone

  bool serves() const { return meeting.hosted.server != nullptr; }
};

Result<std::unique_ptr<StoreCoordinator>> StoreCoordinator::start(StoreCoordinatorOptions options,
                                                                  const Clock& clock) {
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return Status::from_errno("the launcher cannot make an event descriptor", errno);
  std::unique_ptr<StoreCoordinator> coordinator(
      new StoreCoordinator(std::move(options), clock, std::move(wake)));
  LOCKSTEP_ASSIGN(coordinator->thread_, base::start_thread("lockstep-agent", [self = coordinator.get()] {
                    self->run_on_thread();
                  }));
  return coordinator;
}

StoreCoordinator::StoreCoordinator(StoreCoordinatorOptions options, const Clock& clock, UniqueFd wake)
    : options_(std::move(options)), clock_(clock), wake_(std::move(wake)) {}

StoreCoordinator::~StoreCoordinator() {
  {
    const MutexLock lock(mutex_);
    leaving_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

std::vector<AgentEvent> StoreCoordinator::take() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof(count));
  const MutexLock lock(mutex_);
  return std::exchange(events_, {});
}

void StoreCoordinator::open_round(std::uint64_t epoch) {
  post({.kind = AgentMessage::Kind::kReady, .epoch = epoch, .plan = options_.plan});
}

void StoreCoordinator::report_failure(const FailureReport& report) {
  post({.kind = AgentMessage::Kind::kFailed, .epoch = report.epoch, .report = report});
}

void StoreCoordinator::report_done(std::uint64_t epoch) {
  post({.kind = AgentMessage::Kind::kDone, .epoch = epoch});
}

void StoreCoordinator::report_stop(int signal) {
  post({.kind = AgentMessage::Kind::kStop, .signal = signal, .host = options_.plan.host});
}

void StoreCoordinator::post(AgentMessage message) {
  const MutexLock lock(mutex_);
  outbox_.push_back(std::move(message));
}

void StoreCoordinator::emit(AgentEvent event) {
  {
    const MutexLock lock(mutex_);
    events_.push_back(std::move(event));
  }
  constexpr std::uint64_t kOne = 1;
  [[maybe_unused]] const ssize_t wrote = write(wake_.get(), &kOne, sizeof(kOne));
}

bool StoreCoordinator::leaving() {
  const MutexLock lock(mutex_);
  return leaving_;
}

std::vector<AgentMessage> StoreCoordinator::take_outbox() {
  const MutexLock lock(mutex_);
  return std::exchange(outbox_, {});
}

void StoreCoordinator::run_on_thread() {
  const Deadline join_by = clock_.in(options_.join_timeout);
  const Deadline notice_at = clock_.in(kPatience);
  bool noticed = false;
  auto met = meet(options_.meeting, join_by, [&](std::string_view waiting_for) {
    if (notice_at.expired() && !std::exchange(noticed, true)) {
      emit({.kind = AgentEvent::Kind::kNotice,
            .error = Status::timeout(cat("still waiting for ", waiting_for))});
    }
    return leaving();
  });
  if (!met.ok()) {
    emit({.kind = AgentEvent::Kind::kLost, .error = met.status()});
    return;
  }
  const int nnodes = met->card.nnodes;
  const int node = met->node;
  Store& store = met->store();
  Session session{.meeting = *std::move(met),
                  .shared = SharedLog(store),
                  .log = JobLog(nnodes, node),
                  .watch = base::BeatWatch(nnodes, kSilence, kSilence / 4, clock_.now()),
                  .join_by = join_by,
                  .beat_at = clock_.in(Duration::zero()),
                  .notice_at = notice_at};
  Status status;
  while (status.ok() && !leaving()) status = work_on_thread(session);
  if (!status.ok()) {
    emit({.kind = AgentEvent::Kind::kLost, .error = status});
    return;
  }
  leave_on_thread(session);
}

// One turn: say, listen, beat. The wait for the next entry of the log is what paces it.
Status StoreCoordinator::work_on_thread(Session& session) {
  for (AgentMessage& message : take_outbox()) {
    message.node = session.meeting.node;
    LOCKSTEP_TRY(publish_on_thread(session, message));
  }
  LOCKSTEP_TRY(beat_on_thread(session));
  LOCKSTEP_TRY(read_log_on_thread(session));
  if (session.serves() && session.log.wants_round()) LOCKSTEP_TRY(make_round_on_thread(session));
  return check_join_on_thread(session);
}

Status StoreCoordinator::publish_on_thread(Session& session, const AgentMessage& message) {
  return of_node_0(session.shared.append(message, clock_.in(kSilence)));
}

Status StoreCoordinator::read_log_on_thread(Session& session) {
  for (;;) {
    // Whether the server still lives is what the beat finds out: here a timeout means that nothing is new.
    const auto entry = session.shared.read(clock_.in(options_.interval));
    if (entry.status().code() == Code::kInvalid) return entry.status();
    if (!entry.ok()) return of_node_0(entry.status());
    if (!*entry) return {};
    auto event = session.log.apply(**entry);
    if (event && event->kind == AgentEvent::Kind::kRound && session.serves()) continue;  // it has its sockets
    if (event) emit(*std::move(event));
  }
}

// Node 0 only. Its own event carries the sockets, so it is made here and not read from the log.
Status StoreCoordinator::make_round_on_thread(Session& session) {
  if (session.round_made == session.log.epoch()) return {};  // on its way through the log
  session.round_made = session.log.epoch();
  AgentEvent event{.kind = AgentEvent::Kind::kRound, .epoch = session.log.epoch()};
  Round& round = event.round;
  const JobCard& card = session.meeting.card;
  round.job = {.job_id = card.job_id,
               .run_id = card.run_id,
               .epoch = session.log.epoch(),
               .max_restarts = card.max_restarts,
               .insecure = options_.meeting.secret.is_insecure()};
  round.nodes = session.log.plans();
  LOCKSTEP_TRY(open_ports(session.meeting.address, options_.meeting.secret, clock_, round));
  const AgentMessage message{
      .kind = AgentMessage::Kind::kRound, .epoch = round.job.epoch, .job = round.job, .nodes = round.nodes};
  LOCKSTEP_TRY(publish_on_thread(session, message));
  emit(std::move(event));
  return {};
}

Status StoreCoordinator::beat_on_thread(Session& session) {
  if (!session.beat_at.expired()) return {};
  session.beat_at = clock_.in(std::min(options_.interval, kBeat));
  const auto beat = session.meeting.store().add(beat_key(session.meeting.node), 1, clock_.in(kSilence));
  if (!beat.ok()) return of_node_0(beat.status());
  return session.serves() ? watch_beats_on_thread(session) : Status();
}

// Node 0 only. Who has not come yet is not watched: joining has a time of its own.
Status StoreCoordinator::watch_beats_on_thread(Session& session) {
  Store& store = session.meeting.store();
  const int nnodes = session.meeting.card.nnodes;
  std::vector<std::string> keys;
  for (int node = 0; node < nnodes; ++node) {
    const std::vector<std::string> key = {beat_key(node)};
    if (!session.came.contains(node)) {
      LOCKSTEP_ASSIGN(const bool came, store.check(key, clock_.in(kSilence)));
      if (came) session.came.insert(node);
    }
    if (session.came.contains(node)) keys.push_back(key.front());
  }
  LOCKSTEP_ASSIGN(const std::vector<Buffer> values, store.multi_get(keys, clock_.in(kSilence)));
  // Any value that changes will do for those that are not watched.
  std::vector<std::int64_t> beats(static_cast<std::size_t>(nnodes), clock_.now().time_since_epoch().count());
  std::size_t next = 0;
  for (const int node : session.came) {
    beats[static_cast<std::size_t>(node)] =
        base::parse_integer<std::int64_t>(text_of(values[next++])).value_or(0);
  }
  const auto silent = session.watch.look(beats, clock_.now());
  if (!silent || session.lost) return {};
  session.lost = silent;
  const std::string& host = session.log.plans()[static_cast<std::size_t>(*silent)].host;
  const std::string text = cat("the agent of node ", *silent, host.empty() ? "" : cat(" (host ", host, ")"),
                               " is gone: nothing was heard of it for ", kSilence, "; the job is over");
  return publish_on_thread(session, {.kind = AgentMessage::Kind::kLost, .text = text});
}

// For each attempt anew: all nodes must become ready.
Status StoreCoordinator::check_join_on_thread(Session& session) {
  if (session.log.epoch() != session.waiting_epoch) {
    session.waiting_epoch = session.log.epoch();
    session.join_by = clock_.in(options_.join_timeout);
  }
  const std::vector<int> missing = session.log.missing();
  if (missing.empty()) return {};
  const std::string state = cat(nodes_text(missing), " of ", session.meeting.card.nnodes);
  if (session.join_by.expired()) {
    return Status::timeout(cat(state, " did not come within ", options_.join_timeout,
                               "; is the same command running on every host?"));
  }
  if (session.notice_at.expired() && !std::exchange(session.noticed, true)) {
    emit({.kind = AgentEvent::Kind::kNotice, .error = Status::timeout(cat("still waiting for ", state))});
  }
  return {};
}

// What was said last must be heard by the others before the server goes.
void StoreCoordinator::leave_on_thread(Session& session) {
  Store& store = session.meeting.store();
  const Deadline deadline = clock_.in(kFarewell);
  for (AgentMessage& message : take_outbox()) {
    message.node = session.meeting.node;
    if (!publish_on_thread(session, message).ok()) return;
  }
  // The answer says that it has arrived; if there is none, nobody is left to tell.
  if (!store.add(bye_key(session.meeting.node), 1, deadline).ok() || !session.serves()) return;
  std::vector<std::string> all;
  for (const int node : session.came) {
    if (session.lost != node) all.push_back(bye_key(node));
  }
  const Status ignored = store.wait(all, deadline);
}

}  // namespace lockstep::launch
