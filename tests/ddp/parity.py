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

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "world"))

from rendezvous_rank import free_port  # noqa: E402

LOCKSTEP, PROGRAM = "", ""
STEPS = 6
LOGGED = ("bucket_sizes", "rebuilt_bucket_sizes", "has_rebuilt_buckets", "dtypes", "world_size", "bucket_cap_bytes",
          "total_parameter_size_bytes", "num_buckets_reduced", "broadcast_buffers")
OPTIONS = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view", "bucket_cap_mb", "bucket_cap_mb_list",
           "batched_grad_copy", "skip_all_reduce_unused_params", "forward_sync_buffers", "broadcast_buffers")
DELAYED, UNTIL = "delay_all_reduce_named_params", "param_to_hook_all_reduce"


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


class Wide(torch.nn.Module):
    """Its gradients are more than the first two buckets have by default: 1 MiB and 25."""
    widths = (8, 1500, 1100, 1900, 1300, 900, 1000, 16)

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*pair) for pair in itertools.pairwise(self.widths))

    def forward(self, x, *_):
        for layer in self.layers:
            x = torch.tanh(3 * layer(x))  # else gradients vanish
        return x


NETS = {"net": Net, "wide": Wide}


def end_rank():
    """A Reducer that is the last to let go of a gloo group waits for its threads, one of which may wait for the GIL."""
    dist.barrier()
    os._exit(0)


def wrapped(net, how):
    options = {key: how[key] for key in OPTIONS if key in how}
    if DELAYED in how:
        parameters = dict(net.named_parameters())
        options |= {DELAYED: [(name, parameters[name]) for name in how[DELAYED]], UNTIL: parameters[how[UNTIL]]}
    return DistributedDataParallel(net, **options)


def numbers(tensor):
    """All of them, or some hundreds of those of a large one; numbers() of the rank program takes the same."""
    return tensor.flatten()[::max(1, tensor.numel() // 500)].double().tolist()


def of_last_rank(tensor):
    copy = tensor.clone()
    dist.broadcast(copy, dist.get_world_size() - 1)
    return copy


def torch_training(rank, folder, how):
    net = NETS[how["net"]]()
    state = torch.load(folder / f"{how['net']}.pt")
    net.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})
    for buffer in net.buffers():  # others on each rank: it is the options that make them the same
        buffer += rank
    model = wrapped(net, how)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    steps = []
    for step in range(how["steps"]):
        x = torch.load(folder / f"batch{step}_{rank}")
        uses = how["uses"][step][rank]
        if how.get("accumulate") and step % 2 == 0:
            with model.no_sync():
                model(x, *uses).square().mean().backward()
            continue
        loss = model(x, *uses).square().mean()
        loss.backward()
        dist.barrier()  # nothing else waits for gradients that are delayed
        data = model._get_ddp_logging_data()
        steps.append({"loss": loss.item(),
                      "gradients": {name: None if p.grad is None else numbers(p.grad)
                                    for name, p in net.named_parameters()},
                      "buffers": {name: numbers(of_last_rank(buffer)) for name, buffer in net.named_buffers()},
                      "logged": data,
                      "rebuilt": data.get("rebuilt_per_bucket_param_indices", "")})
        optimizer.step()
        optimizer.zero_grad()
    return model, steps


def torch_rank(rank, size, folder, cases, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trained = [torch_training(rank, folder, how) for how in cases]
    if rank == 0:
        (folder / "torch.json").write_text(json.dumps([steps for _, steps in trained]))
    end_rank()


def raises(act):
    try:
        act()
    except (RuntimeError, ValueError, AssertionError, TypeError):
        return True
    return False


def torch_situations(rank, size, folder, _, port):
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
    end_rank()


class Parity(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_both(self, size, rank_function, case):
        (self.folder / "case.json").write_text(json.dumps(case))
        mp.start_processes(rank_function, (size, self.folder, case.get("trainings"), free_port()), nprocs=size,
                           start_method="fork")
        ours = subprocess.run([LOCKSTEP, "run", "--nproc", str(size), "--prefix", "", PROGRAM, self.folder],
                              capture_output=True, text=True, timeout=200)
        self.assertEqual(ours.returncode, 0, ours.stderr)
        return [json.loads((self.folder / f"{whose}.json").read_text()) for whose in ("lockstep", "torch")]

    def compare(self, size, trainings):
        """`trainings` by what they show, each what is not as by default. One start of the ranks for all of them."""
        torch.manual_seed(3)
        usual = {"net": "net", "steps": STEPS, "uses": [[[True, True]] * size] * STEPS}
        trainings = {name: usual | how for name, how in trainings.items()}
        for name in {how["net"] for how in trainings.values()}:
            outer = torch.nn.Module()  # whose state is that of a wrapped one: an OrderedDict with metadata
            outer.module = NETS[name]()
            torch.save(outer.state_dict(), self.folder / f"{name}.pt")
        for step, rank in itertools.product(range(STEPS), range(size)):
            torch.save(torch.randn(4, 8), self.folder / f"batch{step}_{rank}")
        ours, theirs = self.run_both(size, torch_rank, {"trainings": list(trainings.values())})
        self.assertEqual((len(ours), len(theirs)), (len(trainings), len(trainings)))
        for (name, how), a, b in zip(trainings.items(), ours, theirs):
            with self.subTest(name, ranks=size):
                self.compare_steps(how, a, b)

    def compare_steps(self, how, ours, theirs):
        self.assertTrue(theirs)
        self.assertEqual(len(ours), len(theirs))
        for step, (a, b) in enumerate(zip(ours, theirs)):
            self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-6, msg=f"step {step}")
            self.compare_numbers(a["gradients"], b["gradients"], step)
            # A forward after one in no_sync() torch does not synchronise, and that one it does.
            if not how.get("accumulate"):
                self.compare_numbers(a["buffers"], b["buffers"], step)
        # Threads of gloo's own are all that it has and we have not.
        self.assertLessEqual(set(theirs[-1]["logged"]) - {"gloo_num_threads"}, set(ours[-1]["logged"]))
        for key in self.logged_alike(how):
            self.assertEqual(ours[-1]["logged"][key], theirs[-1]["logged"].get(key, ""), key)
        rebuilt = theirs[-1]["rebuilt"]
        self.assertEqual(bool(rebuilt), not how.get("find_unused_parameters"))
        if rebuilt:
            self.compare_buckets(how, ours[-1]["buckets"], rebuilt, list(theirs[-1]["gradients"]))

    @staticmethod
    def logged_alike(how):
        if DELAYED in how:  # which torch does not count
            return ["world_size", "has_rebuilt_buckets", "bucket_cap_bytes"]
        return LOGGED

    def compare_numbers(self, ours, theirs, step):
        self.assertEqual(set(ours), set(theirs))
        for name in theirs:
            x, y = ours[name], theirs[name]
            self.assertEqual(x is None, y is None, f"step {step}, {name}")
            if x is not None:
                torch.testing.assert_close(torch.tensor(x), torch.tensor(y), rtol=1e-5, atol=1e-6)

    def compare_buckets(self, how, ours, rebuilt, names):
        """Those that are delayed have no number and no bucket in torch, and are the last here."""
        prompt = [i for i, name in enumerate(names) if name not in how.get(DELAYED, ())]
        wanted = [[prompt[int(i)] for i in bucket.split()] for bucket in rebuilt.split(",") if bucket.strip()]
        self.assertEqual(ours[:len(wanted)], wanted)
        self.assertEqual(sorted(prompt + sum(ours[len(wanted):], [])), list(range(len(names))))

    def test_training(self):
        sometimes = [[[True, False], [True, True]], [[False, False]] * 2, [[True, True]] * 2] * 2
        never_d = [[[True, False]] * 2] * STEPS
        first_only = [[[False, False]] * 2] * STEPS
        self.compare(3, {"every parameter is used": {}})
        self.compare(2, {
            "every parameter is used": {},
            "small buckets": {"bucket_cap_mb": 0.001},
            "no views of buckets": {"bucket_cap_mb": 0.002, "gradient_as_bucket_view": False},
            "sizes of buckets": {"bucket_cap_mb_list": [0.0002, 0.002, 0.001]},
            "sizes of buckets, from the start": {"bucket_cap_mb_list": [0.0002, 0.002, 0.001],
                                                 "find_unused_parameters": True},
            "unused parameters": {"uses": sometimes, "find_unused_parameters": True, "bucket_cap_mb": 0.001},
            "unused and skipped": {"uses": first_only, "find_unused_parameters": True, "bucket_cap_mb": 0.001,
                                   "skip_all_reduce_unused_params": True},
            "static, with an unused layer": {"uses": never_d, "static_graph": True},
            "static, unused and skipped": {"uses": first_only, "static_graph": True, "bucket_cap_mb": 0.001,
                                           "skip_all_reduce_unused_params": True},
            "accumulated": {"accumulate": True},
            "copied with their bucket": {"batched_grad_copy": True, "bucket_cap_mb": 0.001},
            "copied with their bucket, no views": {"batched_grad_copy": True, "gradient_as_bucket_view": False},
            "buffers shared at the start": {"forward_sync_buffers": False},
            "buffers never shared": {"broadcast_buffers": False},
            "the older option is ignored": {"broadcast_buffers": False, "forward_sync_buffers": True},
            "delayed": {DELAYED: ["c.weight", "d.weight", "d.bias"], UNTIL: "a.weight", "bucket_cap_mb": 0.001},
        })

    def test_the_buckets_of_a_large_net(self):
        self.assertGreater(sum(parameter.nbytes for parameter in Wide().parameters()), 26 << 20)
        self.compare(2, {
            "by default": {"net": "wide", "steps": 3},
            "by default, from the start": {"net": "wide", "steps": 2, "find_unused_parameters": True},
            "25 MiB, the first too": {"net": "wide", "steps": 3, "bucket_cap_mb": 25},
        })

    def test_the_same_situations_are_errors(self):
        ours, theirs = self.run_both(2, torch_situations, {})
        self.assertEqual(sum(theirs.values()), 6, theirs)
        # A hook that comes late torch takes. Models that differ in a shape its rank 0 does not notice, and waits; in a
        # type nobody does.
        self.assertEqual(ours, theirs | {"registered late": True, "shape": True, "type": True})

    def test_the_samplers_give_the_same_indices(self):
        cases = [{"size": size, "replicas": replicas, "rank": rank, "shuffle": shuffle, "seed": seed, "epoch": epoch,
                  "drop_last": drop_last}
                 for size, replicas, shuffle, seed, epoch, drop_last in itertools.product(
                     (0, 1, 3, 5, 100, 1000), (1, 2, 7), (True, False), (0, 17), (0, 3), (True, False))
                 for rank in (0, replicas - 1)]
        (self.folder / "case.json").write_text(json.dumps(cases))
        ours = subprocess.run([PROGRAM, self.folder], capture_output=True, text=True, timeout=200, check=True)
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
