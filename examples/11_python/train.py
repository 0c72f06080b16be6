"""11: DistributedDataParallel in Python. The backend's name is all that is not plain torch.

Run, with lockstep-torch installed (docs/python.md), by either launcher:
  torchrun --nproc-per-node 2 examples/11_python/train.py
  lockstep run --nproc 2 examples/11_python/train.py

Prints what expected_output.txt has; the order of the lines differs.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def points():
    """Two classes of points, which a line divides."""
    x = torch.randn(512, 2, generator=torch.Generator().manual_seed(7))
    return TensorDataset(x, (x.sum(1) > 0).float())


def main():
    dist.init_process_group("lockstep")  # "gloo" before
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = points()
    sampler = DistributedSampler(data, seed=3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=64 // size, sampler=sampler):
            optimizer.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y).backward()
            optimizer.step()
    x, y = data.tensors
    right = (model(x).squeeze(1) > 0).eq(y > 0).sum()
    weights = [torch.empty_like(model.module.weight) for _ in range(size)]
    dist.all_gather(weights, model.module.weight.detach())
    same = all(weight.equal(weights[0]) for weight in weights)
    print(f"rank {rank} of {size}: {'more' if right > 480 else 'less'} than 480 of {len(data)} are right, "
          f"and the weights of all ranks are {'the same' if same else 'different'}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
