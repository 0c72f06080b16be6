"""Each example on tensors prints what its expected_output.txt has, however its three ranks are started: by `lockstep
run`, by mpirun and as Slurm's srun starts them, on one host and on two. srun is not here: the test sets its variables.

    launchers_test.py CASE,CASE... COMMAND FOLDER [MPIRUN...]      each CASE is a class below, COMMAND is `lockstep`,
    FOLDER holds the programs, MPIRUN are the words before a number of ranks. Two hosts are network namespaces.
"""

import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent
sys.path.append(str(ROOT.parent / "tests" / "world"))

import expected_output  # noqa: E402
import hosts  # noqa: E402
from bounds import within  # noqa: E402
from rendezvous_rank import clean_environment, free_port  # noqa: E402

EXAMPLES = ("04_hello_collectives", "05_groups_and_objects", "06_own_backend")
GRADIENTS = "09_accumulation_and_hooks"
SCRIPTS = ROOT / "10_several_hosts"
RANKS = 3
COMMAND = ""
FOLDER = pathlib.Path()
MPIRUN = []


class Launchers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.secret = self.folder / "job.secret"
        subprocess.run([COMMAND, "secret", self.secret], check=True, capture_output=True, timeout=within(60))

    def start(self, words, **variables):
        process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True,
                                   env=clean_environment() | {"OMP_NUM_THREADS": "1", "LOCKSTEP_TIMEOUT": "60"}
                                   | {name: str(value) for name, value in variables.items()})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def check(self, example, processes):
        """All of them end well, and have printed together what is expected."""
        printed = ""
        for process in processes:
            output, errors = process.communicate(timeout=within(100))
            self.assertEqual(process.returncode, 0, output + errors)
            printed += output
        wrong = expected_output.differences(printed, ROOT / example / "expected_output.txt")
        self.assertFalse(wrong, f"{example}: {wrong}")

    def start_slurm_tasks(self, example, nodes, enter):
        """As srun starts them, two to a node. `enter(node)` are the words that run something there."""
        port = free_port()
        node_of = [rank // 2 if len(nodes) > 1 else 0 for rank in range(RANKS)]
        counts = ",".join(str(node_of.count(node)) for node in range(len(nodes)))
        return [self.start([*enter(node), FOLDER / example], SLURM_PROCID=rank, SLURM_NTASKS=RANKS,
                           SLURM_LOCALID=rank - node_of.index(node), SLURM_NODEID=node,
                           SLURM_STEP_NODELIST=",".join(nodes), SLURM_STEP_TASKS_PER_NODE=counts, SLURM_JOB_ID=17,
                           SLURM_STEP_ID=0, MASTER_PORT=port, LOCKSTEP_SECRET_FILE=self.secret)
                for rank, node in enumerate(node_of)]


    def fake_srun(self, enter):
        """A folder that has `lockstep`, and an `srun` that starts its words once for each task, two to a node."""
        folder = self.folder / "bin"
        folder.mkdir()
        (folder / "lockstep").symlink_to(COMMAND)
        tasks = "".join(
            f'SLURM_PROCID={rank} SLURM_LOCALID={rank % 2} SLURM_NODEID={rank // 2} {shlex.join(enter(rank // 2))} "$@" &\n'
            f'p{rank}=$!\n' for rank in range(RANKS))
        waits = "".join(f"wait $p{rank} || status=$?\n" for rank in range(RANKS))
        srun = folder / "srun"
        srun.write_text(f"#!/bin/sh\nstatus=0\n{tasks}{waits}exit $status\n", encoding="utf-8")
        srun.chmod(0o755)
        return folder


class OneHost(Launchers):
    def test_lockstep_run(self):
        for example in (*EXAMPLES, GRADIENTS):
            self.check(example, [self.start([COMMAND, "run", "--nproc", RANKS, FOLDER / example])])

    def test_slurm(self):
        for example in (*EXAMPLES, GRADIENTS):
            self.check(example, self.start_slurm_tasks(example, ["node7"], lambda _: []))

    def test_the_small_gpt_learns_the_docs(self):
        process = self.start([COMMAND, "run", "--nproc", 2, "--prefix", "", FOLDER / "08_small_gpt", ROOT.parent / "docs",
                              "--steps", 25])
        output, errors = process.communicate(timeout=within(100))
        self.assertEqual(process.returncode, 0, output + errors)
        lines = output.splitlines()
        self.assertRegex(lines[0], r"^\d+ characters of \d+ files, \d+ different ones$")
        self.assertRegex(lines[-1], r"^2 replicas: all \d+ weights are bitwise equal$")

    def test_what_is_not_printed_or_ends_badly_is_noticed(self):
        for words in (["true"], ["false"], ["cat", ROOT / EXAMPLES[0] / "expected_output.txt"]):
            with self.assertRaises(AssertionError):
                self.check(EXAMPLES[1], [self.start(words)])


class OneHostOpenMpi(Launchers):
    def test_the_script_for_mpirun(self):
        self.check(GRADIENTS, [self.start(
            [SCRIPTS / "mpirun.sh", f"127.0.0.1:{RANKS}", FOLDER / GRADIENTS], MASTER_PORT=free_port(),
            MPIRUN_OPTIONS=shlex.join(MPIRUN[1:-1]),
            PATH=f"{pathlib.Path(MPIRUN[0]).parent}:/usr/bin:/bin:/usr/sbin:/sbin")])


class OneHostMpirun(Launchers):
    def test_mpirun(self):
        for example in EXAMPLES:
            self.check(example, [self.start([*MPIRUN, RANKS, FOLDER / example], MASTER_PORT=free_port())])


class OnTwoHosts(Launchers):
    @classmethod
    def setUpClass(cls):
        cls.hosts = cls.enterClassContext(hosts.TwoHosts())


class TwoHosts(OnTwoHosts):
    def test_lockstep_run(self):
        for example in EXAMPLES:
            self.check(example, [
                self.start([*self.hosts.enter(host), COMMAND, "run", "--nnodes", 2, "--nproc", nproc, "--rdzv-endpoint",
                            f"{hosts.ADDRESSES[0]}:29400", "--secret-file", self.secret, FOLDER / example])
                for host, nproc in ((0, 2), (1, 1))])

    def test_slurm(self):
        for example in EXAMPLES:
            self.check(example, self.start_slurm_tasks(example, hosts.ADDRESSES, self.hosts.enter))

    def test_the_script_for_lockstep_run(self):
        path = f"{pathlib.Path(COMMAND).parent}:/usr/bin:/bin:/usr/sbin:/sbin"
        self.check(GRADIENTS, [
            self.start([*self.hosts.enter(host), SCRIPTS / "lockstep_run.sh", f"{hosts.ADDRESSES[0]}:29400", 2, ranks,
                        FOLDER / GRADIENTS], PATH=path, LOCKSTEP_SECRET_FILE=self.secret)
            for host, ranks in ((0, 2), (1, 1))])

    def test_the_script_for_slurm(self):
        path = f"{self.fake_srun(self.hosts.enter)}:/usr/bin:/bin:/usr/sbin:/sbin"
        self.check(GRADIENTS, [self.start(
            ["sh", "-c", f"cd {self.folder} && sh {SCRIPTS / 'slurm.sbatch'} {FOLDER / GRADIENTS}"], PATH=path,
            SLURM_JOB_ID=17, SLURM_STEP_ID=0, SLURM_NTASKS=RANKS, SLURM_STEP_NODELIST=",".join(hosts.ADDRESSES),
            SLURM_STEP_TASKS_PER_NODE="2,1")])
        self.assertFalse(list(self.folder.glob("*17.secret")))


class TwoHostsOpenMpi(OnTwoHosts):
    def test_mpirun(self):
        remote = self.folder / "remote"  # what it starts its daemon on the other host with, instead of ssh
        remote.write_text(f'#!/bin/sh\nshift\nexec {shlex.join(self.hosts.enter(1))} sh -c "$*"\n', encoding="utf-8")
        remote.chmod(0o755)
        first, second = hosts.ADDRESSES
        for example in EXAMPLES:
            self.check(example, [self.start([
                *self.hosts.enter(0), *MPIRUN[:-1], "--mca", "plm_rsh_agent", remote, "--host",
                f"{first}:2,{second}:1", "-x", "LOCKSTEP_SECRET_FILE", "-x", "MASTER_ADDR", *MPIRUN[-1:], RANKS,
                FOLDER / example], LOCKSTEP_SECRET_FILE=self.secret, MASTER_ADDR=first)])


if __name__ == "__main__":
    CASES, COMMAND, FOLDER, MPIRUN = sys.argv[1].split(","), sys.argv[2], pathlib.Path(sys.argv[3]), sys.argv[4:]
    unittest.main(argv=[sys.argv[0], *CASES])
