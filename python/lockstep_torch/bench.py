"""Lockstep beside gloo, in Python, interleaved in one run.

    python -m lockstep_torch.bench [--worlds 2,4] [--sizes 4KiB,1MiB,25MiB] [--models mlp,wide] [--seconds 1] [--json FILE]

Prints, for each world and size, the median time of an all_reduce on both, and for each model the median time of a step of
DistributedDataParallel. Every result is verified.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
# Layers of a multilayer perceptron and the rows of a batch: little, balanced and much communication for its arithmetic.
MODELS = {"mlp": ([256, 256, 256, 10], 64), "deep": ([512] * 9 + [10], 128), "wide": ([2048, 2048, 2048, 10], 16)}


def bytes_of(text):
    for unit in ("KiB", "MiB", "B"):
        if text.endswith(unit):
            return int(float(text[:-len(unit)]) * UNITS[unit])
    raise argparse.ArgumentTypeError(f"{text} is no size; write it as 4KiB or 25MiB.")


def interleaved(calls, seconds):
    """The median time of each call in seconds; all ranks make as many of each, in turns."""
    times = [[] for _ in calls]
    for call in calls:
        call()
    once = torch.tensor([0.0], dtype=torch.float64)
    for call in calls:
        start = time.perf_counter()
        call()
        once += time.perf_counter() - start
    dist.all_reduce(once, op=dist.ReduceOp.MAX)
    for _ in range(max(5, min(20000, int(seconds / once.item())))):
        for call, took in zip(calls, times):
            start = time.perf_counter()
            call()
            took.append(time.perf_counter() - start)
    return [statistics.median(took) for took in times]


def all_reduce_times(size, groups, seconds):
    value = torch.ones(size // 4)
    for group in groups:
        check = torch.full((size // 4,), float(dist.get_rank() + 1))
        dist.all_reduce(check, group=group)
        if not check.eq(dist.get_world_size() * (dist.get_world_size() + 1) / 2).all():
            raise AssertionError("an all_reduce gave wrong numbers")
    value.zero_()  # sums of zeros stay what they are
    return interleaved([lambda group=group: dist.all_reduce(value, group=group) for group in groups], seconds)


def step_times(name, groups, seconds):
    layers, rows = MODELS[name]
    models = []
    for group in groups:
        torch.manual_seed(1)
        parts = [part for a, b in zip(layers, layers[1:]) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
        models.append(torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*parts), process_group=group))
    batch = torch.randn(rows, layers[0], generator=torch.Generator().manual_seed(dist.get_rank()))

    def step(model):
        model.zero_grad()
        model(batch).square().mean().backward()

    for model in models:
        step(model)
    first, second = ([parameter.grad for parameter in model.parameters()] for model in models)
    for one, other in zip(first, second):
        torch.testing.assert_close(one, other)
    return interleaved([lambda model=model: step(model) for model in models], seconds)


def run_rank(rank, world, options, folder):
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
    dist.init_process_group("lockstep", init_method=f"file://{folder}/job", rank=rank, world_size=world)
    groups = [dist.group.WORLD, dist.new_group(backend="gloo")]
    rows = [("all_reduce", text, all_reduce_times(bytes_of(text), groups, options.seconds)) for text in options.sizes]
    rows += [("ddp step", name, step_times(name, groups, options.seconds)) for name in options.models]
    dist.destroy_process_group()
    return [{"what": what, "of": of, "world": world, "lockstep_s": ours, "gloo_s": theirs, "ratio": theirs / ours}
            for what, of, (ours, theirs) in rows]


def spawned(rank, world, options, folder):
    rows = run_rank(rank, world, options, folder)
    if rank == 0:
        with open(f"{folder}/rows", "w", encoding="utf-8") as out:
            json.dump(rows, out)


def main():
    parser = argparse.ArgumentParser(prog="python -m lockstep_torch.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", default="2", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--sizes", default="4KiB,1MiB,25MiB", type=lambda text: [word for word in text.split(",") if word])
    parser.add_argument("--models", default="mlp,deep,wide", type=lambda text: [word for word in text.split(",") if word])
    parser.add_argument("--seconds", default=1.0, type=float, help="for each figure, on both sides together")
    parser.add_argument("--json", help="the file to write the figures to")
    options = parser.parse_args()
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        parser.error(f"there is no model {unknown[0]}; there are: {', '.join(MODELS)}.")
    for text in options.sizes:
        bytes_of(text)
    rows = []
    print(f"{'':24} {'ranks':>5} {'lockstep':>12} {'gloo':>12} {'gloo / lockstep':>16}")
    for world in options.worlds:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(spawned, (world, options, folder), nprocs=world)
            with open(f"{folder}/rows", encoding="utf-8") as source:
                measured = json.load(source)
        for row in measured:
            print(f"{row['what'] + ' ' + row['of']:24} {world:5} {row['lockstep_s'] * 1e6:9.1f} us "
                  f"{row['gloo_s'] * 1e6:9.1f} us {row['ratio']:16.2f}", flush=True)
        rows += measured
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump({"torch": torch.__version__, "rows": rows}, out, indent=1)


if __name__ == "__main__":
    sys.exit(main())
