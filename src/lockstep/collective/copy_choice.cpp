#include "lockstep/collective/copy_choice.h"

#include <chrono>

namespace lockstep::collective {
namespace {

constexpr unsigned kTryOther = 64;  // one of so many copies
constexpr double kWeight = 0.25;    // of the last copy
// A copy past the cache leaves it to what is computed, and no line has to be fetched before it is written; so
// it may take a little longer itself.
constexpr double kMayTake = 1.25;

CopyWay other(CopyWay way) { return way == CopyWay::kCached ? CopyWay::kPastCache : CopyWay::kCached; }

}  // namespace

CopyWay CopyChoice::next() {
  const unsigned asked = asked_.fetch_add(1, std::memory_order_relaxed);
  const double cached = rates_[static_cast<std::size_t>(CopyWay::kCached)].load(std::memory_order_relaxed);
  const double past = rates_[static_cast<std::size_t>(CopyWay::kPastCache)].load(std::memory_order_relaxed);
  if (cached == 0) return CopyWay::kCached;
  const CopyWay better = past <= cached * kMayTake ? CopyWay::kPastCache : CopyWay::kCached;
  return asked % kTryOther == 0 ? other(better) : better;
}

void CopyChoice::took(CopyWay way, std::size_t bytes, Duration time) {
  const double rate =
      static_cast<double>(std::chrono::nanoseconds(time).count()) / static_cast<double>(bytes);
  std::atomic<double>& known = rates_[static_cast<std::size_t>(way)];
  const double before = known.load(std::memory_order_relaxed);
  // Two at once: one of them is forgotten.
  known.store(before == 0 ? rate : before + kWeight * (rate - before), std::memory_order_relaxed);
}

}  // namespace lockstep::collective
