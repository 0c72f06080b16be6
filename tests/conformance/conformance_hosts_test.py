#!/usr/bin/env python3
"""The conformance suite on several hosts: network namespaces that are joined by wires.

    conformance_hosts_test.py [--write] PROGRAM TABLE [unittest's arguments]      PROGRAM is native_conformance

One rank on each host, so that all of it goes over TCP; then two on each, over shared memory and TCP. What is supported
is compared with TABLE, or written there. What moves bytes is tested once more on ranks that alternate between the hosts,
with every option of a World, and on three hosts.
"""

import os
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "world"))

import hosts  # noqa: E402
from bounds import within  # noqa: E402
from rendezvous_rank import RendezvousTest, unittest  # noqa: E402

PROGRAM = ""
TABLE = ""
OPTION = "--table"
PORT = 29500  # in namespaces of our own
DATA_PATHS = "--gtest_filter=Reduction.*:Move.*:Order.A*:Message.Arrives*:Group.RunsBesideOthers"


class ConformanceOnSeveralHosts(RendezvousTest):
    def run_suite(self, places, *options, on=hosts.TwoHosts):
        """`places[i]` is the host of rank i. What each rank wrote to stderr."""
        secret = self.new_secret()
        logs = []
        with on() as here:
            ranks = [self.start({"RANK": rank, "WORLD_SIZE": len(places), "MASTER_ADDR": hosts.ADDRESSES[0],
                                 "MASTER_PORT": PORT, "LOCKSTEP_SECRET_FILE": secret},
                                [*options, "--gtest_brief=1"], prefix=here.enter(place), program=PROGRAM)
                     for rank, place in enumerate(places)]
            for number, rank in enumerate(ranks):
                output, errors = rank.process.communicate(timeout=within(100))
                self.assertEqual(rank.process.returncode, 0, f"rank {number}: {output.decode()}{errors.decode()}")
                logs.append(errors.decode())
        return logs

    def test_over_tcp(self):
        self.run_suite((0, 1), "--column", "native, TCP", OPTION, TABLE)

    def test_over_shared_memory_and_tcp(self):
        self.run_suite((0, 0, 1, 1), "--column", "native, both", OPTION, TABLE)

    def test_every_option_on_ranks_that_alternate(self):
        logs = self.run_suite((0, 1, 0, 1), "--every-option", DATA_PATHS)
        self.assertIn("the ranks of a host do not follow each other", logs[0])

    def test_three_hosts(self):
        self.run_suite((0, 1, 1, 2), DATA_PATHS, on=hosts.ThreeHosts)


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        OPTION = "--write-table"
        sys.argv.pop(1)
    PROGRAM, TABLE = os.path.abspath(sys.argv.pop(1)), os.path.abspath(sys.argv.pop(1))
    unittest.main()
