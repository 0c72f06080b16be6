"""torch.distributed on gloo, unchanged, between two hosts that `lockstep run` has started.

    launcher_torch_hosts_test.py COMMAND [unittest arguments]

The interpreter that runs this file must have torch.
"""

import os
import sys

from hosts import ADDRESSES, TwoHosts
from launcher import LauncherTest, main

TRAIN = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
print("sum", value.item(), "of", dist.get_world_size())
dist.barrier()
dist.destroy_process_group()
"""


class TorchOnTwoHosts(LauncherTest):
    def test_gloo_meets_at_the_master_address(self):
        (self.folder / "train.py").write_text(TRAIN)
        with TwoHosts() as hosts:
            jobs = [self.start("--nnodes", 2, "--insecure", "--rdzv-endpoint", f"{ADDRESSES[0]}:29400", "--python",
                               os.environ.get("PYTHON_EXEC", sys.executable), "--env",
                               f"GLOO_SOCKET_IFNAME={hosts.wires[host]}", "train.py", before=hosts.enter(host))
                    for host in (0, 1)]
            results = [job.finish() for job in jobs]
        self.assertEqual([status for status, _, _ in results], [0, 0], results)
        self.assertEqual(sorted(out for _, out, _ in results), [f"[rank {r}] sum 3.0 of 2\n" for r in (0, 1)])


if __name__ == "__main__":
    main()
