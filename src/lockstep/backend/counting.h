// What a group has done since it was made, for reports and tests. A Backend that counts is a Counting too.
//
// Thread safety: any thread. A world of one has nothing to count.
#pragma once

#include "lockstep/base/clock.h"
#include "lockstep/base/types.h"

namespace lockstep::backend {

struct Counters {
  Bytes staged;      // copied to where the ranks of the host can reach it; resident memory never is
  Duration slept{};  // in waits for ranks of the host, beyond the first microseconds of each
};

class Counting {
 public:
  virtual ~Counting() = default;
  virtual Counters counters() const = 0;
};

}  // namespace lockstep::backend
