"""Strangers at the listeners of a world that works."""

import statistics

import store_wire as wire
from case import Case, none_fails, said
from places import MEMORY_FACTOR, within


class Attack(Case):
    """F14: strangers at every listener of a running world."""

    row, name, transports, worlds, cost = "F14", "attack", ("tcp",), (4,), 100
    SECONDS = 60
    SHORT_SECONDS = 2
    GROWTH = 16 << 20
    SLOWER = 1.05

    def choose(self, plan, rng):
        plan.fault, plan.siege, plan.bound = "attack", self.SECONDS, 1.0

    def rule(self, plan, outcome):
        complaints = none_fails(plan, outcome)
        siege = outcome.siege
        if not siege or not siege.connections:
            return complaints + ["nobody was attacked"]
        if MEMORY_FACTOR == 1 and siege.growth() > self.GROWTH:  # a sanitizer keeps what was freed
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


class Impostors(Case):
    """F13, F15: those who come with the wrong job, epoch or secret, with a handshake that was recorded, or with lengths
    that cannot be, to every listener of a running world; and whole ranks of another job, run or secret."""

    row, name, looks_around = "F13", "impostors", True
    WRONG = {"job": wire.WRONG_JOB, "epoch": wire.WRONG_EPOCH, "secret": wire.WRONG_SECRET, "replay": wire.WRONG_SECRET,
             "lengths": "shown out"}
    STRAYS = ("job", "epoch", "secret")  # which a rank can be wrong in, too
    GROWTH = 16 << 20
    ANSWER = 1.0  # seconds

    def choose(self, plan, rng):
        plan.fault, plan.delay_us, plan.bound = "attack", rng.randrange(0, 20000), 5.0
        plan.impostors = rng.choice(sorted(self.WRONG))

    def rule(self, plan, outcome):
        complaints = none_fails(plan, outcome)
        visit = outcome.visit
        if not visit or not visit.heard:
            return complaints + ["nobody came"]
        for one in visit.heard:
            if set(one["heard"]) != {self.WRONG[plan.impostors]}:
                complaints.append(f"{one['address']} has answered {one['heard']}")
            if plan.timed and one["seconds"] > within(self.ANSWER):
                complaints.append(f"{one['address']} has answered after {one['seconds']:.3f} s")
            # At the ranks' own listeners: all but the store's. Of lengths not all log.
            lines = sum(text.count(f"rejected {one['source']}:") for text in outcome.errors)
            if one["role"] in (wire.CONTROL, wire.DATA) and plan.impostors != "lengths" and lines != 1:
                complaints.append(f"{one['address']} has logged {one['source']} {lines} times")
        if MEMORY_FACTOR == 1 and visit.growth > self.GROWTH:
            complaints.append(f"a process has grown by {visit.growth >> 20} MiB")
        if plan.impostors in self.STRAYS and (not outcome.stray or outcome.stray["failure"] != "rejected"):
            complaints.append(f"a rank of another {plan.impostors}: {said(outcome.stray)}")
        return complaints
