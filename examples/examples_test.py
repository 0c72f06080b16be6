"""Runs every example as its first comment says, and compares what it prints with what the comment promises.

    examples_test.py COMMAND FOLDER [unittest arguments]      COMMAND is `lockstep`, FOLDER holds the examples
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

COMMAND = ""
FOLDER = pathlib.Path()
TABLE = r"  {rank} +\S+ +(\d+) +\d+ +[\d.]+ \w+ +[\d.]+ \w+"


def launch(nproc, program, *arguments):
    return subprocess.run([COMMAND, "run", "--nproc", str(nproc), FOLDER / program, *arguments],
                          capture_output=True, text=True, timeout=200)


def lines_of(result, rank):
    prefix = f"[rank {rank}] "
    return [line.removeprefix(prefix) for line in result.stdout.splitlines() if line.startswith(prefix)]


class AllReduce(unittest.TestCase):
    def test_every_rank_has_the_sum(self):
        result = launch(4, "03_all_reduce")
        self.assertEqual(result.returncode, 0, result.stderr)
        for rank in range(4):
            self.assertEqual(lines_of(result, rank), ["the sum over 4 ranks is 10"])

    def test_alone_it_is_a_world_of_one(self):
        result = subprocess.run([FOLDER / "03_all_reduce"], capture_output=True, text=True, timeout=200)
        self.assertEqual(result.stdout, "the sum over 1 ranks is 1\n")


class BadInput(unittest.TestCase):
    def test_a_variable_that_does_not_parse_is_status_2(self):
        for program in ("01_ranks_meet", "02_own_ranks", "03_all_reduce"):
            result = subprocess.run([FOLDER / program], capture_output=True, text=True, timeout=200,
                                    env={**os.environ, "RANK": "x"})
            self.assertEqual(result.returncode, 2, program)
            self.assertIn('RANK="x"', result.stderr)


class RanksMeet(unittest.TestCase):
    def check_table(self, lines, world):
        """Returns the process ids."""
        self.assertRegex(lines[0], rf"^{world} ranks? (has|have) met as job \S+$")
        self.assertEqual(lines[1].split(), "rank host pid cores free memory store round trip".split())
        matches = [re.fullmatch(TABLE.format(rank=rank), lines[2 + rank]) for rank in range(world)]
        self.assertNotIn(None, matches, lines)
        return [int(match.group(1)) for match in matches]

    def check_counting(self, lines, world):
        for quarter, line in enumerate(lines[2 + world:6 + world], start=1):
            self.assertRegex(line, rf"^counting to {100 * world} together: {25 * world * quarter}, reached by rank \d$")

    def test_four_ranks_meet_and_count_together(self):
        result = launch(4, "01_ranks_meet")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = lines_of(result, 0)
        self.assertEqual(len(set(self.check_table(lines, 4))), 4)
        self.check_counting(lines, 4)
        for rank in range(4):
            self.assertEqual(lines_of(result, rank)[-1], f"rank {rank} is done")

    def test_the_one_that_dies_is_reported_and_nobody_is_left(self):
        result = launch(4, "01_ranks_meet", "--kill", "2")
        self.assertEqual(result.returncode, 128 + 9)
        pids = self.check_table(lines_of(result, 0), 4)
        self.assertRegex(result.stderr, rf"rank 2 \(host \S+, pid {pids[2]}\) was killed by SIGKILL")
        self.assertIn("rank 2 kills itself now, on purpose", result.stderr)
        self.assertNotIn("is done", result.stdout)
        for pid in pids:
            self.assertFalse(pathlib.Path(f"/proc/{pid}").exists(), pid)

    def test_alone_it_is_a_world_of_one(self):
        result = subprocess.run([FOLDER / "01_ranks_meet"], capture_output=True, text=True, timeout=200)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        lines = result.stdout.splitlines()
        self.check_table(lines, 1)
        self.check_counting(lines, 1)
        self.assertEqual(lines[-1], "rank 0 is done")

    def test_bad_arguments_are_refused(self):
        result = subprocess.run([FOLDER / "01_ranks_meet", "--kill"], capture_output=True, text=True, timeout=200)
        self.assertEqual((result.returncode, result.stdout), (2, ""))

    def test_without_the_launcher_they_meet_at_a_store_on_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            secret = pathlib.Path(folder, "secret")
            subprocess.run([COMMAND, "secret", secret], check=True, capture_output=True, timeout=200)
            store = subprocess.Popen([COMMAND, "store", "--secret-file", secret, "--job-id", "meeting"],
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.addCleanup(store.communicate)
            self.addCleanup(store.terminate)
            environment = {**os.environ, "LOCKSTEP_STORE": store.stdout.readline().strip(), "WORLD_SIZE": "2",
                           "LOCKSTEP_JOB_ID": "meeting", "LOCKSTEP_SECRET_FILE": str(secret)}
            ranks = [subprocess.Popen([FOLDER / "01_ranks_meet"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      text=True, env={**environment, "RANK": str(rank)}) for rank in range(2)]
            for rank, child in enumerate(ranks):
                output, errors = child.communicate(timeout=200)
                self.assertEqual(child.returncode, 0, errors)
                self.assertEqual(output.splitlines()[-1], f"rank {rank} is done")
                if rank == 0:
                    self.check_table(output.splitlines(), 2)


class OwnRanks(unittest.TestCase):
    def run_it(self, *arguments):
        return subprocess.run([FOLDER / "02_own_ranks", *arguments], capture_output=True, text=True, timeout=200)

    def test_the_ranks_work_and_end_well(self):
        result = self.run_it()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        lines = result.stdout.splitlines()
        for rank in range(4):
            self.assertIn(f"rank {rank} of 4 integrates from {rank / 4:.2f} to {(rank + 1) / 4:.2f}", lines)
        self.assertEqual(lines[-2:], ["pi is about 3.141593", "every rank ended well"])

    def test_the_error_of_a_rank_comes_back(self):
        result = self.run_it("--fail", "2")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"the ranks failed: .*rank 2 was told to fail")
        self.assertNotIn("every rank ended well", result.stdout)


class Demo(unittest.TestCase):
    """That tools/demo.sh succeeds is a test of its own; here it must notice what is not as announced."""

    def demo(self, folder, lockstep):
        for name, script in (("bin/lockstep", lockstep), ("examples/01_ranks_meet", "true"), ("examples/07_digits", "true")):
            program = pathlib.Path(folder, name)
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        images = pathlib.Path(folder, "digits.csv")
        images.touch()
        return self.run_demo(folder, images)

    @staticmethod
    def run_demo(*arguments):
        tool = pathlib.Path(__file__).resolve().parents[1] / "tools" / "demo.sh"
        return subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=200)

    def test_without_a_build_it_says_so(self):
        with tempfile.TemporaryDirectory() as folder:
            result = self.run_demo(folder)
        self.assertEqual(result.returncode, 1)
        self.assertIn("make demo", result.stderr)

    def test_a_launcher_that_fails_or_starts_nothing_is_noticed(self):
        for script, complaint in (("exit 3", "ended with status 0, not 3"), ("true", "rank 0 did not print")):
            with tempfile.TemporaryDirectory() as folder:
                result = self.demo(folder, script)
            self.assertEqual(result.returncode, 1)
            self.assertIn(complaint, result.stderr)
            self.assertNotIn("Everything went as announced", result.stdout)


if __name__ == "__main__":
    FOLDER, COMMAND = pathlib.Path(sys.argv.pop(2)), sys.argv.pop(1)
    unittest.main()
