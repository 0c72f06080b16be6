#include "lockstep/transport/link/links.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>

#include "lockstep/base/status_bytes.h"
#include "lockstep/base/text.h"

namespace lockstep::transport::link {
namespace {

using namespace std::chrono_literals;

// Who has just come to an operation may be the first that can see that another one is in a different one.
constexpr Duration kEarlySlice = 10ms;
constexpr Duration kEarly = 200ms;
constexpr Duration kSleepSlice = 20ms;
constexpr Duration kNewsLimit = 1s;   // for a host
constexpr Duration kNewsTry = 250ms;  // for one of its ranks, who may be unable to accept a connection
// That a member has left may be heard before the socket that it has made is through the door.
constexpr Duration kArrivalMayTake = 250ms;

}  // namespace

Links::Links(LinksOptions options, std::shared_ptr<Inbox> inbox)
    : options_(std::move(options)), inbox_(std::move(inbox)) {}

Links::~Links() = default;

Status Links::begin(const Stamp& stamp) {
  begun_ = Clock::steady().now();
  bool sent = false;
  bool received = false;
  for (auto& [peer, pair] : pairs_) {
    sent |= pair.sends > 0;
    received |= pair.recvs > 0;
    pair.sends = pair.recvs = 0;
    for (const Stream& stream : pair.streams) {
      if (stream.link) stream.link->begin(begun_);
    }
  }
  last_stamp_ = stamp_;
  stamp_ = stamp;
  slept_.clear();
  return sent && !received ? look_for_strays() : Status();
}

Status Links::look_for_strays() {
  take_uninvited();
  const auto judge = [this](int peer, Stray::Kind kind, const std::optional<Stamp>& received) {
    if (!received) return Status();
    return options_.judge(options_.ranks[static_cast<std::size_t>(peer)],
                          {.kind = kind, .last = last_stamp_, .now = stamp_, .received = *received});
  };
  for (const auto& [peer, pair] : pairs_) {
    for (const Stream& stream : pair.streams) {
      if (!stream.link) continue;
      LOCKSTEP_TRY(judge(peer, Stray::Kind::kMessage, stream.link->unclaimed()));
      LOCKSTEP_TRY(judge(peer, Stray::Kind::kWaiting, stream.link->peer_waits_in()));
    }
  }
  return {};
}

void Links::say_waiting() {
  for (auto& [peer, pair] : pairs_) {
    for (Stream& stream : pair.streams) {
      if (stream.link && stream.link->expects()) say_waiting(stream);
    }
  }
}

void Links::say_waiting(Stream& stream) {
  if (stream.said_waiting == stamp_) return;
  stream.link->say_waiting(stamp_);
  stream.said_waiting = stamp_;
}

bool Links::tell_of_operation(int peer, const Deadline& deadline) {
  const auto pair = pair_with(peer, deadline);
  if (!pair.ok()) return false;
  Stream& first = (*pair)->streams.front();
  say_waiting(first);
  return first.link->progress().ok();
}

// Who connects is the client, and each end has the key of its own direction.
void Links::attach(Stream& stream, Arrival arrival, Ticket::Direction connected) {
  std::optional<LinkKeys> keys;
  if (options_.protection == Protection::kSealed) {
    keys = connected == Ticket::Direction::kOut
               ? LinkKeys{.send = arrival.keys.client_to_server, .recv = arrival.keys.server_to_client}
               : LinkKeys{.send = arrival.keys.server_to_client, .recv = arrival.keys.client_to_server};
  }
  stream.link = std::make_unique<Link>(std::move(arrival.socket), keys, options_.calls);
  stream.link->begin(begun_);
  for (const Stream::Post& post : stream.waiting) {
    if (post.direction == Ticket::Direction::kOut) {
      stream.link->send(stamp_, post.part, post.out);
    } else {
      stream.link->recv(stamp_, post.part, post.in);
    }
  }
  stream.waiting.clear();
}

Result<Links::Pair*> Links::pair_with(int peer, const Deadline& deadline) {
  if (closed_) return Status::aborted("the links of this group are closed", {.failure = Failure::kClosed});
  auto found = pairs_.find(peer);
  if (found == pairs_.end()) {
    Pair pair;
    pair.streams.resize(static_cast<std::size_t>(options_.streams));
    found = pairs_.emplace(peer, std::move(pair)).first;
    if (options_.position > peer) waiting_streams_ += options_.streams;
  }
  // The peer keeps what it has heard of: after a failure only the missing ones are made.
  for (int i = 0; i < options_.streams && options_.position < peer; ++i) {
    Stream& stream = found->second.streams[static_cast<std::size_t>(i)];
    if (!stream.link) LOCKSTEP_TRY(dial(peer, i, stream, deadline));
  }
  return &found->second;
}

Status Links::dial(int peer, int number, Stream& stream, const Deadline& deadline) {
  const Rank rank = options_.ranks[static_cast<std::size_t>(peer)];
  options_.calls.get().connecting(rank);
  auto arrival = knock({.identity = options_.identity,
                        .group = options_.group,
                        .stream = static_cast<std::uint16_t>(number),
                        .addresses = options_.addresses[static_cast<std::size_t>(peer)],
                        .congestion_control = options_.congestion_control,
                        .look = options_.look},
                       deadline);
  if (!arrival.ok()) {
    LOCKSTEP_TRY(options_.look());  // the group may have failed meanwhile
    Cause cause = arrival.status().cause();
    const bool own_fault = cause.failure == Failure::kNoDescriptors || cause.failure == Failure::kNoMemory;
    cause.peer = own_fault ? options_.ranks[static_cast<std::size_t>(options_.position)] : rank;
    // A door is open as long as its process lives.
    if (cause.failure == Failure::kNobodyListens) cause.failure = Failure::kPeerDied;
    if (cause.failure == Failure::kNone) cause.failure = Failure::kPeerUnreachable;
    return arrival.status().with_cause(cause).with_prefix(cat("cannot connect to rank ", rank, ": "));
  }
  attach(stream, std::move(*arrival), Ticket::Direction::kOut);
  return {};
}

Status Links::connect(std::span<const int> peers, const Deadline& deadline) {
  for (const int peer : peers) LOCKSTEP_TRY(pair_with(peer, deadline).status());
  while (true) {
    if (waiting_streams_ > 0) take_arrivals();
    if (waiting_streams_ == 0) return {};
    if (deadline.expired()) break;
    LOCKSTEP_TRY(sleep(deadline, kSleepSlice));
  }
  std::vector<Rank> missing;
  for (const auto& [peer, pair] : pairs_) {
    const bool whole = std::ranges::all_of(pair.streams, [](const Stream& stream) { return !!stream.link; });
    if (!whole && peer < options_.position) missing.push_back(options_.ranks[static_cast<std::size_t>(peer)]);
  }
  return Status::timeout(cat("rank ", base::ranks_text(missing), " did not connect until the deadline"),
                         {.failure = Failure::kMissingRanks, .peer = missing.front(), .missing = missing});
}

Result<Links::Ticket> Links::send(int peer, ByteView bytes, const Deadline& deadline) {
  LOCKSTEP_ASSIGN(Pair* const pair, pair_with(peer, deadline));
  const std::uint32_t part = pair->sends++;
  const int at = static_cast<int>(part) % options_.streams;
  Stream& stream = pair->streams[static_cast<std::size_t>(at)];
  if (stream.link) {
    stream.link->send(stamp_, part, bytes);
  } else {
    stream.waiting.push_back({.part = part, .out = bytes, .in = {}, .direction = Ticket::Direction::kOut});
  }
  return Ticket{.peer = peer, .stream = at, .direction = Ticket::Direction::kOut, .number = ++stream.sends};
}

Result<Links::Ticket> Links::recv(int peer, ByteSpan bytes, const Deadline& deadline) {
  LOCKSTEP_ASSIGN(Pair* const pair, pair_with(peer, deadline));
  const std::uint32_t part = pair->recvs++;
  const int at = static_cast<int>(part) % options_.streams;
  Stream& stream = pair->streams[static_cast<std::size_t>(at)];
  if (stream.link) {
    stream.link->recv(stamp_, part, bytes);
  } else {
    stream.waiting.push_back({.part = part, .out = {}, .in = bytes, .direction = Ticket::Direction::kIn});
  }
  return Ticket{.peer = peer, .stream = at, .direction = Ticket::Direction::kIn, .number = ++stream.recvs};
}

bool Links::done(const Ticket& ticket) const {
  const auto pair = pairs_.find(ticket.peer);
  if (pair == pairs_.end()) return false;
  const Stream& stream = pair->second.streams[static_cast<std::size_t>(ticket.stream)];
  if (!stream.link) return false;
  return (ticket.direction == Ticket::Direction::kOut ? stream.link->sends_done()
                                                      : stream.link->recvs_done()) >= ticket.number;
}

void Links::take_arrivals() {
  for (auto& [peer, pair] : pairs_) {
    if (peer > options_.position) break;  // those are made here
    for (std::size_t i = 0; i < pair.streams.size(); ++i) {
      if (pair.streams[i].link) continue;
      auto arrival =
          inbox_->take(options_.ranks[static_cast<std::size_t>(peer)], static_cast<std::uint16_t>(i));
      if (!arrival) continue;
      attach(pair.streams[i], std::move(*arrival), Ticket::Direction::kIn);
      --waiting_streams_;
    }
  }
}

void Links::take_uninvited() {
  if (closed_ || inbox_->empty()) return;
  for (int peer = 0; peer < options_.position; ++peer) {
    if (pairs_.contains(peer)) continue;
    auto arrival = inbox_->take(options_.ranks[static_cast<std::size_t>(peer)], 0);
    if (!arrival) continue;
    Pair& pair = pairs_[peer];
    pair.streams.resize(static_cast<std::size_t>(options_.streams));
    attach(pair.streams.front(), std::move(*arrival), Ticket::Direction::kIn);
    waiting_streams_ += options_.streams - 1;
  }
}

Status Links::blame(int peer, const Link& link, const Status& status) const {
  const Rank rank = options_.ranks[static_cast<std::size_t>(peer)];
  if (link.mismatch() && options_.describe) return options_.describe(rank, *link.mismatch());
  if (status.cause().peer || status.failure() == Failure::kForked)
    return status;  // it names somebody already
  Cause cause = status.cause();
  cause.peer = rank;
  return status.with_cause(cause).with_prefix(cat("rank ", rank, ": "));
}

Result<bool> Links::move_all() {
  bool moved = false;
  if (waiting_streams_ > 0) take_arrivals();
  for (auto& [peer, pair] : pairs_) {
    for (Stream& stream : pair.streams) {
      if (!stream.link || !stream.link->pending()) continue;
      const auto progress = stream.link->progress();
      if (!progress.ok()) return blame(peer, *stream.link, progress.status());
      moved |= *progress;
    }
  }
  return moved;
}

Status Links::progress() { return move_all().status(); }

// Until a socket can be moved on, or for one slice.
Status Links::sleep(const Deadline& deadline, Duration longest) {
  std::vector<pollfd> sockets;
  for (const auto& [peer, pair] : pairs_) {
    for (const Stream& stream : pair.streams) {
      if (stream.link && stream.link->pending())
        sockets.push_back({.fd = stream.link->fd(), .events = stream.link->events(), .revents = 0});
    }
  }
  if (waiting_streams_ > 0) sockets.push_back({.fd = inbox_->fd(), .events = POLLIN, .revents = 0});
  const Duration left = deadline.clock().patience(deadline.remaining());
  const Duration slice = std::clamp<Duration>(left, 1ms, longest);
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(slice);
  const int ready = ::poll(sockets.data(), sockets.size(), static_cast<int>(millis.count()));
  LOCKSTEP_TRY(options_.look());
  if (ready == 0) {
    LOCKSTEP_TRY(look_for_strays());
    say_waiting();
  }
  if (waiting_streams_ == 0) return {};
  take_arrivals();
  const base::TimePoint now = deadline.clock().now();
  for (auto& [peer, pair] : pairs_) {
    const bool waits = std::any_of(pair.streams.begin(), pair.streams.end(), [](const Stream& stream) {
      return !stream.link && !stream.waiting.empty();
    });
    const Rank rank = options_.ranks[static_cast<std::size_t>(peer)];
    if (!waits || !options_.has_left(rank)) continue;
    if (!pair.left_at) pair.left_at = now;
    if (now - *pair.left_at >= kArrivalMayTake) return look_whether_it_left(rank);
  }
  return {};
}

Status Links::look_whether_it_left(Rank rank) const {
  if (!options_.has_left(rank)) return {};
  return Status::disconnected(cat("rank ", rank, " left the group"),
                              {.failure = Failure::kDesync, .peer = rank});
}

Status Links::wait_for_one(std::span<const Ticket> tickets, const Deadline& deadline) {
  const auto one_is_done = [&] {
    return std::any_of(tickets.begin(), tickets.end(), [this](const Ticket& ticket) { return done(ticket); });
  };
  const Clock& clock = deadline.clock();
  const base::TimePoint begun = clock.now();
  base::TimePoint idle_since = begun;
  base::TimePoint looked_at = begun;
  while (!one_is_done()) {
    LOCKSTEP_ASSIGN(const bool moved, move_all());
    if (one_is_done()) break;
    const base::TimePoint now = clock.now();
    if (moved) idle_since = now;
    const bool stays = moved || now - idle_since < options_.spin;
    // Bytes that never cease to come are no reason not to look: others may wait for what is said there.
    if (stays && now - looked_at < kSleepSlice) continue;
    looked_at = now;
    if (deadline.expired()) {
      const Rank rank = options_.ranks[static_cast<std::size_t>(tickets.front().peer)];
      return Status::timeout(cat("waited ", now - begun, " for rank ", rank),
                             {.failure = Failure::kMissingRanks, .peer = rank, .missing = {rank}});
    }
    if (stays) {
      LOCKSTEP_TRY(options_.look());
      continue;
    }
    LOCKSTEP_TRY(sleep(deadline, now - begun < kEarly ? kEarlySlice : kSleepSlice));
    const Ticket& first = tickets.front();
    if (first.direction == Ticket::Direction::kIn) slept_[first.peer] += clock.now() - now;
  }
  return {};
}

std::optional<Links::Late> Links::latest() const {
  std::optional<Late> latest;
  for (const auto& [peer, slept] : slept_) {
    Duration by = slept;
    for (const Stream& stream : pairs_.at(peer).streams) {
      if (stream.link) by = std::min(by, stream.link->peer_came_later().value_or(by));
    }
    if (!latest || by > latest->by) latest = Late{.peer = peer, .by = by};
  }
  return latest;
}

void Links::close_all(FrameKind kind, ByteView payload) {
  if (waiting_streams_ > 0) take_arrivals();  // whoever connected hears it, too
  for (auto& [peer, pair] : pairs_) {
    for (Stream& stream : pair.streams) {
      if (stream.link) stream.link->finish(kind, stamp_, payload);
    }
  }
  closed_ = true;
}

void Links::abort(const Status& why) {
  if (!closed_) close_all(FrameKind::kAbort, base::write_status(why));
}

bool Links::spread_news(const std::vector<Host>& hosts, const Status& why,
                        const std::function<void(const Status&)>& hear) const {
  bool all_answered = true;
  for (const Host& host : hosts) {
    const Deadline deadline = Clock::steady().in(kNewsLimit);
    bool settled = host.all;  // nobody is there who could have recorded something else
    for (const int peer : host.members) {
      const auto answer = bring_news({.identity = options_.identity,
                                      .group = options_.group,
                                      .addresses = options_.addresses[static_cast<std::size_t>(peer)]},
                                     why, deadline.at_most(kNewsTry));
      if (answer.ok() && !answer->known.ok()) {
        hear(answer->known);
        settled = true;
        break;
      }
      if (!answer.ok() && answer.status().failure() != Failure::kNobodyListens) settled = false;
    }
    all_answered &= settled;
  }
  return all_answered;
}

void Links::leave() {
  if (!closed_) close_all(FrameKind::kGoodbye, {});
}

}  // namespace lockstep::transport::link
