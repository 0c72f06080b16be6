#!/usr/bin/env python3
"""Python ranks on two hosts: network namespaces that are joined by a wire. They meet in torch's TCPStore, and were given
no secret: rank 0 makes one, and it goes through that store."""

import os
import pathlib
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "world"))

import hosts  # noqa: E402

RANK = """
import torch, torch.distributed as dist
dist.init_process_group("lockstep")
value = torch.full((100000,), dist.get_rank() + 1.0)
dist.all_reduce(value)
pair = dist.new_group([1, 0])
dist.all_reduce(value, group=pair)
assert value.eq(6).all(), value
other = torch.full((5,), -1.0)
works = [dist.isend(value[:5], 1 - dist.get_rank()), dist.irecv(other, 1 - dist.get_rank())]
for work in works:
    work.wait()
assert other.eq(6).all(), other
dist.destroy_process_group()
print("together")
"""


class HostsTest(unittest.TestCase):
    def test_two_hosts_without_a_secret(self):
        with hosts.TwoHosts() as two:
            ranks = [subprocess.Popen(
                [*two.enter(rank), os.environ.get("PYTHON_EXEC", sys.executable), "-c", RANK], stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2",
                                                        "MASTER_ADDR": hosts.ADDRESSES[0], "MASTER_PORT": "29500"})
                     for rank in (0, 1)]
            for rank in ranks:
                output, errors = rank.communicate(timeout=200)
                self.assertEqual((output, rank.returncode), ("together\n", 0), errors)


if __name__ == "__main__":
    unittest.main(warnings="ignore")  # torch has warnings for what it renames
