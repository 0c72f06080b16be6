"""torch's own distributed suite on Lockstep in gloo's place, compared test by test with gloo on the same machine.

    torch_suite.py [--worlds 2,3,4] [--jobs 2] [--folder build/reports/torch_suite] [--only TEST,...]

Whatever passes on gloo must pass on Lockstep, and what is skipped on one must be skipped on the other, but for what
exceptions.txt names with a reason. Prints the table of docs/python.md.
Needs lockstep_torch and expecttest (tools/setup.sh suite).
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
BACKENDS = ("gloo", "lockstep")


def exceptions():
    """The reason by test: lines of the test's name, a space and the reason."""
    lines = (line.strip() for line in (HERE / "exceptions.txt").read_text(encoding="utf-8").splitlines())
    return dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))


def run_part(options, world, backend, part):
    """The ranks of a test are processes of one run, and several runs go on at a time."""
    name = f"{backend}_{world}_{part}"
    report = options.folder / f"{name}.json"
    report.unlink(missing_ok=True)
    with open(options.folder / f"{name}.log", "w", encoding="utf-8") as log:
        subprocess.run([sys.executable, HERE / "suite.py", "--backend", backend, "--world", str(world),
                        "--json", report, "--part", f"{part}/{options.parts}", *options.only],
                       stdout=log, stderr=log, check=True)
    return world, backend, json.loads(report.read_text(encoding="utf-8"))


def run_all(options):
    """What came of each test, by world and backend."""
    outcomes = collections.defaultdict(dict)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(run_part, options, world, backend, part) for part in range(options.parts)
                for world in options.worlds for backend in BACKENDS]
        for run in runs:
            world, backend, outcome = run.result()
            outcomes[world, backend].update(outcome)
    return outcomes


def compare(gloo, ours, excepted):
    """The tests by how they compare, and those that are wrong."""
    kinds = collections.defaultdict(list)
    for test, theirs in gloo.items():
        pair = theirs["outcome"], ours[test]["outcome"]
        if pair == ("passed", "passed"):
            kinds["passed on both"].append(test)
        elif pair[0] == "passed":
            kinds["on gloo alone"].append(test)
        elif pair[1] == "passed":
            kinds["on Lockstep alone"].append(test)
        elif pair == ("skipped", "skipped"):
            kinds["skipped on both"].append(test)
        else:
            kinds["skipped on one" if "skipped" in pair else "failed on both"].append(test)
    wrong = [test for test in kinds["on gloo alone"] + kinds["skipped on one"] if test not in excepted]
    return kinds, wrong


def why_skipped(reason):
    """Reasons that differ in numbers alone are one."""
    return re.sub(r"\d+", "N", reason.splitlines()[0].strip()).rstrip(".") or "no reason given"


def table(outcomes, worlds, excepted):
    columns = ("passed on both", "on gloo alone", "on Lockstep alone", "failed on both", "skipped on both")
    lines = [f"| world | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    reasons, wrong = collections.Counter(), []
    for world in worlds:
        gloo, ours = (outcomes[world, backend] for backend in BACKENDS)
        kinds, bad = compare(gloo, ours, excepted)
        lines.append(f"| {world} | {' | '.join(str(len(kinds[column])) for column in columns)} |")
        reasons.update(why_skipped(gloo[test]["reason"]) for test in kinds["skipped on both"])
        wrong += [f"world {world}: {test}: {ours[test]['outcome']}: {ours[test]['reason']}" for test in bad]
        for column in ("on gloo alone", "on Lockstep alone", "failed on both", "skipped on one"):
            wrong_kind = [f"  world {world}, {column}: {test}" for test in kinds[column]]
            print("\n".join(wrong_kind), file=sys.stderr, end="\n" if wrong_kind else "")
    lines += ["", "| skipped, in all worlds together | |", "|---|---|"]
    lines += [f"| {reason} | {count} |" for reason, count in reasons.most_common()]
    return "\n".join(lines), wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", default=[2, 3, 4], type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--jobs", default=2, type=int)
    parser.add_argument("--parts", default=4, type=int)
    parser.add_argument("--folder", default="build/reports/torch_suite", type=pathlib.Path)
    parser.add_argument("--only", default=[], type=lambda text: text.split(","))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    text, wrong = table(run_all(options), options.worlds, exceptions())
    (options.folder / "table.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    if wrong:
        print("\nThese are not on Lockstep what they are on gloo:\n" + "\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
