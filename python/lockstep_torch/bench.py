"""Lockstep beside gloo, in Python, in turns in one run.

    python -m lockstep_torch.bench [--worlds 2,4,8] [--sizes 4KiB,1MiB,25MiB] [--models mlp,deep,wide]
                                   [--rounds 7] [--seconds 0.2] [--json FILE]

An operation is timed in batches: from the last rank in to the last rank out, by the number of calls. Each round
measures both sides, in every other round the other way round; the ratio is of one round's two medians. Every result is
verified. The JSON is that of `lockstep bench`.
"""

import argparse
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

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "B": 1}
# Layers of a multilayer perceptron and the rows of a batch: little, balanced and much communication for its arithmetic.
MODELS = {"mlp": ([256, 256, 256, 10], 64), "deep": ([512] * 9 + [10], 128), "wide": ([2048, 2048, 2048, 10], 16)}
BATCH_SECONDS = 0.005


def bytes_of(text):
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * factor)
    raise argparse.ArgumentTypeError(f"{text} is no size; write it as 4KiB or 25MiB.")


class Side:
    """One backend: its group, what it is called, and what it measured in each round."""

    def __init__(self, name, group):
        self.name, self.group = name, group
        self.micros, self.cpu_s = [], []

    def barrier(self):
        dist.all_reduce(torch.zeros(1), group=self.group)

    def batch(self, call, iterations):
        """When it began and ended here, in nanoseconds of a clock that all ranks of the host share."""
        self.barrier()
        start = time.monotonic_ns()
        for _ in range(iterations):
            call()
        return [start, time.monotonic_ns()]

    def plan(self, call, seconds):
        """How many calls make a batch, and how many batches a round; all ranks have the same."""
        self.batch(call, 1)
        start, end = self.batch(call, 3)
        once = torch.tensor([(end - start) / 3e9], dtype=torch.float64)
        dist.all_reduce(once, op=dist.ReduceOp.MAX)
        iterations = max(1, min(1000, round(BATCH_SECONDS / once.item())))
        return iterations, max(3, min(100, round(seconds / (iterations * once.item()))))

    def measure(self, call, iterations, batches):
        before = time.process_time()
        times = torch.tensor([self.batch(call, iterations) for _ in range(batches)])
        used = torch.tensor([time.process_time() - before], dtype=torch.float64)
        starts, ends = times[:, 0].clone(), times[:, 1].clone()
        dist.all_reduce(starts, op=dist.ReduceOp.MAX)
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        dist.all_reduce(used)
        self.micros.append(statistics.median((ends - starts).tolist()) / 1e3 / iterations)
        self.cpu_s.append(used.item() / batches / iterations)


def in_turns(sides, calls, options):
    plans = [side.plan(call, options.seconds) for side, call in zip(sides, calls)]
    for turn in range(options.rounds):
        order = list(zip(sides, calls, plans))
        for side, call, plan in order if turn % 2 == 0 else reversed(order):
            side.measure(call, *plan)


def row_of(sides, **what):
    ours, *peers = sides
    row = {**what, "hosts": 1, "dtype": "float32", "median_us": statistics.median(ours.micros),
           "cpu_s": statistics.median(ours.cpu_s), "verified": True, "peers": {}}
    for peer in peers:
        ratios = [theirs / mine for theirs, mine in zip(peer.micros, ours.micros)]
        row["peers"][peer.name] = {"median_us": statistics.median(peer.micros), "ratio": statistics.median(ratios),
                                   "ratio_low": min(ratios), "ratio_high": max(ratios)}
    return row


def all_reduce_row(size, sides, options):
    world = dist.get_world_size()
    for side in sides:
        numbers = torch.arange(size // 4, dtype=torch.float32).remainder_(1000)
        check, expected = numbers + dist.get_rank(), numbers * world + world * (world - 1) / 2
        dist.all_reduce(check, group=side.group)
        if not check.equal(expected):
            raise AssertionError(f"an all_reduce on {side.name} gave wrong numbers")
    value = torch.zeros(size // 4)  # sums of zeros stay what they are
    in_turns(sides, [lambda side=side: dist.all_reduce(value, group=side.group) for side in sides], options)
    return row_of(sides, op="all_reduce", nproc=world, bytes=size, memory="foreign")


def step_row(name, sides, options):
    layers, rows = MODELS[name]
    models = []
    for side in sides:
        torch.manual_seed(1)
        parts = [part for a, b in zip(layers, layers[1:]) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
        models.append(torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*parts), process_group=side.group))
    batch = torch.randn(rows, layers[0], generator=torch.Generator().manual_seed(dist.get_rank()))

    def step(model):
        model.zero_grad()
        model(batch).square().mean().backward()

    for model in models:
        step(model)
    first, second = ([parameter.grad for parameter in model.parameters()] for model in models)
    for one, other in zip(first, second):
        torch.testing.assert_close(one, other)
    in_turns(sides, [lambda model=model: step(model) for model in models], options)
    size = sum(parameter.numel() * parameter.element_size() for parameter in models[0].parameters())
    return row_of(sides, op="ddp", model=name, batch=rows, nproc=dist.get_world_size(), bytes=size,
                  threads=torch.get_num_threads())


def run_rank(rank, world, options, folder):
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
    dist.init_process_group("lockstep", init_method=f"file://{folder}/job", rank=rank, world_size=world)
    groups = {"lockstep": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    cases = [(all_reduce_row, bytes_of(text)) for text in options.sizes] + [(step_row, name) for name in options.models]
    for case, of in cases:
        row = case(of, [Side(name, group) for name, group in groups.items()], options)
        if rank == 0:
            with open(f"{folder}/rows", "a", encoding="utf-8") as out:
                print(json.dumps(row), file=out)
    dist.destroy_process_group()


def rows_in(folder):
    return [json.loads(line) for line in pathlib.Path(folder, "rows").read_text(encoding="utf-8").splitlines()]


def line_of(row):
    gloo = row["peers"]["gloo"]
    name = f"{row['op']} {row.get('model', row['bytes'])}"
    return (f"{name:20} {row['nproc']:5} {row['median_us']:11.1f} {row['cpu_s'] * 1e6:11.1f} {gloo['median_us']:11.1f} "
            f"{gloo['ratio']:8.2f} {gloo['ratio_low']:8.2f}-{gloo['ratio_high']:.2f}")


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
    print(f"{'':20} {'ranks':>5} {'us':>11} {'cpu us':>11} {'gloo us':>11} {'ratio':>8} {'low-high':>13}")
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


if __name__ == "__main__":
    sys.exit(main())
