#!/usr/bin/env python3
"""Kills a rank at a random point of a training loop, many times, and says what came of it.

    kills.py PROGRAM [--points N] [--seed S] [--markdown FILE] [--rank-program FILE --command FILE [--worlds 2,4,8]
             [--seconds T]]

PROGRAM is ddp_faults_test, on one host; N kills per world. With ddp_rank and `lockstep` it goes on between two hosts, which are
network namespaces, over TCP and shared memory, for at most T seconds in each world. PROGRAM may be `-` for these alone.
"""

import argparse
import math
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "world"))

import hosts  # noqa: E402
from rendezvous_rank import clean_environment  # noqa: E402

LINE = re.compile(r"^kill: world (\d+), .*; heard after (-?\d+) us$", re.MULTILINE)
STEPS, MICROS = 8, 6000  # the first is drawn below these
PORT = "29500"  # in namespaces of our own
PATIENCE = 120  # seconds, for one world; what is said to be heard is far below


def quantile(values, part):
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def on_one_host(program, points, seed):
    """What it said, and latencies in milliseconds by place and world."""
    run = subprocess.run([program, "--gtest_filter=Kills.*", "--gtest_brief=1", "--gtest_shuffle",
                          f"--gtest_repeat={points}", f"--gtest_random_seed={seed}"],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    latencies = {}
    for world, late in LINE.findall(run.stdout):
        latencies.setdefault(("one host", int(world)), []).append(int(late) / 1000)
    failed = run.stdout.count("Failure\n")
    return latencies, [run.stdout] if run.returncode != 0 or failed else []


class BetweenHosts:
    def __init__(self, program, secret, two_hosts):
        self.program, self.secret, self.hosts = program, secret, two_hosts

    def start(self, rank, world, plan):
        half = (world + 1) // 2
        host = 0 if rank < half else 1
        variables = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank - host * half,
                     "LOCAL_WORLD_SIZE": half if host == 0 else world - half, "MASTER_ADDR": hosts.ADDRESSES[0],
                     "MASTER_PORT": PORT, "LOCKSTEP_SECRET_FILE": self.secret, "LOCKSTEP_TIMEOUT": "60",
                     "OMP_NUM_THREADS": "1"}
        return subprocess.Popen([*self.hosts.enter(host), self.program, "--killed", *map(str, plan)],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=clean_environment() | {name: str(value) for name, value in variables.items()})

    def kill_once(self, world, plan):
        """Milliseconds until the last rank had heard of it, and what was wrong."""
        ranks = [self.start(rank, world, plan) for rank in range(world)]
        wrong, died, heard = [], None, []
        for number, rank in enumerate(ranks):
            try:
                output, errors = rank.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                rank.kill()
                output, errors = rank.communicate()
                wrong.append(f"rank {number} hangs")
            if number == plan[0]:
                found = re.search(r"died at (\d+)", output)
                died = int(found.group(1)) if found else None
                if rank.returncode != -9 or died is None:
                    wrong.append(f"the victim ended with {rank.returncode}: {output}{errors}")
                continue
            found = re.search(r"heard of rank (\d+) at (\d+)", output)
            if not found or rank.returncode != 0 or int(found.group(1)) != plan[0]:
                wrong.append(f"rank {number} ended with {rank.returncode}: {output}{errors}")
            else:
                heard.append(int(found.group(2)))
        late = (max(heard) - died) / 1e6 if heard and died else None
        return late, [f"world {world}, rank {plan[0]}, step {plan[1]} and {plan[2]} us: {each}" for each in wrong]


def between_hosts(options):
    latencies, wrong = {}, []
    with tempfile.TemporaryDirectory() as folder, hosts.TwoHosts() as two_hosts:
        secret = str(pathlib.Path(folder, "secret"))
        subprocess.run([options.command, "secret", secret], check=True, capture_output=True, timeout=60)
        place = BetweenHosts(options.rank_program, secret, two_hosts)
        for world in options.worlds:
            rng = random.Random(1000 * options.seed + world)
            end = time.monotonic() + options.seconds
            for _ in range(options.points):
                if time.monotonic() > end:
                    break
                plan = (rng.randrange(world), rng.randrange(STEPS), rng.randrange(1, MICROS))
                late, complaints = place.kill_once(world, plan)
                wrong += complaints
                if late is not None:
                    latencies.setdefault(("two hosts", world), []).append(late)
    return latencies, wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown")
    parser.add_argument("--rank-program")
    parser.add_argument("--command")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--worlds", type=lambda text: [int(word) for word in text.split(",")], default=[2, 4, 8])
    options = parser.parse_args()
    latencies, wrong = ({}, []) if options.program == "-" else on_one_host(options.program, options.points, options.seed)
    if options.rank_program:
        more, complaints = between_hosts(options)
        latencies |= more
        wrong += complaints
    lines = ["| where | world | kills | median | p99 | worst |", "|---|---|---|---|---|---|"]
    for (where, world), late in sorted(latencies.items()):
        lines.append(f"| {where} | {world} | {len(late)} | {quantile(late, 0.5):.1f} ms | {quantile(late, 0.99):.1f} ms | "
                     f"{max(late):.1f} ms |")
    print("\n".join(lines))
    if options.markdown:
        with open(options.markdown, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    for each in wrong:
        print(each, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
