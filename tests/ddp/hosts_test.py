"""Ranks on two hosts train bitwise as one process: over TCP alone, and over TCP and shared memory. One that dies is named.

    hosts_test.py COMMAND RANK_PROGRAM [--steps N]      COMMAND is `lockstep`. The hosts are network namespaces.

Every network trains in every way for N steps (a few; `make long` has 50).
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "world"))

import hosts  # noqa: E402
import kills  # noqa: E402
from bounds import within  # noqa: E402
from rendezvous_rank import clean_environment  # noqa: E402

COMMAND, PROGRAM, STEPS = "", "", 5


class BetweenHosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.hosts = cls.enterClassContext(hosts.TwoHosts())

    def train(self, ranks):
        """`ranks[i]` of them on host i."""
        with tempfile.TemporaryDirectory() as folder:
            secret = pathlib.Path(folder, "secret")
            subprocess.run([COMMAND, "secret", secret], check=True, capture_output=True, timeout=within(60))
            agents = [subprocess.Popen(
                [*self.hosts.enter(host), COMMAND, "run", "--nnodes", "2", "--nproc", str(count), "--rdzv-endpoint",
                 f"{hosts.ADDRESSES[0]}:29400", "--secret-file", secret, PROGRAM, "--bitwise", str(STEPS)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=clean_environment() | {"OMP_NUM_THREADS": "1", "LOCKSTEP_TIMEOUT": "100"})
                for host, count in enumerate(ranks)]
            for agent in agents:
                self.addCleanup(agent.wait)
                self.addCleanup(agent.kill)
            said = ""
            for agent in agents:
                output, errors = agent.communicate(timeout=within(60 + 30 * STEPS))
                self.assertEqual(agent.returncode, 0, output + errors)
                said += output
        self.assertEqual(said.count(f"of {sum(ranks)}, local rank"), sum(ranks), said)
        # As many hosts as ranks that are the first of theirs.
        self.assertEqual(said.count("local rank 0: the same bits"), 2, said)

    def test_a_rank_that_is_killed_is_named_by_all(self):
        with tempfile.TemporaryDirectory() as folder:
            secret = str(pathlib.Path(folder, "secret"))
            subprocess.run([COMMAND, "secret", secret], check=True, capture_output=True, timeout=within(60))
            _, wrong = kills.BetweenHosts(PROGRAM, secret, self.hosts).kill_once(3, (1, 2, 500))
        self.assertEqual(wrong, [])

    def test_tcp(self):
        self.train((1, 1))

    def test_tcp_and_shared_memory(self):
        self.train((2, 1))
        self.train((2, 2))


if __name__ == "__main__":
    COMMAND, PROGRAM = sys.argv[1:3]
    rest = sys.argv[3:]
    if rest[:1] == ["--steps"]:
        STEPS, rest = int(rest[1]), rest[2:]
    unittest.main(argv=[sys.argv[0], *rest])
