#!/usr/bin/env python3
"""The conformance suite on two hosts: network namespaces that are joined by a wire.

    conformance_hosts_test.py [--write] PROGRAM TABLE [unittest's arguments]      PROGRAM is native_conformance

One rank on each host, so that all of it goes over TCP; then two on each, over shared memory and TCP. What is supported
is compared with TABLE, or written there.
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


class ConformanceOnTwoHosts(RendezvousTest):
    def run_suite(self, size, column):
        secret = self.new_secret()
        with hosts.TwoHosts() as two:
            ranks = [self.start({"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": hosts.ADDRESSES[0],
                                 "MASTER_PORT": PORT, "LOCKSTEP_SECRET_FILE": secret},
                                ["--column", column, OPTION, TABLE, "--gtest_brief=1"], prefix=two.enter(2 * rank // size), program=PROGRAM)
                     for rank in range(size)]
            for number, rank in enumerate(ranks):
                output, errors = rank.process.communicate(timeout=within(100))
                self.assertEqual(rank.process.returncode, 0, f"rank {number}: {output.decode()}{errors.decode()}")

    def test_over_tcp(self):
        self.run_suite(2, "native, TCP")

    def test_over_shared_memory_and_tcp(self):
        self.run_suite(4, "native, both")


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        OPTION = "--write-table"
        sys.argv.pop(1)
    PROGRAM, TABLE = os.path.abspath(sys.argv.pop(1)), os.path.abspath(sys.argv.pop(1))
    unittest.main()
