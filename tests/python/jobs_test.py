"""How the ranks of a Python program meet: torch's stores, ours, launchers, and programs of both languages in one job."""

import argparse
import datetime
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import torch
import torch.distributed as dist

import lockstep_torch
from worlds import PATIENCE, World, free_port, options, spawned

PYTHON = os.environ.get("PYTHON_EXEC", sys.executable)
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
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


def environment_of(kind, rank, size, port, folder):
    """What the launcher of that kind sets, or the user."""
    return {
        "lockstep://, by torchrun's variables": {
            "RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port},
        "lockstep://, by Slurm's variables": {
            "SLURM_PROCID": rank, "SLURM_NTASKS": size, "SLURM_LOCALID": rank, "SLURM_NODEID": 0, "SLURM_JOB_ID": port,
            "SLURM_STEP_ID": 0, "SLURM_STEP_NODELIST": "node7", "SLURM_STEP_TASKS_PER_NODE": size, "MASTER_PORT": port},
        "file://, with a secret": {"LOCKSTEP_SECRET_FILE": f"{folder}/secret{rank}"},
    }.get(kind, {})


def join_as(rank, size, kind, port, folder):
    os.environ.update({name: str(value) for name, value in environment_of(kind, rank, size, port, folder).items()})
    given = options()
    if kind.startswith("tcp"):
        given.heap_capacity, given.threads = 1 << 30, 1
        who = {"init_method": f"tcp://127.0.0.1:{port}", "rank": rank, "world_size": size}
    elif kind.startswith("file"):
        who = {"init_method": f"file://{folder}/job", "rank": rank, "world_size": size}
    elif kind == "lockstep://host:port":
        who = {"init_method": f"lockstep://127.0.0.1:{port}?rank={rank}&world_size={size}"}
    else:
        who = {"init_method": "lockstep://"}
    dist.init_process_group("lockstep", pg_options=given, **who)
    return sum_of_ranks(rank, size)


class OfAnotherBuild(dist.Store):
    """A store as a rank leaves it whose library has another wire version: its record says so."""

    OWN, OTHER = b"LSMR\x01\x00", b"LSMR\x02\x00"

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def set(self, key, value):
        self.inner.set(key, value.replace(self.OWN, self.OTHER))

    def get(self, key):
        return self.inner.get(key).replace(self.OTHER, self.OWN)

    def compare_set(self, key, expected, desired):
        written = (value.replace(self.OWN, self.OTHER) for value in (expected, desired))
        held = self.inner.compare_set(key, *written)
        if key.endswith("founder"):
            self.inner.set("founded", "")
        return held.replace(self.OTHER, self.OWN)

    def add(self, key, amount):
        return self.inner.add(key, amount)

    def check(self, keys):
        return self.inner.check(keys)

    def wait(self, keys, timeout):
        self.inner.wait(keys, timeout)

    def delete_key(self, key):
        return self.inner.delete_key(key)


def join_of_different_builds(rank, size, folder):
    store = dist.FileStore(f"{folder}/store", size)
    if rank == 1:
        store = OfAnotherBuild(store)
    else:
        store.wait(["founded"])
    try:
        lockstep_torch.ProcessGroupLockstep(store, rank, size)
    except dist.DistNetworkError as error:
        return str(error)
    return "joined"


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        return torch.tensor(float(i * i))


def load_data(rank, size):
    """Workers of a DataLoader are forked while the group is there."""
    sampler = torch.utils.data.DistributedSampler(Squares(), shuffle=False)
    total = torch.zeros(1)
    for batch in torch.utils.data.DataLoader(Squares(), batch_size=2, sampler=sampler, num_workers=1):
        part = batch.sum().view(1)
        dist.all_reduce(part)
        total += part
    return total.item()


def too_large(rank, size, folder):
    """The heap's capacity counts."""
    given = options()
    given.heap_capacity = 64 << 20
    dist.init_process_group("lockstep", init_method=f"file://{folder}/job", rank=rank, world_size=size,
                            pg_options=given)
    try:
        lockstep_torch.empty_resident(64 << 20)
    except torch.OutOfMemoryError as error:
        dist.barrier()  # the group lives on
        return str(error)
    return "there was room"


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
    mesh = dist.init_device_mesh("cpu", (size,), mesh_dim_names=("all",), backend_override={"all": "lockstep"}).get_group()
    assert (dist.get_backend(), dist.get_backend(mesh)) == ("gloo", "lockstep")
    dist.barrier(group=mesh)
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


def leave_and_join_by_env(rank, size, port):
    """Rank 0 serves the store that they meet in, and leaves a little later than the others, who come again at once."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    answers = []
    for turn in range(4):
        dist.init_process_group("lockstep", timeout=PATIENCE, pg_options=options())
        answers.append(sum_of_ranks(rank, size))
        if rank == 0 and turn % 2 == 0:
            time.sleep(0.1)
        dist.destroy_process_group()
    return answers


def leave_a_store_that_goes_on(rank, size, port):
    """A store of the program's own is waited for by nobody."""
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    dist.init_process_group("lockstep", store=dist.PrefixStore("own", store), rank=rank, world_size=size, pg_options=options())
    dist.barrier()
    begun = time.monotonic()
    dist.destroy_process_group()
    took = time.monotonic() - begun
    store.add("left", 1)
    while store.add("left", 0) < size:
        time.sleep(0.01)
    store.add("seen", 1)
    while rank == 0 and store.add("seen", 0) < size:
        time.sleep(0.01)
    return took


def leave_without_a_file(rank, size, removed):
    path = pathlib.Path(dist.distributed_c10d._get_default_store()._underlying_non_prefix_store.path)
    dist.barrier()
    if rank == 0:
        path.unlink()
    dist.barrier()
    if removed == "new_group":
        try:
            dist.new_group()
            return "made"
        except dist.DistStoreError as error:
            return str(error)
    begun = time.monotonic()
    dist.destroy_process_group()
    return time.monotonic() - begun


class JobsTest(unittest.TestCase):
    def test_every_store_of_torchs_and_ours(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(World(1, joins=False).run(join_by, "hash", folder), [1.0])
            for kind in ("prefix", "ours", "tcp"):
                self.assertEqual(World(2, joins=False).run(join_by, kind, folder), [3.0, 3.0], kind)

    def test_every_way_to_meet(self):
        for kind in ("tcp://", "lockstep://host:port", "lockstep://, by torchrun's variables",
                     "lockstep://, by Slurm's variables"):
            with self.subTest(kind):
                self.assertEqual(World(2, joins=False).run(join_as, kind, free_port(), ""), [3.0, 3.0])

    def test_ranks_may_be_spawned(self):
        torch.multiprocessing.spawn(spawned, (2, free_port()), nprocs=2)

    def test_a_secret_of_the_users_is_the_one_that_counts(self):
        for ranks_differ in (False, True):
            with self.subTest(ranks_differ=ranks_differ), tempfile.TemporaryDirectory() as folder:
                for rank in (0, 1):
                    subprocess.run([OPTIONS.lockstep, "secret", f"{folder}/secret{rank}"], capture_output=True,
                                   check=True)
                if not ranks_differ:
                    shutil.copy(f"{folder}/secret0", f"{folder}/secret1")
                join = functools.partial(World(2, joins=False).run, join_as, "file://, with a secret", 0, folder)
                if ranks_differ:
                    self.assertRaisesRegex(AssertionError, "secret", join)
                else:
                    self.assertEqual(join(), [3.0, 3.0])

    def test_ranks_of_different_builds_are_told_what_to_do(self):
        with tempfile.TemporaryDirectory() as folder:
            for said in World(2, joins=False).run(join_of_different_builds, folder):
                self.assertRegex(said, r"The ranks run different versions of Lockstep: rank \d \(host .*, pid \d+\) "
                                       r"speaks wire version \d, rank \d \(host .*, pid \d+\) speaks \d\. "
                                       r"Install the same version everywhere\.")

    def test_a_data_loader_forks(self):
        total = float(sum(i * i for i in range(16)))
        self.assertEqual(World(2).run(load_data), [total, total])

    def test_a_heap_has_the_size_that_was_asked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            for text in World(2, joins=False).run(too_large, folder):
                self.assertIn("64.0 MiB", text)

    def test_calls_of_our_store(self):
        with tempfile.TemporaryDirectory() as folder:
            for rank, (got, counted, late) in enumerate(World(2, joins=False).run(store_calls, folder)):
                self.assertEqual((got, counted), (f"value{1 - rank}", True))
                self.assertIn("nothing", late)

    def test_a_world_is_left_and_joined_again(self):
        self.assertEqual(World(2).run(leave_and_join), [[3.0, 3.0]] * 2)

    def test_a_world_is_left_and_joined_again_by_env(self):
        self.assertEqual(World(3, joins=False).run(leave_and_join_by_env, free_port()), [[6.0] * 4] * 3)

    def test_a_store_of_the_programs_own_is_not_waited_for(self):
        for took in World(2, joins=False).run(leave_a_store_that_goes_on, free_port()):
            self.assertLess(took, 0.9)

    def test_a_store_whose_file_is_gone_keeps_nobody(self):
        for took in World(2).run(leave_without_a_file, "destroy"):
            self.assertLess(took, 10)  # the timeout is 120 s
        for said in World(2).run(leave_without_a_file, "new_group"):
            self.assertIn("its file is gone", said)

    def test_groups_beside_gloos(self):
        self.assertEqual(World(3, backend="gloo").run(beside_gloo), [6.0, 3.0, 6.0])

    def test_both_languages_are_in_one_job(self):
        ran = subprocess.run([OPTIONS.lockstep, "run", "--nproc", "2", "--", PYTHON, "-c", BOTH_LANGUAGES,
                              OPTIONS.all_reduce], capture_output=True, text=True, check=False, timeout=200)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("in Python it is 3", ran.stdout)
        self.assertIn("the sum over 2 ranks is 3", ran.stdout)

    def test_the_example_runs_by_either_launcher(self):
        script = EXAMPLES / "11_python" / "train.py"
        expected = sorted((script.parent / "expected_output.txt").read_text(encoding="utf-8").splitlines())
        torchrun = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port",
                    str(free_port())]
        for launcher in (torchrun, [OPTIONS.lockstep, "run", "--nproc", "2"]):
            ran = subprocess.run([*launcher, script], capture_output=True, text=True, check=False, timeout=200)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            # torchrun has Python write the ends of lines by themselves, and so they may come together.
            self.assertEqual(sorted(re.findall(r"rank \d of .*?the same", ran.stdout)), expected, ran.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--all-reduce", required=True, help="the program of examples/03_all_reduce")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], warnings="ignore")
