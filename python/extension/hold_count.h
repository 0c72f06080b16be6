// How many holders of something there are in this process, for who waits until there is none. A forked child,
// which has none of its parent's threads, begins with none.
//
// Thread safety: any thread. No lock, which a fork could find taken.
#pragma once

#include <atomic>
#include <cstdint>

#include "lockstep/base/clock.h"
#include "lockstep/transport/shm/wait.h"

namespace lockstep::python {

class HoldCount {
 public:
  class Hold {
   public:
    explicit Hold(HoldCount& count);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    HoldCount& count_;
    const std::uint64_t process_;
  };

  // Until there is none, or the deadline.
  void wait_for_none(const Deadline& deadline);

 private:
  std::uint64_t held() const;

  std::atomic<std::uint64_t> state_ = 0;  // whose it is in the upper half, how many in the lower
  transport::shm::Bell none_ = {};        // rung when it is none
};

}  // namespace lockstep::python
