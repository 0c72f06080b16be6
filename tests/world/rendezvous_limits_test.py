#!/usr/bin/env python3
"""Ranks and servers that find no thread, a small /dev/shm, or a disk that is full, read-only or broken: typed errors, and
the others go on.

    COMMAND=FILE FAILING_DISK_LIBRARY=FILE rendezvous_limits_test.py PROGRAM [unittest's arguments]

PROGRAM is rendezvous_rank, COMMAND lockstep. The classes SmallMemory and Disks mount file systems: they need a mount
namespace of their own (unshare --mount).
"""

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import unittest

import rendezvous_rank
from rendezvous_rank import RendezvousTest, clean_environment, free_port

COMMAND = os.path.abspath(os.environ["COMMAND"])
DISK = 256 << 10  # bytes


def no_threads():
    """A thread's stack would be larger than the address space: a limit of processes does not bind root."""
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 46, resource.RLIM_INFINITY))


class Threads(RendezvousTest):
    """F31."""

    def test_a_server_says_so(self):
        result = subprocess.run([COMMAND, "store", "--insecure"], env=clean_environment(), timeout=200,
                                capture_output=True, text=True, preexec_fn=no_threads)
        self.assertEqual((result.returncode, result.stdout), (1, ""), result.stderr)
        self.assertRegex(result.stderr, r"\Alockstep store: [^\n]*the thread lockstep-store cannot be started[^\n]*\n\Z")

    def test_rank_0_says_so_and_does_not_blame_the_port(self):
        for given in ({}, {"LOCKSTEP_SECRET_FILE": self.new_secret()}):
            with self.subTest(given=given):
                rank = self.start({"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
                                   **given}, preexec_fn=no_threads)
                self.assert_failure(rank.answer(10), "no_memory", "the thread lockstep-", "cannot be started", "ulimit -u")

    def test_a_launcher_which_serves_the_store_says_so_before_anything_starts(self):
        result = subprocess.run([COMMAND, "run", "--nproc", "2", "echo", "started"], env=clean_environment(), timeout=200,
                                stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=no_threads)
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        self.assertIn("the thread lockstep-store cannot be started", result.stderr)


class SmallMemory(RendezvousTest):
    """F29."""

    def test_a_dev_shm_of_a_mebibyte_has_no_effect(self):
        """What ranks share is in no file system. The bench compares every element."""
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"], check=True, timeout=200)
        self.addCleanup(subprocess.run, ["umount", "--lazy", "/dev/shm"], check=True, timeout=200)
        path = pathlib.Path(self.folder, "report.json")
        result = subprocess.run([COMMAND, "bench", "all_reduce", "--nproc", "2", "--bytes", "25MiB", "--memory",
                                 "resident,foreign", "--rounds", "1", "--json", path],
                                env=clean_environment() | {"LOCKSTEP_LOG": "error"}, timeout=200, capture_output=True,
                                text=True)
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        rows = json.loads(path.read_text())["rows"]
        self.assertEqual([(row["bytes"], row["memory"], row["verified"]) for row in rows],
                         [(25 << 20, "resident", True), (25 << 20, "foreign", True)])


class Disks(RendezvousTest):
    """F32, for a FileStore."""

    def mount(self, *options):
        """A file system of this test's own."""
        path = os.path.join(self.folder, "disk")
        os.mkdir(path)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", path], check=True, timeout=200)
        self.addCleanup(subprocess.run, ["umount", "--lazy", path], check=True, timeout=200)
        return path

    def start_file_world(self, path, **variables):
        return [self.start(variables, ["--url", f"file://{path}/job?world_size=2&rank={rank}"]) for rank in range(2)]

    def fill(self, disk):
        """Until nothing more fits; returns the file that does it."""
        path = pathlib.Path(disk, "ballast")
        with open(path, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return path

    def test_a_full_disk_is_an_error_of_the_call_and_nothing_is_lost(self):
        disk = self.mount()
        ranks = self.start_file_world(disk)
        self.assert_world(ranks)
        self.assertEqual(ranks[0].ask("set kept before"), {"ok": True})
        ballast = self.fill(disk)
        for rank in ranks:
            answer = rank.ask(f"set lost {'x' * 8192}")
            self.assert_failure(answer, "no_space", f"{disk}/job", "No space left on device")
            self.assertEqual(rank.ask("get kept 20"), {"ok": True, "value": "before"})
        ballast.unlink()
        self.assertEqual(ranks[1].ask("set lost found"), {"ok": True})
        self.assertEqual(ranks[0].ask("get lost 20"), {"ok": True, "value": "found"})
        self.finish(ranks)

    def test_a_full_disk_at_the_start(self):
        disk = self.mount()
        ballast = self.fill(disk)
        for rank in self.start_file_world(disk, LOCKSTEP_TIMEOUT=20):
            self.assert_failure(rank.answer(10), "no_space", f"{disk}/job", "No space left on device")
        ballast.unlink()
        self.assert_world(self.start_file_world(disk))

    def test_a_read_only_disk_stops_who_sees_it_so_and_nobody_else(self):
        disk = self.mount()
        ranks = self.start_file_world(disk)
        self.assert_world(ranks)
        read_only = os.path.join(self.folder, "read_only")
        os.mkdir(read_only)
        subprocess.run(["mount", "--bind", "-o", "ro", disk, read_only], check=True, timeout=200)
        self.addCleanup(subprocess.run, ["umount", "--lazy", read_only], check=True, timeout=200)
        for name in ("job", "new"):
            answer = self.start({}, ["--url", f"file://{read_only}/{name}?world_size=2&rank=1"]).answer(10)
            self.assertFalse(answer["ok"], answer)
            self.assertEqual(answer["code"], "invalid")
            self.assertIn(f"{read_only}/{name}", answer["message"])
            self.assertIn("Read-only file system", answer["message"])
        self.assert_talks(ranks)
        self.finish(ranks)

    def test_a_broken_disk_is_an_error_of_the_call_and_it_goes_on_once_it_is_mended(self):
        fault = pathlib.Path(self.folder, "broken")
        ranks = self.start_file_world(self.folder, FAILING_DISK=fault, LD_PRELOAD=os.environ["FAILING_DISK_LIBRARY"])
        self.assert_world(ranks)
        self.assertEqual(ranks[0].ask("set kept before"), {"ok": True})
        fault.touch()
        for rank in ranks:
            for command in ("set kept after", "get never 5"):
                answer = rank.ask(command)
                self.assertEqual((answer["ok"], answer["code"]), (False, "internal"), answer)
                self.assertIn(f"{self.folder}/job", answer["message"])
                self.assertIn("Input/output error", answer["message"])
        fault.unlink()
        for rank in ranks:
            self.assertEqual(rank.ask("get kept 20"), {"ok": True, "value": "before"})
        self.assert_talks(ranks)
        self.finish(ranks)

    def test_a_broken_disk_at_the_start(self):
        fault = pathlib.Path(self.folder, "broken")
        fault.touch()
        for rank in self.start_file_world(self.folder, FAILING_DISK=fault, LOCKSTEP_TIMEOUT=20,
                                          LD_PRELOAD=os.environ["FAILING_DISK_LIBRARY"]):
            answer = rank.answer(10)
            self.assertEqual((answer["ok"], answer["code"]), (False, "internal"), answer)
            self.assertIn("Input/output error", answer["message"])


if __name__ == "__main__":
    rendezvous_rank.PROGRAM = os.path.abspath(sys.argv.pop(1))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    unittest.main()
