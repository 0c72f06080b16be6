#!/usr/bin/env python3
"""Injects faults into worlds of real processes and checks what every rank hears of them.

    chaos.py --merge FILE... [--json FILE] [--markdown FILE]
    chaos.py --rank-program FILE --command FILE [--points N] [--seed S] [--case NAME ...] [--without NAME ...]
             [--world N ...] [--transport shm|tcp ...] [--point I] [--seconds S] [--short] [--json FILE]
             [--markdown FILE] [--show]

--points is per case, world and transport; they take turns, and after --seconds no further one is begun. --begin goes on
where an earlier run has stopped: with its N first points of each left out. One point is repeated by its --case,
--world, --transport, --seed and --point; every complaint ends with that command.
Runs may go on beside each other, with other seeds; --merge adds up what they have written with --json, over all worlds.
--show prints the plans and runs nothing. Exit status 1 if anything was not as it must be: a wrong or missing error, a
hang, a leak, or more than one point in a hundred later than its bound. The JSON report keeps every complaint, with the command
that repeats its point.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import shlex
import sys
import time

import cases
import places
import strangers
import worlds
from places import TIME_FACTOR, cgroups, within


LINE_SECONDS = 30  # between two lines of progress, where there is no terminal


@dataclasses.dataclass
class Row:
    """What came of all points of one case in one world."""
    case: str
    row: str
    world: int
    transport: str
    bound_s: float
    injected: int = 0
    as_required: int = 0
    late: int = 0
    hangs: int = 0
    leaks: int = 0
    latencies: list = dataclasses.field(default_factory=list)
    complaints: list = dataclasses.field(default_factory=list)  # {"world", "point", "texts", "again"}

    @property
    def worst(self):
        return max(self.latencies, default=None)

    def quantile(self, part):
        ordered = sorted(self.latencies)
        return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else None

    def is_good(self):
        return (self.as_required == self.injected and self.hangs == 0 and self.leaks == 0 and
                self.late <= self.injected // 100)

    @classmethod
    def of_json(cls, said):
        return cls(said["case"], said["row"], said["world"], said["transport"], said["bound_s"], said["injected"],
                   said["as_required"], said["late"], said["hangs"], said["leaks"], said["latencies_s"],
                   said.get("complaints", []))

    def add(self, other):
        """What came of the same case over the same transport, elsewhere."""
        if other.world != self.world:
            self.world = ""
        self.allow(other.bound_s)
        for name in ("injected", "as_required", "late", "hangs", "leaks", "latencies", "complaints"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def allow(self, bound):
        """Of a case whose points have several bounds the table shows the largest one."""
        self.bound_s = max(self.bound_s, bound)

    def as_json(self):
        return {"row": self.row, "case": self.case, "world": self.world, "transport": self.transport,
                "injected": self.injected, "as_required": self.as_required, "bound_s": self.bound_s,
                "median_s": self.quantile(0.5), "p99_s": self.quantile(0.99), "worst_s": self.worst,
                "late": self.late, "hangs": self.hangs, "leaks": self.leaks, "latencies_s": self.latencies,
                "complaints": self.complaints}


def seconds(value):
    return "-" if value is None else f"{value * 1000:.0f} ms"


def table(rows):
    """The summary, as Markdown."""
    lines = ["| row | case | world | over | injected | as required | bound | p99 | worst | late | hangs | leaks |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row.row} | {row.case} | {row.world} | {row.transport} | {row.injected} | {row.as_required} | "
                     f"{seconds(row.bound_s)} | {seconds(row.quantile(0.99))} | {seconds(row.worst)} | {row.late} | "
                     f"{row.hangs} | {row.leaks} |")
    return "\n".join(lines)


class Driver:
    def __init__(self, options, place):
        self.options, self.place, self.has_cgroups = options, place, cgroups.probe()
        self.done, self.bad = 0, 0
        self.began = time.monotonic()
        self.next_line = self.began + LINE_SECONDS

    def repeat_command(self, plan):
        words = [sys.executable, sys.argv[0], "--rank-program", self.options.rank_program, "--command",
                 self.options.command, "--case", plan.case, "--world", plan.world, "--transport", plan.transport,
                 "--seed", self.options.seed, "--point", plan.point]
        if self.options.jumping_clock:
            words += ["--jumping-clock", self.options.jumping_clock]
        if self.options.short:
            words.append("--short")
        return shlex.join(map(str, words))

    def run_point(self, case, plan, row):
        with contextlib.ExitStack() as stack:
            limited = plan.memory and self.has_cgroups
            cgroup = stack.enter_context(cgroups.Cgroup(plan.memory)) if limited else None
            outcome = worlds.run(plan, self.options.rank_program, self.place, cgroup)
        complaints = case.judge(plan, outcome)
        latency = None if outcome.hang else case.latency(plan, outcome)
        row.injected += 1
        row.allow(plan.bound)
        row.as_required += not complaints
        if latency is not None:
            row.latencies.append(latency)
            row.late += latency > within(plan.bound)
        hangs = outcome.hang or (latency is not None and latency > 3 * within(plan.bound))
        row.hangs += hangs
        row.leaks += bool(outcome.leaks)
        if latency is not None and latency > within(plan.bound):
            complaints.append(f"it took {latency:.3f} s, and may take {within(plan.bound):.3f} s")
        complaints += [f"left behind: {leak}" for leak in outcome.leaks]
        if complaints:
            self.bad += 1
            row.complaints.append({"world": plan.world, "point": plan.point, "texts": complaints,
                                   "again": self.repeat_command(plan)})
            self.complain(plan, outcome, complaints)

    def complain(self, plan, outcome, complaints):
        print(f"\n{plan.case} (world {plan.world}, {plan.transport}, point {plan.point}): {plan.fault} on {plan.victims} "
              f"in step {plan.step} after {plan.delay_us} us, {plan.first} on the first host {plan.cut}")
        for complaint in complaints:
            print(f"  {complaint}")
        if self.options.verbose:
            for rank, events in enumerate(outcome.events):
                for event in events:
                    print(f"    rank {rank}: {json.dumps(event)}")
                print(f"    rank {rank} stderr: {outcome.errors[rank]}")
        print(f"  again: {self.repeat_command(plan)}", flush=True)

    def progress(self, total, row):
        self.done += 1
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{self.done}/{total} points, {self.bad} bad; {row.case} world {row.world} {row.transport}"
                             f" {row.injected}   ")
            sys.stderr.flush()
        elif not self.options.quiet and time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + LINE_SECONDS
            print(f"{self.done}/{total} points, {self.bad} bad, {time.monotonic() - self.began:.0f} s", flush=True)

    def run(self, chosen):
        """`chosen`: (case, world, transport, points)."""
        total = sum(len(points) for *_, points in chosen)
        rows = [Row(case.name, case.row, world, transport, 0) for case, world, transport, _ in chosen]
        for turn in range(max((len(points) for *_, points in chosen), default=0)):
            for row, (case, world, transport, points) in zip(rows, chosen):
                if time.monotonic() - self.began > self.options.seconds:
                    print(f"\n{total - self.done} of {total} points were left out: {self.options.seconds:g} s are over")
                    return [row for row in rows if row.injected]
                if turn >= len(points):
                    continue
                plan = cases.plan_of(case, self.options.seed, world, transport, points[turn])
                if self.options.short:
                    be_patient(plan)
                self.run_point(case, plan, row)
                self.progress(total, row)
        return rows


def be_patient(plan):
    """The short form is run on machines that do other things: it asks what is heard, not when."""
    plan.timed, plan.bound = False, max(plan.bound, 10)
    plan.siege = min(plan.siege, strangers.Attack.SHORT_SECONDS)
    plan.stall_ms, plan.timeout_ms = max(plan.stall_ms, 6000), max(plan.timeout_ms, 4000)
    if plan.fault == "slow":  # slower than the others may be by chance
        plan.options, plan.steps = ("--slow-ms", "100"), 2 * plan.steps
    if "LOCKSTEP_TIMEOUT" in plan.variables:
        plan.variables["LOCKSTEP_TIMEOUT"] = "10"


def choose(options, place):
    """Which points of which cases."""
    chosen = []
    for case in cases.all_cases(options.jumping_clock):
        if (options.case and case.name not in options.case) or case.name in (options.without or ()):
            continue
        count = options.points if options.exact else max(1, math.ceil(options.points / case.cost))
        points = [options.point] if options.point is not None else range(options.begin, count)
        for transport in case.transports:
            if not place.can_have(case, transport):
                print(f"{case.name} over {transport} needs network namespaces, which cannot be made here")
            elif not options.transport or transport in options.transport:
                chosen += [(case, world, transport, points) for world in options.world or case.worlds]
    return chosen


def short_form(options, place):
    """One point of each case, over shared memory or TCP, every third of them in a world of 8 and the others in a small one;
    the seed says which, and the next one has the other transport."""
    chosen = []
    for index, case in enumerate(cases.all_cases(options.jumping_clock)):
        if options.case and case.name not in options.case:
            continue
        transports = [transport for transport in options.transport or case.transports if place.can_have(case, transport)]
        if transports:
            turn = index + options.seed
            world = options.world[0] if options.world else 8 if turn % 3 == 2 else (2, 4)[turn // 2 % 2]
            chosen.append((case, world, transports[turn % len(transports)], [options.point or 0]))
    return chosen


def merged(files):
    """One row for each case and transport, over all worlds and files."""
    rows = {}
    for file in files:
        with open(file) as report:
            for said in json.load(report)["rows"]:
                row = Row.of_json(said)
                if (row.case, row.transport) in rows:
                    rows[row.case, row.transport].add(row)
                else:
                    rows[row.case, row.transport] = row
    names = [case.name for case in cases.all_cases("a library")]
    return sorted(rows.values(), key=lambda row: (names.index(row.case), row.transport))


def show_complaints(rows):
    for row in rows:
        for complaint in row.complaints:
            print(f"\n{row.case} (world {complaint['world']}, {row.transport}, point {complaint['point']})")
            for text in complaint["texts"]:
                print(f"  {text}")
            print(f"  again: {complaint['again']}")


def write_report(options, rows, what):
    """The table and the sum, on the terminal and in the files that were asked for. True if all is as it must be."""
    print("\n" + table(rows))
    total = sum(row.injected for row in rows)
    print(f"\n{total} faults injected, {sum(row.as_required for row in rows)} as required, "
          f"{sum(row.hangs for row in rows)} hangs, {sum(row.leaks for row in rows)} leaks, "
          f"{sum(row.late for row in rows)} late; {what}, bounds x {TIME_FACTOR:g}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"seed": options.seed, "points": options.points, "cores": os.cpu_count(), "time_factor": TIME_FACTOR,
                       "rows": [row.as_json() for row in rows]}, file, indent=1)
    if options.markdown:
        with open(options.markdown, "w") as file:
            file.write(table(rows) + "\n")
    return bool(rows) and all(row.is_good() for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="reports of other runs; nothing is run")
    parser.add_argument("--rank-program", type=os.path.abspath)
    parser.add_argument("--command", type=os.path.abspath)
    parser.add_argument("--jumping-clock", default="")
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--exact", action="store_true", help="--points also for cases whose points take seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", action="append")
    parser.add_argument("--without", action="append", metavar="CASE")
    parser.add_argument("--world", action="append", type=int)
    parser.add_argument("--transport", action="append")
    parser.add_argument("--point", type=int)
    parser.add_argument("--begin", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--short", action="store_true", help="one point of each case")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="with a complaint, all that the ranks have said")
    parser.add_argument("--json")
    parser.add_argument("--markdown")
    options = parser.parse_args()
    if options.merge:
        rows = merged(options.merge)
        show_complaints(rows)
        return 0 if write_report(options, rows, f"{len(options.merge)} runs") else 1
    if not options.rank_program or not options.command:
        parser.error("--rank-program and --command are needed")
    with places.Place(options.command) as place:
        chosen = short_form(options, place) if options.short else choose(options, place)
        if options.show:
            for case, world, transport, points in chosen:
                for point in points:
                    print(json.dumps(dataclasses.asdict(cases.plan_of(case, options.seed, world, transport, point))))
            return 0
        rows = Driver(options, place).run(chosen)
    return 0 if write_report(options, rows, f"seed {options.seed}") else 1


if __name__ == "__main__":
    sys.exit(main())
