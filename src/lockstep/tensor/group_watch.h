// Who watches the operations of a group: observers, and the debug level. Internal.
//
// Thread safety: any thread. Observers are called with no lock held.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/backend/counting.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/mutex.h"
#include "lockstep/tensor/debug_level.h"
#include "lockstep/tensor/observer.h"

namespace lockstep::tensor {

class GroupWatch {
 public:
  GroupWatch(DebugLevel level, Duration summary_every) : summary_every_(summary_every) { set_level(level); }

  // What an operation asks first. False: nobody is interested.
  bool any() const { return interest_.load(std::memory_order_relaxed) != 0; }
  DebugLevel level() const {
    return static_cast<DebugLevel>(interest_.load(std::memory_order_relaxed) & kLevelMask);
  }
  void set_level(DebugLevel level);

  std::uint64_t add(Observer observer);
  void remove(std::uint64_t id);
  // Tells all observers.
  void tell(const OperationEvent& event) const;

  // An operation has ended: a line of the summary, if it is time for one. Empty: not yet.
  // `counted` is what the backend has counted so far.
  std::string summarize(const OperationEvent& ended, const backend::Counters& counted, base::TimePoint now);

 private:
  static constexpr std::uint32_t kLevelMask = 3;
  static constexpr std::uint32_t kObserved = 4;
  using Observers = std::vector<std::pair<std::uint64_t, std::shared_ptr<const Observer>>>;

  // Since the last line.
  struct Summary {
    base::TimePoint since{};
    std::uint64_t operations = 0;
    std::uint64_t failed = 0;
    Bytes bytes;
    Duration time{};
    backend::Counters counted_before;
    std::string longest;
    Duration longest_time{};
  };

  const Duration summary_every_;
  std::atomic<std::uint32_t> interest_ = 0;  // the level, and whether there are observers
  mutable Mutex mutex_;
  std::shared_ptr<const Observers> observers_ LOCKSTEP_GUARDED_BY(mutex_) =
      std::make_shared<const Observers>();  // replaced, never changed: who calls them holds it
  std::uint64_t last_id_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  Summary summary_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::tensor
