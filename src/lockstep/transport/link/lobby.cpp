#include "lockstep/transport/link/lobby.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace lockstep::transport::link {

Result<std::shared_ptr<Inbox>> Inbox::make() {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return Status::from_errno("no eventfd can be made", errno);
  return std::shared_ptr<Inbox>(new Inbox(std::move(event)));
}

std::optional<Arrival> Inbox::take(Rank from, std::uint16_t stream) {
  const MutexLock lock(mutex_);
  std::uint64_t count = 0;
  (void)!::read(event_.get(), &count, sizeof(count));
  const auto found = arrivals_.find({from, stream});
  if (found == arrivals_.end()) return std::nullopt;
  Arrival arrival = std::move(found->second);
  arrivals_.erase(found);
  return arrival;
}

bool Inbox::empty() const {
  const MutexLock lock(mutex_);
  return arrivals_.empty();
}

void Inbox::put(Rank from, std::uint16_t stream, Arrival arrival) {
  const MutexLock lock(mutex_);
  arrivals_.insert_or_assign({from, stream}, std::move(arrival));
  const std::uint64_t one = 1;
  (void)!::write(event_.get(), &one, sizeof(one));
}

Result<std::shared_ptr<Inbox>> Lobby::inbox(std::uint64_t group) {
  const MutexLock lock(mutex_);
  if (const auto found = inboxes_.find(group); found != inboxes_.end()) return found->second;
  LOCKSTEP_ASSIGN(std::shared_ptr<Inbox> made, Inbox::make());
  forgotten_.remove(group);  // one of that name is made again
  for (EarlySocket& early : early_sockets_) {
    if (early.group == group) made->put(early.from, early.stream, std::move(early.arrival));
  }
  std::erase_if(early_sockets_, [group](const EarlySocket& early) { return early.group == group; });
  inboxes_.emplace(group, made);
  return made;
}

Status Lobby::put(std::uint64_t group, Rank from, std::uint16_t stream, Arrival arrival) {
  const MutexLock lock(mutex_);
  if (const auto found = inboxes_.find(group); found != inboxes_.end()) {
    found->second->put(from, stream, std::move(arrival));
    return {};
  }
  if (forgotten_.contains(group))
    return Status::aborted("it comes for a group that this rank has left", {.failure = Failure::kClosed});
  early_sockets_.push_back({.group = group, .from = from, .stream = stream, .arrival = std::move(arrival)});
  if (early_sockets_.size() > max_early_sockets_) early_sockets_.pop_front();
  return {};
}

Lobby::EarlyNews::iterator Lobby::early_news_of(std::uint64_t group) {
  return std::ranges::find(early_news_, group, &EarlyNews::value_type::first);
}

void Lobby::listen_for_news(std::uint64_t group, Hear hear) {
  const MutexLock lock(mutex_);
  if (const auto early = early_news_of(group); early != early_news_.end()) {
    (void)hear(early->second);
    early_news_.erase(early);
  }
  listeners_[group] = std::move(hear);
}

std::optional<Status> Lobby::tell(std::uint64_t group, const Status& news) {
  const MutexLock lock(mutex_);
  if (const auto listener = listeners_.find(group); listener != listeners_.end())
    return listener->second(news);
  if (forgotten_.contains(group)) return Status();
  // The first news of a group count.
  if (early_news_of(group) != early_news_.end()) return std::nullopt;
  early_news_.emplace_back(group, news);
  if (early_news_.size() > kEarlyNews) early_news_.pop_front();
  return std::nullopt;
}

void Lobby::tell_all(const Status& news) {
  const MutexLock lock(mutex_);
  for (const auto& [group, hear] : listeners_) (void)hear(news);
}

void Lobby::forget(std::uint64_t group) {
  const MutexLock lock(mutex_);
  inboxes_.erase(group);
  listeners_.erase(group);
  std::erase_if(early_sockets_, [group](const EarlySocket& early) { return early.group == group; });
  std::erase_if(early_news_, [group](const auto& early) { return early.first == group; });
  forgotten_.add(group);
}

Lobby::Sizes Lobby::sizes() const {
  const MutexLock lock(mutex_);
  return {.groups = inboxes_.size(),
          .listeners = listeners_.size(),
          .early_sockets = early_sockets_.size(),
          .early_news = early_news_.size(),
          .forgotten = forgotten_.size()};
}

}  // namespace lockstep::transport::link
