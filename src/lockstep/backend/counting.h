// What a group has done since it was made, for reports and tests. A Backend that counts is a Counting too.
//
// Thread safety: any thread. A world of one has nothing to count.
#pragma once

#include <cstdint>
#include <map>

#include "lockstep/base/clock.h"
#include "lockstep/base/types.h"

namespace lockstep::backend {

struct Counters {
  Bytes staged;      // copied to where the ranks of the host can reach it; resident memory never is
  Duration slept{};  // in waits for ranks of the host, beyond the first microseconds of each
  // Who has come last to operations that this rank waited in: ranks of the host, as the world counts them.
  struct Wait {
    std::uint64_t operations = 0;  // in which it was a millisecond or more
    Duration lost{};               // in these: from this rank's coming to its coming
  };
  std::map<Rank, Wait> waits = {};
};

class Counting {
 public:
  virtual ~Counting() = default;
  virtual Counters counters() const = 0;
};

}  // namespace lockstep::backend
