// Faults that are not a step among others: each is played by all ranks, in place of the steps.
#pragma once

#include "lockstep/backend/world.h"
#include "plan.h"

namespace lockstep::chaos {

// A group is destroyed by its victims while it works. They report what became of their pending works, the
// others the error of the group.
void play_destroy(const Plan& plan, World& world);

// The victims post their contribution and report "ready"; the others wait until the driver has changed it
// where it lies, and then read it.
void play_flip(const Plan& plan, World& world);

// Equal steps until the driver says the word to rank 0, which reports how long they take ("pace").
void play_attack(World& world);

// Two groups: with two threads, whose operations come in another order on the victims, all must succeed; with
// one thread the order is a deadlock, which must end by the timeout.
void play_opposite_order(const Plan& plan, World& world);

}  // namespace lockstep::chaos
