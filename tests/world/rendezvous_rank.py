"""Ranks as processes, for rendezvous_test.py: starts them, reads their answers, and leaves none behind."""

import errno
import json
import os
import random
import select
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from bounds import within

PROGRAM = None  # set by the test's main

# Of the environment the tests run in, nothing may reach the ranks.
JOB_PREFIXES = ("LOCKSTEP_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_", "TORCHELASTIC_", "KUBERNETES_", "GLOO_")
JOB_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
             "JOB_COMPLETION_INDEX")


def clean_environment():
    return {name: value for name, value in os.environ.items()
            if not name.startswith(JOB_PREFIXES) and name not in JOB_NAMES}


class Rank:
    """One process. Answers are dictionaries; see rendezvous_rank.cpp."""

    def __init__(self, variables, options=(), prefix=(), pass_fds=(), program=None, **process):
        environment = clean_environment() | {"LOCKSTEP_TIMEOUT": "100"}
        environment.update({name: str(value) for name, value in variables.items()})
        self.process = subprocess.Popen(
            [*prefix, program or PROGRAM, *[str(option) for option in options]], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=pass_fds, **process)
        self.buffer = b""

    def answer(self, seconds=40):
        end = time.monotonic() + within(seconds)
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise AssertionError(f"pid {self.process.pid} said nothing for {within(seconds)} s")
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                self.process.wait(within(10))
                raise AssertionError(f"pid {self.process.pid} ended with {self.process.returncode}: "
                                     f"{self.process.stderr.read().decode()}")
            self.buffer += chunk
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def tell(self, command):
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, command, seconds=40):
        self.tell(command)
        return self.answer(seconds)

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        """Returns once it has stopped: a process runs on for a while after kill(2)."""
        self.signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def leave(self):
        """Closes stdin, so that it leaves and ends."""
        self.process.stdin.close()

    def finish(self, seconds=40):
        """Leaves; returns its exit status."""
        self.leave()
        return self.process.wait(within(seconds))

    @property
    def pid(self):
        return self.process.pid

    def wait_for_log(self, *texts, seconds=20):
        """Until a line of its stderr has all of `texts`."""
        end = time.monotonic() + within(seconds)
        line = b""
        while not (line.endswith(b"\n") and all(text.encode() in line for text in texts)):
            if line.endswith(b"\n"):
                line = b""
            ready, _, _ = select.select([self.process.stderr], [], [], max(0, end - time.monotonic()))
            byte = os.read(self.process.stderr.fileno(), 1) if ready else b""
            if not byte:
                raise AssertionError(f"pid {self.process.pid} never logged {texts}")
            line += byte

    def clean_up(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if not stream.closed:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass


def free_port(host="127.0.0.1"):
    """A port that nobody has, and that the kernel gives to nobody who asks for any: below those it picks from."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        port = random.randrange(10000, 30000)
        with socket.socket(family) as probe:
            try:
                probe.bind((host, port))
                return port
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise


class RendezvousTest(unittest.TestCase):
    """Helpers that clean up after themselves."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, variables=(), options=(), **more):
        rank = Rank(dict(variables), options, **more)
        self.addCleanup(rank.clean_up)
        return rank

    def start_env_world(self, size, port, ranks=None, options=(), **variables):
        return [self.start({"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                            **variables}, options) for rank in (range(size) if ranks is None else ranks)]

    def start_waiting(self, size, port, ranks, **variables):
        """Ranks that have arrived and wait for the others."""
        started = self.start_env_world(size, port, ranks, LOCKSTEP_LOG="rendezvous=debug", **variables)
        for rank in started:
            rank.wait_for_log("has arrived")
        return started

    def new_secret(self, name="secret"):
        path = os.path.join(self.folder, name)
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        os.write(descriptor, os.urandom(32))
        os.close(descriptor)
        return path

    def assert_world(self, ranks):
        """All ranks of a world on one host have joined, agree on everything, and can talk."""
        answers = [rank.answer() for rank in ranks]
        self.assertTrue(all(answer["ok"] for answer in answers), answers)
        for number, answer in enumerate(answers):
            self.assertEqual(answer["rank"], number)
            self.assertEqual(answer["world_size"], len(ranks))
            self.assertEqual(answer["local_rank"], number)
            self.assertEqual(answer["local_size"], len(ranks))
            self.assertEqual(answer["members"], answers[0]["members"])
            self.assertEqual(answer["secret"], answers[0]["secret"])
        self.assertEqual([member["pid"] for member in answers[0]["members"]], [rank.pid for rank in ranks])
        self.assert_talks(ranks)
        return answers

    def finish(self, ranks):
        """All leave at once."""
        for rank in ranks:
            rank.leave()
        for rank in ranks:
            self.assertEqual(rank.process.wait(within(40)), 0)

    def assert_talks(self, ranks):
        self.assertEqual(ranks[0].ask("set key hello"), {"ok": True})
        for rank in ranks:
            self.assertEqual(rank.ask("get key 20"), {"ok": True, "value": "hello"})

    def assert_failure(self, answer, failure, *texts):
        self.assertFalse(answer["ok"], answer)
        self.assertEqual(answer["failure"], failure, answer)
        for text in texts:
            self.assertIn(text, answer["message"])
