#include "lockstep/tensor/group_watch.h"

#include <algorithm>
#include <exception>
#include <map>

#include "lockstep/base/text.h"
#include "lockstep/tensor/group_state.h"
#include "lockstep/tensor/logger.h"

namespace lockstep::tensor {
namespace {

constexpr std::size_t kMostNamed = 3;

using Waits = std::map<Rank, backend::Counters::Wait>;

// "; it waited for rank 2 in 14 operations, 280 ms": whom it waited for longest since `before`. Empty:
// nobody.
std::string waits_text(const Waits& before, const Waits& now) {
  std::vector<std::pair<Rank, backend::Counters::Wait>> since;
  for (const auto& [rank, wait] : now) {
    const auto old = before.find(rank);
    const backend::Counters::Wait base = old == before.end() ? backend::Counters::Wait{} : old->second;
    if (wait.operations > base.operations)
      since.push_back({rank, {wait.operations - base.operations, wait.lost - base.lost}});
  }
  std::stable_sort(since.begin(), since.end(),
                   [](const auto& a, const auto& b) { return a.second.lost > b.second.lost; });
  if (since.size() > kMostNamed) since.resize(kMostNamed);
  std::vector<std::string> parts;
  parts.reserve(since.size());
  for (const auto& [rank, wait] : since)
    parts.push_back(cat("for rank ", rank, " in ", wait.operations, " operations, ", wait.lost));
  return parts.empty() ? std::string() : cat("; it waited ", base::join(parts, ", "));
}

}  // namespace

void GroupWatch::set_level(DebugLevel level) {
  std::uint32_t before = interest_.load(std::memory_order_relaxed);
  while (!interest_.compare_exchange_weak(before, (before & kObserved) | static_cast<std::uint32_t>(level))) {
  }
}

std::uint64_t GroupWatch::add(Observer observer) {
  const MutexLock lock(mutex_);
  auto changed = std::make_shared<Observers>(*observers_);
  changed->emplace_back(++last_id_, std::make_shared<const Observer>(std::move(observer)));
  observers_ = std::move(changed);
  interest_.fetch_or(kObserved);
  return last_id_;
}

void GroupWatch::remove(std::uint64_t id) {
  std::shared_ptr<const Observers> before;  // let go of with no lock held
  const MutexLock lock(mutex_);
  auto changed = std::make_shared<Observers>(*observers_);
  std::erase_if(*changed, [id](const auto& entry) { return entry.first == id; });
  if (changed->empty()) interest_.fetch_and(~kObserved);
  before = std::exchange(observers_, std::move(changed));
}

void GroupWatch::tell(const OperationEvent& event) const {
  if ((interest_.load(std::memory_order_relaxed) & kObserved) == 0) return;
  std::shared_ptr<const Observers> observers;
  {
    const MutexLock lock(mutex_);
    observers = observers_;
  }
  for (const auto& [id, observer] : *observers) {
    try {
      (*observer)(event);
    } catch (const std::exception& error) {
      kLog.warn(cat("an observer of ", event.op, " has thrown: ", error.what()));
    }
  }
}

std::string GroupWatch::summarize(const OperationEvent& ended, const backend::Counters& counted,
                                  base::TimePoint now) {
  const MutexLock lock(mutex_);
  if (summary_.since == base::TimePoint{}) summary_.since = now - ended.duration;
  ++summary_.operations;
  if (!ended.status.ok()) ++summary_.failed;
  summary_.bytes.value += ended.bytes.value;
  summary_.time += ended.duration;
  if (ended.duration >= summary_.longest_time) {
    summary_.longest_time = ended.duration;
    summary_.longest = cat(ended.op, " #", ended.sequence, " (", ended.bytes, ")");
  }
  const Duration took = now - summary_.since;
  if (took < summary_every_) return {};
  const Summary said = std::exchange(summary_, {.since = now, .counted_before = counted});
  const Bytes staged{counted.staged.value - said.counted_before.staged.value};
  std::string line = cat("group ", base::quoted(ended.group), ": ", said.operations, " operations of ",
                         said.bytes, " in ", took, ", ", said.time, " in them, of which ",
                         counted.slept - said.counted_before.slept, " waiting for other ranks; ", staged,
                         " staged; the longest was ", said.longest, " with ", said.longest_time);
  line += waits_text(said.counted_before.waits, counted.waits);
  if (said.failed > 0) line += cat("; ", said.failed, " failed");
  return line + ".";
}

ObserverHandle::ObserverHandle(ObserverHandle&& other) noexcept
    : watch_(std::exchange(other.watch_, {})), id_(other.id_) {}

ObserverHandle& ObserverHandle::operator=(ObserverHandle&& other) noexcept {
  if (this == &other) return *this;
  stop();
  watch_ = std::exchange(other.watch_, {});
  id_ = other.id_;
  return *this;
}

void ObserverHandle::stop() {
  if (const std::shared_ptr<GroupWatch> watch = watch_.lock()) watch->remove(id_);
  watch_.reset();
}

ObserverHandle observe(Observer observer, const ProcessGroup& group) {
  const std::shared_ptr<GroupWatch>& watch = group.state("observe")->watch();
  return {watch, watch->add(std::move(observer))};
}

}  // namespace lockstep::tensor
