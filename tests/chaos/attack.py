#!/usr/bin/env python3
"""A job of two ranks under attack: strangers at every port that it listens on, and what that costs it.

    attack.py --rank-program FILE --command FILE [--seconds S] [--nice N] [--bound PERCENT] [--json FILE]

The ranks (world_rank --steps) run steps while time is cut into slices, by turns quiet and under attack, S seconds in all.
The attacker is a process of low priority (N, 19) that connects up to 1,000 times a second, to each port in turn: it says
nothing, asks for a page, sends noise, or begins a handshake or a frame and never ends it; 200 connections are kept open and
get a byte now and then. Each slice under attack is compared with the quiet one before it, by their median steps. Exit
status 1 if a rank fails, if memory grows by more than 16 MiB, or if the median of these changes is more than PERCENT (5);
with --bound inf that is only printed.
"""

import argparse
import json
import os
import pathlib
import resource
import select
import socket
import statistics
import subprocess
import sys
import time

from places import Place, Scratch, StoreProcess, within

RATE = 1000  # connects a second
OPEN = 200  # connections that the attacker keeps
SLICE = 1.0  # seconds
MEMORY = 16 << 20  # bytes that the job may grow by
LISTENING = "0A"  # in /proc/net/tcp
ANSWER = 60  # seconds that a rank may take to answer


def listening_ports(pids):
    """Every TCP port of 127.0.0.1 that one of the processes listens on."""
    inodes = set()
    for pid in pids:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            target = os.readlink(entry.path)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    ports = []
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == LISTENING and fields[9] in inodes:
            ports.append(int(fields[1].split(":")[1], 16))
    return sorted(set(ports))


def resident(pids):
    return sum(int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * resource.getpagesize()


def attack(priority, ports):
    """Runs until its stdin ends, in bursts: between a line "go", answered once it has connected, and a line "rest",
    answered with the number of its connects."""
    os.setpriority(os.PRIO_PROCESS, 0, priority)
    kept, count, going = [None] * OPEN, 0, False
    began, sent = 0.0, 0
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], 0 if going else None)
        if ready:
            word = os.read(0, 100).decode().split()
            if not word:
                return
            going = word[-1] == "go"
            began, sent = time.monotonic(), 0
            if not going:
                print(count, flush=True)
                count = 0
            continue
        if sent > (time.monotonic() - began) * RATE:
            time.sleep(0.001)  # the rate that an attacker is held to
            continue
        sent += 1
        try:
            stranger = socket.create_connection(("127.0.0.1", ports[sent % len(ports)]), 0.2)
            count += 1
            if count == 1:
                print("begun", flush=True)
            stranger.setblocking(False)
            said = (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(300), b"LKSC", b"\xff\xff\xff\x7f")[sent % 5]
            stranger.send(said)
            if kept[sent % OPEN]:
                kept[sent % OPEN].close()
            kept[sent % OPEN] = stranger
            old = kept[sent * 7 % OPEN]
            if old:
                old.send(b"x")
        except OSError:
            pass  # shown out, or not let in


class Job:
    def __init__(self, options, place, scratch):
        self.store = StoreProcess(place, "shm", scratch.folder.name, scratch.environment())
        self.ranks = []
        for rank in range(2):
            environment = scratch.environment(RANK=str(rank), WORLD_SIZE="2", **self.store.variables,
                                              LOCKSTEP_JOB_ID="chaos", LOCKSTEP_SECRET_FILE=self.store.secret)
            self.ranks.append(subprocess.Popen([*place.prefix(0), options.rank_program, "--steps"], env=environment,
                                               stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for rank in self.ranks:
            self.read(rank)

    def read(self, rank):
        ready, _, _ = select.select([rank.stdout], [], [], within(ANSWER))
        line = rank.stdout.readline() if ready else b""
        if not line:
            raise SystemExit(f"attack: a rank says nothing any more; it has ended with {rank.poll()}")
        return json.loads(line)

    def steps(self):
        """How the steps went since it was asked last."""
        self.ranks[0].stdin.write(b".")
        self.ranks[0].stdin.flush()
        return self.read(self.ranks[0])

    def pids(self):
        return [self.store.process.pid, *(rank.pid for rank in self.ranks)]

    def leave(self):
        """All ranks end well, or the exit status says otherwise."""
        self.ranks[0].stdin.close()
        answers = [self.read(rank) for rank in self.ranks]
        return all(answer["ok"] for answer in answers) and all(rank.wait(within(ANSWER)) == 0 for rank in self.ranks)

    def clean_up(self):
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        self.store.end()


def tell(attacker, word):
    """Its answer."""
    attacker.stdin.write(word.encode() + b"\n")
    attacker.stdin.flush()
    return attacker.stdout.readline()


def measure(job, attacker, seconds):
    """Slices by turns quiet and under attack: ([quiet], [attacked], connects)."""
    quiet, attacked, connects = [], [], 0
    job.steps()
    for turn in range(2 * max(1, round(seconds / SLICE / 2))):
        under_attack = turn % 2 == 1
        if under_attack:
            tell(attacker, "go")
            job.steps()
        end = time.monotonic() + min(SLICE, seconds / 2)
        while time.monotonic() < end:
            select.select([], [], [], max(0, end - time.monotonic()))
        (attacked if under_attack else quiet).append(job.steps())
        if under_attack:
            connects += int(tell(attacker, "rest"))
            job.steps()
    return quiet, attacked, connects


def judge(result, bound):
    complaints = []
    if not result["ranks_ok"]:
        complaints.append("a rank has failed")
    if result["growth_bytes"] > MEMORY:
        complaints.append(f"memory has grown by {result['growth_bytes'] / 2**20:.1f} MiB")
    if result["change_percent"] > bound:
        complaints.append(f"the median step takes {result['change_percent']:.1f} % longer; {bound:g} % are allowed")
    return complaints


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank-program", required=True, type=os.path.abspath)
    parser.add_argument("--command", required=True, type=os.path.abspath)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--nice", type=int, default=19)
    parser.add_argument("--bound", type=float, default=5, help="percent")
    parser.add_argument("--json")
    options = parser.parse_args()
    scratch, place = Scratch(), Place(options.command, namespaces=False)
    job = Job(options, place, scratch)
    try:
        ports = listening_ports(job.pids())
        before = resident(job.pids())
        attacker = subprocess.Popen([sys.executable, __file__, "--attacker", str(options.nice), *map(str, ports)],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            quiet, attacked, connects = measure(job, attacker, options.seconds)
        finally:
            attacker.kill()
            attacker.communicate()
        growth = resident(job.pids()) - before
        ranks_ok = job.leave()
    finally:
        job.clean_up()
    medians = [statistics.median(part["p50_us"] for part in parts) for parts in (quiet, attacked)]
    changes = [100 * (after["p50_us"] / before["p50_us"] - 1) for before, after in zip(quiet, attacked)]
    result = {"seconds": options.seconds, "ports": ports, "connects": connects, "cores": os.cpu_count(),
              "steps": sum(part["steps"] for part in quiet + attacked), "quiet_p50_us": medians[0],
              "attacked_p50_us": medians[1], "change_percent": statistics.median(changes),
              "growth_bytes": growth, "ranks_ok": ranks_ok}
    print(json.dumps(result))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    complaints = judge(result, options.bound)
    for complaint in complaints:
        print(f"attack: {complaint}")
    return 1 if complaints else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--attacker"]:
        attack(int(sys.argv[2]), [int(port) for port in sys.argv[3:]])
        sys.exit(0)
    sys.exit(main())
