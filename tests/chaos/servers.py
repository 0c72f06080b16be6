"""Rank 0 serves the store, as without a launcher, and is what fails."""

from case import DEATH_BOUND, STALL_MS, Case, all_name, each_hears, said
from places import within


class ServerCase(Case):
    def serve(self, plan, rng):
        self.random_point(plan, rng)
        plan.victims, plan.store_in_rank_0 = [0], True
        plan.step = max(plan.step, 5)  # all have joined by then


class ServerDeath(ServerCase):
    """F1, F18: the others name it; what they were doing needs no store."""

    row, name = "F1", "kill_server"

    def choose(self, plan, rng):
        self.serve(plan, rng)
        plan.fault, plan.bound = "kill", DEATH_BOUND[plan.transport]

    def rule(self, plan, outcome):
        return all_name(plan, outcome, {"peer_died"}, {0})


class ServerStop(ServerCase):
    """F4, F18: stopped in the middle of the steps, or while the others are in a monitored_barrier, whose deadline counts; and
    then nobody can shrink, and all hear that in time."""

    row, name, cost = "F4", "stop_server", 8
    BARRIER = 1  # seconds that the ranks give it
    PATIENCE = 5  # of the ranks' shrink, at most
    IMPATIENCE = 2  # the same after a barrier
    ANSWER = 2  # what a silent store may take to be found silent, beyond stall_after
    # What a rank that leaves may wait for a silent store: its goodbye, then its seat.
    GOODBYE = 1 + 2.25
    CATCH_UP = 1.5  # of the victim when it comes back; then it waits for the others' seats as long

    def choose(self, plan, rng):
        self.serve(plan, rng)
        plan.fault = rng.choice(("stop", "stop_barrier"))
        if plan.fault == "stop":
            plan.stall_ms, plan.bound = STALL_MS, STALL_MS / 1000 + 1
            shrink = STALL_MS / 1000 + self.ANSWER
        else:
            plan.bound = self.BARRIER + 2
            shrink = self.IMPATIENCE + 0.5
        plan.leave = shrink + self.GOODBYE + self.CATCH_UP + self.GOODBYE

    def rule(self, plan, outcome):
        if plan.fault == "stop":
            complaints = all_name(plan, outcome, {"peer_stalled", "peer_unreachable"}, {0})
        else:
            # Who is not on its host knows only that the store does not answer.
            complaints = each_hears(
                outcome, plan.survivors(),
                lambda rank, heard: (heard["failure"] == "missing_ranks" and
                                     (heard["missing"] == [0] or (0 in heard["missing"] and not plan.timed))) or
                (heard["failure"] == "peer_stalled" and heard["peer"] == 0 and not plan.timed) or
                (heard["failure"] == "store_lost" and plan.transport == "tcp"))
        stall = max(1, plan.stall_ms / 1000)
        # Who was told that the server is lost need not be patient.
        limit = stall + self.ANSWER if plan.fault == "stop" and plan.timed else self.PATIENCE + stall
        for rank in plan.survivors():
            heard, *rest = [event for event in outcome.events[rank] if event["event"] == "failed"]
            if not rest or rest[0]["failure"] != "store_lost":
                complaints.append(f"rank {rank} shrinks without a store: {said(rest[0] if rest else None)}")
            elif (rest[0]["at"] - heard["at"]) / 1e9 > within(limit):
                complaints.append(f"rank {rank} heard only after {(rest[0]['at'] - heard['at']) / 1e9:.1f} s that it cannot")
        return complaints
