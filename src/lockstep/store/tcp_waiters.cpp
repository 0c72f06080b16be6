#include "lockstep/store/tcp_waiters.h"

#include <algorithm>

namespace lockstep::store {
namespace {

// List node, two tree nodes, a hash node and a vector of one.
constexpr std::size_t kEntryOverhead = 400;

std::size_t memory_of(const Waiter& waiter) {
  std::size_t bytes = kEntryOverhead;
  for (const std::string& key : waiter.keys) bytes += sizeof(std::string) + key.size();
  return bytes;
}

}  // namespace

void Waiters::add_for_key(Waiter waiter, std::size_t missing) { add(std::move(waiter), by_key_, missing); }

void Waiters::add_for_queue(Waiter waiter) { add(std::move(waiter), by_queue_, 0); }

void Waiters::add(Waiter waiter, Index& index, std::size_t name) {
  const auto entry = entries_.emplace(entries_.end());
  entry->waiter = std::move(waiter);
  entry->memory = memory_of(entry->waiter);
  entry->index = &index;
  entry->name = entry->waiter.keys[name];
  // Each step may run out of memory; what was done before it is undone, so that nothing points to nowhere.
  entry->deadline = by_deadline_.end();
  entry->request = by_request_.end();
  try {
    entry->deadline = by_deadline_.emplace(entry->waiter.until, entry);
    entry->request = by_request_.emplace(Requests::key_type(entry->waiter.client, entry->waiter.id), entry);
    auto hung = index.find(entry->name);
    if (hung == index.end()) hung = index.emplace(entry->name, std::vector<Entries::iterator>()).first;
    hung->second.push_back(entry);
  } catch (...) {
    if (entry->deadline != by_deadline_.end()) by_deadline_.erase(entry->deadline);
    if (entry->request != by_request_.end()) by_request_.erase(entry->request);
    if (const auto hung = index.find(entry->name); hung != index.end() && hung->second.empty())
      index.erase(hung);
    entries_.erase(entry);
    throw;
  }
  memory_ += entry->memory;
}

Waiter Waiters::release(Entries::iterator entry) {
  by_deadline_.erase(entry->deadline);
  by_request_.erase(entry->request);
  memory_ -= entry->memory;
  Waiter waiter = std::move(entry->waiter);
  entries_.erase(entry);
  return waiter;
}

void Waiters::unhang(Entries::iterator entry) {
  const auto hung = entry->index->find(entry->name);
  std::vector<Entries::iterator>& others = hung->second;
  others.erase(std::find(others.begin(), others.end(), entry));
  if (others.empty()) entry->index->erase(hung);
}

std::vector<Waiter> Waiters::take_for_key(std::string_view key) {
  std::vector<Waiter> taken;
  const auto hung = by_key_.find(key);
  if (hung == by_key_.end()) return taken;
  taken.reserve(hung->second.size());
  for (const Entries::iterator entry : hung->second) taken.push_back(release(entry));
  by_key_.erase(hung);
  return taken;
}

std::optional<Waiter> Waiters::take_first_for_queue(std::string_view queue) {
  const auto hung = by_queue_.find(queue);
  if (hung == by_queue_.end()) return std::nullopt;
  const Entries::iterator first = hung->second.front();
  unhang(first);
  return release(first);
}

std::vector<Waiter> Waiters::take_expired(base::TimePoint now) {
  std::vector<Waiter> taken;
  while (!by_deadline_.empty() && by_deadline_.begin()->first <= now) {
    const Entries::iterator entry = by_deadline_.begin()->second;
    unhang(entry);
    taken.push_back(release(entry));
  }
  return taken;
}

std::optional<base::TimePoint> Waiters::next_deadline() const {
  if (by_deadline_.empty()) return std::nullopt;
  return by_deadline_.begin()->first;
}

void Waiters::cancel(const Answers& client, std::uint64_t id) {
  const auto found = by_request_.find({&client, id});
  if (found == by_request_.end()) return;
  const Entries::iterator entry = found->second;
  unhang(entry);
  release(entry);
}

void Waiters::forget(const Answers& client) {
  for (auto next = by_request_.lower_bound({&client, 0});
       next != by_request_.end() && next->first.first == &client;) {
    const Entries::iterator entry = (next++)->second;
    unhang(entry);
    release(entry);
  }
}

}  // namespace lockstep::store
