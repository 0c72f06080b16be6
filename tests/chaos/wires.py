"""Wires that are cut, slow or damage what they carry, and memory that does."""

from case import STALL_MS, Case, all_name, each_hears, none_fails

FIRST_BYTES = 4096


class Cut(Case):
    """F7: the wire between two hosts is cut, both ways or one way."""

    row, name, transports, cost = "F7", "cut", ("tcp",), 8

    def choose(self, plan, rng):
        plan.cut = rng.choice(("both", "first", "second", "silent"))
        plan.delay_us, plan.stall_ms, plan.bound = rng.randrange(0, 100000), STALL_MS, STALL_MS / 1000 + 1

    def rule(self, plan, outcome):
        complaints = each_hears(outcome, range(plan.world),
                                lambda rank, heard: heard["failure"] == "peer_unreachable")
        for host in (0, 1):
            ranks = [rank for rank in range(plan.world) if plan.host_of(rank) == host]
            named = set()
            for rank in ranks:
                failure = outcome.event(rank, "failed")
                # The rank that the other side names does not name itself but the other side.
                names_the_other = (failure and plan.cut in ("first", "second") and failure["peer"] is not None and
                                   plan.host_of(failure["peer"]) != host)
                named.add(failure["peer"] if failure and not names_the_other else -1 if failure else None)
            if len(named - {-1}) > 1:
                complaints.append(f"host {host} names different ranks: {named}")
        return complaints


class Break(Case):
    """F8: what a rank sends on its links ends after some bytes, by a FIN or an RST. Either end may be named."""

    row, name, transports, victims_live = "F8", "break", ("tcp",), True

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.bound = "links", 1.0
        plan.options = (rng.choice(("--end-after", "--reset-after")), str(rng.randrange(0, FIRST_BYTES)), "--encrypt",
                        str(rng.randrange(2)))

    def rule(self, plan, outcome):
        """Each end names the other one; its host does, too, but for the other one itself, if it is there."""
        victim = plan.victims[0]
        ends = {rank for rank in range(plan.world) if plan.host_of(rank) != plan.host_of(victim)} | {victim}
        complaints = [] if outcome.injected else ["nothing was cut"]
        # Who lives and is taken for dead hears that.
        complaints += each_hears(outcome, range(plan.world),
                                 lambda rank, heard: heard["peer"] in ends and
                                 heard["failure"] == ("left_out" if heard["peer"] == rank else "peer_died"))
        named = ({}, {})  # by host
        for rank in range(plan.world):
            failure = outcome.event(rank, "failed")
            named[plan.host_of(rank)][failure and failure["peer"]] = rank
        if any(len(of_host) > 1 for of_host in named):
            complaints.append(f"ranks of one host name different ranks: {named}")
        return complaints


class Damage(Case):
    """F10: one bit of what a rank sends on its links arrives wrong. No number is wrong, and all hear who sent it."""

    row, name, transports, victims_live = "F10", "damage", ("tcp",), True

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.bound = "links", 1.0
        # Half of them where the headers are.
        bytes_before = rng.randrange(0, rng.choice((FIRST_BYTES, 64 * FIRST_BYTES)))
        plan.options = ("--flip-bit", str(8 * bytes_before + rng.randrange(8)), "--encrypt", str(rng.randrange(2)))

    def rule(self, plan, outcome):
        complaints = [] if outcome.injected else ["nothing was changed"]
        return complaints + all_name(plan, outcome, {"corrupt_frame"}, set(plan.victims))


class Late(Case):
    """F9: links deliver byte by byte, or late, and connect in any order: no error."""

    row, name, transports, victims_live, cost = "F9", "late", ("tcp",), True, 4

    def choose(self, plan, rng):
        plan.victims = list(range(plan.world))
        plan.fault, plan.bound = "links", 10.0
        jitter_ms = rng.choice((0, 3, 20, 100))
        plan.steps = {0: 8, 3: 15, 20: 8, 100: 4}[jitter_ms]
        slice_size, largest = (30000, 20000) if jitter_ms else (1, 1000)
        plan.options = ("--slice", str(slice_size), "--jitter-us", str(1000 * jitter_ms), "--largest", str(largest))
        plan.options += ("--connect-jitter-us", "100000", "--encrypt", str(rng.randrange(2)))

    def rule(self, plan, outcome):
        return none_fails(plan, outcome)


class Flip(Case):
    """F11: a bit of what a rank has posted in shared memory changes, from outside, or of the words by which the others go."""

    row, name, transports = "F11", "flip", ("shm",)

    def choose(self, plan, rng):
        self.random_point(plan, rng)
        plan.fault, plan.bound, plan.bit = "flip", 1.0, rng.getrandbits(30)
        plan.flip = rng.choice(("header", "payload", "words"))
        # All but the payload is checked always.
        if plan.flip == "payload" or rng.random() < 0.5:
            plan.options = ("--memory-checks", "1")

    def rule(self, plan, outcome):
        complaints = [] if outcome.injected else ["the driver found nothing to change"]
        return complaints + each_hears(
            outcome, range(plan.world),
            lambda rank, heard: heard["failure"] == "corrupt_frame" and heard["peer"] == plan.victims[0])
