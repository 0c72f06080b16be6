"""Where the worlds of a chaos test live, and what must not be left there.

A place is one host (the ranks share memory) or two (they talk TCP). Hosts are network namespaces where those can be made,
so that every socket in them is one of the test's own.
"""

import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import tempfile
import time
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "world"))

import cgroup as cgroups  # noqa: E402, F401
import hosts  # noqa: E402
from bounds import MEMORY_FACTOR, TIME_FACTOR, within  # noqa: E402, F401
from launcher import processes_with  # noqa: E402
from rendezvous_rank import clean_environment  # noqa: E402

OPEN_STATES = {"01", "08", "0A"}  # of /proc/net/tcp: established, close wait, listening


class Place:
    """Made by `with`. Without namespaces there is one host: this one."""

    def __init__(self, command, namespaces=True):
        self.command = command
        self.pair = hosts.TwoHosts("x") if namespaces and hosts.probe() else None
        self.holders = []

    def can_have(self, case, transport):
        return transport in self.transports and (self.pair is not None or not case.looks_around)

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

    def listeners(self, host):
        """The addresses of those that listen on that host, as attacker.py takes them."""
        net = pathlib.Path(f"/proc/{self.holders[host].pid}/net")
        found = []
        for line in (net / "tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                address, port = fields[1].split(":")
                found.append(".".join(str(byte) for byte in reversed(bytes.fromhex(address))) + f":{int(port, 16)}")
        for line in (net / "unix").read_text().splitlines()[1:]:
            fields = line.split(None, 7)
            if fields[3] == "00010000" and len(fields) > 7 and fields[7].startswith("@"):
                found.append(fields[7])
        return found


def available_memory():
    """Of this machine, in bytes."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) << 10


def resident(processes):
    """The resident bytes of each."""
    pages = [int(pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[1]) for process in processes]
    return [count * os.sysconf("SC_PAGE_SIZE") for count in pages]


def script(name):
    """The words that run a program of this folder."""
    return [sys.executable, str(pathlib.Path(__file__).resolve().parent / name)]


class Siege:
    """Strangers at every listener of a world, on and off by turns, and what the world did meanwhile."""

    TURN = 1.0  # seconds
    RATE = 500  # connections a second, on each host

    def __init__(self, place, hosts, processes, priority):
        self.processes = processes
        self.attackers = []
        for host in hosts:
            self.attackers.append(subprocess.Popen(
                [*place.prefix(host), *script("attacker.py"), str(priority), str(self.RATE), *place.listeners(host)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for attacker in self.attackers:
            attacker.stdout.readline()  # it is ready
        self.began = time.monotonic()
        self.turns = []  # when each began; the second, fourth, ... are attacked
        self.memory = [resident(processes)]
        self.connections = 0

    def look(self):
        if time.monotonic() < self.began + len(self.turns) * self.TURN:
            return
        self.memory.append(resident(self.processes))
        word = b"on\n" if len(self.turns) % 2 else b"off\n"
        for attacker in self.attackers:
            attacker.stdin.write(word)
            attacker.stdin.flush()
        self.turns.append(time.monotonic())

    def has_attacked(self):
        return len(self.turns) > 1

    def is_attacked(self, at):
        """True or False; None in the moments of change."""
        turn = sum(at >= began for began in self.turns) - 1
        if turn < 1 or at - self.turns[turn] < self.TURN / 4:
            return None
        return turn % 2 == 1

    def growth(self):
        """Of the process that has grown most, after its first second."""
        first = self.memory[min(2, len(self.memory) - 1)]
        return max(now - before for sizes in self.memory for now, before in zip(sizes, first))

    def end(self):
        for attacker in self.attackers:
            attacker.stdin.close()
            self.connections += int(attacker.stdout.read() or 0)
            attacker.wait(30)
            attacker.stdout.close()


class Visit:
    """Impostors at every listener of a world, one on each host, and what they have heard."""

    def __init__(self, place, hosts, kind, store, processes):
        self.processes, self.before = processes, resident(processes)
        self.heard = []  # what impostor.py says of each listener
        self.growth = 0  # of the process that has grown most, in bytes
        self.impostors = [subprocess.Popen(
            [*place.prefix(host), *script("impostor.py"), kind, "chaos", store.secret, f"127.{host + 1}",
             *place.listeners(host)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) for host in hosts]

    def is_over(self):
        """Once they have gone; then the rest is there."""
        if any(impostor.poll() is None for impostor in self.impostors):
            return False
        self.growth = max(now - before for now, before in zip(resident(self.processes), self.before))
        for impostor in self.impostors:
            with impostor.stdout as said:
                self.heard += [json.loads(line) for line in said]
        return True

    def clean_up(self):
        for impostor in self.impostors:
            impostor.kill()
            impostor.wait()
            impostor.stdout.close()


def new_secret(path):
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.write(descriptor, os.urandom(32))
    os.close(descriptor)
    return path


class StoreProcess:
    """A `lockstep store` for one job, as an agent would serve it: no rank's death takes it along."""

    def __init__(self, place, transport, folder, environment):
        self.secret, self.other_secret = (new_secret(os.path.join(folder, name)) for name in ("secret", "other_secret"))
        self.process = subprocess.Popen(
            [*place.prefix(0), place.command, "store", "--job-id", "chaos", "--secret-file", self.secret, "--host",
             place.address(transport)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=environment)
        self.variables = {"LOCKSTEP_STORE": self.process.stdout.readline().decode().strip()}

    def end(self):
        self.process.terminate()
        self.process.wait(30)
        self.process.stdout.close()
        os.unlink(self.secret)
        os.unlink(self.other_secret)


class RankStore:
    """That which rank 0 serves, as in a job without a launcher."""

    process = None

    def __init__(self, place, transport, folder):
        self.secret = new_secret(os.path.join(folder, "secret"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.variables = {"MASTER_ADDR": place.address(transport), "MASTER_PORT": str(free.getsockname()[1])}

    def end(self):
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
            left += [f"socket {left_open}" for left_open in place.sockets()]
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
