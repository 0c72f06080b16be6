"""Programs as they are written for torch.distributed, on the backend: each must do what it does on gloo."""

import copy
import os
import tempfile
import unittest

import torch
import torch._dynamo  # once, for all ranks: optimizers import it
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.algorithms.ddp_comm_hooks.default_hooks as default_hooks
import torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook as power_sgd
import torch.distributed.checkpoint as checkpoint
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from worlds import World


def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4))


def batch(rank, step):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(6, 8, generator=generator)


def trained(model, rank, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(rank, step)).square().sum().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


class Branches(torch.nn.Module):
    """Steps take its branches in turns; the last is nobody's."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.stem = torch.nn.Linear(8, 16)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(16, 4) for _ in range(3))

    def forward(self, x, which):
        return self.branches[which](self.stem(x).relu())


def gradients(model):
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]


def same_gradients(ours, theirs):
    return all(theirs[i] is None if one is None else one.equal(theirs[i]) for i, one in enumerate(ours))


def unused(rank, size):
    """Also branches that one rank alone has taken; where nobody has, no gradient is touched."""
    gloo = dist.new_group(backend="gloo")
    for kind in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.0001}):
        models = [DistributedDataParallel(Branches(), process_group=group, find_unused_parameters=True, **kind) for group in (None, gloo)]
        taken = [lambda step: step % 2, lambda step: (step + rank) % 2]
        for step in range(8):
            for model in models:
                model.zero_grad()
                model(batch(rank, step), taken[step // 4](step)).square().sum().backward()
            ours, theirs = map(gradients, models)
            assert same_gradients(ours, theirs), (kind, step)
            assert ours[0] is not None and ours[-1] is None, (kind, step)


def ddp(rank, size):
    gloo = dist.new_group(backend="gloo")
    kinds = [{}, {"static_graph": True}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True},
             {"bucket_cap_mb": 0.001}]
    for kind in kinds:
        models = [DistributedDataParallel(net(), process_group=group, **kind) for group in (None, gloo)]
        for model in models:
            trained(model, rank)
        # gloo adds two ranks in either order, which is the same sum. The buffers are rank 0's, with this rank's last batch.
        ours, theirs = ([*model.parameters(), *model.buffers()] for model in models)
        assert len(ours) == 9 and all(map(torch.equal, ours, theirs)), kind


def hooks(rank, size):
    gloo = dist.new_group(backend="gloo")
    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook,
                 default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
                 dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
        results = []
        for group in (None, gloo):
            model = DistributedDataParallel(net(), process_group=group, bucket_cap_mb=0.001)
            if isinstance(hook, dist.BuiltinCommHookType):
                model._register_builtin_comm_hook(hook)
            else:
                model.register_comm_hook(group, hook)
            results.append(trained(model, rank))
        assert all(map(torch.equal, *results)), hook
    results = []
    for group in (None, gloo):
        # One bucket: torch's hook waits for itself with more, on any backend.
        model = DistributedDataParallel(net(), process_group=group)
        model.register_comm_hook(power_sgd.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2),
                                 power_sgd.powerSGD_hook)
        results.append(trained(model, rank, steps=5))
    assert all(map(torch.equal, *results))


def uneven(rank, size):
    gloo = dist.new_group(backend="gloo")
    models = [DistributedDataParallel(net().requires_grad_(), process_group=group) for group in (None, gloo)]
    for model in models:
        with Join([model]):
            for step in range(2 + rank):
                model(batch(rank, step)).sum().backward()
        with model.no_sync():
            model(batch(rank, 0)).sum().backward()
        model(batch(rank, 1)).sum().backward()
    ours, theirs = map(gradients, models)
    assert same_gradients(ours, theirs)
    return ours


def sharded(rank, size):
    plain = net()
    del plain[2]
    full = copy.deepcopy(plain)
    for layer in (plain[0], plain[2]):
        fully_shard(layer)
    fully_shard(plain)
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.1)
    reference = torch.optim.Adam(full.parameters(), lr=0.1)
    for step in range(2):
        plain(batch(rank, step)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = sum(full(batch(r, step)).square().sum() for r in range(size)) / size
        loss.backward()
        reference.step()
        reference.zero_grad()
    for ours, theirs in zip(plain.parameters(), full.parameters()):
        torch.testing.assert_close(ours.full_tensor(), theirs)


def dtensors(rank, size):
    mesh = dist.init_device_mesh("cpu", (size,))
    whole = torch.arange(24.0).view(6, 4)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    assert rows.redistribute(mesh, [Shard(1)]).full_tensor().equal(whole)
    product = DTensor.from_local(whole, mesh, [Replicate()]) @ rows.t()
    assert product.full_tensor().equal(whole @ whole.t())
    model = net()
    del model[2]
    expected = model(batch(0, 0))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.testing.assert_close(model(batch(0, 0)), expected)


def checkpoints(rank, size, folder):
    mesh = dist.init_device_mesh("cpu", (size,))
    value = distribute_tensor(torch.arange(12.0), mesh, [Shard(0)])
    checkpoint.save({"value": value, "step": 7}, checkpoint_id=folder)
    state = {"value": distribute_tensor(torch.zeros(12), mesh, [Shard(0)]), "step": 0}
    checkpoint.load(state, checkpoint_id=folder)
    assert state["step"] == 7 and state["value"].full_tensor().equal(torch.arange(12.0))


def zero(rank, size):
    ours, plain = net(), net()
    sharded_adam = ZeroRedundancyOptimizer(ours.parameters(), torch.optim.Adam, lr=0.01)
    adam = torch.optim.Adam(plain.parameters(), lr=0.01)
    for step in range(2):
        for model, optimizer in ((ours, sharded_adam), (plain, adam)):
            optimizer.zero_grad()
            model(batch(0, step)).square().sum().backward()
            optimizer.step()
    assert all(map(torch.equal, ours.parameters(), plain.parameters()))


def compiled(rank, size):
    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x):
        total = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        return functional.all_gather_tensor(total, 0, dist.group.WORLD) + 1

    assert step(torch.full((2,), rank + 1.0)).tolist() == [size * (size + 1) + 1.0] * 2 * size


def is_resident(tensor):
    """Whether it lies in the memory that the ranks of this host share."""
    places = [line.split()[0].split("-") for line in open("/proc/self/maps") if "memfd:lockstep-heap" in line]
    return any(int(start, 16) <= tensor.data_ptr() < int(end, 16) for start, end in places)


def resident_buckets(rank, size):
    results = []
    for resident in (True, False):
        os.environ["DDP_DISABLE_COMM_MEM"] = str(int(not resident))
        model = DistributedDataParallel(net(), gradient_as_bucket_view=True)
        results.append(trained(model, rank))
        assert all(is_resident(parameter.grad) == resident for parameter in model.parameters()), resident
    assert all(map(torch.equal, *results))


class ProgramsTest(unittest.TestCase):
    def test_ddp_trains_to_gloos_bits(self):
        World(2).run(ddp)

    def test_ddp_with_branches_that_are_not_taken_has_gloos_gradients(self):
        World(2).run(unused)

    def test_comm_hooks_train_to_gloos_bits(self):
        World(2).run(hooks)

    def test_join_and_no_sync(self):
        first, second = World(2).run(uneven)
        self.assertTrue(all(map(torch.equal, first, second)))

    def test_fsdp2(self):
        World(2).run(sharded)

    def test_dtensor_and_tensor_parallel(self):
        World(2).run(dtensors)

    def test_distributed_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            World(2).run(checkpoints, folder)

    def test_zero_redundancy_optimizer(self):
        World(2).run(zero)

    def test_functional_collectives_in_a_compiled_graph(self):
        World(2).run(compiled)

    def test_ddp_with_resident_buckets(self):
        World(2).run(resident_buckets)


if __name__ == "__main__":
    unittest.main(warnings="ignore")  # torch has warnings for what it renames
