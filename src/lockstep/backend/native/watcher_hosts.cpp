// What a Watcher does about other hosts: it meets their speakers, listens to them, and says goodbye.
#include <poll.h>

#include <algorithm>

#include "lockstep/backend/native/watcher.h"
#include "lockstep/base/text.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using transport::link::Arrival;

constexpr Duration kConnectLimit = 200ms;
constexpr Duration kConnectPause = 400ms;
constexpr Duration kGoodbyeLimit = 250ms;
constexpr Duration kStoreLimit = 200ms;
constexpr int kMeetingMillis = 10;

// Where it stands that a rank has left.
std::string note_of(Rank rank) { return cat("left/", rank); }

}  // namespace

std::optional<Rank> Monitor::Watcher::speaker_of(int host) const {
  for (int i = 0; i < static_cast<int>(options_.host_of.size()); ++i) {
    if (host_of(Rank{i}) == host && lives(Rank{i})) return Rank{i};
  }
  return std::nullopt;
}

// Of a rank on another host. For our neighbours it stands among the verdicts.
void Monitor::Watcher::hear_of_leave(Rank rank) {
  left_[static_cast<std::size_t>(rank.value)] = true;
  forgive(host_of(rank));
  if (!paused_) own_pulse().verdict(rank).store(static_cast<std::uint8_t>(Failure::kClosed));
}

// What our host's speaker has heard from the others, and what those heard who have left.
void Monitor::Watcher::read_the_speakers() {
  const auto speaker = speaker_of(host_of(own_));
  for (int index = 0; index < domain_.size(); ++index) {
    const Rank neighbour = domain_.rank_of(index);
    if (neighbour == own_ || (neighbour != speaker && !has_left(neighbour))) continue;
    Pulse& pulse = *pulses_[static_cast<std::size_t>(index)];
    for (std::size_t i = 0; i < left_.size(); ++i) {
      const Rank rank(static_cast<int>(i));
      const auto failure = static_cast<Failure>(pulse.verdict(rank).load());
      if (failure == Failure::kNone || is_here(rank) || !lives(rank)) continue;
      if (failure == Failure::kClosed) {
        hear_of_leave(rank);
      } else {
        lose(rank, failure);
      }
    }
  }
}

// A socket to the speaker of every other host: of two hosts the one that stands first connects.
void Monitor::Watcher::meet_speakers() {
  const auto own_place = std::find(hosts_.begin(), hosts_.end(), host_of(own_));
  for (auto host = hosts_.begin(); host != hosts_.end(); ++host) {
    const auto speaker = speaker_of(*host);
    if (host == own_place || sockets_.contains(*host) || !speaker) continue;
    std::optional<Arrival> arrival;
    Rank peer = *speaker;
    if (host < own_place) {
      // Whoever of that host comes thinks that it is the speaker.
      for (int i = 0; i < static_cast<int>(left_.size()) && !arrival; ++i) {
        peer = Rank{i};
        // One that is lost to us may be back, and have lost everybody else.
        if (host_of(peer) == *host && lives(peer)) arrival = inbox_->take(peer, 0);
      }
      if (!arrival) look_whether_it_is_there(*speaker);
    } else if (clock_.now() - tried_[*host] >= kConnectPause) {
      tried_[*host] = clock_.now();
      auto connected =
          transport::link::knock({.identity = options_.identity,
                                  .group = kWatchGroup,
                                  .addresses = options_.addresses[static_cast<std::size_t>(speaker->value)]},
                                 clock_.in(kConnectLimit));
      if (connected.ok()) {
        arrival = std::move(*connected);
      } else if (connected.status().failure() == Failure::kNobodyListens) {
        find_closed(*speaker);
      }
    }
    if (!arrival) continue;
    auto socket = std::make_unique<WatchSocket>(std::move(arrival->socket), peer, options_.stall_after);
    for (const auto& [rank, failure] : lost_) {
      // Who was left out all others know already.
      if (is_here(rank) && failure != Failure::kLeftOut)
        socket->say({.kind = WatchMessage::Kind::kLost, .failure = failure, .rank = rank});
    }
    for (std::size_t i = 0; i < left_.size(); ++i) {
      const Rank rank(static_cast<int>(i));
      if (left_[i] && is_here(rank)) socket->say({.kind = WatchMessage::Kind::kLeft, .rank = rank});
    }
    sockets_[*host] = std::move(socket);
    met_.insert(*host);
  }
}

// One that should have come may have died before it could.
void Monitor::Watcher::look_whether_it_is_there(Rank speaker) {
  base::TimePoint& tried = tried_.try_emplace(host_of(speaker), clock_.now()).first->second;
  if (clock_.now() - tried < kConnectPause) return;
  tried = clock_.now();
  for (const base::SocketAddress& address : options_.addresses[static_cast<std::size_t>(speaker.value)]) {
    const auto connected = base::connect_to(address, clock_.in(kConnectLimit), base::OnRefused::kFail);
    if (connected.status().failure() == Failure::kNobodyListens) return find_closed(speaker);
  }
}

// A door is open until its process has left, or died. Who has left has said so in the store, or to somebody
// who leaves as well and whom we shall hear: the next look tells. While the store is silent, only time tells.
void Monitor::Watcher::find_closed(Rank speaker) {
  const std::string note = note_of(speaker);
  const auto left = store_.check({&note, 1}, clock_.in(kStoreLimit));
  if (left.ok() && *left) return hear_of_leave(speaker);
  if (found_closed_.insert(speaker).second) {
    tried_[host_of(speaker)] = clock_.now() - kConnectPause;
  } else if (left.ok() || left.status().code() != Code::kTimeout) {
    lose(speaker, Failure::kPeerDied);
  }
}

// Whoever has taken our socket says at once that it lives. One that we have not heard may have left before it
// came to that.
void Monitor::Watcher::find_ended(const WatchSocket& socket, Failure failure) {
  if (socket.has_spoken() || failure == Failure::kPeerUnreachable) {
    lose(socket.peer(), failure == Failure::kPeerUnreachable ? failure : Failure::kPeerDied);
  } else {
    tried_[host_of(socket.peer())] = clock_.now() - kConnectPause;
  }
}

// The next speaker of that host is met at once, and gets all its time.
void Monitor::Watcher::forgive(int host) {
  ++heard_[place_of(host)];
  tried_.erase(host);
}

std::size_t Monitor::Watcher::place_of(int host) const {
  return static_cast<std::size_t>(std::find(hosts_.begin(), hosts_.end(), host) - hosts_.begin());
}

void Monitor::Watcher::listen_to_speakers() {
  for (auto at = sockets_.begin(); at != sockets_.end();) {
    const auto& [host, socket] = *at;
    const std::size_t place = place_of(host);
    if (!lives(socket->peer())) {
      at = sockets_.erase(at);
      continue;
    }
    const auto messages = socket->listen();
    bool ended = !messages.ok();
    if (ended) find_ended(*socket, messages.status().failure());
    for (const WatchMessage& message : messages.ok() ? *messages : std::vector<WatchMessage>()) {
      ++heard_[place];
      const bool known = is_member(message.rank);
      if (message.kind == WatchMessage::Kind::kGoodbye) {
        hear_of_leave(socket->peer());
        ended = true;
      } else if (message.kind == WatchMessage::Kind::kLeft && known && host_of(message.rank) == host) {
        hear_of_leave(message.rank);
      } else if (message.kind == WatchMessage::Kind::kLost && known && host_of(message.rank) == host &&
                 lives(message.rank)) {
        lose(message.rank, message.failure);
      } else if (message.kind == WatchMessage::Kind::kLost && known && is_here(message.rank) &&
                 lives(socket->peer())) {
        lose(socket->peer(), Failure::kPeerUnreachable);  // it does not hear us any more
        ended = true;
      }
    }
    at = ended ? sockets_.erase(at) : std::next(at);
  }
}

void Monitor::Watcher::blame_silent_hosts() {
  std::vector<std::int64_t> beats = heard_;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    // Our own, and one where nobody is left.
    if (hosts_[i] == host_of(own_) || !speaker_of(hosts_[i])) beats[i] = ++heard_[i];
  }
  const auto silent = others_.look(beats, clock_.now());
  if (!silent) return;
  const int host = hosts_[static_cast<std::size_t>(*silent)];
  forgive(host);
  const auto socket = sockets_.find(host);
  const Rank rank = socket != sockets_.end() ? socket->second->peer() : *speaker_of(host);
  if (socket != sockets_.end()) {
    // Where only one direction is cut it hears why.
    socket->second->say(
        {.kind = WatchMessage::Kind::kLost, .failure = Failure::kPeerUnreachable, .rank = rank});
    sockets_.erase(socket);
  }
  if (lives(rank)) lose(rank, Failure::kPeerUnreachable);
}

// A speaker that has not met the others yet waits for them: whoever finds its door closed would take it for
// dead.
void Monitor::Watcher::meet_before_leaving(const Deadline& deadline) {
  const auto all_met = [this] {
    return std::all_of(hosts_.begin(), hosts_.end(), [this](int host) {
      return host == host_of(own_) || sockets_.contains(host) || !speaker_of(host) || met_.contains(host);
    });
  };
  while (true) {
    meet_speakers();
    if (all_met() || deadline.expired()) break;
    pollfd arrivals{.fd = inbox_->fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&arrivals, 1, std::min(deadline.poll_millis(), kMeetingMillis));
  }
}

// Where nobody of a host has heard us on a socket, whoever looks for us there finds a closed door.
void Monitor::Watcher::note_leaves() {
  const bool all_heard = std::all_of(hosts_.begin(), hosts_.end(), [this](int host) {
    const auto socket = sockets_.find(host);
    return host == host_of(own_) || !speaker_of(host) ||
           (socket != sockets_.end() && lives(socket->second->peer()));
  });
  if (all_heard) return;
  std::vector<std::string> notes = {note_of(own_)};
  for (int i = 0; i < domain_.size(); ++i) {
    if (has_left(domain_.rank_of(i))) notes.push_back(note_of(domain_.rank_of(i)));
  }
  // If the store is gone there is nobody else to tell.
  (void)store_.multi_set(notes, std::vector<Buffer>(notes.size()), clock_.in(kStoreLimit));
}

void Monitor::Watcher::say_goodbye() {
  own_pulse().gone.store(1);
  for (int i = 0; i < domain_.size(); ++i) {
    const Rank rank = domain_.rank_of(i);
    if (rank != own_ && lives(rank) && pulses_[static_cast<std::size_t>(i)]->gone.load() != 0)
      see_leave(rank);
  }
  if (door_ == nullptr) return;
  if (speaker_of(host_of(own_)) == own_) say_goodbye_to_hosts();
  // Whoever comes now must not wait for an answer.
  door_->forget(kWatchGroup);
  inbox_.reset();
}

void Monitor::Watcher::say_goodbye_to_hosts() {
  const std::function<void(Rank, const Status&)> nobody_cares = [](Rank, const Status&) {};
  on_lost_ = &nobody_cares;
  if (!paused_) read_the_speakers();
  leaving_ = true;
  const Deadline deadline = clock_.in(kGoodbyeLimit);
  meet_before_leaving(deadline);
  for (const auto& [host, socket] : sockets_) {
    // Who of them leaves at the same time our neighbours hear from us alone.
    for (const WatchMessage& message : socket->say_goodbye(deadline)) {
      if (message.kind == WatchMessage::Kind::kGoodbye) hear_of_leave(socket->peer());
      if (message.kind == WatchMessage::Kind::kLeft && is_member(message.rank) &&
          host_of(message.rank) == host)
        hear_of_leave(message.rank);
    }
  }
  note_leaves();
  on_lost_ = nullptr;
}

}  // namespace lockstep::backend
