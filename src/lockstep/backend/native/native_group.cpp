#include "lockstep/backend/native/native_group.h"

#include <algorithm>
#include <new>

#include "lockstep/backend/held_call.h"
#include "lockstep/backend/logger.h"
#include "lockstep/backend/message_work.h"
#include "lockstep/backend/native/message_place.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/text.h"
#include "lockstep/collective/execute.h"

namespace lockstep::backend {
namespace {

// How often a group without memory tries to say so: each time it comes further.
constexpr int kAttempts = 8;

}  // namespace

struct NativeGroup::Pending {
  Pending(std::vector<Rank> ranks, Rank own) : members(std::move(ranks)), others(after(members, own)) {}
  // Everybody asks another one first.
  static std::vector<Rank> after(std::vector<Rank> ranks, Rank own) {
    std::ranges::rotate(ranks, std::ranges::find(ranks, own));
    ranks.erase(ranks.begin());
    return ranks;
  }
  // The place of a rank of the world in the group.
  std::optional<Rank> member(std::optional<Rank> rank) const {
    if (!rank) return std::nullopt;
    return Rank(static_cast<int>(std::ranges::find(members, *rank) - members.begin()));
  }
  void add() {
    const MutexLock lock(mutex);
    ++count;
  }
  void remove() {
    const MutexLock lock(mutex);
    --count;
    changed.notify_all();
  }
  bool wait(const Deadline& deadline) {
    const MutexLock lock(mutex);
    while (count > 0 && !deadline.expired()) changed.wait_until(mutex, deadline);
    return count == 0;
  }
  // Is counted down once, however often a message says that it has ended, and whatever that throws.
  struct End {
    ~End() {
      if (pending) pending->remove();
    }
    std::shared_ptr<Pending> pending;
  };
  const std::vector<Rank> members;
  const std::vector<Rank> others;  // who may serve a receive from any rank
  Mutex mutex;
  CondVar changed;
  int count LOCKSTEP_GUARDED_BY(mutex) = 0;
};

NativeGroup::NativeGroup(NativeGroupParts parts, const Clock& clock)
    : parts_(std::move(parts)),
      clock_(clock),
      who_(std::move(parts_.plan), clock),
      queue_(clock, who_.text()),
      pending_(std::make_shared<Pending>(who_.members(), who_.own())),
      no_memory_(Status::internal(
          cat(who_.text(), ": this process is out of memory"),
          {.failure = Failure::kNoMemory, .rank = who_.own(), .peer = who_.own(), .group = who_.name()})) {}

NativeGroup::~NativeGroup() {
  if (who_.in_forked_child()) {
    // What it holds is the parent's, and shared with the parent's peers.
    static_cast<void>(parts_.communicator.release());
    return;
  }
  leave("destroyed");
  if (parts_.on_leave) parts_.on_leave(this);
  parts_.mail.leave_group(parts_.id);  // nothing outside can say anything of the group now
}

void NativeGroup::leave(std::string_view did) {
  const Rank own = who_.own();
  Status left = no_memory_;
  (void)insist([&] {
    left = Status::aborted(cat("rank ", own, ' ', did, " the group ", base::quoted(who_.name())),
                           {.failure = Failure::kClosed, .peer = own, .group = who_.name()});
  });
  queue_.fail(left);
  left_ = true;
  parts_.mail.fail_group(parts_.id, left);
  if (!parts_.communicator) return;
  if (queue_.busy()) (void)insist([&] { parts_.communicator->fail_from_outside(left); });
  queue_.run_alone([this] {
    if (untold_) (void)insist([this] { (void)parts_.communicator->fail(no_memory_); });
    (void)insist([this] { parts_.communicator->leave(queue_.last_sequence()); });
  });
}

template <typename Body>
bool NativeGroup::insist(const Body& body) const {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    try {
      body();
      return true;
    } catch (const std::bad_alloc&) {
      parts_.reserve.let_go();
    }
  }
  return false;
}

Result<Mail::MessengerPtr> NativeGroup::messenger_for(std::string_view op, Rank peer) {
  LOCKSTEP_TRY(who_.refuse_in_forked_child(op));
  if (size().contains(peer)) {
    LOCKSTEP_TRY(queue_.failure());  // a messenger that is made now has not heard of it
    return parts_.mail.messenger();
  }
  return Status::invalid(cat(op, ": the peer is rank ", peer, ", but the group has ", size(), " ranks"),
                         {.rank = who_.rank(), .op = std::string(op), .group = who_.name()});
}

std::shared_ptr<MessageWork> NativeGroup::new_message(const char* op,
                                                      const Result<Mail::MessengerPtr>& messenger,
                                                      const OpOptions& options) {
  return std::make_shared<MessageWork>(MessageName{op, who_.own(), ++messages_}, options.keep, clock_,
                                       messenger.ok() ? (*messenger)->progress() : nullptr);
}

WorkPtr NativeGroup::send(Rank to, std::uint64_t tag, ByteView bytes, const OpOptions& options) {
  const auto messenger = messenger_for("send", to);
  const auto work = new_message("send", messenger, options);
  if (!messenger.ok()) {
    work->complete(messenger.status(), std::nullopt);
    return work;
  }
  const MessagePlace place{"send", work->sequence(), who_.own(), who_.name(), parts_.has_left};
  pending_->add();
  (*messenger)
      ->send(parts_.id, world_rank(to), tag, bytes, who_.deadline_of(options),
             [work, place, pending = pending_](const Status& status) mutable {
               const Pending::End end{std::move(pending)};
               work->complete(place.describe(status), std::nullopt);
             });
  return work;
}

WorkPtr NativeGroup::recv(std::optional<Rank> from, std::uint64_t tag, ByteSpan bytes,
                          const OpOptions& options) {
  const auto messenger = messenger_for("recv", from.value_or(who_.rank()));
  const auto work = new_message("recv", messenger, options);
  if (!messenger.ok()) {
    work->complete(messenger.status(), std::nullopt);
    return work;
  }
  std::optional<Rank> sender;
  if (from) sender = world_rank(*from);
  const MessagePlace place{"recv", work->sequence(), who_.own(), who_.name(), parts_.has_left};
  pending_->add();
  (*messenger)
      ->recv(
          parts_.id, sender, tag, bytes, who_.deadline_of(options),
          [work, place, pending = pending_](const Status& status, std::optional<Rank> source) mutable {
            const Pending::End end{std::move(pending)};
            work->complete(place.describe(status), end.pending ? end.pending->member(source) : std::nullopt);
          },
          transport::messages::Senders(pending_, &pending_->others));
  return work;
}

Status NativeGroup::run(const Call& call, const OpOptions& options) {
  LOCKSTEP_TRY(who_.admit(call));
  tell_at_last();
  const Deadline deadline = who_.deadline_of(options);
  return queue_.run(
      {.deadline = deadline, .name = collective::name_of(call.kind)},
      [&](std::uint64_t sequence) { return perform(call, sequence, deadline); },
      [this](const Status& why) { return fail_late(why); });
}

WorkPtr NativeGroup::start(const Call& call, const OpOptions& options) {
  if (const Status admitted = who_.admit(call); !admitted.ok()) return queue_.ended(admitted);
  tell_at_last();
  const Deadline deadline = who_.deadline_of(options);
  // Shared because a std::function can be copied.
  const auto held = std::make_shared<const HeldCall>(call, options.keep);
  return queue_.start(
      [this, held, deadline](std::uint64_t sequence) { return perform(held->call, sequence, deadline); },
      deadline, 1, collective::name_of(call.kind));
}

WorkPtr NativeGroup::start_rounds(Rounds rounds, const OpOptions& options) {
  RoundRunner runner{
      .perform = [this](const Call& call, std::uint64_t sequence,
                        const Deadline& deadline) { return perform(call, sequence, deadline); },
      .fail =
          [this](const Status& why, std::uint64_t sequence) {
            if (!parts_.communicator) return why;
            return bear("operation", sequence, [&] { return fail(parts_.communicator->fail(why)); });
          }};
  return start_in(queue_, who_, std::move(rounds), std::move(runner), options);
}

Status NativeGroup::perform(const Call& call, std::uint64_t sequence, const Deadline& deadline) {
  if (!parts_.communicator) {
    collective::execute_alone(call);
    return {};
  }
  return bear(collective::name_of(call.kind), sequence, [&]() -> Status {
    const Status status =
        collective::execute(*parts_.communicator, call, collective::fingerprint_of(call, parts_.id, sequence),
                            deadline, parts_.means);
    if (!status.ok()) return fail(status);
    // Between hosts waits are long anyway.
    if (parts_.communicator->board().has_slept() || parts_.communicator->layout().host_count() > 1)
      look_for_straggler(sequence);
    return {};
  });
}

template <typename Body>
Status NativeGroup::bear(std::string_view op, std::uint64_t sequence, const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail_without_memory(op, sequence);
  }
}

Status NativeGroup::fail_without_memory(std::string_view op, std::uint64_t sequence) {
  parts_.reserve.let_go();
  Status told = no_memory_;
  const bool said = insist([&] {
    const Rank own = who_.own();
    told = fail(parts_.communicator->fail(Status::internal(
        cat("rank ", own, ": ", op, " #", sequence, " is out of memory"), {.failure = Failure::kNoMemory,
                                                                           .rank = own,
                                                                           .peer = own,
                                                                           .op = std::string(op),
                                                                           .sequence = sequence})));
  });
  if (!said) keep_untold();
  return told;
}

void NativeGroup::fail_from_outside(const Status& why) {
  if (!parts_.communicator) return;
  if (!insist([&] { parts_.communicator->fail_from_outside(why); })) keep_untold();
}

void NativeGroup::keep_untold() {
  untold_ = parts_.communicator != nullptr;
  queue_.fail(no_memory_);
}

void NativeGroup::tell_at_last() const {
  if (!untold_ || left_ || who_.in_forked_child()) return;
  const bool heard = insist([this] { parts_.communicator->fail_from_outside(no_memory_); });
  // What still runs here may be what asks. Nothing else will begin.
  if (!heard || queue_.busy()) return;
  queue_.run_alone([this] {
    if (untold_ && insist([this] { (void)fail(parts_.communicator->fail(no_memory_)); })) untold_ = false;
  });
}

Status NativeGroup::fail(const Status& why) const {
  Status status = told(why);
  parts_.mail.fail_group(parts_.id, status);
  if (status.failure() != Failure::kClosed) parts_.error_note.write(status);
  return status;
}

Status NativeGroup::fail_late(const Status& why) {
  if (!parts_.communicator) return why;
  Status told = no_memory_;
  // Another operation of this group may run: it is told, and tells the other hosts.
  const bool said = insist([&] {
    parts_.communicator->fail_from_outside(with_absent(why));
    told = fail(parts_.communicator->failure());
  });
  if (!said) keep_untold();
  return told;
}

Status NativeGroup::with_absent(const Status& why) const {
  Cause cause = why.cause();
  cause.rank = who_.own();
  cause.group = who_.name();
  if (!cause.sequence) return why.with_cause(std::move(cause));  // there was no memory for more
  cause.missing = absent_from(*cause.sequence);
  const std::string who =
      cause.missing.empty() ? "" : cat("; rank ", base::ranks_text(cause.missing), " is in none");
  return Status::timeout(cat(why.message(), who), std::move(cause));
}

void NativeGroup::look_for_straggler(std::uint64_t sequence) {
  transport::Communicator& communicator = *parts_.communicator;
  const transport::shm::Board& board = communicator.board();
  if (const auto latest = board.last_to_enter(); latest && latest->after >= StragglerWatch::kWorth) {
    const Rank last = board.rank_of(latest->index);
    {
      const MutexLock lock(waits_mutex_);
      Counters::Wait& wait = waits_[last];
      ++wait.operations;
      wait.lost += latest->after;
    }
    if (board.index() == (latest->index == 0 ? 1 : 0))
      say(stragglers_.note(latest->sequence, last, latest->after, clock_.now()));
  }
  // One that is alone on its host is seen by the first of another, which waits for its messages.
  const transport::Layout& layout = communicator.layout();
  if (layout.host_count() == 1 || board.index() != 0) return;
  const auto late = communicator.links().latest();
  if (late && layout.neighbours_of(late->peer).size() == 1)
    say(lone_stragglers_.note(sequence, communicator.rank_of(late->peer), late->by, clock_.now()));
}

void NativeGroup::say(const std::optional<StragglerWatch::Report>& report) const {
  if (report) kLog.warn(cat("group ", base::quoted(who_.name()), ": ", report->text(), "."));
}

Status NativeGroup::told(const Status& failure) const {
  if (failure.ok()) return failure;
  Cause cause = failure.cause();
  cause.group = who_.name();
  const bool lost = cause.failure == Failure::kPeerStalled || cause.failure == Failure::kPeerUnreachable ||
                    cause.failure == Failure::kPeerDied;
  if (lost && cause.peer && parts_.lost) {
    std::vector<Rank>& all = cause.missing = parts_.lost();
    const auto place = std::lower_bound(all.begin(), all.end(), *cause.peer);
    if (place == all.end() || *place != *cause.peer) all.insert(place, *cause.peer);
  }
  if (cause.failure == Failure::kClosed && cause.peer && cause.peer != who_.own())
    return left_the_group(failure, std::move(cause));
  if (!lost || cause.peer != who_.own()) return failure.with_cause(std::move(cause));
  // Not out of reach for itself: who says so is.
  if (cause.failure == Failure::kPeerUnreachable && cause.rank && cause.rank != who_.own()) {
    cause.peer = cause.rank;
    const std::string text = cat("rank ", who_.own(), ": rank ", *cause.peer,
                                 " cannot be reached: it has lost this rank (", failure.message(), ")");
    return Status::disconnected(text, std::move(cause));
  }
  cause.failure = Failure::kLeftOut;
  return failure.with_cause(std::move(cause))
      .with_prefix(cat("rank ", who_.own(), " was left out of ", base::quoted(who_.name()),
                       ", because the others have lost it: "));
}

Status NativeGroup::monitored_barrier(const OpOptions& options) {
  const Call call{.kind = OpKind::kMonitoredBarrier};
  LOCKSTEP_TRY(who_.admit(call));
  const Deadline deadline = who_.deadline_of(options);
  const auto meet = [&](std::uint64_t sequence) -> Status {
    if (!parts_.communicator) return {};
    return bear(collective::name_of(call.kind), sequence, [&] {
      const Status met = collective::execute_elsewhere(
          *parts_.communicator, collective::fingerprint_of(call, parts_.id, sequence), deadline,
          [&](const auto& look) {
            return barriers_.meet(sequence, deadline,
                                  {.look = look, .absent = [&] { return absent_from(sequence); }});
          });
      return met.ok() ? met : fail(met);
    });
  };
  return queue_.run({.deadline = deadline, .name = collective::name_of(call.kind)}, meet,
                    [this](const Status& why) { return fail_late(why); });
}

std::vector<Rank> NativeGroup::absent_from(std::uint64_t sequence) const {
  std::vector<Rank> ranks = parts_.communicator->board().absent_from(sequence);
  for (const Rank lost : parts_.lost()) {
    if (!std::ranges::count(ranks, lost)) ranks.push_back(lost);
  }
  std::ranges::sort(ranks);
  return ranks;
}

Status NativeGroup::failure() const {
  if (!parts_.communicator || left_) return queue_.failure();
  tell_at_last();
  Status status = told(parts_.communicator->failure());
  return status.ok() && untold_ ? no_memory_ : status;
}

Counters NativeGroup::counters() const {
  if (!parts_.communicator) return {};
  const transport::shm::Board::Counters counted = parts_.communicator->board().counters();
  const MutexLock lock(waits_mutex_);
  return {.staged = counted.staged, .slept = counted.slept, .waits = waits_};
}

Status NativeGroup::end(const Status& why, const Deadline& deadline) {
  stop(why);
  if (pending_->wait(deadline)) return {};
  return Status::timeout(
      cat("rank ", who_.rank(), ": messages of the group ", base::quoted(who_.name()), " have not ended"),
      {.rank = who_.rank(), .group = who_.name()});
}

void NativeGroup::abort(const Status& given) {
  const bool said = insist([&] {
    // Who says it is a part of what is said.
    Cause cause = given.cause();
    if (cause.failure == Failure::kNone) cause.failure = Failure::kRemoteError;
    if (!cause.peer) cause.peer = who_.own();
    stop(given.with_cause(std::move(cause)).with_prefix(cat("rank ", who_.own(), " said: ")));
  });
  if (!said && !left_) keep_untold();
}

void NativeGroup::stop(const Status& why) {
  if (who_.in_forked_child() || left_) return;
  queue_.fail(why);
  parts_.mail.fail_group(parts_.id, why);
  if (!parts_.communicator) return;
  parts_.communicator->fail_from_outside(why);
  queue_.run_alone([this, &why] { (void)parts_.communicator->fail(why); });
}

}  // namespace lockstep::backend
