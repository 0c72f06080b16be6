"""A cross-section of torch's own distributed suite, on Lockstep in gloo's place. The ranks are started once for all."""

import contextlib
import datetime
import io
import os
import tempfile
import unittest

import suite

SUITE = [suite.load(3)]  # in a list, where unittest does not find it

import torch.distributed as dist  # noqa: E402
from torch.testing._internal.common_distributed import initialize_temp_directories  # noqa: E402
from worlds import World  # noqa: E402

import in_place_of_gloo  # noqa: E402
import torch_suite  # noqa: E402

TESTS = """
test_all_reduce_sum_async test_all_reduce_sum_complex test_all_reduce_complex_unsupported_ops
test_all_reduce_coalesced_full_group_max test_sparse_all_reduce_sum test_reduce_sum_twice
test_all_gather_coalesced_simple test_all_gather_object_default_pg test_broadcast test_gather test_gather_checks
test_scatter test_scatter_object_list test_barrier_full_group test_destroy_group test_get_rank_size_group
test_isend_torch_profiler test_send_recv_any_source test_send_recv_with_tag test_batch_isend_irecv_gloo_tags
test_get_future test_DistributedDataParallelCPU test_accumulate_gradients_no_sync_allreduce_with_then_hook
test_grads_same_across_ranks_with_no_sync test_static_graph_api_cpu
""".split()


def run_tests(rank, size, folder):
    """What is wrong, by test, up to the first; a rank that fails leaves the others waiting."""
    in_place_of_gloo.install()
    for test in TESTS:
        case = SUITE[0](test)
        case.rank, case.file_name = rank, f"{folder}/{test}"
        dist.set_debug_level(dist.DebugLevel.OFF)  # some leave another
        dist.init_process_group("gloo", init_method=case.init_method, rank=rank, world_size=size,
                                timeout=datetime.timedelta(seconds=60))
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                getattr(case, test)()
            except BaseException as error:
                raise AssertionError(f"{test}: {type(error).__name__}: {error}") from error
        case._barrier()
        dist.destroy_process_group()


class CrossSection(unittest.TestCase):
    def test_what_passes_on_gloo_passes_here(self):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TMPDIR"] = folder
            initialize_temp_directories()
            World(3, joins=False).run(run_tests, folder)


class Comparison(unittest.TestCase):
    def test_what_is_skipped_on_gloo_alone_is_no_test_that_is_skipped_on_both(self):
        words = ("passed", "failed", "skipped")
        gloo, ours = ({f"{a} {b}": {"outcome": (a, b)[side]} for a in words for b in words} for side in (0, 1))
        kinds, wrong = torch_suite.compare(gloo, ours, {"passed skipped": "a reason"})
        self.assertEqual(kinds["skipped on both"], ["skipped skipped"])
        self.assertEqual(kinds["failed on both"], ["failed failed"])
        self.assertEqual(wrong, ["passed failed", "failed skipped", "skipped failed"])


if __name__ == "__main__":
    unittest.main(warnings="ignore")
