// Rounds are several collectives that depend on each other, as one operation: the second may need to know
// what the first has brought, and nothing of the same group comes between them.
//
// They take as many numbers of the group's order as there are rounds, one after the other. All ranks start
// the same rounds.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/backend/membership.h"
#include "lockstep/backend/op_queue.h"
#include "lockstep/backend/work.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/collective/call.h"

namespace lockstep::backend {

struct Rounds {
  // Each gives its call when the earlier ones have ended well, on the thread that runs them. What the call
  // refers to is kept by OpOptions::keep. An error is the operation's: with kInvalid the group lives on, so
  // all ranks must find it in the same round; any other ends the group.
  std::vector<std::function<Result<Call>()>> calls;
  // After the last; what it gives is the operation's result. It is sent to nobody.
  std::function<Status()> finish = {};
};

// A Backend that can leave rounds to its worker is a RoundStarter too.
class RoundStarter {
 public:
  virtual ~RoundStarter() = default;
  virtual WorkPtr start_rounds(Rounds rounds, const OpOptions& options) = 0;
};

// On the calling thread, with any backend. The caller sees to it that no other thread issues a collective of
// the group meanwhile.
Status run_rounds(Backend& backend, const Rounds& rounds, const OpOptions& options);

// How a backend runs rounds that were started.
struct RoundRunner {
  std::function<Status(const Call&, std::uint64_t sequence, const Deadline&)> perform;
  // The group ends with this in the round of that number; gives what the operation is told.
  std::function<Status(const Status&, std::uint64_t sequence)> fail;
};
// For a RoundStarter that has its operations in a queue. `who` outlives them.
WorkPtr start_in(OpQueue& queue, const Membership& who, Rounds rounds, RoundRunner runner,
                 const OpOptions& options);

}  // namespace lockstep::backend

namespace lockstep {
using backend::Rounds;
}
