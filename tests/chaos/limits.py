"""Processes that cannot have what they ask for, and surroundings that disturb them."""

from case import STALL_MS, Case, all_name, each_hears, none_fails


class NoMemory(Case):
    """F27: an allocation fails on one rank. It hears just that, and comes to its end."""

    row, name, victims_live = "F27", "no_memory", True

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.bound = "no_memory", 1.0

    def rule(self, plan, outcome):
        own = each_hears(outcome, plan.victims, lambda rank, heard: heard["failure"] == "no_memory")
        return own + all_name(plan, outcome, {"no_memory", "remote_error"}, set(plan.victims))

    def latency(self, plan, outcome):
        """From the victim's own error: it works on until it needs memory."""
        own = outcome.failure(plan.victims[0])
        times = [failure["at"] for failure in map(outcome.failure, plan.survivors()) if failure]
        return max(0, max(times) - own["at"]) / 1e9 if own and times else None


class NoSharedMemory(Case):
    """F29: memfd_create is forbidden on one rank: an error on all, or TCP where that was chosen."""

    row, name, transports = "F29", "no_memfd", ("shm",)

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.steps, plan.bound = "no_memfd", 20, 2.0
        if rng.random() < 0.5:
            plan.options = ("--tcp-if-no-memory", "1")

    def rule(self, plan, outcome):
        if plan.options:
            complaints = none_fails(plan, outcome)
            if not any("uses TCP instead" in text for text in outcome.errors):
                complaints.append("no log line says that TCP is used")
            return complaints
        return each_hears(outcome, range(plan.world),
                          lambda rank, heard: heard["failure"] == "no_space" and heard["peer"] in plan.victims)


class TooMuch(Case):
    """F29 in the middle of a run: shared memory that its cgroup, or the machine, does not have is an error of that call
    alone. In half of the points all ranks ask at once, for more than there is together."""

    row, name, cost = "F29", "too_much", 4
    SHARED, ASKED = 450 << 20, 480 << 20  # of all ranks; each alone would get its part

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.memory, plan.steps, plan.bound = "too_much", 256 << 20, plan.step + 20, 5.0
        if rng.random() < 0.5:
            plan.victims, plan.memory = list(range(plan.world)), self.SHARED
            plan.options = ("--too-much", str(self.ASKED // plan.world))

    def rule(self, plan, outcome):
        complaints = none_fails(plan, outcome)
        answers = [outcome.event(rank, "too_much") for rank in plan.victims]
        heard = {answer["failure"] if answer else "nothing" for answer in answers}
        if "no_space" not in heard or heard - {"no_space", "none"}:
            complaints.append(f"what was asked for: {answers}")
        return complaints


class Limited(Case):
    """F31: no more descriptors or threads can be had, from the start or from some step on. All hear just that, or nothing."""

    row, cost, victims_live = "F31", 4, True

    def __init__(self, name, faults, failure):
        self.name, self.faults, self.failure = name, faults, failure

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.bound = rng.choice(self.faults), 1.0
        plan.steps = plan.step + 40

    def rule(self, plan, outcome):
        if not any(outcome.failure(rank) for rank in range(plan.world)):
            return none_fails(plan, outcome)

        def is_right(rank, heard):
            if rank in plan.victims:
                return heard["failure"] == self.failure
            # Who can open no socket may not be able to say on another host why it leaves.
            left = self.failure == "no_descriptors" and plan.transport == "tcp" and "left the group" in heard["message"]
            return heard["failure"] == ("desync" if left else self.failure) and heard["peer"] in plan.victims

        # Who is through with its steps may have left before the others need something of the victim.
        at_work = [rank for rank in range(plan.world) if not outcome.event(rank, "finished")]
        return each_hears(outcome, at_work, is_right)


class Signals(Case):
    """F35: a storm of signals has no effect."""

    row, name, victims_live = "F35", "signals", True

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.victims = list(range(plan.world))
        plan.fault, plan.steps, plan.bound = "signals", 60, 5.0

    def rule(self, plan, outcome):
        return none_fails(plan, outcome)


class WallClock(Case):
    """F34: a wall clock that jumps an hour at each look, or goes ten times as fast, has no effect."""

    row = "F34"

    def __init__(self, name, library, **variables):
        self.name, self.variables = name, {"LD_PRELOAD": library, **variables}

    def choose(self, plan, rng):
        plan.steps, plan.bound = 60, 5.0
        plan.variables = self.variables

    def rule(self, plan, outcome):
        return none_fails(plan, outcome)


class Suspend(Case):
    """F34: a machine that sleeps: all of it stops, for longer than the limit, and goes on. Nobody has died."""

    row, name, cost, victims_live = "F34", "suspend", 8, True

    def choose(self, plan, rng):
        plan.delay_us = rng.randrange(0, 40_000)
        plan.stall_ms, plan.steps = STALL_MS, 200
        plan.suspend, plan.bound = rng.uniform(1.5, 3) * STALL_MS / 1000, 10.0

    def rule(self, plan, outcome):
        return none_fails(plan, outcome)
