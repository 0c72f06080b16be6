"""The same models, weights, batches and options in torch's DistributedDataParallel on gloo and in Lockstep's: losses and
gradients agree, and so do the buckets. The same situations are errors. And the same indices from both samplers.

    parity.py LOCKSTEP RANK_PROGRAM
"""

import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

LOCKSTEP, PROGRAM = "", ""
STEPS = 6
LOGGED = ("bucket_sizes", "rebuilt_bucket_sizes", "has_rebuilt_buckets", "dtypes", "world_size", "bucket_cap_bytes",
          "total_parameter_size_bytes", "num_buckets_reduced")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(8, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.b = torch.nn.Linear(16, 16)
        self.c = torch.nn.Linear(16, 16)
        self.d = torch.nn.Linear(16, 16)

    def forward(self, x, use_c, use_d):
        y = torch.relu(self.norm(self.a(x)))
        y = self.b(y)
        if use_c:
            y = y + self.c(y)
        if use_d:
            y = y + self.d(y)
        return y


def torch_rank(rank, size, folder, how, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    net = Net()
    net.load_state_dict({name.removeprefix("module."): value for name, value in torch.load(folder / "weights.pt").items()})
    options = {key: how[key] for key in ("find_unused_parameters", "static_graph", "gradient_as_bucket_view",
                                         "bucket_cap_mb") if key in how}
    model = DistributedDataParallel(net, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    lines = []
    for step in range(STEPS):
        x = torch.load(folder / f"batch{step}_{rank}")
        uses = how["uses"][step][rank]
        if how.get("accumulate") and step % 2 == 0:
            with model.no_sync():
                model(x, *uses).square().mean().backward()
            continue
        loss = model(x, *uses).square().mean()
        loss.backward()
        data = model._get_ddp_logging_data()
        lines.append({"loss": loss.item(),
                      "gradients": {name: None if p.grad is None else p.grad.flatten().tolist()
                                    for name, p in net.named_parameters()},
                      "logged": data,
                      "rebuilt": data.get("rebuilt_per_bucket_param_indices", "")})
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        (folder / "torch.json").write_text(json.dumps(lines))
    dist.destroy_process_group()


def raises(act):
    try:
        act()
    except (RuntimeError, ValueError, AssertionError, TypeError):
        return True
    return False


def torch_situations(rank, size, folder, how, port):
    """Whether each of them is an error, as `situations()` of the rank program says it of ours."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    def train(uses, **options):
        model = DistributedDataParallel(Net(), **options)
        for use_d in uses:
            model(torch.ones(4, 8), True, use_d).sum().backward()

    def registered_twice():
        model = DistributedDataParallel(Net())
        for _ in range(2):
            model.register_comm_hook(None, default_hooks.allreduce_hook)

    def registered_late():
        model = DistributedDataParallel(Net())
        model(torch.ones(4, 8), True, True).sum().backward()
        model.register_comm_hook(None, default_hooks.allreduce_hook)

    found = {
        "unused": raises(lambda: train([False, True])),
        "unused and looked for": raises(lambda: train([False, True, False], find_unused_parameters=True)),
        "static": raises(lambda: train([False, False, False], static_graph=True)),
        "static that changes": raises(lambda: train([False, True, True], static_graph=True)),
        "registered twice": raises(registered_twice),
        "registered late": raises(registered_late),
        "frozen": raises(lambda: DistributedDataParallel(Net().requires_grad_(False))),
        "delayed until nothing": raises(lambda: DistributedDataParallel(
            Net(), delay_all_reduce_named_params=[("a.bias", None)])),
        "sample rate": raises(lambda: DistributedDataParallel(Net())._set_ddp_runtime_logging_sample_rate(0)),
    }
    if rank == 0:
        (folder / "torch.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Parity(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_both(self, size, how):
        torch.manual_seed(3)
        wrapped = torch.nn.Module()  # whose state is that of a wrapped one: an OrderedDict with metadata
        wrapped.module = Net()
        torch.save(wrapped.state_dict(), self.folder / "weights.pt")
        for step, rank in itertools.product(range(STEPS), range(size)):
            torch.save(torch.randn(4, 8), self.folder / f"batch{step}_{rank}")
        how.setdefault("uses", [[[True, True]] * size] * STEPS)
        how["steps"] = STEPS
        (self.folder / "case.json").write_text(json.dumps(how))
        rank = torch_situations if how.get("situations") else torch_rank
        mp.start_processes(rank, (size, self.folder, how, free_port()), nprocs=size, start_method="fork")
        ours = subprocess.run([LOCKSTEP, "run", "--nproc", str(size), "--prefix", "", PROGRAM, self.folder],
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(ours.returncode, 0, ours.stderr)
        theirs = json.loads((self.folder / "torch.json").read_text())
        return [json.loads(line) for line in ours.stdout.splitlines() if line.startswith("{")], theirs

    def compare(self, size, **how):
        ours, theirs = self.run_both(size, how)
        self.assertEqual(len(ours), len(theirs))
        for step, (a, b) in enumerate(zip(ours, theirs)):
            self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-6, msg=f"step {step}")
            for name in b["gradients"]:
                x, y = a["gradients"][name], b["gradients"][name]
                self.assertEqual(x is None, y is None, f"step {step}, {name}")
                if x is not None:
                    torch.testing.assert_close(torch.tensor(x), torch.tensor(y), rtol=1e-5, atol=1e-6)
        # Threads of gloo's own are all that it has and we have not.
        self.assertLessEqual(set(theirs[-1]["logged"]) - {"gloo_num_threads"}, set(ours[-1]["logged"]))
        for key in LOGGED:
            self.assertEqual(ours[-1]["logged"][key], theirs[-1]["logged"].get(key, ""), key)
        rebuilt = theirs[-1]["rebuilt"]
        self.assertEqual(bool(rebuilt), not how.get("find_unused_parameters"))
        if rebuilt:
            wanted = [[int(i) for i in bucket.split()] for bucket in rebuilt.split(",") if bucket.strip()]
            self.assertEqual(ours[-1]["buckets"], wanted)

    def test_every_parameter_is_used(self):
        for size in (2, 3):
            self.compare(size)

    def test_small_buckets_are_rebuilt_alike(self):
        self.compare(2, bucket_cap_mb=0.001)
        self.compare(2, bucket_cap_mb=0.002, gradient_as_bucket_view=False)

    def test_unused_parameters(self):
        uses = [[[True, False], [True, True]], [[False, False]] * 2, [[True, True]] * 2] * 2
        self.compare(2, uses=uses, find_unused_parameters=True, bucket_cap_mb=0.001)

    def test_a_static_graph_with_an_unused_layer(self):
        self.compare(2, uses=[[[True, False]] * 2] * STEPS, static_graph=True)

    def test_gradients_are_accumulated(self):
        self.compare(2, accumulate=True)

    def test_the_same_situations_are_errors(self):
        ours, theirs = self.run_both(2, {"situations": True})
        self.assertEqual(sum(theirs.values()), 6, theirs)
        # A hook that comes late torch takes. Models that differ in a shape its rank 0 does not notice, and waits; in a
        # type nobody does.
        self.assertEqual(ours[0], theirs | {"registered late": True, "shape": True, "type": True})

    def test_the_samplers_give_the_same_indices(self):
        cases = [{"size": size, "replicas": replicas, "rank": rank, "shuffle": shuffle, "seed": seed, "epoch": epoch,
                  "drop_last": drop_last}
                 for size, replicas, shuffle, seed, epoch, drop_last in itertools.product(
                     (1, 5, 100, 1000), (1, 2, 7), (True, False), (0, 17), (0, 3), (True, False))
                 for rank in (0, replicas - 1) if size >= replicas]
        (self.folder / "case.json").write_text(json.dumps(cases))
        ours = subprocess.run([PROGRAM, self.folder], capture_output=True, text=True, timeout=60, check=True)
        lines = ours.stdout.splitlines()
        self.assertEqual(len(lines), len(cases))
        for case, line in zip(cases, lines):
            sampler = DistributedSampler(range(case["size"]), case["replicas"], case["rank"], case["shuffle"],
                                         case["seed"], case["drop_last"])
            sampler.set_epoch(case["epoch"])
            self.assertEqual(json.loads(line), list(sampler), case)


if __name__ == "__main__":
    LOCKSTEP, PROGRAM = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
