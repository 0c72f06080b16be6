"""Agents on two hosts under a wall clock that jumps by an hour at each look, or goes ten times as fast: nobody is taken for dead.

    JUMPING_CLOCK=FILE RENDEZVOUS_RANK=FILE launcher_clock_test.py COMMAND [unittest arguments]
"""

import os

from launcher import main
from launcher_hosts_test import HostsTest

RANK = os.environ["RENDEZVOUS_RANK"]


class WallClock(HostsTest):
    """F34."""

    CLOCK = {"LD_PRELOAD": os.environ["JUMPING_CLOCK"]}

    def environment(self, **extra):
        return super().environment(**self.CLOCK, **extra)

    def test_agents_meet_restart_and_end_as_one(self):
        results = self.both("--max-restarts", 1, "--restart-delay", "10ms", "sh", "-c",
                            f"[ $RANK$LOCKSTEP_EPOCH = 10 ] && exit 5; exec {RANK} < /dev/null")
        for host, (status, out, err) in enumerate(results):
            self.assertEqual(status, 0, err)
            self.assertRegex(out.splitlines()[-1], rf'"epoch":1\b.*"rank":{host}\b')
            self.assertNotIn("is gone", err)

    def test_a_silent_job_outlives_several_heartbeats(self):
        # Longer than the 4 s after which an agent that is not heard is taken for dead.
        for status, out, err in self.both("sh", "-c", "sleep 5; echo rank $RANK is done"):
            self.assertEqual(status, 0, err)
            self.assertIn("is done", out)


class Drifting(WallClock):
    CLOCK = {**WallClock.CLOCK, "WALL_CLOCK": "drifts"}


if __name__ == "__main__":
    main()
