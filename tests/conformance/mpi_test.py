#!/usr/bin/env python3
"""Worlds over MPI: what is MPI's own, beside the conformance suite.

    mpi_test.py PROGRAM MPIRUN...      PROGRAM is mpi_rank; MPIRUN the words before a number of ranks
"""

import os
import subprocess
import sys
import unittest

PROGRAM = ""
MPIRUN = []


class MpiTest(unittest.TestCase):
    def run_ranks(self, what, ends_well=True):
        """Two ranks; returns the lines that they have printed."""
        done = subprocess.run([*MPIRUN, "2", PROGRAM, what], capture_output=True, text=True, timeout=200, check=False)
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode == 0, ends_well, said)
        lines = [line for line in done.stdout.splitlines() if line]
        self.assertEqual(len(lines), 2, said)
        return lines

    def test_mpi_that_the_program_has_initialised_is_left_to_it(self):
        self.assertEqual(self.run_ranks("initialised"), ["sum 3; MPI lives"] * 2)

    def test_fewer_threads_are_refused_and_the_way_out_is_said(self):
        for line in self.run_ranks("single"):
            self.assertRegex(line, r"^unsupported: .*MPI_THREAD_SINGLE.* MPI_Init_thread\(\)")

    def test_after_its_end_mpi_cannot_be_joined(self):
        for line in self.run_ranks("after_the_end"):
            self.assertRegex(line, r"^invalid: MPI was finalised")

    def test_a_world_can_be_joined_again(self):
        self.assertEqual(self.run_ranks("twice"), ["sum 3, sum 3"] * 2)

    def test_a_world_that_goes_before_its_group_ends_it(self):
        for line in self.run_ranks("world_first"):
            self.assertRegex(line, r"^aborted.*destroyed its world, and with it the group .* \| aborted.*its world")

    def test_a_size_that_mpi_does_not_know_is_refused(self):
        for line in self.run_ranks("disagrees"):
            self.assertRegex(line, r"MPI says that this is rank \d of 2, .* of 7\. .*mpirun")

    def test_a_tag_that_is_too_large_is_refused(self):
        for line in self.run_ranks("large_tag"):
            self.assertRegex(line, r"^invalid: rank \d: send #1: the tag is 1099511627776, .* none above \d+")

    def test_a_group_that_not_all_make_names_who_did_not_come(self):
        lines = sorted(self.run_ranks("group_alone"))
        self.assertRegex(lines[1], r"^timeout \(missing_ranks\): rank 0: rank 1 did not come to make a group.*sum 3$")
        self.assertEqual(lines[0], "sum 3")

    def test_a_larger_message_than_expected_does_no_harm(self):
        lines = self.run_ranks("uneven_gather")
        self.assertTrue(any("(desync)" in line and "has sent 195.3 KiB where 12 B are expected" in line
                            for line in lines), lines)

    def test_a_timeout_ends_the_group_for_all(self):
        # MPI cannot be finalised then, which mpirun finds improper.
        for line in self.run_ranks("late_barrier", ends_well=False):
            self.assertRegex(line, r"^timeout: rank 0: barrier #1: waited .* MPI does not say for whom")


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv[1])
    MPIRUN = sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
