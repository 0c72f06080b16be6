"""The same models, weights, batches and options in torch's DistributedDataParallel on gloo and in Lockstep's: on every rank
losses, gradients and buffers agree, and so do the buckets. The same situations are errors. And the same indices from both
samplers.

    parity.py LOCKSTEP RANK_PROGRAM
"""

import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.multiprocessing as mp
from torch.utils.data.distributed import DistributedSampler

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "world"))

from parity_cases import LARGE, TRAININGS, USUAL, first_of_each_kind  # noqa: E402
from parity_nets import NETS, Wide  # noqa: E402
from parity_situations import ERRORS_HERE_ALONE, ERRORS_THERE_ALONE, UNNOTICED_ALONE, find_errors  # noqa: E402
from parity_training import DELAYED, train  # noqa: E402
from rendezvous_rank import free_port  # noqa: E402

LOCKSTEP, PROGRAM = "", ""
STEPS = {1: 4, 2: 6, 3: 4, 5: 4}  # by world; in the fourth torch tells the last buckets of a static graph
LOGGED = ("bucket_sizes", "rebuilt_bucket_sizes", "has_rebuilt_buckets", "dtypes", "world_size", "bucket_cap_bytes",
          "total_parameter_size_bytes", "num_buckets_reduced", "broadcast_buffers")
REBUILT = ("rebuilt_bucket_sizes", "has_rebuilt_buckets", "num_buckets_reduced")
SEVERAL_FORWARDS = ("two_forwards", "two_backwards", "forward_in_vain")  # for torch each is a pass that may reduce nothing
COUNTED = ("bucket_sizes", "rebuilt_bucket_sizes", "dtypes", "total_parameter_size_bytes", "num_buckets_reduced")


def travels_alone(how, size):
    """Nothing is sent in a world of one, and has no buckets here, unless it has a hook."""
    return size == 1 and "hook" not in how


def tolerance(eps, size, numbers):
    """Relative and absolute. In 16 bits torch rounds each term of a mean and each sum of two, and we the mean alone. Of two
    ranks that comes to the same, unless the half of a number has not all its bits; of more, a rounding for each rank."""
    if eps < 1e-6 or not numbers:
        return 1e-5, 1e-6
    return eps, 1e-6 + (size * eps / 2 * max(map(abs, numbers)) if size > 2 else 0)


def mean_of(ranks):
    """Of the numbers of all ranks, by name."""
    return {name: [statistics.fmean(each) for each in zip(*(rank[name] for rank in ranks))] for name in ranks[0]}


class Parity(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_both(self, size, rank_function, case):
        """What came of it here and there, by rank."""
        (self.folder / "case.json").write_text(json.dumps(case))
        mp.start_processes(rank_function, (size, self.folder, case.get("trainings"), free_port()), nprocs=size,
                           start_method="fork")
        ours = subprocess.run([LOCKSTEP, "run", "--nproc", str(size), "--prefix", "", PROGRAM, self.folder],
                              capture_output=True, text=True, timeout=200)
        self.assertEqual(ours.returncode, 0, ours.stderr)
        return [[json.loads((self.folder / f"{whose}{rank}.json").read_text()) for rank in range(size)]
                for whose in ("lockstep", "torch")]

    def compare(self, size, trainings):
        """One start of the ranks for all of them."""
        torch.manual_seed(3)
        trainings = {name: USUAL | {"steps": STEPS[size]} | how for name, how in trainings.items()}
        for how in trainings.values():
            how["uses"] = [[how["uses"](step, rank) for rank in range(size)] for step in range(how["steps"])]
        for name in sorted({how["net"] for how in trainings.values()}):
            outer = torch.nn.Module()  # whose state is that of a wrapped one: an OrderedDict with metadata
            outer.module = NETS[name]()
            torch.save(outer.state_dict(), self.folder / f"{name}.pt")
        for step, rank in itertools.product(range(STEPS[size]), range(size)):
            torch.save(torch.randn(4, 8), self.folder / f"batch{step}_{rank}")
        ours, theirs = self.run_both(size, train, {"trainings": list(trainings.values())})
        for place, (name, how) in enumerate(trainings.items()):
            with self.subTest(name, ranks=size):
                self.compare_training(how, [rank[place] for rank in ours], [rank[place] for rank in theirs])

    def compare_training(self, how, ours, theirs):
        size = len(theirs)
        for step in range(how["steps"]):
            a, b = ([rank["steps"][step] for rank in ranks] for ranks in (ours, theirs))
            gradients = [rank["gradients"] for rank in b]
            if how.get("drifts") and size > 1:
                self.assertNotEqual(gradients[0], gradients[-1])
                gradients = [mean_of(gradients)] * size
            for rank in range(size):
                where = f"rank {rank}, step {step}"
                self.assertAlmostEqual(a[rank]["loss"], b[rank]["loss"], delta=1e-6, msg=where)
                self.compare_gradients(how, size, a[rank]["gradients"], gradients[rank], where)
                if "bits" in how:
                    self.check_rounded(how["bits"], a[rank]["gradients"], where)
                # A forward after one in no_sync() torch does not synchronise, and that one it does.
                if how["pass"] != "accumulated":
                    self.compare_buffers(a[rank]["buffers"], b[rank]["buffers"], where)
        for rank in range(size):
            self.compare_logged(how, size, ours[rank]["logged"], theirs[rank]["logged"])
            if travels_alone(how, size):
                self.assertEqual(ours[rank]["buckets"], [[], []])
            else:
                self.compare_buckets(how, ours[rank], theirs[rank])

    def compare_gradients(self, how, size, ours, theirs, where):
        bits = [getattr(torch, how["bits"])] if "bits" in how else []
        for name, parameter in NETS[how["net"]]().named_parameters(remove_duplicate=False):
            eps = max(torch.finfo(dtype).eps for dtype in [parameter.dtype, *bits])
            self.compare_numbers(ours, theirs, name, where, *tolerance(eps, size, theirs[name]))
        self.assertEqual(set(ours), set(theirs))

    def check_rounded(self, bits, gradients, where):
        """A tolerance for 16 bits is met by those who do not round at all."""
        for name, numbers in gradients.items():
            self.assertEqual(numbers, torch.tensor(numbers).to(getattr(torch, bits)).tolist(), f"{where}, {name}")

    def compare_buffers(self, ours, theirs, where):
        for name in theirs:
            self.compare_numbers(ours, theirs, name, where)
        self.assertEqual(set(ours), set(theirs))

    def compare_numbers(self, ours, theirs, name, where, rtol=1e-5, atol=1e-6):
        x, y = ours[name], theirs[name]
        self.assertEqual(x is None, y is None, f"{where}, {name}")
        if x is not None:
            torch.testing.assert_close(torch.tensor(x), torch.tensor(y), rtol=rtol, atol=atol,
                                       msg=lambda text: f"{where}, {name}: {text}")

    def compare_logged(self, how, size, ours, theirs):
        # Threads of gloo's own are all that it has and we have not.
        self.assertLessEqual(set(theirs) - {"gloo_num_threads"}, set(ours))
        for key in LOGGED:
            a, b = ours[key], theirs.get(key, "")
            if travels_alone(how, size) and key in REBUILT:
                continue
            if DELAYED in how and key in COUNTED:  # torch does not count them
                continue
            if key == "num_buckets_reduced" and how["pass"] in SEVERAL_FORWARDS:
                continue
            if key == "rebuilt_bucket_sizes" and how["net"] == "mixed":  # see compare_buckets()
                a, b = sorted(a.split(", ")), sorted(b.split(", "))
            self.assertEqual(a, b, key)

    def compare_buckets(self, how, ours, theirs):
        types = {name: parameter.dtype for name, parameter in NETS[how["net"]]().named_parameters()}
        for when, a, b in zip(("before", "after"), ours["buckets"], theirs["buckets"]):
            # Those that are delayed have no bucket in torch, and are the last here.
            self.assertEqual(sorted(sum(a[len(b):], [])), sorted(how.get(DELAYED, [])))
            del a[len(b):]
            # What is still open at the end torch closes in the order of a hash table.
            rebuilt = when == "after" and not how.get("find_unused_parameters")
            order_is_known = len(b) - len(set(types.values())) if rebuilt and how["net"] == "mixed" else len(b)
            self.assertEqual(a[:order_is_known], b[:order_is_known], when)
            self.assertEqual(sorted(a), sorted(b), when)

    def test_training(self):
        for size in STEPS:
            self.compare(size, TRAININGS if size < 5 else first_of_each_kind(TRAININGS))

    def test_the_buckets_of_a_large_net(self):
        self.assertGreater(sum(parameter.nbytes for parameter in Wide().parameters()), 26 << 20)
        self.compare(2, LARGE)

    def test_the_same_situations_are_errors(self):
        here, there = self.differing_errors(2)
        self.assertEqual(here, set(ERRORS_HERE_ALONE))
        self.assertEqual(there, set(ERRORS_THERE_ALONE))

    def test_the_same_situations_are_errors_in_a_world_of_one(self):
        here, there = self.differing_errors(1)
        self.assertEqual(here, set(ERRORS_HERE_ALONE) - UNNOTICED_ALONE)
        nothing_is_added = {"sparse in 16 bits"}
        self.assertEqual(there, (set(ERRORS_THERE_ALONE) | UNNOTICED_ALONE) - set(ERRORS_HERE_ALONE) - nothing_is_added)

    def differing_errors(self, size):
        """Of ours alone and of torch's alone, which are the same on every rank."""
        ours, theirs = self.run_both(size, find_errors, {})
        found = set()
        for a, b in zip(ours, theirs):
            self.assertEqual(set(a), set(b) | {"another shape", "another type"})
            errors = [{name for name, error in each.items() if error} for each in (a, b)]
            found.add((frozenset(errors[0] - errors[1]), frozenset(errors[1] - errors[0])))
        self.assertEqual(len(found), 1, found)
        return found.pop()

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
