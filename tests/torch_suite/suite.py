"""Runs tests of torch's own distributed suite, on one backend and one size of the world.

    suite.py --backend gloo|lockstep --world 3 --json FILE [--part 0/2] [TEST ...]

Writes what came of each test: passed, skipped or failed, with the reason. torch is imported once: the ranks of each test
are forked.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import unittest

PATIENCE = 100  # seconds, for one test


def load(world):
    """torch's suite as a class for worlds of this size. It asks for the environment when it is imported."""
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(world), DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(PATIENCE),
                      INIT_METHOD=f"file://{tempfile.mkdtemp()}/again")  # for the one that joins a second time
    import torch
    from torch.testing._internal.distributed import distributed_test
    torch.set_num_threads(1)

    class TorchSuite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return TorchSuite


class Outcomes(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.of, self.since = {}, 0.0

    def startTest(self, test):
        super().startTest(test)
        self.since = time.monotonic()

    def note(self, test, outcome, reason=""):
        self.of[test._testMethodName] = {"outcome": outcome, "reason": reason,
                                         "seconds": round(time.monotonic() - self.since, 2)}

    def addSuccess(self, test):
        self.note(test, "passed")

    def addSkip(self, test, reason):
        self.note(test, "skipped", reason)

    def addFailure(self, test, error):
        self.note(test, "failed", self._exc_info_to_string(error, test))

    addError = addFailure


def run(suite, tests, backend):
    """What came of each test."""
    if backend == "lockstep":
        import in_place_of_gloo
        in_place_of_gloo.install()
    outcomes = Outcomes()
    for test in tests:
        suite(test).run(outcomes)
    return outcomes.of


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=("gloo", "lockstep"), required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--part", default="0/1", help="which of how many parts of the suite")
    parser.add_argument("tests", nargs="*")
    options = parser.parse_args()
    suite = load(options.world)
    part, parts = map(int, options.part.split("/"))
    tests = options.tests or unittest.TestLoader().getTestCaseNames(suite)[part::parts]
    with open(options.json, "w", encoding="utf-8") as out:
        json.dump(run(suite, tests, options.backend), out, indent=1)


if __name__ == "__main__":
    sys.exit(main())
