"""`lockstep bench` between two hosts: network namespaces, with a wire as fast as it is told to be.

    collective_bench_hosts_test.py COMMAND PEERS [unittest arguments]      PEERS is "none" or "gloo"
"""

import sys
import unittest

import bench_runs

COMMAND, PEERS = sys.argv[1], sys.argv[2]
BYTES = 1 << 20  # four times what the bucket of the wire holds


class BenchBetweenHosts(bench_runs.BenchTest):
    command = COMMAND

    def test_of_the_wire_at_a_rate(self):
        for op, least_us in (("broadcast", 8 * BYTES / 100), ("reduce_scatter", 4 * BYTES / 100)):  # 100 bits a us
            out, report = self.bench(op, "--nproc", "1", "--hosts", "2", "--rate", "100mbit", "--bytes", str(BYTES),
                                     "--memory", "foreign", "--rounds", "1")
            row, = report["rows"]
            self.assertEqual((row["op"], row["nproc"], row["hosts"], row["bytes"], row["verified"]),
                             (op, 1, 2, BYTES, True))
            self.assertGreater(row["median_us"], least_us / 4, out)  # what fits into the bucket is faster

    def test_of_several_ranks_on_each(self):
        for op in ("all_to_all", "reduce"):
            _, report = self.bench(op, "--nproc", "2", "--hosts", "2", "--bytes", "4KiB,100KiB", "--rounds", "1")
            self.assertEqual([(row["op"], row["nproc"], row["hosts"], row["verified"]) for row in report["rows"]],
                             [(op, 2, 2, True)] * 2)

    def test_beside_torch_where_there_is_one(self):
        peers = [PEERS] if PEERS != "none" else []
        _, report = self.bench("all_reduce", "--nproc", "1", "--hosts", "2", "--bytes", "4KiB", "--rounds", "2",
                               *self.beside(*peers))
        row, = report["rows"]
        self.assertEqual((row["nproc"], row["hosts"], row["verified"], list(row["peers"])), (1, 2, True, peers))
        for peer in row["peers"].values():
            self.assertGreater(peer["median_us"], 0)
            self.assertTrue(0 < peer["ratio_low"] <= peer["ratio"] <= peer["ratio_high"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
