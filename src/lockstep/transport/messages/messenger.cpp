#include "lockstep/transport/messages/messenger.h"

#include <algorithm>
#include <limits>
#include <new>
#include <set>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/transport/loop.h"
#include "lockstep/transport/messages/alarm.h"
#include "lockstep/transport/messages/frame.h"
#include "lockstep/transport/messages/routes.h"

namespace lockstep::transport::messages {

namespace {

// A look at all operations for those that are late is followed by a pause of so many times its length.
constexpr int kPause = 2;

// Whether a group has failed because `rank` is out of reach.
bool is_lost(Rank rank, const Status& why) {
  const Failure failure = why.failure();
  return why.cause().peer == rank && (failure == Failure::kPeerDied || failure == Failure::kPeerStalled ||
                                      failure == Failure::kPeerUnreachable);
}

}  // namespace

// The part that lives on the strand.
class Messenger::Impl final : public std::enable_shared_from_this<Impl> {
 public:
  Impl(Transport& transport, std::unique_ptr<Listener> listener, const MessengerOptions& options)
      : bell_(bell_of(options)),
        surroundings_(make_surroundings(transport, options, bell_)),
        guest_(std::in_place, transport.loop()),
        timer_(surroundings_->strand, transport.loop()),
        listener_(std::move(listener)),
        routes_(surroundings_) {
    const MessengerOptions& own = surroundings_->options;
    LOCKSTEP_CHECK(own.eager_budget.value <= std::numeric_limits<std::uint32_t>::max(),
                   "a credit says the whole budget in 32 bits");
    LOCKSTEP_CHECK(own.rank == Rank(0) || static_cast<std::size_t>(own.rank.value) < own.endpoints.size(),
                   "a messenger is one of the ranks it knows");
  }

  // Before anything else.
  void begin() {
    const auto move = [weak = weak_from_this()] {
      const auto self = weak.lock();
      return self ? self->move() : Progress::Moved::kNothing;
    };
    progress_ = std::make_shared<Progress>(move, bell_, surroundings_->options.patience);
    tell_failed_ = surroundings_->options.failed;
    strand()->when_failed([weak = weak_from_this()](const Status& why) {
      if (const auto self = weak.lock()) self->fail_on_strand(why);
    });
    surroundings_->peer_is_gone = [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->end_unserved_on_strand();
    };
    strand()->run([this] { accept_on_strand(); });
  }

  Loop& loop() { return surroundings_->loop; }
  const std::shared_ptr<Strand>& strand() const { return surroundings_->strand; }
  const std::shared_ptr<Progress>& progress() const { return progress_; }

  void accept_on_strand() {
    if (!listener_ || closed_) return;
    listener_->accept(surroundings_->never(), surroundings_->on_strand([weak = weak_from_this()](auto taken) {
      if (const auto self = weak.lock()) self->accepted_on_strand(std::move(taken));
    }));
  }

  // In a forked child the callback runs in the call.
  void start(Operation operation, const Deadline& deadline) {
    operation.self = surroundings_->options.rank;
    operation.deadline = loop().time_of(deadline);
    if (loop().in_forked_child()) {
      return operation.done(
          operation.blame(Status::invalid("the messenger belongs to the parent of this forked process; make "
                                          "one of its own here.",
                                          {.failure = Failure::kForked})),
          std::nullopt);
    }
    operation.started = loop().clock().now();
    progress_->touch();
    const auto started = std::make_shared<Operation>(std::move(operation));
    const bool went_well = strand()->run([&] {
      started_.add(started);
      start_on_strand(started);
      static_cast<void>(move_on_strand());
    });
    if (went_well) return;
    // It may be that nobody else has it.
    strand()->run([&] {
      if (started.use_count() <= 2) complete_on_strand(*strand(), *started, started->blame(*routes_.ended()));
    });
  }

  // A task on the strand has thrown, and its work is half done: nothing goes on here.
  void fail_on_strand(const Status& why) {
    if (closed_) return;
    routes_.end_on_strand(why);
    const auto receives =
        surroundings_->mailbox.withdraw([&](const Operation& receive) { return receive.blame(why); });
    for (const auto& [receive, status] : receives) complete_on_strand(*strand(), *receive, status);
    surroundings_->echoes->close_on_strand();
    started_.complete_lost_on_strand(*strand(), why);
    if (tell_failed_) strand()->call(tell_failed_, why, std::nullopt);
  }

  void fail_group_on_strand(std::uint64_t group, const Status& why) {
    if (surroundings_->mailbox.ended(group) != nullptr) return;
    const Mailbox::Ended ended = surroundings_->mailbox.end_group(group, why);
    for (const OperationPtr& receive : ended.receives) complete_on_strand(*strand(), *receive, why);
    surroundings_->echoes->end_group_on_strand(group, why);
    for (const Arrival& arrival : ended.arrivals)
      routes_.to_on_strand(arrival.source).drop_on_strand(arrival);
    for (const auto& [rank, route] : routes_.made()) {
      route->withdraw_on_strand([&](const Operation& operation) {
        return operation.group == group ? std::optional(why) : std::nullopt;
      });
      route->end_group_on_strand(group);
      if (is_lost(rank, why)) route->give_up_on_strand(why);
    }
  }

  void leave_group_on_strand(std::uint64_t group) {
    fail_group_on_strand(group,
                         Status::aborted("this rank has left the group.", {.failure = Failure::kClosed}));
    surroundings_->mailbox.leave_group(group);
  }

  void seek_on_strand(Rank peer) {
    if (!closed_ && routes_.is_other(peer)) routes_.channel_on_strand(peer).seek_on_strand();
  }

  // What must be destroyed outside of the loop to wait for its callbacks.
  struct Remains {
    std::unique_ptr<Listener> listener;
    std::vector<std::unique_ptr<Connection>> connections;
  };

  Remains close_on_strand() {
    if (std::exchange(closed_, true)) return {};
    guest_.reset();
    timer_.disarm_on_strand();
    const Status closed = closed_status();
    routes_.end_on_strand(closed);
    const auto receives =
        surroundings_->mailbox.withdraw([&](const Operation& receive) { return receive.blame(closed); });
    for (const auto& [receive, status] : receives) complete_on_strand(*strand(), *receive, status);
    surroundings_->echoes->close_on_strand();
    if (surroundings_->options.pipes) surroundings_->options.pipes->close();
    return {.listener = std::move(listener_), .connections = std::move(surroundings_->retired)};
  }

 private:
  Status closed_status() const {
    return Status::aborted("this rank's messenger was destroyed.", {.failure = Failure::kClosed});
  }

  void accepted_on_strand(Result<std::unique_ptr<Connection>> accepted) {
    if (!accepted.ok() || closed_) return;  // the listener was closed
    std::unique_ptr<Connection> connection = std::move(accepted).value();
    const auto rank = connection->peer().rank;
    if (rank && routes_.is_other(*rank)) {
      routes_.channel_on_strand(*rank).accepted_on_strand(std::move(connection));
    } else {
      surroundings_->retire_on_strand(std::move(connection));  // a tool, or another who has no business here
    }
    accept_on_strand();
  }

  static std::shared_ptr<shm::Bell> bell_of(const MessengerOptions& options) {
    if (!options.pipes) return std::make_shared<shm::Bell>();
    return {options.pipes, &options.pipes->bell()};
  }
  static std::shared_ptr<Surroundings> make_surroundings(Transport& transport,
                                                         const MessengerOptions& options,
                                                         const std::shared_ptr<shm::Bell>& bell) {
    // Whoever sleeps may wait for what was called.
    const auto strand = std::make_shared<Strand>([bell] { bell->ring(); });
    Loop& loop = transport.loop();
    return std::make_shared<Surroundings>(
        Surroundings{.transport = transport,
                     .loop = loop,
                     .strand = strand,
                     .options = options,
                     .echoes = std::make_unique<Echoes>(strand, loop, options.graces)});
  }

  bool move_on_strand() { return !closed_ && routes_.move_on_strand(); }

  Progress::Moved move() {
    using Moved = Progress::Moved;
    Moved moved = Moved::kBusy;
    (void)strand()->try_run([&] { moved = move_on_strand() ? Moved::kSomething : Moved::kNothing; });
    return moved;
  }

  Status check(const Operation& operation) const {
    if (const Status* ended = surroundings_->mailbox.ended(operation.group)) return *ended;
    if (closed_) return operation.blame(closed_status());
    if (routes_.ended()) return operation.blame(*routes_.ended());
    if (operation.peer && !routes_.is_member(*operation.peer)) {
      return operation.blame(Status::invalid(
          cat("there is no such rank in a world of ", surroundings_->options.endpoints.size(), '.')));
    }
    if (operation.bytes.size() > kMessageLimit) {
      return operation.blame(Status::invalid(cat("a message has at most ", Bytes(kMessageLimit), '.'),
                                             {.failure = Failure::kLimitExceeded}));
    }
    return {};
  }

  void start_on_strand(const OperationPtr& operation) {
    if (const Status status = check(*operation); !status.ok())
      return complete_on_strand(*strand(), *operation, status);
    arm_timer_on_strand(operation->deadline);
    if (operation->direction == Direction::kSend)
      return routes_.to_on_strand(*operation->peer).send_on_strand(operation);
    if (auto arrival = surroundings_->mailbox.take_arrival(*operation)) {
      return routes_.to_on_strand(arrival->source).deliver_on_strand(operation, std::move(*arrival));
    }
    if (const Status gone = why_nothing_comes_on_strand(*operation); !gone.ok())
      return surroundings_->echoes->hold_on_strand(*operation, gone, gone.cause().peer);
    surroundings_->mailbox.post(operation);
    if (whom_to_ask_on_strand(*operation))
      arm_timer_on_strand(operation->started + *surroundings_->options.watch_after);
  }

  // Why a receive can meet no message any more; ok while it can.
  Status why_nothing_comes_on_strand(const Operation& receive) {
    if (receive.peer) return why_gone_on_strand(receive, *receive.peer);
    if (!receive.others || receive.others->empty() || first_sender_on_strand(receive)) return {};
    for (const Rank other : *receive.others) {
      if (Status gone = why_gone_on_strand(receive, other); gone.failure() != Failure::kClosed) return gone;
    }
    return receive.blame(
        Status::aborted("all other ranks have left the group.", {.failure = Failure::kClosed}),
        receive.others->front());
  }

  // Why nothing comes from that rank any more.
  Status why_gone_on_strand(const Operation& receive, Rank peer) {
    if (const auto& failure = routes_.to_on_strand(peer).failure()) return receive.blame(*failure, peer);
    if (!routes_.is_other(peer)) return {};
    const auto ended = routes_.channel_on_strand(peer).departures().ended_there(receive.group);
    return ended ? withdrawn(receive, peer, *ended, "") : Status();
  }

  // Of those who may serve a receive from any rank, the first that is not known to be gone.
  std::optional<Rank> first_sender_on_strand(const Operation& receive) {
    for (const Rank other : *receive.others) {
      if (why_gone_on_strand(receive, other).ok()) return other;
    }
    return std::nullopt;
  }

  // Who may leave the group without a word, so that the receive would wait for nobody.
  std::optional<Rank> whom_to_ask_on_strand(const Operation& receive) {
    if (!surroundings_->options.watch_after) return std::nullopt;
    std::optional<Rank> peer = receive.peer;
    if (!peer && receive.others) peer = first_sender_on_strand(receive);
    if (!peer || !routes_.is_other(*peer)) return std::nullopt;
    const bool asked = routes_.channel_on_strand(*peer).departures().has_asked(receive.group);
    return asked ? std::nullopt : peer;
  }

  using ToAsk = std::set<std::pair<Rank, std::uint64_t>>;
  void ask_on_strand(const ToAsk& to_ask) {
    for (const auto& [peer, group] : to_ask)
      routes_.channel_on_strand(peer).departures().ask_on_strand(group);
  }

  // Ends the receives from any rank that nobody is left to serve; others ask the next one.
  void end_unserved_on_strand() {
    if (closed_ || routes_.ended()) return;
    ToAsk to_ask;
    const auto receives =
        surroundings_->mailbox.withdraw([&](const Operation& receive) -> std::optional<Status> {
          if (receive.peer) return std::nullopt;
          if (Status gone = why_nothing_comes_on_strand(receive); !gone.ok()) return gone;
          if (const auto next = whom_to_ask_on_strand(receive)) to_ask.emplace(*next, receive.group);
          return std::nullopt;
        });
    for (const auto& [receive, status] : receives)
      surroundings_->echoes->hold_on_strand(*receive, status, status.cause().peer);
    ask_on_strand(to_ask);
  }

  // Only moved to an earlier time: one that rings for nothing is cheaper than one that is set anew for every
  // operation.
  void arm_timer_on_strand(base::TimePoint at) {
    at = std::max(at, not_before_);
    if (timer_.armed() && timer_.at() <= at) return;
    timer_.arm_on_strand(at, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->expire_on_strand();
    });
  }

  void expire_on_strand() {
    const base::TimePoint now = loop().clock().now();
    base::TimePoint next = base::TimePoint::max();
    const Why late = [&](const Operation& operation) -> std::optional<Status> {
      if (operation.deadline <= now) return operation.timed_out(now);
      next = std::min(next, operation.deadline);
      return std::nullopt;
    };
    ToAsk to_ask;
    const auto receives = surroundings_->mailbox.withdraw([&](const Operation& receive) {
      auto status = late(receive);
      if (status) return status;
      if (const auto peer = whom_to_ask_on_strand(receive)) to_ask.emplace(*peer, receive.group);
      return status;
    });
    for (const auto& [receive, status] : receives) complete_on_strand(*strand(), *receive, status);
    for (const auto& [rank, route] : routes_.made()) route->withdraw_on_strand(late);
    ask_on_strand(to_ask);
    const base::TimePoint end = loop().clock().now();
    not_before_ = end + kPause * (end - now);
    arm_timer_on_strand(next);
  }

  const std::shared_ptr<shm::Bell> bell_;  // shared with its memory, and with those who sleep on it
  std::shared_ptr<Progress> progress_;     // shared with those who wait
  // Shared with the routes, which the callbacks of their connections keep.
  const std::shared_ptr<Surroundings> surroundings_;
  std::optional<Loop::Guest> guest_;  // until it is closed
  Alarm timer_;
  std::unique_ptr<Listener> listener_;
  Routes routes_;
  Started started_;
  base::TimePoint not_before_{};  // the next look for operations that are late
  Received tell_failed_;          // until it was told
  bool closed_ = false;
};

Messenger::Messenger(Transport& transport, std::unique_ptr<Listener> listener,
                     const MessengerOptions& options)
    : impl_(std::make_shared<Impl>(transport, std::move(listener), options)) {
  impl_->begin();
}

Messenger::~Messenger() {
  if (impl_->loop().in_forked_child()) {
    // What it holds is the parent's.
    static_cast<void>(new (std::nothrow) std::shared_ptr<Impl>(std::move(impl_)));
    return;
  }
  close();
}

void Messenger::close() {
  Loop& loop = impl_->loop();
  if (loop.in_forked_child()) return;
  Impl::Remains remains;
  impl_->strand()->run([&] { remains = impl_->close_on_strand(); });
  impl_->strand()->await_calls();
  remains = {};
  // What the callbacks of the connections have posted.
  if (!loop.is_this_thread()) loop.run_and_drain([] {});
  impl_->strand()->await_calls();
}

std::shared_ptr<Progress> Messenger::progress() const { return impl_->progress(); }

void Messenger::send(std::uint64_t group, Rank to, std::uint64_t tag, ByteView bytes,
                     const Deadline& deadline, Done done) {
  impl_->start(
      {.direction = Direction::kSend,
       .group = group,
       .peer = to,
       .tag = tag,
       .bytes = {const_cast<std::byte*>(bytes.data()), bytes.size()},
       .done = [done = std::move(done)](const Status& status, std::optional<Rank>) { done(status); }},
      deadline);
}

void Messenger::recv(std::uint64_t group, std::optional<Rank> from, std::uint64_t tag, ByteSpan bytes,
                     const Deadline& deadline, Received done, Senders others) {
  impl_->start({.direction = Direction::kRecv,
                .group = group,
                .peer = from,
                .others = std::move(others),
                .tag = tag,
                .bytes = bytes,
                .done = std::move(done)},
               deadline);
}

void Messenger::fail_group(std::uint64_t group, const Status& why) {
  if (impl_->loop().in_forked_child()) return;
  impl_->strand()->run_for(impl_->loop(), [&] { impl_->fail_group_on_strand(group, why); });
}

void Messenger::leave_group(std::uint64_t group) {
  if (impl_->loop().in_forked_child()) return;
  impl_->strand()->run_for(impl_->loop(), [&] { impl_->leave_group_on_strand(group); });
}

void Messenger::seek(Rank peer) {
  if (impl_->loop().in_forked_child()) return;
  impl_->strand()->run_for(impl_->loop(), [&] { impl_->seek_on_strand(peer); });
}

}  // namespace lockstep::transport::messages
