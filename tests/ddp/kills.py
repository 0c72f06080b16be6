#!/usr/bin/env python3
"""Kills a rank at a random point of a training loop, many times, and says what came of it.

    kills.py PROGRAM [--points N] [--seed S] [--markdown FILE]      PROGRAM is ddp_faults_test; N kills per world
"""

import argparse
import math
import re
import subprocess
import sys

LINE = re.compile(r"^kill: world (\d+), .*; heard after (-?\d+) us$", re.MULTILINE)


def quantile(values, part):
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown")
    options = parser.parse_args()
    run = subprocess.run([options.program, "--gtest_filter=Kills.*", "--gtest_brief=1", "--gtest_shuffle",
                          f"--gtest_repeat={options.points}", f"--gtest_random_seed={options.seed}"],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    latencies = {}
    for world, late in LINE.findall(run.stdout):
        latencies.setdefault(int(world), []).append(int(late) / 1000)
    failed = run.stdout.count("Failure\n")
    lines = ["| world | kills | median | p99 | worst |", "|---|---|---|---|---|"]
    for world, late in sorted(latencies.items()):
        lines.append(f"| {world} | {len(late)} | {quantile(late, 0.5):.1f} ms | {quantile(late, 0.99):.1f} ms | "
                     f"{max(late):.1f} ms |")
    print("\n".join(lines))
    if options.markdown:
        with open(options.markdown, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    if run.returncode != 0 or failed:
        print(run.stdout, file=sys.stderr)
        print(f"{failed} of what must hold did not.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
