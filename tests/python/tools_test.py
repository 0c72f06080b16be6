"""What a Python user looks at a job with: the trace, read by torch's own analyzer, and the bench."""

import argparse
import contextlib
import io
import logging
import pathlib
import pickle
import tempfile
import unittest
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.flight_recorder import fr_trace
from torch.distributed.flight_recorder.components.fr_logger import FlightRecorderLogger

import lockstep_torch
from lockstep_torch import bench
from worlds import World

KINDS = ["all_reduce", "broadcast", "reduce", "all_gather", "_all_gather_base", "all_gather_v", "gather", "scatter",
         "reduce_scatter", "_reduce_scatter_base", "all_to_all", "all_to_all", "barrier", "all_gather", "all_reduce"]


def every_kind(rank, size):
    one, whole = torch.ones(2, 3), torch.ones(2 * size, 3)
    dist.all_reduce(one)
    dist.broadcast(one, 1)
    dist.reduce(one, 0)
    dist.all_gather([torch.empty(2, 3) for _ in range(size)], one)
    dist.all_gather_into_tensor(whole, one)
    dist.all_gather([torch.empty(r + 1) for r in range(size)], torch.ones(rank + 1))
    dist.gather(one, [torch.empty(2, 3) for _ in range(size)] if rank == 0 else None)
    dist.scatter(one, [torch.ones(2, 3) for _ in range(size)] if rank == 0 else None)
    dist.reduce_scatter(one, [torch.ones(2, 3) for _ in range(size)])
    dist.reduce_scatter_tensor(one, whole)
    dist.all_to_all_single(whole, whole.clone())
    dist.all_to_all([torch.empty(1) for _ in range(size)], [torch.ones(1) for _ in range(size)])
    dist.barrier(async_op=True).wait()
    dist.all_gather_object([None] * size, {}, group=None)


def traced(rank, size, folder):
    every_kind(rank, size)
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(torch.ones(7), group=pair)
        dist.send(torch.ones(5), 1) if rank == 0 else dist.recv(torch.empty(5), 0)
    pathlib.Path(folder, "whole", f"rank_{rank}").write_bytes(lockstep_torch.trace())
    messages = pickle.loads(lockstep_torch.trace(messages=True))
    # Rank 1 does not come to the next one, while the others wait.
    work = dist.all_reduce(torch.ones(2), async_op=True) if rank != 1 else None
    pathlib.Path(folder, "hangs", f"rank_{rank}").write_bytes(lockstep_torch.trace())
    if rank == 1:
        dist.all_reduce(torch.ones(2))
    else:
        work.wait()
    return [(entry["profiling_name"], entry["state"], entry["output_sizes"]) for entry in messages["entries"]]


def analyzed(folder):
    FlightRecorderLogger().set_log_level(logging.ERROR)
    fr_trace.main([str(folder), "-o", f"{folder}.db"])
    return pickle.loads(pathlib.Path(f"{folder}.db").read_bytes())[1]


class TraceTest(unittest.TestCase):
    def test_torchs_analyzer_reads_it(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("whole", "hangs"):
                pathlib.Path(folder, name).mkdir()
            messages = World(3).run(traced, folder)
            whole, hangs = analyzed(pathlib.Path(folder, "whole")), analyzed(pathlib.Path(folder, "hangs"))
        self.assertEqual(messages[0], [("gloo:send 0->1", "completed", [])])
        self.assertEqual(messages[1:], [[("gloo:recv 1<-0", "completed", [[5]])], []])
        of_all = [call for call in whole.collectives if len(call.expected_ranks) == 3]
        self.assertEqual([call.collective_name.removeprefix("gloo:") for call in of_all][:len(KINDS) - 2], KINDS[:-2])
        self.assertEqual([call for call in whole.collectives if not call.pass_check], [])
        self.assertEqual([call.expected_ranks for call in whole.collectives if len(call.expected_ranks) == 2], [{0, 1}])
        missing = [call for call in hangs.collectives if call.missing_ranks]
        self.assertEqual([(call.collective_name, call.missing_ranks) for call in missing], [("gloo:all_reduce", {1})])


class BenchTest(unittest.TestCase):
    def test_rows_are_those_of_the_communication_bench(self):
        options = argparse.Namespace(sizes=["4KiB"], models=["mlp"], rounds=2, seconds=0.01)
        with tempfile.TemporaryDirectory() as folder:
            World(2, joins=False).run(bench.run_rank, options, folder)
            rows = bench.rows_in(folder)
        self.assertEqual([(row["op"], row["nproc"], row["bytes"]) for row in rows],
                         [("all_reduce", 2, 4096), ("ddp", 2, 4 * (2 * (256 * 256 + 256) + 256 * 10 + 10))])
        for row in rows:
            gloo = row["peers"]["gloo"]
            self.assertTrue(row["verified"] and row["median_us"] > 0 and row["cpu_s"] > 0)
            self.assertTrue(gloo["ratio_low"] <= gloo["ratio"] <= gloo["ratio_high"], gloo)
            self.assertIn(f" {row['nproc']} ", bench.line_of(row))

    def test_wrong_arguments_are_named(self):
        for wrong, said in ((["--sizes", "4 kilos"], "4 kilos is no size"),
                            (["--models", "vast"], "there is no model vast")):
            said_there = io.StringIO()
            with mock.patch("sys.argv", ["bench", *wrong]), contextlib.redirect_stderr(said_there):
                self.assertRaises(SystemExit, bench.arguments)
            self.assertIn(said, said_there.getvalue())


if __name__ == "__main__":
    unittest.main(warnings="ignore")  # torch has warnings for what it renames
