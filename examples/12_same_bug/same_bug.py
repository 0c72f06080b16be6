"""12: two bugs of a training program, on gloo and on Lockstep: what each rank is told, and when.

  dies    rank 1 is killed in the middle of the training
  differs rank 1 takes the maximum where the others add

Run, with lockstep-torch installed (docs/python.md); a launcher would stop the ranks before they have said anything:
  for rank in 0 1 2; do
    RANK=$rank WORLD_SIZE=3 MASTER_ADDR=localhost MASTER_PORT=29500 python examples/12_same_bug/same_bug.py dies gloo &
  done; wait
and the same with `dies lockstep`, `differs gloo`, `differs lockstep`.

docs/python-errors.md has what it prints.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist


def dies(rank, step):
    if rank == 1 and step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    value = torch.ones(1000)
    dist.all_reduce(value)
    return value


def differs(rank, step):
    value = torch.full((1000,), rank + 1.0)
    dist.all_reduce(value, op=dist.ReduceOp.MAX if rank == 1 and step == 3 else dist.ReduceOp.SUM)
    return value


def main(bug, backend):
    dist.init_process_group(backend)
    rank, start = dist.get_rank(), time.monotonic()
    try:
        for step in range(4):
            start = time.monotonic()
            value = {"dies": dies, "differs": differs}[bug](rank, step)
        print(f"rank {rank}: no error; the last sum begins with {value[0].item()}", flush=True)
    except Exception as error:
        took = time.monotonic() - start
        print(f"rank {rank}: step {step}, {took:.1f} s: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
