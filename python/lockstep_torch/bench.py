"""Lockstep beside gloo, in Python, in turns in one run.

    python -m lockstep_torch.bench [--worlds 2,4,8] [--sizes 4KiB,1MiB,25MiB] [--models mlp,deep,wide]
                                   [--rounds 7] [--seconds 0.2] [--json FILE]

An operation is timed in batches: from the last rank in to the last rank out, by the number of calls. Each round
measures all sides, in every other round the other way round; the ratio is of one round's two medians. Every batch has
data of its own, and is verified: every element of a sum, and after steps of training that all ranks have the same
weights. A step is forward, backward and the optimizer's; `tuned` is DDP with gradient_as_bucket_view and static_graph,
on both sides. The JSON is that of `lockstep bench`, but for what the core alone can tell of a step: its overlap.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist

import lockstep_torch

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "B": 1}
# Layers of a multilayer perceptron and the rows of a batch: little, balanced and much communication for its arithmetic.
MODELS = {"mlp": ([256, 256, 256, 10], 64), "deep": ([512] * 9 + [10], 128), "wide": ([2048, 2048, 2048, 10], 16)}
BATCH_SECONDS = 0.005
BATCH_BYTES = 64 << 20  # at most
DDP_OPTIONS = {"default": {}, "tuned": {"gradient_as_bucket_view": True, "static_graph": True}}
SIDES = ("lockstep", "gloo")


def bytes_of(text):
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * factor)
    raise argparse.ArgumentTypeError(f"{text} is no size; write it as 4KiB or 25MiB.")


class AllReduces:
    """The calls of a batch: each on numbers of its own, whose sums are exact (tools/bench/pattern.h)."""

    PERIOD, PER_RANK, PER_CALL = 113, 17, 7

    def __init__(self, size, group):
        self.group, self.elements, self.done, self.buffers = group, size // 4, 0, []
        self.most = max(1, BATCH_BYTES // size)
        one = torch.arange(self.PERIOD)
        ranks = [(one + self.PER_RANK * rank).remainder(self.PERIOD).float() for rank in range(dist.get_world_size())]
        self.given, self.summed = (table.repeat(self.elements // self.PERIOD + 2) for table in (ranks[dist.get_rank()], sum(ranks)))

    def prepare(self, calls):
        self.buffers = [torch.empty(self.elements) for _ in range(calls)]

    def window(self, table, call):
        return table[self.PER_CALL * (self.done + call) % self.PERIOD:][:self.elements]

    def fill(self):
        for call, buffer in enumerate(self.buffers):
            buffer.copy_(self.window(self.given, call))

    def run(self):
        for buffer in self.buffers:
            dist.all_reduce(buffer, group=self.group)

    def verify(self):
        right = [buffer.equal(self.window(self.summed, call)) for call, buffer in enumerate(self.buffers)]
        self.done += len(right)
        return all(right)


class Steps:
    """The steps of a batch, on examples of its own."""

    most = 1000

    def __init__(self, model, group, options):
        self.layers, self.rows = MODELS[model]
        torch.manual_seed(1)
        parts = [part for a, b in zip(self.layers, self.layers[1:]) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
        self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*parts), process_group=group, **options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.random = torch.Generator().manual_seed(dist.get_rank())

    def prepare(self, calls):
        self.calls = calls

    def fill(self):
        self.examples, self.targets = (torch.randn(self.rows, width, generator=self.random)
                                       for width in (self.layers[0], self.layers[-1]))

    def run(self):
        for _ in range(self.calls):
            self.optimizer.zero_grad()
            self.loss = (self.model(self.examples) - self.targets).square().mean()
            self.loss.backward()
            self.optimizer.step()

    def verify(self):
        lowest = torch.stack([parameter.detach().view(torch.int32).sum() for parameter in self.model.parameters()])
        highest = lowest.clone()
        dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        return lowest.equal(highest)

    def losses(self):
        """Of the first steps, which all sides do alike."""
        self.prepare(1)
        losses = []
        for _ in range(3):
            self.fill()
            self.run()
            losses.append(self.loss.item())
        return torch.tensor(losses)


class Side:
    """One backend: its group, what it is called, and what it measured in each round."""

    def __init__(self, name, group):
        self.name, self.group = name, group
        self.micros, self.cpu_s, self.verified = [], [], True

    def barrier(self):
        dist.all_reduce(torch.zeros(1), group=self.group)

    def batch(self, work):
        """When it began and ended here, in nanoseconds of a clock that all ranks of the host share, and its processor
        time."""
        work.fill()
        self.barrier()
        before, start = time.process_time_ns(), time.monotonic_ns()
        work.run()
        end, after = time.monotonic_ns(), time.process_time_ns()
        self.barrier()  # whoever is out first would take the core of one that is not
        self.verified = work.verify() and self.verified
        return [start, end, after - before]

    def plan(self, work, seconds):
        """Prepares so many calls as make a batch; gives them, and the batches of a round. All ranks have the same."""
        work.prepare(1)
        self.batch(work)
        work.prepare(3)
        start, end, _ = self.batch(work)
        once = torch.tensor([(end - start) / 3e9], dtype=torch.float64)
        dist.all_reduce(once, op=dist.ReduceOp.MAX)
        calls = max(1, min(1000, work.most, round(BATCH_SECONDS / once.item())))
        work.prepare(calls)
        return calls, max(3, min(100, round(seconds / (calls * once.item()))))

    def measure(self, work, calls, batches):
        starts, ends, used = torch.tensor([self.batch(work) for _ in range(batches)]).T.contiguous()
        dist.all_reduce(starts, op=dist.ReduceOp.MAX)
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        dist.all_reduce(used)
        self.micros.append(statistics.median((ends - starts).tolist()) / 1e3 / calls)
        self.cpu_s.append(used.sum().item() / 1e9 / batches / calls)


def in_turns(sides, works, options):
    plans = [side.plan(work, options.seconds) for side, work in zip(sides, works)]
    for turn in range(options.rounds):
        order = list(zip(sides, works, plans))
        for side, work, plan in order if turn % 2 == 0 else reversed(order):
            side.measure(work, *plan)


def row_of(sides, **what):
    ours, peer = sides
    right = torch.tensor([int(side.verified) for side in sides])
    dist.all_reduce(right, op=dist.ReduceOp.MIN)
    row = {**what, "nproc": dist.get_world_size(), "hosts": 1, "dtype": "float32",
           "median_us": statistics.median(ours.micros), "cpu_s": statistics.median(ours.cpu_s),
           "verified": bool(right.all())}
    ratios = [theirs / mine for theirs, mine in zip(peer.micros, ours.micros)]
    row["peers"] = {peer.name: {"median_us": statistics.median(peer.micros), "ratio": statistics.median(ratios),
                                "ratio_low": min(ratios), "ratio_high": max(ratios)}}
    return row


def all_reduce_row(size, groups, options):
    sides = [Side(name, groups[name]) for name in SIDES]
    in_turns(sides, [AllReduces(size, side.group) for side in sides], options)
    row = row_of(sides, op="all_reduce", bytes=size, peer_dtype="float32", memory="foreign")
    rate, world = size / row["median_us"] / 1e3, dist.get_world_size()
    return {**row, "algbw_gbs": rate, "busbw_gbs": rate * 2 * (world - 1) / world}


def step_row(case, groups, options):
    model, option = case
    sides = [Side(name, groups[name]) for name in SIDES]
    works = [Steps(model, side.group, DDP_OPTIONS[option]) for side in sides]
    losses = [work.losses() for work in works]
    for side, theirs in zip(sides, losses):
        side.verified = theirs.allclose(losses[0], rtol=1e-3)
    in_turns(sides, works, options)
    size = sum(parameter.numel() * parameter.element_size() for parameter in works[0].model.parameters())
    return row_of(sides, op="ddp", model=model, option=option, batch=works[0].rows, bytes=size,
                  threads=torch.get_num_threads())


def run_rank(rank, world, options, folder):
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
    given = lockstep_torch.Options()
    given.stall_after = datetime.timedelta(seconds=120)  # no rank is taken for stopped, however busy the machine is
    dist.init_process_group("lockstep", init_method=f"file://{folder}/job", rank=rank, world_size=world, pg_options=given)
    gloo = dist.new_group(backend="gloo")
    groups = {"lockstep": dist.group.WORLD, "gloo": gloo}
    cases = [(all_reduce_row, bytes_of(text)) for text in options.sizes]
    cases += [(step_row, (name, option)) for name in options.models for option in DDP_OPTIONS]
    for case, of in cases:
        row = case(of, groups, options)
        if rank == 0:
            with open(f"{folder}/rows", "a", encoding="utf-8") as out:
                print(json.dumps(row), file=out)
    dist.destroy_process_group()


def rows_in(folder):
    return [json.loads(line) for line in pathlib.Path(folder, "rows").read_text(encoding="utf-8").splitlines()]


def head():
    return f"{'':20} {'ranks':>5} {'us':>11} {'cpu us':>11} {'ok':>4} {'gloo us':>11} {'ratio':>8} {'low-high':>13}"


def line_of(row):
    name, gloo = f"{row['op']} {row.get('model', row['bytes'])}", row["peers"]["gloo"]
    if row.get("option") == "tuned":
        name += " tuned"
    return (f"{name:20} {row['nproc']:5} {row['median_us']:11.1f} {row['cpu_s'] * 1e6:11.1f} "
            f"{'yes' if row['verified'] else 'NO':>4} {gloo['median_us']:11.1f} {gloo['ratio']:8.2f} "
            f"{gloo['ratio_low']:7.2f}-{gloo['ratio_high']:.2f}")


def words(text):
    return [word for word in text.split(",") if word]


def arguments():
    parser = argparse.ArgumentParser(prog="python -m lockstep_torch.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", default="2,4,8", type=lambda text: [int(word) for word in words(text)])
    parser.add_argument("--sizes", default="4KiB,1MiB,25MiB", type=words)
    parser.add_argument("--models", default="mlp,deep,wide", type=words)
    parser.add_argument("--rounds", default=7, type=int)
    parser.add_argument("--seconds", default=0.2, type=float, help="for one side in one round")
    parser.add_argument("--json", help="the file to write the figures to")
    options = parser.parse_args()
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        parser.error(f"there is no model {unknown[0]}; there are: {', '.join(MODELS)}.")
    try:
        for text in options.sizes:
            bytes_of(text)
    except (argparse.ArgumentTypeError, ValueError):
        parser.error(f"{text} is no size; write it as 4KiB or 25MiB.")
    return options


def main():
    options = arguments()
    rows = []
    print(head())
    for world in options.worlds:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(run_rank, (world, options, folder), nprocs=world)
            measured = rows_in(folder)
        print("\n".join(map(line_of, measured)), flush=True)
        rows += measured
    if options.json:
        machine = {"host": platform.node(), "cores": len(os.sched_getaffinity(0)), "processor": platform.processor(),
                   "system": f"{platform.system()} {platform.release()}", "architecture": platform.machine()}
        report = {"machine": machine, "versions": {"gloo": f"torch {torch.__version__}"}, "rows": rows}
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1), encoding="utf-8")
    if not all(row["verified"] for row in rows):
        sys.exit("a result was wrong; what is above is worth nothing")


if __name__ == "__main__":
    main()
