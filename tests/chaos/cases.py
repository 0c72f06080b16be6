"""What is injected, and what must come of it: the rows of the fault table that need whole worlds.

A case makes the plan of a point from a random generator, and judges its outcome: a list of complaints, empty if all is as
it must be. docs/reliability.md explains each.
"""

import random
import statistics

from places import TIME_FACTOR, within
from worlds import Plan

WORLDS = (2, 4, 8)
STALL_MS = 1000  # the setting of the tests; the default is 5 s
START_SECONDS = 15  # much more than a start takes: the machine may do other things too
LEAVE_SECONDS = 10  # from the bound to the end of the last process
DEATH_BOUND = {"shm": 0.25, "tcp": 1.0}
DEADLY = ("exit", "abort", "segv", "throw")
MISMATCHES = ("other_op", "other_count", "other_dtype", "other_reduce_op", "other_root", "skip")


def said(failure):
    """A failure as it goes into a complaint."""
    return f"{failure['failure']} peer {failure['peer']} missing {failure['missing']}: {failure['message']}"


class Case:
    """One row on all worlds and transports. Subclasses say what is injected and what must be heard."""

    row = ""
    name = ""
    transports = ("shm", "tcp")
    needs_cgroup = False
    worlds = WORLDS
    cost = 1  # points of the long form are divided by it: a point of some cases takes seconds

    def plan(self, rng, world, transport, point):
        plan = Plan(case=self.name, world=world, transport=transport, point=point, fault="none", victims=[], step=0,
                    delay_us=0, steps=100000, seed=rng.getrandbits(31), first=rng.randrange(1, world))
        self.choose(plan, rng)
        return plan

    def choose(self, plan, rng):
        raise NotImplementedError

    def judge(self, plan, outcome):
        """Complaints that every case has, then the case's own."""
        complaints = []
        for rank in range(plan.world):
            if outcome.event(rank, "wrong"):
                complaints.append(f"rank {rank} has got wrong numbers: {outcome.event(rank, 'wrong')['message']}")
        if outcome.hang:
            silent = [rank for rank in range(plan.world) if not outcome.event(rank, "end")]
            complaints.append(f"ranks {silent} had not ended at the limit")
            return complaints
        for rank in plan.survivors():
            end = outcome.event(rank, "end")
            if not end:
                complaints.append(f"survivor {rank} ended with {outcome.statuses[rank]}: {outcome.errors[rank][-500:]}")
            elif end["before"] != end["after"]:
                complaints.append(f"rank {rank} holds {end['after']} at its end, and had {end['before']} before")
        if outcome.started > within(START_SECONDS):
            complaints.append(f"the world needed {outcome.started:.1f} s to start")
        if outcome.took > within(plan.bound + LEAVE_SECONDS):
            complaints.append(f"the last rank ended {outcome.took:.1f} s after the injection")
        for rank in plan.survivors():
            complaints += is_whole(rank, outcome.event(rank, "failed"), outcome.event(rank, "again"))
        return complaints or self.rule(plan, outcome)

    def rule(self, plan, outcome):
        raise NotImplementedError

    def latency(self, plan, outcome):
        """Seconds from the injection until the last survivor knew; None where nothing is to be heard."""
        times = [failure["at"] / 1e9 for failure in map(outcome.failure, plan.survivors()) if failure]
        return max(0, max(times) - outcome.injected) if times and outcome.injected else None

    def random_point(self, plan, rng, victims=1):
        plan.victims = sorted(rng.sample(range(plan.world), victims))
        plan.step = rng.randrange(0, 30)
        plan.delay_us = rng.randrange(0, 4000)


def all_name(plan, outcome, failures, victims):
    """Every survivor has one of `failures`, names one of `victims`, the same one, and says where it was."""
    complaints, named = [], set()
    for rank in plan.survivors():
        failure = outcome.event(rank, "failed")
        if not failure:
            complaints.append(f"rank {rank} has met no error")
            continue
        named.add(failure["peer"])
        if failure["failure"] not in failures or failure["peer"] not in victims:
            complaints.append(f"rank {rank}: {said(failure)}")
    # Two that die at once on two hosts: each host names its own.
    if len(named) > 1 and len({plan.host_of(victim) for victim in victims}) == 1:
        complaints.append(f"the survivors name different ranks: {named}")
    return complaints


def is_whole(rank, failure, again):
    """An error in a step says in which operation, which number, which group, and one more operation gives it again."""
    if not failure or failure.get("phase") != "steps":
        return []
    complaints = [f"rank {rank}: the error has no {field}: {said(failure)}" for field in ("op", "sequence", "group")
                  if failure[field] in ("", None)]
    if not again or again["failure"] != failure["failure"]:
        complaints.append(f"rank {rank} says afterwards: {said(again) if again else None}")
    return complaints


def none_fails(plan, outcome):
    return [f"rank {rank} did not finish: {said(outcome.failure(rank)) if outcome.failure(rank) else None}"
            for rank in range(plan.world) if not outcome.event(rank, "finished")]


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
        return all_name(plan, outcome, {"peer_died"}, set(plan.victims))


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


class Sleep(Case):
    """F5: alive, but not in the operation."""

    row, name, cost = "F5", "sleep", 4
    TIMEOUT_MS = 500

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.timeout_ms, plan.bound = "sleep", self.TIMEOUT_MS, self.TIMEOUT_MS / 1000 + 1

    def rule(self, plan, outcome):
        complaints = []
        for rank in plan.survivors():
            failure = outcome.event(rank, "failed")
            if not failure or failure["failure"] != "missing_ranks" or failure["missing"] != plan.victims:
                complaints.append(f"rank {rank}: {said(failure) if failure else 'no error'}")
        return complaints


class Slow(Case):
    """F6: ten times slower, but there. Its neighbours name it; if it has none, the other host does."""

    row, name, cost = "F6", "slow", 4

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.steps, plan.bound = "slow", 40, 5.0

    def rule(self, plan, outcome):
        complaints = none_fails(plan, outcome)
        victim = plan.victims[0]
        if plan.timed and not any(f"rank {victim} is slow" in text for text in outcome.errors):
            complaints.append("nobody says who is slow")
        return complaints


class Cut(Case):
    """F7: the wire between two hosts is cut, both ways or one way."""

    row, name, transports, cost = "F7", "cut", ("tcp",), 8

    def choose(self, plan, rng):
        plan.cut = rng.choice(("both", "first", "second", "silent"))
        plan.delay_us, plan.stall_ms, plan.bound = rng.randrange(0, 100000), STALL_MS, STALL_MS / 1000 + 1

    def rule(self, plan, outcome):
        complaints = []
        for host in (0, 1):
            ranks = [rank for rank in range(plan.world) if plan.host_of(rank) == host]
            named = set()
            for rank in ranks:
                failure = outcome.event(rank, "failed")
                # The rank that the other side names does not name itself but the other side.
                names_the_other = (failure and plan.cut in ("first", "second") and failure["peer"] is not None and
                                   plan.host_of(failure["peer"]) != host)
                named.add(failure["peer"] if failure and not names_the_other else -1 if failure else None)
                if not failure or failure["failure"] != "peer_unreachable":
                    complaints.append(f"rank {rank}: {said(failure) if failure else 'no error'}")
            if len(named - {-1}) > 1:
                complaints.append(f"host {host} names different ranks: {named}")
        return complaints


class Flip(Case):
    """F11: a bit of what a rank has posted in shared memory changes, from outside."""

    row, name, transports = "F11", "flip", ("shm",)

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.bound, plan.bit = "flip", 1.0, rng.getrandbits(30)
        plan.flip = rng.choice(("header", "payload"))
        # Headers are checked always.
        if plan.flip == "payload" or rng.random() < 0.5:
            plan.options = ("--memory-checks", "1")

    def rule(self, plan, outcome):
        complaints = [] if outcome.injected else ["the driver found nothing to change"]
        for rank in range(plan.world):
            failure = outcome.event(rank, "failed")
            if not failure or failure["failure"] != "corrupt_frame" or failure["peer"] != plan.victims[0]:
                complaints.append(f"rank {rank}: {said(failure) if failure else 'no error'}")
        return complaints


class Attack(Case):
    """F14: strangers at every listener of a running world."""

    row, name, transports, worlds, cost = "F14", "attack", ("tcp",), (4,), 100
    SECONDS = 60
    SHORT_SECONDS = 4
    GROWTH = 16 << 20
    SLOWER = 1.05

    def choose(self, plan, rng):
        plan.fault, plan.siege, plan.bound = "attack", self.SECONDS, 1.0

    def rule(self, plan, outcome):
        complaints = none_fails(plan, outcome)
        siege = outcome.siege
        if not siege or not siege.connections:
            return complaints + ["nobody was attacked"]
        if TIME_FACTOR == 1 and siege.growth() > self.GROWTH:  # a sanitizer keeps what was freed
            complaints.append(f"a process has grown by {siege.growth() >> 20} MiB")
        if plan.timed and self.slowdown(outcome) > self.SLOWER:
            complaints.append(f"steps take {self.slowdown(outcome):.3f} times as long under {siege.connections} connections")
        return complaints

    @staticmethod
    def slowdown(outcome):
        """The median time of a step while attacked, by that of the times between."""
        paces = {True: [], False: []}
        for event in outcome.events[0]:
            attacked = outcome.siege.is_attacked(event["at"] / 1e9)
            if event["event"] == "pace" and attacked is not None:
                paces[attacked].append(event["step_us"])
        return statistics.median(paces[True] or [0]) / statistics.median(paces[False] or [1])


class Mismatch(Case):
    """F21, F22: one rank makes another call than the others."""

    def __init__(self, name, row, faults):
        self.name, self.row, self.faults = name, row, faults

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.timeout_ms = rng.choice(self.faults), 5000
        plan.bound = 0.1 if plan.transport == "shm" else 0.35

    def rule(self, plan, outcome):
        complaints = []
        for rank in range(plan.world):
            failure = outcome.event(rank, "failed")
            if not failure or failure["failure"] != "desync" or plan.victims[0] not in (failure["rank"], failure["peer"]):
                complaints.append(f"rank {rank}: {said(failure) if failure else 'no error'}")
        return complaints


class LeaveEarly(Case):
    """F23: one operation fewer, then a normal end."""

    row, name = "F23", "leave"

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.bound = "leave", 1.0

    def rule(self, plan, outcome):
        complaints = []
        for rank in plan.survivors():
            failure = outcome.event(rank, "failed")
            if (not failure or failure["failure"] != "desync" or failure["peer"] != plan.victims[0] or
                    "left the group" not in failure["message"]):
                complaints.append(f"rank {rank}: {said(failure) if failure else 'no error'}")
        return complaints


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


class NoMemory(Case):
    """F27: an allocation fails on one rank."""

    row, name = "F27", "no_memory"

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.bound = "no_memory", 1.0

    def rule(self, plan, outcome):
        return all_name(plan, outcome, {"no_memory", "remote_error", "peer_died"}, set(plan.victims))


class OutOfMemory(Case):
    """F28: the kernel's OOM killer takes a rank."""

    row, name, needs_cgroup, cost = "F28", "oom_kill", True, 4

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.memory = "hoard", 96 << 20
        plan.bound = 2.0  # filling the memory takes its time, and is no part of it

    def rule(self, plan, outcome):
        killed = outcome.statuses[plan.victims[0]]
        # It may ask for shared memory when there is too little left, say so, and leave before it is killed.
        said_so = any((outcome.event(rank, "failed") or {}).get("failure") == "no_space" for rank in plan.survivors())
        complaints = [] if killed == -9 or (killed == 0 and said_so) else [f"the victim was not killed: {killed}"]
        return complaints + all_name(plan, outcome, {"peer_died", "no_space"}, set(plan.victims))


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
        complaints = []
        for rank in range(plan.world):
            failure = outcome.event(rank, "failed")
            if not failure or failure["failure"] != "no_space" or failure["peer"] not in plan.victims:
                complaints.append(f"rank {rank}: {said(failure) if failure else 'no error'}")
        return complaints


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


class TooMuch(Case):
    """F29 in the middle of a run: shared memory that its cgroup does not have is an error of that call alone."""

    row, name, needs_cgroup, cost = "F29", "too_much", True, 4

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.memory, plan.steps, plan.bound = "too_much", 256 << 20, plan.step + 20, 5.0

    def rule(self, plan, outcome):
        complaints = none_fails(plan, outcome)
        refused = outcome.event(plan.victims[0], "too_much")
        if not refused or refused["failure"] != "no_space":
            complaints.append(f"what was asked for: {refused}")
        return complaints


class Limited(Case):
    """F31: no more descriptors or threads can be had, from the start or from some step on."""

    row, cost = "F31", 4

    def __init__(self, name, faults):
        self.name, self.faults = name, faults

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.bound = rng.choice(self.faults), 1.0
        plan.steps = plan.step + 40

    def rule(self, plan, outcome):
        if not any(outcome.failure(rank) for rank in range(plan.world)):
            return none_fails(plan, outcome)
        complaints = []
        for rank in plan.survivors():
            failure = outcome.event(rank, "failed")
            if not failure or failure["peer"] not in plan.victims or failure["failure"] == "none":
                complaints.append(f"rank {rank}: {said(failure) if failure else 'no error'}")
        return complaints


class Signals(Case):
    """F35: a storm of signals has no effect."""

    row, name = "F35", "signals"

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.victims = list(range(plan.world))
        plan.fault, plan.steps, plan.bound = "signals", 60, 5.0

    def rule(self, plan, outcome):
        return none_fails(plan, outcome)


class WallClock(Case):
    """F34: a wall clock that jumps an hour at each look has no effect."""

    row, name = "F34", "wall_clock"

    def __init__(self, library):
        self.library = library

    def choose(self, plan, rng):
        plan.steps, plan.bound = 60, 5.0
        plan.variables = {"LD_PRELOAD": self.library}

    def rule(self, plan, outcome):
        return none_fails(plan, outcome)


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
        plan.fault, plan.steps, plan.bound = "second_join", plan.step + 20, 5.0

    def rule(self, plan, outcome):
        complaints = none_fails(plan, outcome)
        second = outcome.event(plan.victims[0], "second_join")
        if not second or second["failure"] != "duplicate_rank" or second["took_ms"] > 1000:
            complaints.append(f"the second join: {second}")
        return complaints


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
        for rank in plan.survivors():
            failure = outcome.event(rank, "failed")
            if not failure or failure["peer"] != plan.victims[0] or failure["failure"] not in ("desync", "closed"):
                complaints.append(f"rank {rank}: {said(failure) if failure else 'no error'}")
        return complaints


class OppositeOrder(Case):
    """F37: two groups in two orders: two threads can do that, one thread cannot and is told who is missing."""

    row, name, cost = "F37", "opposite_order", 4

    def choose(self, plan, rng):
        self.random_point(plan, rng, rng.randrange(1, plan.world))
        plan.fault, plan.timeout_ms, plan.bound = "opposite_order", 1000, 2.0

    def rule(self, plan, outcome):
        complaints = []
        for rank in range(plan.world):
            failure = outcome.event(rank, "failed")
            missing = plan.survivors() if rank in plan.victims else plan.victims
            # Where they are on two hosts, those that the one who spoke first knows of.
            named = failure and failure["failure"] == "missing_ranks" and failure["missing"]
            if not named or not set(named) <= set(missing):
                complaints.append(f"rank {rank}: {said(failure) if failure else 'no error'}")
        return complaints


def all_cases(jumping_clock=""):
    cases = [Death("kill", "F1", ("kill",)), DeathWhileJoining(), DeathWhileLeaving(), SeveralDeaths(),
             Death("end", "F3", DEADLY), Stop(), StopAndContinue(), Sleep(), Slow(), Cut(), Flip(), Attack(),
             Mismatch("mismatch", "F21", MISMATCHES), Mismatch("same_bytes", "F22", ("same_size_dtype",)), LeaveEarly(),
             Say(), NoMemory(), OutOfMemory(), NoSharedMemory(), TooMuch(), Storm(),
             Limited("no_descriptors", ("few_descriptors", "no_descriptors")),
             Limited("no_threads", ("few_threads", "no_threads")), Signals(), Fork(), SecondJoin(), Destroy(),
             OppositeOrder()]
    return cases + ([WallClock(jumping_clock)] if jumping_clock else [])


def plan_of(case, seed, world, transport, point):
    """The same for the same arguments."""
    return case.plan(random.Random(f"{seed}/{case.name}/{world}/{transport}/{point}"), world, transport, point)
