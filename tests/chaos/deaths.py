"""Ranks that die, are stopped or killed."""

from case import DEATH_BOUND, STALL_MS, Case, all_name, each_hears, none_fails, said
from places import within

DEADLY = ("exit", "abort", "segv", "throw")


class Death(Case):
    """F1, F3: one rank dies in the middle of the steps."""

    def __init__(self, name, row, faults):
        self.name, self.row, self.faults = name, row, faults

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault = rng.choice(self.faults)
        plan.bound = DEATH_BOUND[plan.transport]

    def rule(self, plan, outcome):
        return all_name(plan, outcome, {"peer_died"}, set(plan.victims))


class DeathWhileJoining(Case):
    """F1 before there is a world: all hear who died, those too that arrive later. Only a rank that had not arrived itself is
    missing, and that takes the join's own timeout."""

    row, name, cost = "F1", "kill_join", 4
    TIMEOUT = 2
    TICK = 0.01  # of the clock by which a rank tells whether it had begun when the round failed

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.step, plan.delay_us = "kill", -1, rng.randrange(0, 60000)
        plan.variables = {"LOCKSTEP_TIMEOUT": str(self.TIMEOUT)}
        plan.bound = 1.0

    def rule(self, plan, outcome):
        complaints = []
        failures = {rank: outcome.event(rank, "failed") for rank in plan.survivors()}
        heard = [failure["at"] / 1e9 for failure in failures.values() if failure and failure["failure"] == "peer_died"]
        for rank, failure in failures.items():
            if not failure:
                complaints.append(f"rank {rank} has met no error")
            elif failure["failure"] == "peer_died":
                if failure["peer"] not in plan.victims:
                    complaints.append(f"rank {rank}: {said(failure)}")
            elif failure["failure"] != "missing_ranks" or not set(plan.victims) <= set(failure["missing"]):
                complaints.append(f"rank {rank}: {said(failure)}")
            # A process that is started after the others have heard it is one of the next attempt.
            elif heard and outcome.began[rank] < min(heard) - self.TICK:
                complaints.append(f"rank {rank} came late and did not hear what the others have heard: {said(failure)}")
        return complaints

    def latency(self, plan, outcome):
        """From when a rank could hear it: the death, or its own arrival; or the end of its own timeout."""
        times = []
        for rank in plan.survivors():
            failure, joining = outcome.event(rank, "failed"), outcome.event(rank, "joining")
            if not failure or not joining or not outcome.injected:
                continue
            since = max(outcome.injected, joining["at"] / 1e9)
            if failure["failure"] == "missing_ranks":
                since = joining["at"] / 1e9 + float(plan.variables["LOCKSTEP_TIMEOUT"])
            times.append(max(0, failure["at"] / 1e9 - since))
        return max(times, default=None)


class DeathWhileLeaving(Case):
    """F1 at the end: no error is needed any more, but none may be wrong and nobody may hang."""

    row, name = "F1", "kill_leave"

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.steps = "kill", 10
        plan.step, plan.delay_us, plan.bound = plan.steps, rng.randrange(0, 3000), 2.0

    def rule(self, plan, outcome):
        return [f"rank {rank}: {said(outcome.failure(rank))}" for rank in plan.survivors()
                if not outcome.event(rank, "finished") and
                (outcome.failure(rank)["failure"], outcome.failure(rank)["peer"]) != ("peer_died", plan.victims[0])]


class SeveralDeaths(Case):
    """F2: two at once, or all but one."""

    row, name = "F2", "kill_several"

    def choose(self, plan, rng):
        count = plan.world - 1 if rng.random() < 0.5 else min(2, plan.world - 1)
        self.random_point(plan, rng, count)
        plan.fault, plan.bound = "kill", DEATH_BOUND[plan.transport]

    def rule(self, plan, outcome):
        complaints = all_name(plan, outcome, {"peer_died"}, set(plan.victims))
        return complaints or each_hears(outcome, plan.survivors(),
                                        lambda rank, heard: set(heard["missing"]) <= set(plan.victims))


class Stop(Case):
    """F4: stopped for good; the others shrink the world and go on, and what the stopped one does afterwards is not seen."""

    row, name, cost = "F4", "stop", 8

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.stall_ms, plan.bound = "stop", STALL_MS, STALL_MS / 1000 + 1

    def rule(self, plan, outcome):
        complaints = all_name(plan, outcome, {"peer_stalled", "peer_unreachable"}, set(plan.victims))
        complaints += [f"rank {rank} did not go on without it" for rank in plan.survivors()
                       if not outcome.event(rank, "went_on")]
        victim = plan.victims[0]
        if not outcome.event(victim, "failed"):
            complaints.append(f"rank {victim} came back and met no error")
        return complaints


class StopAndContinue(Case):
    """F4: stopped for less than the limit."""

    row, name, cost = "F4", "stop_continue", 4

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.stall_ms, plan.steps = "stop", 2 * STALL_MS, 60
        plan.resume_after, plan.bound = rng.uniform(0.05, STALL_MS / 2000), 5.0

    def rule(self, plan, outcome):
        return none_fails(plan, outcome)


class OutOfMemory(Case):
    """F28: the kernel's OOM killer takes a rank; where there are no cgroups the driver does, when it is as large."""

    row, name, cost = "F28", "oom_kill", 4

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.memory = "hoard", 128 << 20
        plan.bound = 2.0  # filling the memory takes its time, and is no part of it

    def rule(self, plan, outcome):
        killed = outcome.statuses[plan.victims[0]]
        # It may ask for shared memory when there is too little left, say so, and leave before it is killed.
        said_so = any((outcome.event(rank, "failed") or {}).get("failure") == "no_space" for rank in plan.survivors())
        complaints = [] if killed == -9 or (killed == 0 and said_so) else [f"the victim was not killed: {killed}"]
        return complaints + all_name(plan, outcome, {"peer_died", "no_space"}, set(plan.victims))


class Storm(Case):
    """F30: all ranks are killed, again and again."""

    row, name = "F30", "storm"
    START = 1.0  # seconds, for a world that came to its end before it was killed

    def choose(self, plan, rng):
        plan.victims, plan.storm = list(range(plan.world)), True
        plan.delay_us, plan.bound = rng.randrange(0, 600000), 1.0

    def rule(self, plan, outcome):
        if plan.timed and outcome.started > within(self.START):
            return [f"the world needed {outcome.started:.2f} s to start"]
        return []
