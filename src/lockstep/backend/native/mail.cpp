#include "lockstep/backend/native/mail.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/collective/copy.h"

namespace lockstep::backend {

using namespace std::chrono_literals;
using transport::messages::Messenger;

// The monitors look every 100 ms, and the other hosts hear at once.
constexpr Duration kEchoGrace = 250ms;
// One that was alone on its host is found dead by the other hosts, in two looks at its door.
constexpr Duration kUnreachableGrace = 600ms;
// A receive that waits for longer asks whether its peer is still in the group.
constexpr Duration kWatchAfter = 100ms;
// How long a connection may take to move the rest of what was withdrawn: at most a quarter of a mebibyte.
constexpr Duration kStallTimeout = 500ms;

Status Mail::open(const std::vector<Rank>& members, const std::string& name, const Deadline& deadline,
                  const store::Look& look) {
  Place place;
  {
    const MutexLock lock(mutex_);
    LOCKSTEP_TRY(make_transport());
    LOCKSTEP_TRY(make_pipes());
    place = {.transport = transport_.get(), .pipes = pipes_};
  }
  // Without the lock: `look` may ask one who has something to say to the mail.
  LOCKSTEP_TRY(meet(place, members, name, deadline, look));
  const MutexLock lock(mutex_);
  listener_ = std::move(place.listener);
  endpoints_ = std::move(place.endpoints);
  return make_messenger();
}

void Mail::close() {
  std::unique_ptr<transport::messages::Attendant> attendant;
  MessengerPtr messenger;
  std::unique_ptr<transport::Listener> listener;
  {
    const MutexLock lock(mutex_);
    attendant = std::move(attendant_);
    messenger = std::move(messenger_);
    listener = std::move(listener_);
  }
  // What they end is called without the lock.
  attendant.reset();
  if (messenger) messenger->close();
}

void Mail::end(const Status& why) {
  {
    const MutexLock lock(mutex_);
    ended_ = why;
  }
  close();
}

bool Mail::is_neighbour(Rank rank) const {
  for (int i = 0; domain_ && i < domain_->size(); ++i) {
    if (domain_->rank_of(i) == rank) return true;
  }
  return false;
}

Status Mail::make_transport() {
  if (transport_) return {};
  LOCKSTEP_ASSIGN(transport_, transport::tcp::TcpTransport::create(options_, clock_));
  return {};
}

Status Mail::make_pipes() {
  if (!domain_ || domain_->size() == 1) return {};
  if (pipes_) pipes_->free();
  const auto copy = [tuning = tuning_](ByteSpan to, const std::byte* from) {
    collective::copy_for_peers(to, from, tuning.copy_way(to.size()));
  };
  LOCKSTEP_ASSIGN(pipes_, transport::shm::Pipes::make(domain_, {.payload = payload_, .copy = copy}));
  return {};
}

Status Mail::meet(Place& place, const std::vector<Rank>& members, const std::string& name,
                  const Deadline& deadline, const store::Look& look) const {
  place.endpoints.assign(static_cast<std::size_t>(rendezvous_.world_size.value), {});
  const bool listens = !std::ranges::all_of(members, [&](Rank member) { return is_neighbour(member); });
  if (listens) {
    const base::Endpoint bind{.host = rendezvous_.addresses.front().host(), .port = 0};
    LOCKSTEP_ASSIGN(place.listener, place.transport->listen(bind));
  }
  // "ENDPOINT OFFSET", each "-" where there is none.
  const std::string own = cat(listens ? place.listener->endpoint().text() : "-", ' ',
                              place.pipes ? cat(place.pipes->offset()) : std::string("-"));
  store::Store& store = *rendezvous_.store;
  LOCKSTEP_TRY(store.set(cat(name, '/', rendezvous_.rank), bytes_of(own), deadline));
  std::vector<std::string> keys;
  keys.reserve(members.size());
  for (const Rank member : members) keys.push_back(cat(name, '/', member));
  LOCKSTEP_ASSIGN(const std::vector<Buffer> answers, store::watched_get(store, keys, deadline, look));
  for (std::size_t i = 0; i < members.size(); ++i) {
    const std::vector<std::string> parts = base::split(text_of(answers[i]), ' ');
    const auto offset = base::parse_integer<std::uint64_t>(parts.back());
    if (is_neighbour(members[i]) && place.pipes) {
      LOCKSTEP_TRY(place.pipes->meet(members[i], offset.value_or(1)));
    } else if (members[i] != rendezvous_.rank) {
      LOCKSTEP_ASSIGN(place.endpoints[static_cast<std::size_t>(members[i].value)],
                      base::parse_endpoint(parts.front()));
    }
  }
  return {};
}

Status Mail::make_messenger() {
  messenger_ = std::make_shared<Messenger>(
      *transport_, std::move(listener_),
      transport::messages::MessengerOptions{.rank = rendezvous_.rank,
                                            .endpoints = endpoints_,
                                            .stall_timeout = kStallTimeout,
                                            .graces = {.unreachable = kUnreachableGrace,
                                                       .failure = stall_after_ + kEchoGrace,
                                                       .other = kEchoGrace},
                                            .failed = failed_,
                                            .watch_after = kWatchAfter,
                                            .pipes = pipes_,
                                            .patience = patience_});
  if (!pipes_) return {};
  LOCKSTEP_ASSIGN(attendant_, transport::messages::Attendant::start(messenger_->progress()));
  return {};
}

Result<Mail::MessengerPtr> Mail::messenger() {
  const MutexLock lock(mutex_);
  LOCKSTEP_TRY(ended_);
  if (messenger_) return messenger_;
  if (rendezvous_.world_size.value > 1)
    return Status::aborted(
        cat("rank ", rendezvous_.rank, ": no message can be sent while the world is shrunk"),
        {.failure = Failure::kClosed, .rank = rendezvous_.rank});
  LOCKSTEP_TRY(make_transport());
  LOCKSTEP_TRY(make_messenger());
  return messenger_;
}

void Mail::fail_group(std::uint64_t group, const Status& why) {
  const MutexLock lock(mutex_);
  if (messenger_) messenger_->fail_group(group, why);
}

void Mail::leave_group(std::uint64_t group) {
  const MutexLock lock(mutex_);
  if (messenger_) messenger_->leave_group(group);
}

bool Mail::seek(Rank rank) {
  const MutexLock lock(mutex_);
  if (!messenger_) return false;
  messenger_->seek(rank);
  return true;
}

}  // namespace lockstep::backend
