// A CopyChoice finds out how copies that other ranks read next are best written, while they are made.
//
// What a plain store costs to a line that another core has used differs on virtual machines by a factor of
// five from one minute to the next, so what was measured at the start (tuning.h) does not last. Who copies
// the same amounts over and over asks here which way to take, and tells what it took. Now and then it is
// asked to take the other way.
//
// Thread safety: any thread. Pure but for what it has been told.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>

#include "lockstep/base/clock.h"
#include "lockstep/collective/tuning.h"

namespace lockstep::collective {

class CopyChoice {
 public:
  // Smaller copies stay in the cache, and their times say little.
  static constexpr std::size_t kLeast = std::size_t{64} << 10;

  CopyWay next();
  void took(CopyWay way, std::size_t bytes, Duration time);

 private:
  std::atomic<unsigned> asked_ = 0;
  std::array<std::atomic<double>, kCopyWays> rates_ = {};  // nanoseconds for each byte, smoothed; 0: unknown
};

}  // namespace lockstep::collective
