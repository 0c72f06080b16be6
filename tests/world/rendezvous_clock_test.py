#!/usr/bin/env python3
"""Ranks meet by the monotonic clock: a wall clock that jumps, or goes ten times as fast, has no effect.

    JUMPING_CLOCK=FILE rendezvous_clock_test.py PROGRAM [unittest's arguments]      PROGRAM is rendezvous_rank
"""

import os
import signal
import subprocess
import sys
import time
import unittest

import rendezvous_rank
from bounds import within
from rendezvous_rank import RendezvousTest, free_port


class WallClock(RendezvousTest):
    CLOCK = {"LD_PRELOAD": os.environ["JUMPING_CLOCK"]}

    def test_the_clock_is_as_wrong_as_it_is_said_to_be(self):
        program = ("import time\nfrom_here, wall = time.monotonic(), time.time()\n"
                   "while time.monotonic() < from_here + 0.2: pass\nprint(time.time() - wall)")
        passed = float(subprocess.check_output([sys.executable, "-S", "-E", "-c", program], env={**os.environ, **self.CLOCK}))
        self.assertTrue(passed < -3600 or passed > 1.5, passed)

    def test_it_has_no_effect(self):
        self.assert_world(self.start_env_world(3, free_port(), **self.CLOCK))

    def test_a_rank_that_is_missing_is_waited_for_by_the_other_clock(self):
        start = time.monotonic()
        rank = self.start_env_world(2, free_port(), ranks=[0], LOCKSTEP_TIMEOUT=2, **self.CLOCK)[0]
        self.assert_failure(rank.answer(), "missing_ranks")
        self.assertGreaterEqual(time.monotonic() - start, 2)

    def test_nor_has_it_at_a_file(self):
        ranks = [self.start(self.CLOCK,
                            ["--url", f"file://{self.folder}/job?world_size=3&rank={rank}"]) for rank in range(3)]
        self.assert_world(ranks)
        # A wait ends when its time has passed, not when the wall says so.
        start = time.monotonic()
        answer = ranks[1].ask("get never 1")
        self.assertEqual((answer["ok"], answer["code"]), (False, "timeout"), answer)
        self.assertGreaterEqual(time.monotonic() - start, 1)
        self.assertLess(time.monotonic() - start, within(1 + 10))
        # And who waits longer than that gets what comes in between.
        ranks[2].tell("get late 60")
        self.assertEqual(ranks[0].ask("set late here"), {"ok": True})
        self.assertEqual(ranks[2].answer(), {"ok": True, "value": "here"})
        self.finish(ranks)


class Drifting(WallClock):
    CLOCK = {**WallClock.CLOCK, "WALL_CLOCK": "drifts"}


if __name__ == "__main__":
    rendezvous_rank.PROGRAM = os.path.abspath(sys.argv.pop(1))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    unittest.main()
