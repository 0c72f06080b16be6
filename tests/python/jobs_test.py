"""How the ranks of a Python program meet: torch's stores, ours, launchers, and programs of both languages in one job."""

import argparse
import datetime
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist

import lockstep_torch
from worlds import World, options

OPTIONS = argparse.Namespace(lockstep=None, all_reduce=None)

# Rank 0 is a C++ program, which joins the job by itself; the others are this.
BOTH_LANGUAGES = """
import os, sys
if os.environ["RANK"] == "0":
    os.execv(sys.argv[1], sys.argv[1:2])
import torch, torch.distributed as dist
dist.init_process_group("lockstep", init_method="lockstep://")
value = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(value)
print("in Python it is", int(value[0]), flush=True)
dist.destroy_process_group()
"""


def sum_of_ranks(rank, size):
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value)
    return value.item()


def join_by(rank, size, kind, folder):
    if kind == "hash":
        store = dist.HashStore()
    elif kind == "tcp":
        port = dist.FileStore(f"{folder}/port", size)
        if rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, size, True, wait_for_workers=False)
            port.set("port", str(store.port))
        else:
            store = dist.TCPStore("127.0.0.1", int(port.get("port")), size, False)
    elif kind == "prefix":
        store = dist.PrefixStore("a", dist.PrefixStore("b", dist.FileStore(f"{folder}/store", size)))
    else:
        store = lockstep_torch.Store(f"file://{folder}/ours", rank, size)
        assert (store.rank, store.world_size) == (rank, size)
    dist.init_process_group("lockstep", store=store, rank=rank, world_size=size, pg_options=options())
    return sum_of_ranks(rank, size)


def store_calls(rank, size, folder):
    store = lockstep_torch.Store(f"file://{folder}/calls", rank, size)
    store.set(f"key{rank}", f"value{rank}")
    got = store.get(f"key{1 - rank}")
    total = store.add("count", 2)
    store.wait(["key0", "key1"])
    assert store.check(["key0"]) and not store.check(["nothing"])
    try:
        store.wait(["nothing"], datetime.timedelta(milliseconds=50))
        late = None
    except dist.DistStoreError as error:
        late = str(error)
    assert store.compare_set(f"own{rank}", "", "new") == b"new"
    store.multi_set([f"m{rank}a", f"m{rank}b"], ["1", "2"])
    assert store.multi_get([f"m{rank}a", f"m{rank}b"]) == [b"1", b"2"]
    store.append(f"m{rank}a", "0")
    assert store.get(f"m{rank}a") == b"10" and store.delete_key(f"m{rank}b")
    store.queue_push(f"queue{rank}", "item")
    assert store.queue_pop(f"queue{rank}") == b"item"
    assert isinstance(store, dist.Store) and store.has_extended_api()
    return got.decode(), total in (2, 4), late


def beside_gloo(rank, size):
    """The default group is gloo's, and some ranks make one of ours."""
    ours = dist.new_group([0, 2], backend="lockstep")
    both = dist.new_group(backend="cpu:lockstep")
    value = torch.ones(1)
    dist.all_reduce(value, group=both)
    if rank in (0, 2):
        dist.all_reduce(value, group=ours)
    return value.item()


def leave_and_join(rank, size):
    answers = [sum_of_ranks(rank, size)]
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    dist.init_process_group("lockstep", store=dist.PrefixStore("again", store), rank=rank, world_size=size,
                            pg_options=options())
    return [*answers, sum_of_ranks(rank, size)]


class JobsTest(unittest.TestCase):
    def test_every_store_of_torchs_and_ours(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(World(1, joins=False).run(join_by, "hash", folder), [1.0])
            for kind in ("prefix", "ours", "tcp"):
                self.assertEqual(World(2, joins=False).run(join_by, kind, folder), [3.0, 3.0], kind)

    def test_calls_of_our_store(self):
        with tempfile.TemporaryDirectory() as folder:
            for rank, (got, counted, late) in enumerate(World(2, joins=False).run(store_calls, folder)):
                self.assertEqual((got, counted), (f"value{1 - rank}", True))
                self.assertIn("nothing", late)

    def test_a_world_is_left_and_joined_again(self):
        self.assertEqual(World(2).run(leave_and_join), [[3.0, 3.0]] * 2)

    def test_groups_beside_gloos(self):
        self.assertEqual(World(3, backend="gloo").run(beside_gloo), [6.0, 3.0, 6.0])

    def test_both_languages_are_in_one_job(self):
        ran = subprocess.run([OPTIONS.lockstep, "run", "--nproc", "2", "--", sys.executable, "-c", BOTH_LANGUAGES,
                              OPTIONS.all_reduce], capture_output=True, text=True, check=False, timeout=120)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("in Python it is 3", ran.stdout)
        self.assertIn("the sum over 2 ranks is 3", ran.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--all-reduce", required=True, help="the program of examples/03_all_reduce")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], warnings="ignore")
