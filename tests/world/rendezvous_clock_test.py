#!/usr/bin/env python3
"""Ranks meet by the monotonic clock: a wall clock that jumps has no effect.

    JUMPING_CLOCK=FILE rendezvous_clock_test.py PROGRAM [unittest's arguments]      PROGRAM is rendezvous_rank
"""

import os
import signal
import sys
import unittest

import rendezvous_rank
from rendezvous_rank import RendezvousTest, free_port


class WallClock(RendezvousTest):
    def test_a_wall_clock_that_jumps_has_no_effect(self):
        self.assert_world(self.start_env_world(3, free_port(), LD_PRELOAD=os.environ["JUMPING_CLOCK"]))


if __name__ == "__main__":
    rendezvous_rank.PROGRAM = os.path.abspath(sys.argv.pop(1))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    unittest.main()
