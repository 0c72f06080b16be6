#include "lockstep/backend/native/watcher.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>

#include "lockstep/base/text.h"

namespace lockstep::backend {
namespace {

// Whether a debugger holds the process.
bool is_traced(int pid) {
  std::ifstream status(cat("/proc/", pid, "/status"));
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("TracerPid:")) return base::trim(std::string_view(line).substr(10)) != "0";
  }
  return false;
}

std::vector<int> distinct(const std::vector<int>& labels) {
  std::vector<int> hosts;
  for (const int label : labels) {
    if (std::find(hosts.begin(), hosts.end(), label) == hosts.end()) hosts.push_back(label);
  }
  return hosts;
}

}  // namespace

Monitor::Watcher::Watcher(MonitorOptions options, transport::shm::Domain& domain, transport::link::Door* door,
                          store::Store& store, UniqueFd wake)
    : options_(std::move(options)),
      domain_(domain),
      door_(door),
      store_(store),
      wake_(std::move(wake)),
      own_(*options_.identity.rank),
      hosts_(distinct(options_.host_of)),
      next_look_(clock_.now()),
      neighbours_(domain.size(), options_.stall_after, options_.stall_after / 4, clock_.now()),
      shared_left_(std::make_shared<LeftRanks>(options_.host_of.size())),
      heard_(hosts_.size()),
      others_(static_cast<int>(hosts_.size()), options_.stall_after, options_.stall_after / 4, clock_.now()) {
}

Result<std::unique_ptr<Monitor::Watcher>> Monitor::Watcher::make(MonitorOptions options,
                                                                 transport::shm::Domain& domain,
                                                                 transport::link::Door* door,
                                                                 store::Store& store,
                                                                 const Deadline& deadline) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return Status::from_errno("no eventfd can be made", errno);
  std::unique_ptr<Watcher> watcher(new Watcher(std::move(options), domain, door, store, std::move(wake)));
  const Bytes size{sizeof(Pulse) + watcher->options_.members.size()};
  LOCKSTEP_ASSIGN(const transport::shm::Heap::Range range, domain.heap().allocate(size, alignof(Pulse)));
  std::memset(range.data, 0, size.value);
  new (range.data) Pulse;
  std::vector<std::string> keys;
  keys.reserve(static_cast<std::size_t>(domain.size()));
  for (int i = 0; i < domain.size(); ++i) keys.push_back(cat("pulse/", domain.rank_of(i)));
  LOCKSTEP_TRY(store.set(cat("pulse/", watcher->own_), bytes_of(cat(range.offset)), deadline));
  LOCKSTEP_ASSIGN(const std::vector<Buffer> offsets,
                  store::watched_get(store, keys, deadline, watcher->options_.look));
  for (int i = 0; i < domain.size(); ++i) {
    const auto offset = base::parse_integer<std::uint64_t>(text_of(offsets[static_cast<std::size_t>(i)]));
    std::byte* const place = offset && *offset % alignof(Pulse) == 0 ? domain.at(i, *offset, size) : nullptr;
    if (place == nullptr)
      return Status::internal(cat("rank ", domain.rank_of(i), " announced no valid place for its pulse"));
    watcher->pulses_.push_back(reinterpret_cast<Pulse*>(place));
  }
  if (door != nullptr) {
    LOCKSTEP_ASSIGN(watcher->inbox_, door->inbox(kWatchGroup));
  }
  return watcher;
}

bool Monitor::Watcher::lives(Rank rank) const {
  return !lost_.contains(rank) && !left_[static_cast<std::size_t>(rank.value)];
}

void Monitor::Watcher::look(const std::function<void(Rank, const Status&)>& on_lost) {
  on_lost_ = &on_lost;
  if (door_ != nullptr) listen_to_speakers();
  if (clock_.now() >= next_look_) {
    next_look_ = clock_.now() + kTick;
    if (paused_) {
      look_for_dead_neighbours();
    } else {
      ++own_pulse().beats;
      look_at_neighbours();
    }
    if (door_ != nullptr) {
      if (!paused_) read_the_speakers();
      if (speaker_of(host_of(own_)) == own_) {
        meet_speakers();
        for (const auto& [host, socket] : sockets_) socket->say({.kind = WatchMessage::Kind::kBeat});
        blame_silent_hosts();
      }
    }
  }
  on_lost_ = nullptr;
}

void Monitor::Watcher::look_for_dead_neighbours() {
  for (int i = 0; i < domain_.size(); ++i) {
    const Rank rank = domain_.rank_of(i);
    if (lives(rank) && domain_.is_dead(i)) lose(rank, Failure::kPeerDied);
  }
}

void Monitor::Watcher::look_at_neighbours() {
  std::vector<std::int64_t> beats;
  for (int i = 0; i < domain_.size(); ++i) {
    const Rank rank = domain_.rank_of(i);
    const Pulse& pulse = *pulses_[static_cast<std::size_t>(i)];
    // Dead first: whoever leaves says so before its process ends.
    const bool dead = lives(rank) && domain_.is_dead(i);
    if (pulse.gone.load() != 0 && lives(rank)) see_leave(rank);
    if (dead && lives(rank)) lose(rank, Failure::kPeerDied);
    // One that is not watched any more beats for ever.
    beats.push_back(lives(rank) ? pulse.beats.load() : own_pulse().beats.load());
  }
  if (const auto silent = neighbours_.look(beats, clock_.now())) {
    const Rank rank = domain_.rank_of(*silent);
    if (!is_traced(options_.members[static_cast<std::size_t>(rank.value)].pid))
      lose(rank, Failure::kPeerStalled);
  }
}

// A neighbour has left, or we do. The other hosts must not look for it.
void Monitor::Watcher::see_leave(Rank rank) {
  left_[static_cast<std::size_t>(rank.value)] = true;
  for (const auto& [host, socket] : sockets_) socket->say({.kind = WatchMessage::Kind::kLeft, .rank = rank});
}

Status Monitor::Watcher::describe(Rank rank, Failure failure) const {
  const store::Member& member = options_.members[static_cast<std::size_t>(rank.value)];
  const Cause cause{
      .failure = failure, .rank = own_, .peer = rank, .host = member.host.name, .pid = member.pid};
  const std::string where = cat(" (host ", member.host.name, ", pid ", member.pid, ")");
  if (failure == Failure::kPeerStalled) {
    return Status::disconnected(cat("rank ", rank, where, " has not moved for ", options_.stall_after,
                                    ": it was stopped, or gets no time to run"),
                                cause);
  }
  if (failure == Failure::kPeerUnreachable) {
    return Status::disconnected(
        cat("rank ", rank, where, " cannot be reached: nothing was heard of it for ", options_.stall_after),
        cause);
  }
  return Status::disconnected(cat("rank ", rank, " died", where), cause);
}

void Monitor::Watcher::lose(Rank rank, Failure failure) {
  lost_[rank] = failure;
  forgive(host_of(rank));
  if (!paused_ && !leaving_) own_pulse().verdict(rank).store(static_cast<std::uint8_t>(failure));
  if (is_here(rank)) {
    for (const auto& [host, socket] : sockets_)
      socket->say({.kind = WatchMessage::Kind::kLost, .failure = failure, .rank = rank});
  }
  (*on_lost_)(rank, describe(rank, failure));
}

void Monitor::Watcher::pause() { paused_ = true; }

void Monitor::Watcher::resume() {
  paused_ = false;
  for (const auto& [rank, failure] : lost_) {
    if (failure != Failure::kLeftOut) own_pulse().verdict(rank).store(static_cast<std::uint8_t>(failure));
  }
  neighbours_.forgive();
}

void Monitor::Watcher::leave_out(const std::vector<Rank>& ranks) {
  for (const Rank rank : ranks) {
    lost_.try_emplace(rank, Failure::kLeftOut);
    forgive(host_of(rank));
  }
}

void Monitor::Watcher::sleep() {
  std::vector<pollfd> sockets = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const auto& [host, socket] : sockets_)
    sockets.push_back({.fd = socket->fd(), .events = POLLIN, .revents = 0});
  (void)::poll(sockets.data(), sockets.size(), Deadline(clock_, next_look_).poll_millis());
}

void Monitor::Watcher::wake() {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

}  // namespace lockstep::backend
