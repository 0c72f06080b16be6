"""Where the worlds of a chaos test live, and what must not be left there.

A place is one host (the ranks share memory) or two (they talk TCP). Hosts are network namespaces where those can be made,
so that every socket in them is one of the test's own.
"""

import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "world"))

import cgroup as cgroups  # noqa: E402, F401
import hosts  # noqa: E402
from bounds import TIME_FACTOR, within  # noqa: E402, F401
from launcher import processes_with  # noqa: E402
from rendezvous_rank import clean_environment  # noqa: E402

OPEN_STATES = {"01", "08", "0A"}  # of /proc/net/tcp: established, close wait, listening


class Place:
    """Made by `with`. Without namespaces there is one host: this one."""

    def __init__(self, command, namespaces=True):
        self.command = command
        self.pair = hosts.TwoHosts("x") if namespaces and hosts.probe() else None
        self.holders = []

    def __enter__(self):
        if self.pair:
            self.pair.__enter__()
            # A process in each namespace, by which its sockets can be seen.
            self.holders = [subprocess.Popen([*self.pair.enter(host), "cat"], stdin=subprocess.PIPE,
                                             stdout=subprocess.DEVNULL) for host in (0, 1)]
        return self

    def __exit__(self, *_):
        for holder in self.holders:
            holder.stdin.close()
            holder.wait(30)
        if self.pair:
            self.pair.__exit__()

    @property
    def transports(self):
        return ("shm", "tcp") if self.pair else ("shm",)

    def prefix(self, host):
        return self.pair.enter(host) if self.pair else []

    def address(self, transport):
        return hosts.ADDRESSES[0] if transport == "tcp" else "127.0.0.1"

    def sockets(self):
        """Every socket that lives in the namespaces."""
        found = []
        for holder in self.holders:
            net = pathlib.Path(f"/proc/{holder.pid}/net")
            for name in ("tcp", "tcp6"):
                for line in (net / name).read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[3] in OPEN_STATES:
                        found.append(f"{name} {fields[1]} {fields[2]} {fields[3]}")
            found += [f"unix {line}" for line in (net / "unix").read_text().splitlines()[1:]]
        return found


class StoreProcess:
    """A `lockstep store` for one job, as an agent would serve it: no rank's death takes it along."""

    def __init__(self, place, transport, folder, environment):
        self.secret = os.path.join(folder, "secret")
        descriptor = os.open(self.secret, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        os.write(descriptor, os.urandom(32))
        os.close(descriptor)
        self.process = subprocess.Popen(
            [*place.prefix(0), place.command, "store", "--job-id", "chaos", "--secret-file", self.secret, "--host",
             place.address(transport)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=environment)
        self.address = self.process.stdout.readline().decode().strip()

    def end(self):
        self.process.terminate()
        self.process.wait(30)
        self.process.stdout.close()
        os.unlink(self.secret)


class Scratch:
    """A folder and a mark of one world's own; afterwards neither holds anything."""

    def __init__(self):
        self.mark = f"CHAOS_MARK={uuid.uuid4().hex}"
        self.folder = tempfile.TemporaryDirectory(prefix="lockstep-chaos-")

    def environment(self, **extra):
        name, value = self.mark.split("=")
        return clean_environment() | {name: value, "TMPDIR": self.folder.name, **extra}

    def leaks(self, place, names_before):
        """What is left, once everything has had a moment to end. Processes that are left are killed."""
        deadline = time.monotonic() + within(2)
        while True:
            processes = processes_with(self.mark)
            left = [f"process {pid}" for pid in processes]
            left += [f"socket {socket}" for socket in place.sockets()]
            left += [f"file {name}" for name in os.listdir(self.folder.name)]
            left += [f"shared memory {name}" for name in shared_names() - names_before]
            if not left or time.monotonic() > deadline:
                break
            select.select([], [], [], 0.005)
        for pid in processes:
            os.kill(pid, 9)
        self.folder.cleanup()
        return left


def shared_names():
    """The names in /dev/shm that can be ours."""
    return {name for name in os.listdir("/dev/shm") if "lockstep" in name}
