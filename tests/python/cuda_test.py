"""On a machine with a GPU: how CUDA tensors are refused, and what goes on beside them."""

import os
import unittest

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from worlds import World, error_of

del os.environ["CUDA_VISIBLE_DEVICES"]  # which hides the GPU from the other tests; CUDA is not asked before the ranks are there


def refusals(rank, size):
    there, here = torch.ones(4, device="cuda"), torch.ones(4)
    several = [torch.ones(4, device="cuda") for _ in range(size)]
    calls = {
        "all_reduce": lambda: dist.all_reduce(there),
        "an asynchronous one": lambda: dist.all_reduce(there, async_op=True),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([there, there]),
        "broadcast": lambda: dist.broadcast(there, 0),
        "reduce": lambda: dist.reduce(there, 0),
        "all_gather": lambda: dist.all_gather(several, here),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.cat(several), there),
        "gather": lambda: dist.gather(there, several if rank == 0 else None),
        "scatter": lambda: dist.scatter(there, several if rank == 0 else None),
        "reduce_scatter": lambda: dist.reduce_scatter(there, several),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(there, torch.cat(several)),
        "all_to_all": lambda: dist.all_to_all(several, several),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.cat(several), torch.cat(several)),
        "send": lambda: dist.send(there, (rank + 1) % size),
        "recv": lambda: dist.recv(there, (rank + 1) % size),
        "irecv from any": lambda: dist.irecv(there),
    }
    answers = {name: error_of(call) for name, call in calls.items()}
    answers["DDP"] = error_of(lambda: DistributedDataParallel(torch.nn.Linear(4, 4).cuda(), device_ids=[0]))
    assert torch.equal(there.cpu(), torch.ones(4))
    dist.all_reduce(here)
    assert torch.equal(here, torch.full((4,), float(size)))  # the group lives on
    return answers


def beside_a_gpu(rank, size):
    """What is computed on the GPU goes through memory that a copy to and from it may use."""
    torch.manual_seed(rank)
    value = torch.randn(1 << 16, device="cuda")
    pinned = torch.empty(value.shape, pin_memory=True).copy_(value)
    dist.all_reduce(pinned)
    parts = [torch.empty_like(value, device="cpu") for _ in range(size)]
    dist.all_gather(parts, value.cpu())
    value.copy_(pinned)
    assert torch.equal(value.cpu(), sum(parts[1:], parts[0]))


def beside_nccl(rank, size):
    for device in ("cpu", "cuda"):
        value = torch.ones(4, device=device)
        dist.all_reduce(value)
        assert value.sum().item() == 4 * size, (device, value)
    names = {device: dist.group.WORLD._get_backend(torch.device(device)).name() for device in ("cpu", "cuda")}
    model = DistributedDataParallel(torch.nn.Linear(4, 1).cuda(), device_ids=[0])
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    assert model.module.bias.grad.item() == 2
    return names


class CudaTest(unittest.TestCase):
    def test_a_cuda_tensor_is_refused_by_every_call_and_the_group_lives_on(self):
        for answers in World(2).run(refusals):
            for call, (kind, text) in answers.items():
                with self.subTest(call):
                    self.assertIs(kind, ValueError, text)
                    self.assertIn("on cuda:0, and the backend lockstep takes CPU tensors: move it there by .cpu(), or give that "
                                  "device a backend", text)

    def test_values_of_the_gpu_travel_in_cpu_tensors_pinned_ones_too(self):
        World(3).run(beside_a_gpu)

    def test_nccl_has_the_gpu_beside_it(self):
        names = World(1, backend="cpu:lockstep,cuda:nccl").run(beside_nccl)
        self.assertEqual(names, [{"cpu": "lockstep", "cuda": "nccl"}])


if __name__ == "__main__":
    unittest.main()
