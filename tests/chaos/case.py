"""What a case of the fault table is, and what cases ask of the survivors.

A case makes the plan of a point from a random generator, and judges its outcome: a list of complaints, empty if all
is as it must be. docs/reliability.md explains each.
"""

from places import within
from worlds import Plan

WORLDS = (2, 4, 8)
STALL_MS = 1000  # the setting of the tests; the default is 5 s
START_SECONDS = 15  # much more than a start takes: the machine may do other things too
DEATH_BOUND = {"shm": 0.25, "tcp": 1.0}


def said(failure):
    """A failure, or that there was none, as it goes into a complaint."""
    if not failure:
        return "no error"
    return f"{failure['failure']} peer {failure['peer']} missing {failure['missing']}: {failure['message']}"


class Case:
    """One row on all worlds and transports. Subclasses say what is injected and what must be heard."""

    row = ""
    name = ""
    transports = ("shm", "tcp")
    looks_around = False  # at all sockets of the host, which must be one of its own then
    victims_live = False  # whether they too come to their end, with nothing left
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
        for rank in range(plan.world) if self.victims_live else plan.survivors():
            end = outcome.event(rank, "end")
            if not end:
                complaints.append(f"rank {rank} ended with {outcome.statuses[rank]}: {outcome.errors[rank][-500:]}")
            elif any(count > end["before"][kind] for kind, count in end["after"].items()):
                complaints.append(f"rank {rank} holds {end['after']} at its end, and had {end['before']} before")
        if outcome.started > within(START_SECONDS):
            complaints.append(f"the world needed {outcome.started:.1f} s to start")
        if outcome.took > plan.siege + within(plan.bound + plan.leave):
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


def each_hears(outcome, ranks, is_right):
    """Each of `ranks` has an error, and is_right(rank, error)."""
    failures = [(rank, outcome.event(rank, "failed")) for rank in ranks]
    return [f"rank {rank}: {said(failure)}" for rank, failure in failures
            if not failure or not is_right(rank, failure)]


def all_name(plan, outcome, failures, victims):
    """Every survivor has one of `failures`, names one of `victims`, the same one, and says where it was."""
    complaints = each_hears(outcome, plan.survivors(),
                            lambda rank, heard: heard["failure"] in failures and heard["peer"] in victims)
    named = {failure["peer"] for rank in plan.survivors() if (failure := outcome.event(rank, "failed"))}
    # Two that die at once on two hosts: each host names its own.
    if len(named) > 1:
        complaints.append(f"the survivors name different ranks: {named}")
    return complaints


def is_whole(rank, failure, again):
    """An error in a step says in which operation, which number, which group, and one more operation gives it again."""
    if not failure or failure.get("phase") != "steps":
        return []
    complaints = [f"rank {rank}: the error has no {field}: {said(failure)}" for field in ("op", "sequence", "group")
                  if failure[field] in ("", None)]
    if not again or again["failure"] != failure["failure"]:
        complaints.append(f"rank {rank} says afterwards: {said(again)}")
    return complaints


def none_fails(plan, outcome):
    return [f"rank {rank} did not finish: {said(outcome.failure(rank))}" for rank in range(plan.world)
            if not outcome.event(rank, "finished")]
