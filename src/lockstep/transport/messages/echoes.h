// Errors that may be the echo of a failure elsewhere: a rank that leaves because of one closes its
// connections, and withdraws its messages. Each is held back for a while. If its group ends meanwhile, it
// ends with the group's reason.
//
// Thread safety: none; lives on the loop.
#pragma once

#include <cstdint>
#include <list>
#include <optional>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/transport/loop.h"
#include "lockstep/transport/messages/operation.h"

namespace lockstep::transport::messages {

class Echoes {
 public:
  Echoes(Loop& loop, Duration grace) : loop_(loop), grace_(grace), timer_(loop) {}

  // Completes the operation later, but not after its own deadline.
  void hold_on_loop(Operation& operation, const Status& status, std::optional<Rank> source);
  void end_group_on_loop(std::uint64_t group, const Status& why);
  // Completes all that is held, and holds nothing any more.
  void close_on_loop();

 private:
  struct Held {
    std::uint64_t group;
    Received done;
    Status status;
    std::optional<Rank> source;
    base::TimePoint due;
  };
  void complete_on_loop(Held& held);
  void arm_on_loop();

  Loop& loop_;
  const Duration grace_;
  Timer timer_;
  std::list<Held> held_;
  bool closed_ = false;
};

}  // namespace lockstep::transport::messages
