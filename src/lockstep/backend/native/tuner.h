// Measures how this host writes and reads shared memory: a few milliseconds at the start of a world.
#pragma once

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/collective/tuning.h"
#include "lockstep/transport/shm/board.h"

namespace lockstep::backend {

// Every member of the board calls it, between operations, and gets the same answer. The first member writes,
// the second one reads, the others only come to the rounds.
Result<collective::Tuning> measure_tuning(transport::shm::Board& board, int cores, const Clock& clock,
                                          const Deadline& deadline);

}  // namespace lockstep::backend
