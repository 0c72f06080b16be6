"""A Python program that knows only torch.distributed runs under `lockstep run` unchanged.

    launcher_torch_test.py COMMAND [unittest arguments]

The interpreter that runs this file must have torch.
"""

import os
import sys

from launcher import LauncherTest, main

PYTHON = os.environ.get("PYTHON_EXEC", sys.executable)

TRAIN = """
import os
import signal
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def train():
    dist.init_process_group("gloo")
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    print("sum", value.item(), "of", dist.get_world_size(), "local", os.environ["LOCAL_RANK"])
    if "FAIL" in os.environ:
        dist.destroy_process_group()  # torch's threads may abort a process that ends with a group
        if os.environ["FAIL"] == os.environ["RANK"]:
            raise ValueError("this rank gives up")
        signal.pause()  # until the launcher ends it
    dist.barrier()
    dist.destroy_process_group()

train()
"""


class Torch(LauncherTest):
    def setUp(self):
        super().setUp()
        (self.folder / "train.py").write_text(TRAIN)

    def test_gloo_meets_at_the_master_port(self):
        status, out, err = self.run_job("--nproc", 3, "--python", PYTHON, "train.py")
        self.assertEqual(status, 0, err)
        self.assertEqual(sorted(out.splitlines()), [f"[rank {r}] sum 6.0 of 3 local {r}" for r in range(3)])

    def test_an_exception_is_in_the_report(self):
        status, _, err = self.run_job("--nproc", 2, "--python", PYTHON, "train.py", env={"FAIL": "1"})
        self.assertEqual(status, 1, err)
        self.assertRegex(err, r"lockstep: rank 1 .* exited with code 1\.\n")
        self.assertIn("this rank gives up", err[err.index("  error  "):])


if __name__ == "__main__":
    main()
