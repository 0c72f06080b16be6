#include "lockstep/transport/messages/messenger.h"

#include <algorithm>
#include <limits>
#include <map>
#include <new>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/transport/loop.h"
#include "lockstep/transport/messages/channel.h"
#include "lockstep/transport/messages/frame.h"
#include "lockstep/transport/messages/loopback.h"
#include "lockstep/transport/messages/route.h"

namespace lockstep::transport::messages {

// The part that lives on the loop.
class Messenger::Impl final : public std::enable_shared_from_this<Impl> {
 public:
  Impl(Transport& transport, std::unique_ptr<Listener> listener, const MessengerOptions& options)
      : surroundings_(std::make_shared<Surroundings>(
            Surroundings{.transport = transport,
                         .loop = transport.loop(),
                         .options = options,
                         .echoes = std::make_unique<Echoes>(transport.loop(), options.echo_grace)})),
        guest_(std::in_place, transport.loop()),
        timer_(transport.loop()),
        listener_(std::move(listener)) {
    const MessengerOptions& own = surroundings_->options;
    LOCKSTEP_CHECK(own.eager_budget.value <= std::numeric_limits<std::uint32_t>::max(),
                   "a credit says the whole budget in 32 bits");
    LOCKSTEP_CHECK(own.rank == Rank(0) || is_listed(own.rank), "a messenger is one of the ranks it knows");
  }

  Loop& loop() { return surroundings_->loop; }

  void accept_on_loop() {
    if (!listener_ || closed_) return;
    listener_->accept(surroundings_->never(), [weak = weak_from_this()](auto connection) {
      if (const auto self = weak.lock()) self->accepted_on_loop(std::move(connection));
    });
  }

  // Posts the start of an operation; in a forked child the callback runs in the call.
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
    loop().post([self = shared_from_this(), operation = std::make_shared<Operation>(std::move(operation))] {
      self->start_on_loop(operation);
    });
  }

  void fail_group_on_loop(std::uint64_t group, const Status& why) {
    if (surroundings_->mailbox.ended(group) != nullptr) return;
    const Mailbox::Ended ended = surroundings_->mailbox.end_group(group, why);
    for (const OperationPtr& receive : ended.receives) complete_on_loop(loop(), *receive, why);
    surroundings_->echoes->end_group_on_loop(group, why);
    for (const Arrival& arrival : ended.arrivals) routes_.at(arrival.source)->drop_on_loop(arrival);
    for (const auto& [rank, route] : routes_) {
      route->withdraw_on_loop([&](const Operation& operation) {
        return operation.group == group ? std::optional(why) : std::nullopt;
      });
    }
  }

  void leave_group_on_loop(std::uint64_t group) {
    fail_group_on_loop(group,
                       Status::aborted("this rank has left the group.", {.failure = Failure::kClosed}));
    surroundings_->mailbox.leave_group(group);
  }

  // What must be destroyed outside of the loop to wait for its callbacks.
  struct Remains {
    std::unique_ptr<Listener> listener;
    std::vector<std::unique_ptr<Connection>> connections;
  };

  Remains close_on_loop() {
    closed_ = true;
    guest_.reset();
    timer_.disarm_on_loop();
    const Status closed = closed_status();
    for (const auto& [rank, route] : routes_) route->end_on_loop(closed);
    const auto receives =
        surroundings_->mailbox.withdraw([&](const Operation& receive) { return receive.blame(closed); });
    for (const auto& [receive, status] : receives) complete_on_loop(loop(), *receive, status);
    surroundings_->echoes->close_on_loop();
    return {.listener = std::move(listener_), .connections = std::move(surroundings_->retired)};
  }

 private:
  Status closed_status() const {
    return Status::aborted("this rank's messenger was destroyed.", {.failure = Failure::kClosed});
  }

  void accepted_on_loop(Result<std::unique_ptr<Connection>> accepted) {
    if (!accepted.ok() || closed_) return;  // the listener was closed
    std::unique_ptr<Connection> connection = std::move(accepted).value();
    const auto rank = connection->peer().rank;
    if (rank && is_other(*rank)) {
      channel_on_loop(*rank).accepted_on_loop(std::move(connection));
    } else {
      surroundings_->retire_on_loop(std::move(connection));  // a tool, or another who has no business here
    }
    accept_on_loop();
  }

  bool is_listed(Rank rank) const {
    return rank.value >= 0 && static_cast<std::size_t>(rank.value) < surroundings_->options.endpoints.size();
  }
  // A world of one needs no list.
  bool is_member(Rank rank) const { return rank == surroundings_->options.rank || is_listed(rank); }
  bool is_other(Rank rank) const { return is_member(rank) && rank != surroundings_->options.rank; }

  Route& route_on_loop(Rank rank) {
    if (is_other(rank)) return channel_on_loop(rank);
    auto& route = routes_[rank];
    if (!route) route = std::make_shared<Loopback>(surroundings_);
    return *route;
  }
  Channel& channel_on_loop(Rank rank) {
    auto& route = routes_[rank];
    if (!route) route = std::make_shared<Channel>(surroundings_, rank);
    return static_cast<Channel&>(*route);
  }

  Status check(const Operation& operation) const {
    if (closed_) return operation.blame(closed_status());
    if (const Status* ended = surroundings_->mailbox.ended(operation.group)) return *ended;
    if (operation.peer && !is_member(*operation.peer)) {
      return operation.blame(Status::invalid(
          cat("there is no such rank in a world of ", surroundings_->options.endpoints.size(), '.')));
    }
    if (operation.bytes.size() > kMessageLimit) {
      return operation.blame(Status::invalid(cat("a message has at most ", Bytes(kMessageLimit), '.'),
                                             {.failure = Failure::kLimitExceeded}));
    }
    return {};
  }

  void start_on_loop(const OperationPtr& operation) {
    if (const Status status = check(*operation); !status.ok())
      return complete_on_loop(loop(), *operation, status);
    arm_timer_on_loop(operation->deadline);
    if (operation->direction == Direction::kSend)
      return route_on_loop(*operation->peer).send_on_loop(operation);
    if (auto arrival = surroundings_->mailbox.take_arrival(*operation)) {
      return routes_.at(arrival->source)->deliver_on_loop(operation, std::move(*arrival));
    }
    if (operation->peer) {
      if (const auto& failure = route_on_loop(*operation->peer).failure())
        return surroundings_->echoes->hold_on_loop(*operation, operation->blame(*failure), operation->peer);
    }
    surroundings_->mailbox.post(operation);
  }

  // Only moved to an earlier time: one that rings for nothing is cheaper than one that is set anew for every
  // operation.
  void arm_timer_on_loop(base::TimePoint at) {
    if (timer_.armed() && timer_.at() <= at) return;
    timer_.arm_on_loop(at, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->expire_on_loop();
    });
  }

  void expire_on_loop() {
    const base::TimePoint now = loop().clock().now();
    base::TimePoint next = base::TimePoint::max();
    const Why late = [&](const Operation& operation) -> std::optional<Status> {
      if (operation.deadline <= now) return operation.timed_out(now);
      next = std::min(next, operation.deadline);
      return std::nullopt;
    };
    for (const auto& [receive, status] : surroundings_->mailbox.withdraw(late))
      complete_on_loop(loop(), *receive, status);
    for (const auto& [rank, route] : routes_) route->withdraw_on_loop(late);
    arm_timer_on_loop(next);
  }

  // Shared with the routes, which the callbacks of their connections keep.
  const std::shared_ptr<Surroundings> surroundings_;
  std::optional<Loop::Guest> guest_;  // until it is closed
  Timer timer_;
  std::unique_ptr<Listener> listener_;
  // A Loopback for this rank, a Channel for every other; shared with the callbacks of their connections.
  std::map<Rank, std::shared_ptr<Route>> routes_;
  bool closed_ = false;
};

Messenger::Messenger(Transport& transport, std::unique_ptr<Listener> listener,
                     const MessengerOptions& options)
    : impl_(std::make_shared<Impl>(transport, std::move(listener), options)) {
  impl_->loop().post([impl = impl_] { impl->accept_on_loop(); });
}

Messenger::~Messenger() {
  Loop& loop = impl_->loop();
  if (loop.in_forked_child()) {
    // What it holds is the parent's.
    static_cast<void>(new (std::nothrow) std::shared_ptr<Impl>(std::move(impl_)));
    return;
  }
  Impl::Remains remains;
  loop.run_and_drain([&] { remains = impl_->close_on_loop(); });
  remains = {};
  // What the callbacks of the connections have posted.
  if (!loop.is_this_thread()) loop.run_and_drain([] {});
}

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
                     const Deadline& deadline, Received done) {
  impl_->start({.direction = Direction::kRecv,
                .group = group,
                .peer = from,
                .tag = tag,
                .bytes = bytes,
                .done = std::move(done)},
               deadline);
}

void Messenger::fail_group(std::uint64_t group, const Status& why) {
  if (impl_->loop().in_forked_child()) return;
  impl_->loop().post([impl = impl_, group, why] { impl->fail_group_on_loop(group, why); });
}

void Messenger::leave_group(std::uint64_t group) {
  if (impl_->loop().in_forked_child()) return;
  impl_->loop().post([impl = impl_, group] { impl->leave_group_on_loop(group); });
}

}  // namespace lockstep::transport::messages
