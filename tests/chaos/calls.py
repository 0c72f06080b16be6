"""Calls that a user's program makes wrongly, late, not at all or at a bad time."""

from case import Case, all_name, each_hears, none_fails, said

MISMATCHES = ("other_op", "other_count", "other_dtype", "other_reduce_op", "other_root", "skip")


class Sleep(Case):
    """F5: alive, but not in the operation."""

    row, name, cost = "F5", "sleep", 4
    TIMEOUT_MS = 500

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.timeout_ms, plan.bound = "sleep", self.TIMEOUT_MS, self.TIMEOUT_MS / 1000 + 1

    def rule(self, plan, outcome):
        return each_hears(outcome, range(plan.world),
                          lambda rank, heard: heard["failure"] == "missing_ranks" and heard["missing"] == plan.victims)


class Slow(Case):
    """F6: ten times slower, but there. Its neighbours name it; if it has none, the other host does."""

    row, name, cost = "F6", "slow", 4
    SLOW_STEPS = 20  # within which it is named: there are no others

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.steps, plan.bound = "slow", self.SLOW_STEPS, 5.0

    def rule(self, plan, outcome):
        complaints = none_fails(plan, outcome)
        victim = plan.victims[0]
        if not any(f"rank {victim} is slow" in text for text in outcome.errors):
            complaints.append("nobody says who is slow")
        return complaints


class Mismatch(Case):
    """F21, F22: one rank makes another call than the others."""

    def __init__(self, name, row, faults):
        self.name, self.row, self.faults = name, row, faults

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.timeout_ms = rng.choice(self.faults), 5000
        plan.bound = 0.1 if plan.transport == "shm" else 0.2

    def rule(self, plan, outcome):
        return each_hears(outcome, range(plan.world),
                          lambda rank, heard: heard["failure"] == "desync" and
                          plan.victims[0] in (heard["rank"], heard["peer"]))


class LeaveEarly(Case):
    """F23: one operation fewer, then a normal end."""

    row, name = "F23", "leave"

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.bound = "leave", 1.0

    def rule(self, plan, outcome):
        return each_hears(outcome, plan.survivors(),
                          lambda rank, heard: heard["failure"] == "desync" and heard["peer"] == plan.victims[0] and
                          "left the group" in heard["message"])


class Say(Case):
    """F25: an error of the user's program on one rank."""

    row, name = "F25", "say"

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.bound = "say", 1.0

    def rule(self, plan, outcome):
        text = f"boom on {plan.victims[0]}"
        complaints = [f"rank {rank}: {said(failure)}" for rank in plan.survivors()
                      if (failure := outcome.event(rank, "failed")) and text not in failure["message"]]
        return complaints + all_name(plan, outcome, {"remote_error"}, set(plan.victims))


class Fork(Case):
    """F36: a forked child is refused, and its parent does not notice."""

    row, name = "F36", "fork"

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.steps, plan.bound = "fork", plan.step + 20, 5.0

    def rule(self, plan, outcome):
        return none_fails(plan, outcome)


class SecondJoin(Case):
    """F36: a second join of a rank that has joined is refused, and the world does not notice."""

    row, name = "F36", "second_join"

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.steps, plan.bound = "second_join", plan.step + 20, 1.0

    def rule(self, plan, outcome):
        complaints = none_fails(plan, outcome)
        second = outcome.event(plan.victims[0], "second_join")
        if not second or second["failure"] != "duplicate_rank":
            complaints.append(f"the second join: {second}")
        return complaints

    def latency(self, plan, outcome):
        second = outcome.event(plan.victims[0], "second_join")
        return second["took_ms"] / 1000 if second else None


class Destroy(Case):
    """F36: a group is destroyed while it works: its works end, the others hear that the rank has left."""

    row, name = "F36", "destroy"

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.bound = "destroy", 1.0

    def rule(self, plan, outcome):
        complaints = [f"a pending work: {said(event)}" for event in outcome.events[plan.victims[0]]
                      if event["event"] == "pending" and (event["code"], event["failure"]) not in
                      (("ok", "none"), ("aborted", "closed"))]
        if not outcome.event(plan.victims[0], "destroyed"):
            complaints.append("the victim did not come to its end")
        return complaints + each_hears(
            outcome, plan.survivors(),
            lambda rank, heard: heard["failure"] == "desync" and heard["peer"] == plan.victims[0])


class OppositeOrder(Case):
    """F37: two groups in two orders: two threads can do that, one thread cannot and is told who is missing."""

    row, name, cost = "F37", "opposite_order", 4

    def choose(self, plan, rng):
        self.random_point(plan, rng, rng.randrange(1, plan.world))
        plan.fault, plan.timeout_ms, plan.bound = "opposite_order", 1000, 2.0

    def rule(self, plan, outcome):
        def names_the_missing(rank, heard):
            missing = plan.survivors() if rank in plan.victims else plan.victims
            # Where they are on two hosts, those that the one who spoke first knows of.
            return heard["failure"] == "missing_ranks" and heard["missing"] and set(heard["missing"]) <= set(missing)

        return each_hears(outcome, range(plan.world), names_the_missing)
