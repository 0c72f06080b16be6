// Errors that may be the echo of a failure elsewhere: a rank that leaves because of one closes its
// connections, and withdraws its messages. Each is held back for a while. If its group ends meanwhile, it
// ends with the group's reason.
//
// Thread safety: none; lives on the strand.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/transport/messages/alarm.h"
#include "lockstep/transport/messages/messenger.h"
#include "lockstep/transport/messages/operation.h"

namespace lockstep::transport::messages {

class Echoes {
 public:
  Echoes(std::shared_ptr<Strand> strand, Loop& loop, const EchoGraces& graces)
      : strand_(*strand), clock_(loop.clock()), graces_(graces), timer_(std::move(strand), loop) {}

  // Completes the operation later, but not after its own deadline.
  void hold_on_strand(Operation& operation, const Status& status, std::optional<Rank> source);
  void end_group_on_strand(std::uint64_t group, const Status& why);
  // Completes all that is held, and holds nothing any more.
  void close_on_strand();

 private:
  struct Held {
    std::uint64_t group;
    Received done;
    Status status;
    std::optional<Rank> source;
  };
  Duration grace_of(Failure failure) const;
  void complete_on_strand(Held& held);
  void arm_on_strand();

  Strand& strand_;
  const Clock& clock_;
  const EchoGraces graces_;
  Alarm timer_;
  std::multimap<base::TimePoint, Held> held_;  // by when they are due
  bool closed_ = false;
};

}  // namespace lockstep::transport::messages
