"""`lockstep bench store`, as small as it can be: every row is there, and the report is what its readers expect.

    store_bench_test.py COMMAND PEER [unittest arguments]      PEER is "none" or "torch"
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

COMMAND, PEER = sys.argv[1], sys.argv[2]
OPS = ("set", "get", "add", "wait", "join")
FIGURES = {"ops_per_s", "p50_us", "p99_us"}


class StoreBench(unittest.TestCase):
    def test_every_row_is_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "report.json")
            against = [] if PEER == "none" else ["--against", PEER]
            result = subprocess.run([COMMAND, "bench", "store", "--clients", "1,2", "--rounds", "1", "--round", "10ms",
                                     "--json", path, *against], capture_output=True, text=True, timeout=230)
            self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
            report = json.loads(path.read_text())
        self.assertLessEqual({"machine", "versions", "rows"}, set(report))
        rows = {(row["op"], row["clients"]): row for row in report["rows"]}
        self.assertEqual(set(rows), {(op, clients) for op in OPS for clients in (1, 2)})
        for row in rows.values():
            self.assertIn(row["op"], result.stdout)
            for name in FIGURES:
                self.assertGreater(row[name], 0, row)
            if PEER != "none":
                self.assertGreater(row["peers"][PEER]["ratio"], 0, row)
                self.assertLessEqual(row["peers"][PEER]["ratio_low"], row["peers"][PEER]["ratio_high"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
