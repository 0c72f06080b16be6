#include "lockstep/backend/mpi/mpi_group.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "lockstep/backend/held_call.h"
#include "lockstep/backend/mpi/collectives.h"
#include "lockstep/backend/mpi/library.h"
#include "lockstep/base/text.h"
#include "lockstep/collective/execute.h"
#include "lockstep/collective/same_call.h"

namespace lockstep::backend::mpi {
namespace {

using collective::Fingerprint;

// Tags of the group's own messages.
constexpr int kNewsTag = 1;
constexpr int kBufferTag = 2;
constexpr int kFirstBarrierTag = 16;  // then one for each barrier, and from the beginning again

}  // namespace

Result<std::unique_ptr<MpiGroup>> MpiGroup::make(MpiGroupParts parts, const Clock& clock) {
  for (const MPI_Comm comm : {parts.comm, parts.own_comm})
    LOCKSTEP_TRY(status_of(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
  std::unique_ptr<MpiGroup> group(new MpiGroup(std::move(parts), clock));
  LOCKSTEP_TRY(group->news_->listen());
  return group;
}

MpiGroup::MpiGroup(MpiGroupParts parts, const Clock& clock)
    : parts_(std::move(parts)),
      clock_(clock),
      who_(parts_.plan, clock),
      news_(std::make_shared<News>(parts_.own_comm, kNewsTag, who_.rank(),
                                   static_cast<int>(who_.members().size()))),
      mail_(std::make_shared<Mail>(news_)),
      queue_(clock, who_.text()) {}

MpiGroup::~MpiGroup() {
  if (who_.in_forked_child()) {
    // What MPI was given is the parent's.
    news_->forget();
    return;
  }
  leave("destroyed");
  mail_->close(queue_.failure());
  news_->stop_listening();
  // A communicator with something under way would wait for it.
  if (!has_abandoned_ && !mail_->has_abandoned()) {
    MPI_Comm comm = parts_.comm;
    MPI_Comm own_comm = parts_.own_comm;
    MPI_Comm_free(&own_comm);
    MPI_Comm_free(&comm);
  }
  if (parts_.on_leave) parts_.on_leave(this);
}

void MpiGroup::leave(std::string_view did) {
  const Rank own = who_.own();
  const Status left = Status::aborted(cat("rank ", own, ' ', did, " the group ", base::quoted(who_.name())),
                                      {.failure = Failure::kClosed, .peer = own, .group = who_.name()});
  queue_.fail(left);
  (void)news_->fail_here(left);  // whatever runs ends
  queue_.run_alone([] {});
  mail_->fail(left);
}

Status MpiGroup::run(const Call& call, const OpOptions& options) {
  LOCKSTEP_TRY(who_.admit(call));
  const Deadline deadline = who_.deadline_of(options);
  return queue_.run(
      {.deadline = deadline, .name = collective::name_of(call.kind)},
      [&](std::uint64_t sequence) { return perform(call, sequence, deadline, options.keep); },
      [this](const Status& why) { return news_->fail(why); });
}

WorkPtr MpiGroup::start(const Call& call, const OpOptions& options) {
  if (const Status admitted = who_.admit(call); !admitted.ok()) return queue_.ended(admitted);
  const Deadline deadline = who_.deadline_of(options);
  // Shared because a std::function can be copied.
  const auto held = std::make_shared<const HeldCall>(call, options.keep);
  return queue_.start(
      [this, held, deadline](std::uint64_t sequence) {
        return perform(held->call, sequence, deadline, held->keep);
      },
      deadline, 1, collective::name_of(call.kind));
}

WorkPtr MpiGroup::start_rounds(Rounds rounds, const OpOptions& options) {
  RoundRunner runner{
      .perform = [this, keep = options.keep](
                     const Call& call, std::uint64_t sequence,
                     const Deadline& deadline) { return perform(call, sequence, deadline, keep); },
      .fail = [this](const Status& why, std::uint64_t) { return news_->fail(why); }};
  return start_in(queue_, who_, std::move(rounds), std::move(runner), options);
}

Status MpiGroup::perform(const Call& call, std::uint64_t sequence, const Deadline& deadline,
                         const std::shared_ptr<const void>& keep) {
  LOCKSTEP_TRY(news_->look());
  if (size().value == 1) {
    collective::execute_alone(call);
    return {};
  }
  const Fingerprint own = collective::fingerprint_of(call, parts_.id, sequence);
  Status status;
  try {
    if (parts_.compare_calls == CompareCalls::kAlways) status = compare(own, deadline);
    if (status.ok()) status = exchange(call, deadline, keep);
  } catch (const std::bad_alloc&) {
    status = Status::internal("this rank is out of memory", {.failure = Failure::kNoMemory});
  }
  if (status.ok()) return status;
  const Rank rank = who_.own();
  Cause cause = status.cause();
  cause.group = who_.name();
  return news_->fail(collective::in_operation(rank, own, status.with_cause(std::move(cause))));
}

Status MpiGroup::compare(const Fingerprint& own, const Deadline& deadline) {
  const auto transfer = std::make_shared<Transfer>(nullptr);
  constexpr int kSize = sizeof(Fingerprint);
  const ByteSpan all = transfer->memory(who_.members().size() * kSize);
  const std::byte* const mine = transfer->readable(std::as_bytes(std::span(&own, 1)));
  LOCKSTEP_TRY(status_of(MPI_Iallgather(mine, kSize, MPI_BYTE, all.data(), kSize, MPI_BYTE, parts_.comm,
                                        transfer->next_request()),
                         "MPI_Iallgather"));
  LOCKSTEP_TRY(finish(transfer, deadline));
  for (std::size_t r = 0; r < who_.members().size(); ++r) {
    Fingerprint theirs;
    std::memcpy(&theirs, all.data() + r * kSize, kSize);
    if (collective::can_be_one(own, theirs)) continue;
    return collective::desync(who_.own(), own, who_.members()[r], theirs);
  }
  return {};
}

Status MpiGroup::exchange(const Call& call, const Deadline& deadline,
                          const std::shared_ptr<const void>& keep) {
  const auto transfer = std::make_shared<Transfer>(keep);
  const Place place{.collectives = parts_.comm,
                    .messages = parts_.own_comm,
                    .tag = kBufferTag,
                    .rank = who_.rank(),
                    .size = size().value};
  if (Status begun = begin(call, place, *transfer); !begun.ok()) {
    has_abandoned_ = true;
    abandon(transfer);
    return begun;
  }
  return finish(transfer, deadline);
}

Status MpiGroup::finish(const std::shared_ptr<Transfer>& transfer, const Deadline& deadline) {
  const base::TimePoint start = clock_.now();
  Status status = transfer->wait(deadline, [this] { return news_->look(); });
  if (status.ok()) return status;
  has_abandoned_ = true;
  abandon(transfer);
  if (status.code() != Code::kTimeout || status.cause().sequence) return status;
  return Status::timeout(
      cat("waited ", clock_.now() - start, ", and MPI does not say for whom; monitored_barrier() would"));
}

Status MpiGroup::monitored_barrier(const OpOptions& options) {
  LOCKSTEP_TRY(who_.admit({.kind = OpKind::kMonitoredBarrier}));
  const Deadline deadline = who_.deadline_of(options);
  return queue_.run(
      {.deadline = deadline, .name = collective::name_of(OpKind::kMonitoredBarrier)},
      [&](std::uint64_t sequence) {
        const Status met = meet(sequence, deadline);
        return met.ok() ? met : news_->fail(met);
      },
      [this](const Status& why) { return news_->fail(why); });
}

// Every rank says to every other that it is there.
Status MpiGroup::meet(std::uint64_t sequence, const Deadline& deadline) {
  LOCKSTEP_TRY(news_->look());
  const auto transfer = std::make_shared<Transfer>(nullptr);
  const auto tags = static_cast<std::uint64_t>(parts_.largest_tag - kFirstBarrierTag);
  const int tag = kFirstBarrierTag + static_cast<int>(sequence % tags);
  const int n = size().value;
  for (int peer = 0; peer < n; ++peer)
    if (peer != who_.rank().value) LOCKSTEP_TRY(transfer->receive({}, peer, tag, parts_.own_comm));
  for (int peer = 0; peer < n; ++peer)
    if (peer != who_.rank().value) LOCKSTEP_TRY(transfer->send({}, peer, tag, parts_.own_comm));
  Status status = transfer->wait(deadline, [this] { return news_->look(); });
  if (status.ok()) return status;
  std::vector<Rank> missing;
  for (const int peer : transfer->withdraw_receives()) missing.push_back(world_rank(Rank{peer}));
  std::sort(missing.begin(), missing.end());
  if (transfer->under_way()) {
    has_abandoned_ = true;
    abandon(transfer);
  }
  if (status.code() != Code::kTimeout || status.cause().sequence) return status;
  if (missing.empty()) return {};
  const Rank own = who_.own();
  return Status::timeout(
      cat("rank ", own, ": monitored_barrier #", sequence, " of ", base::quoted(who_.name()), ": rank ",
          base::ranks_text(missing), " did not come"),
      {.failure = Failure::kMissingRanks,
       .rank = own,
       .op = "monitored_barrier",
       .sequence = sequence,
       .group = who_.name(),
       .missing = missing});
}

Status MpiGroup::refuse_message(std::string_view op, std::optional<Rank> peer, std::uint64_t tag) const {
  LOCKSTEP_TRY(who_.refuse_in_forked_child(op));
  const Cause cause{.rank = who_.rank(), .op = std::string(op), .group = who_.name()};
  if (peer && !size().contains(*peer))
    return Status::invalid(cat("the peer is rank ", *peer, ", but the group has ", size(), " ranks"), cause);
  if (tag > static_cast<std::uint64_t>(parts_.largest_tag))
    return Status::invalid(
        cat("the tag is ", tag, ", but this MPI library has none above ", parts_.largest_tag), cause);
  return news_->look();
}

WorkPtr MpiGroup::begin_message(MessagePlan plan, std::string_view op, std::optional<Rank> peer,
                                std::uint64_t tag, const OpOptions& options) {
  const Rank own = who_.own();
  plan.sequence = ++messages_;
  plan.keep = options.keep;
  plan.comm = parts_.comm;
  plan.who = cat("rank ", own, ": ", op, " #", plan.sequence);
  plan.cause = {.rank = own, .op = std::string(op), .sequence = plan.sequence, .group = who_.name()};
  const Status refused = refuse_message(op, peer, tag);
  if (refused.ok()) {
    plan.peer = peer ? peer->value : MPI_ANY_SOURCE;
    plan.tag = static_cast<int>(tag);
    if (peer) plan.cause.peer = world_rank(*peer);
  }
  const auto message = std::make_shared<Message>(std::move(plan), mail_);
  if (refused.ok()) {
    message->begin();
  } else {
    message->fail(refused);
  }
  return message;
}

WorkPtr MpiGroup::send(Rank to, std::uint64_t tag, ByteView bytes, const OpOptions& options) {
  MessagePlan plan{.way = MessagePlan::Way::kSend, .sent = bytes, .deadline = who_.deadline_of(options)};
  return begin_message(std::move(plan), "send", to, tag, options);
}

WorkPtr MpiGroup::recv(std::optional<Rank> from, std::uint64_t tag, ByteSpan bytes,
                       const OpOptions& options) {
  MessagePlan plan{
      .way = MessagePlan::Way::kReceive, .received = bytes, .deadline = who_.deadline_of(options)};
  return begin_message(std::move(plan), "recv", from, tag, options);
}

Status MpiGroup::failure() const { return who_.in_forked_child() ? Status() : news_->look(); }

void MpiGroup::abort(const Status& why) {
  if (who_.in_forked_child()) return;
  // Who says it is a part of what is said.
  const Rank own = who_.own();
  Cause cause = why.cause();
  if (cause.failure == Failure::kNone) cause.failure = Failure::kRemoteError;
  if (!cause.peer) cause.peer = own;
  const Status told = news_->fail(why.with_cause(std::move(cause)).with_prefix(cat("rank ", own, " said: ")));
  queue_.fail(told);
  mail_->fail(told);
}

}  // namespace lockstep::backend::mpi
