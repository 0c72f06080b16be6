"""What a Python user looks at a job with: the trace, read by torch's own analyzer, and the bench."""

import contextlib
import functools
import importlib.metadata
import io
import json
import logging
import pathlib
import pickle
import re
import tempfile
import threading
import types
import unittest
from unittest import mock

import torch
import torch._dynamo  # once, for all ranks: optimizers import it
import torch.distributed as dist
from torch.distributed.flight_recorder import fr_trace
from torch.distributed.flight_recorder.components.fr_logger import FlightRecorderLogger

import lockstep_torch
from lockstep_torch import bench
from lockstep_torch._trace import BACKEND, NAMES, UNEVEN_GATHER
from worlds import World

BENCH = pathlib.Path(__file__).resolve().parents[2] / "tools" / "bench"
KINDS = ["all_reduce", "broadcast", "reduce", "all_gather", "_all_gather_base", UNEVEN_GATHER, "gather", "scatter",
         "reduce_scatter", "_reduce_scatter_base", "all_to_all", "all_to_all", NAMES.get("barrier", "barrier"),
         NAMES["monitored_barrier"], "all_gather", "all_reduce"]


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
    lockstep_torch.monitored_barrier()
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


class Blocks:
    """Whoever lets go of it waits."""

    def __init__(self, until):
        self.until = until

    def __del__(self):
        if threading.current_thread() is not threading.main_thread():  # which may run the operation itself, if it waits first
            self.until.wait()


def traced_while_the_worker_is_busy(rank, size):
    """The thread that completes the works of rank 0 is kept by the first: it lets go of the last of its tensor."""
    store, done = dist.distributed_c10d._get_default_store(), threading.Event()
    if rank == 1:
        store.wait(["issued"])
        dist.all_reduce(torch.ones(2))
        dist.barrier()
        dist.barrier()
        return None
    value = torch.ones(2)
    value.attached = Blocks(done)
    dist.all_reduce(value, async_op=True)
    del value
    store.set("issued", "")
    asked, waited = dist.barrier(async_op=True), dist.barrier(async_op=True)
    waited.wait()
    assert asked.is_completed()
    noted = [entry["state"] for entry in pickle.loads(lockstep_torch.trace())["entries"]]
    done.set()
    return noted


def traced_after_refusals(rank, size):
    """Rank 0 makes wrong calls, which are refused there."""
    wrong, value = torch.ones(2).expand(3, 2), torch.ones(2)
    refused = (lambda: dist.all_reduce(wrong), lambda: dist.all_reduce(wrong, async_op=True), lambda: dist.recv(wrong, 1))
    for call in refused if rank == 0 else ():
        try:
            call()
        except ValueError:
            pass
    dist.all_reduce(value)
    dist.send(value, 1) if rank == 0 else dist.recv(value, 0)
    entries = [entry for messages in (False, True) for entry in pickle.loads(lockstep_torch.trace(messages))["entries"]]
    return [(entry["op_id"], entry["state"]) for entry in entries]


def analyzed(folder):
    FlightRecorderLogger().set_log_level(logging.ERROR)
    fr_trace.main([str(folder), "-o", f"{folder}.db"])
    return pickle.loads(pathlib.Path(f"{folder}.db").read_bytes())[1]


class VersionTest(unittest.TestCase):
    def test_a_torch_that_is_no_release_is_known_by_all_of_its_version(self):
        load = lockstep_torch._load
        for built, found, fits in (("2.14.0+cpu", "2.14.0+cu130", True), ("2.14.0+cpu", "2.14.1+cpu", False),
                                   ("2.14.0a0+git1", "2.14.0a0+git1", True), ("2.14.0a0+git1", "2.14.0a0+git2", False),
                                   ("2.14.0.dev1+cpu", "2.14.0.dev2+cpu", False)):
            module = types.SimpleNamespace(built_for_torch=built)
            with self.subTest(built, found=found), mock.patch.object(torch, "__version__", found), \
                    mock.patch.object(load.importlib, "import_module", return_value=module):
                if fits:
                    self.assertIs(load.extension(), module)
                else:
                    self.assertRaisesRegex(ImportError, re.escape(f"built for torch {built}, and this"), load.extension)
        self.assertEqual(lockstep_torch._C.built_for_torch, torch.__version__)
        self.assertEqual(importlib.metadata.requires("lockstep-torch"), [f"torch (=={torch.__version__.split('+')[0]})"])


class TraceTest(unittest.TestCase):
    def test_torchs_analyzer_reads_it(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("whole", "hangs"):
                pathlib.Path(folder, name).mkdir()
            messages = World(3).run(traced, folder)
            whole, hangs = analyzed(pathlib.Path(folder, "whole")), analyzed(pathlib.Path(folder, "hangs"))
        self.assertEqual(messages[0], [(f"{BACKEND}:send 0->1", "completed", [])])
        self.assertEqual(messages[1:], [[(f"{BACKEND}:recv 1<-0", "completed", [[5]])], []])
        of_all = [call for call in whole.collectives if len(call.expected_ranks) == 3]
        self.assertEqual([call.collective_name.removeprefix(f"{BACKEND}:") for call in of_all][:len(KINDS) - 2], KINDS[:-2])
        self.assertEqual([call for call in whole.collectives if not call.pass_check], [])
        self.assertEqual([call.expected_ranks for call in whole.collectives if len(call.expected_ranks) == 2], [{0, 1}])
        missing = [call for call in hangs.collectives if call.missing_ranks]
        self.assertEqual([(call.collective_name, call.missing_ranks) for call in missing], [(f"{BACKEND}:all_reduce", {1})])

    def test_what_was_waited_for_is_complete(self):
        self.assertEqual(World(2).run(traced_while_the_worker_is_busy)[0][1:], ["completed"] * 2)

    def test_a_refused_call_has_no_number(self):
        self.assertEqual(World(2).run(traced_after_refusals), [[(1, "completed"), (1, "completed")]] * 2)


def measured(*words):
    """What the bench prints and writes, and how it ends, with ranks that are forked: torch is imported already."""
    forked = functools.partial(torch.multiprocessing.start_processes, start_method="fork")
    said, ended = io.StringIO(), None
    with tempfile.TemporaryDirectory() as folder:
        few = ["--worlds", "2", "--sizes", "4KiB", "--models", "mlp", "--rounds", "2", "--seconds", "0.01"]
        with mock.patch("sys.argv", ["bench", *few, "--json", f"{folder}/json"]), contextlib.redirect_stdout(said), \
                mock.patch("torch.multiprocessing.spawn", forked):
            try:
                bench.main()
            except SystemExit as end:
                ended = end.code
        return said.getvalue(), json.loads(pathlib.Path(folder, "json").read_text(encoding="utf-8"))["rows"], ended


def keys_of(report):
    """Of a row that `lockstep bench` writes, by its source."""
    body = (BENCH / report).read_text(encoding="utf-8").split("nlohmann::json json_of(const", 1)[1].split(";", 1)[0]
    return set(re.findall(r'\{"(\w+)",', body))


class BenchTest(unittest.TestCase):
    def test_rows_are_those_of_the_communication_bench(self):
        printed, rows, ended = measured()
        self.assertIsNone(ended)
        gradients = 4 * (2 * (256 * 256 + 256) + 256 * 10 + 10)
        self.assertEqual([(row["op"], row["nproc"], row["bytes"], row.get("option"), list(row["peers"])) for row in rows],
                         [("all_reduce", 2, 4096, None, ["gloo"]), ("ddp", 2, gradients, "default", ["gloo"]),
                          ("ddp", 2, gradients, "tuned", ["gloo"])])
        self.assertEqual(set(rows[0]), keys_of("collective_report.cpp"))
        self.assertEqual(set(rows[1]), keys_of("training_report.cpp") - {"overlap", "exposed_comm_us"})
        for row, line in zip(rows, printed.splitlines()[1:], strict=True):
            self.assertTrue(row["verified"] and row["median_us"] > 0 and row["cpu_s"] > 0)
            for peer in row["peers"].values():
                self.assertTrue(peer["ratio_low"] <= peer["ratio"] <= peer["ratio_high"], peer)
            self.assertRegex(line, rf"^{row['op']} .* {row['nproc']} .* yes ")

    def test_a_wrong_result_is_noticed(self):
        """One element of one sum, and one weight, on one rank."""
        def spoiled(run, tensor_of):
            def run_and_spoil(work):
                run(work)
                if dist.get_rank() == 1:
                    tensor_of(work).view(-1)[7] += 1
            return run_and_spoil

        sums = spoiled(bench.AllReduces.run, lambda work: work.buffers[-1])
        steps = spoiled(bench.Steps.run, lambda work: next(work.model.parameters()).detach())
        with mock.patch.object(bench.AllReduces, "run", sums), mock.patch.object(bench.Steps, "run", steps):
            printed, rows, ended = measured()
        self.assertEqual([row["verified"] for row in rows], [False] * 3, printed)
        self.assertIn("a result was wrong", ended)

    def test_wrong_arguments_are_named(self):
        for wrong, said in ((["--sizes", "4 kilos"], "4 kilos is no size"),
                            (["--models", "vast"], "there is no model vast")):
            said_there = io.StringIO()
            with mock.patch("sys.argv", ["bench", *wrong]), contextlib.redirect_stderr(said_there):
                self.assertRaises(SystemExit, bench.arguments)
            self.assertIn(said, said_there.getvalue())


if __name__ == "__main__":
    unittest.main(warnings="ignore")  # torch has warnings for what it renames
