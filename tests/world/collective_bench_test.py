"""`lockstep bench all_reduce` and its like: real ranks, measured and verified, in a report that others can read.

    collective_bench_test.py COMMAND PEERS [unittest arguments]      PEERS is "none", "gloo", "mpi" or "gloo,mpi"
"""

import os
import pathlib
import pty
import re
import signal
import sys
import unittest
import xml.etree.ElementTree

import bench_runs

COMMAND, PEERS = sys.argv[1], sys.argv[2]
ROW = {"op", "nproc", "hosts", "bytes", "dtype", "peer_dtype", "memory", "median_us", "algbw_gbs", "busbw_gbs", "cpu_s",
       "verified", "peers"}
OPS = ["all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all",
       "send_recv"]


class CollectiveBench(bench_runs.BenchTest):
    command = COMMAND

    def test_all_reduce_beside_every_peer(self):
        picture = self.folder / "plot.svg"
        peers = self.beside(*PEERS.split(",")) if PEERS != "none" else []
        peers += ["--api", "tensor"] if "gloo" in PEERS else []
        out, report = self.bench("all_reduce", "--nproc", "2", "--bytes", "4KiB", "--memory", "resident,foreign",
                                 "--rounds", "2", "--plot", str(picture), *peers)
        names = PEERS.split(",") if PEERS != "none" else []
        if "gloo" in PEERS:
            names.insert(0, "tensor")
            self.assertEqual(len(re.findall(r"calls on tensors add -?[\d.]+ us .* to 4096 bytes, ", out)), 2, out)
        self.assertEqual(set(report), {"machine", "versions", "rows"})
        self.assertGreaterEqual(report["machine"]["cores"], 1)
        self.assertEqual(set(report["versions"]), {"lockstep", *names})
        self.assertEqual([row["memory"] for row in report["rows"]], ["resident", "foreign"])
        for row in report["rows"]:
            self.assertEqual(set(row), ROW)
            self.assertEqual((row["op"], row["nproc"], row["hosts"], row["bytes"], row["dtype"], row["verified"]),
                             ("all_reduce", 2, 1, 4096, "float32", True))
            self.assertGreater(row["median_us"], 0)
            self.assertAlmostEqual(row["algbw_gbs"], 4096 / row["median_us"] / 1e3)
            self.assertAlmostEqual(row["busbw_gbs"], row["algbw_gbs"])  # 2 (n - 1) / n is 1
            self.assertGreater(row["cpu_s"], 0)
            self.assertEqual(set(row["peers"]), set(names))
            for peer in row["peers"].values():
                self.assertEqual(set(peer), {"median_us", "ratio", "ratio_low", "ratio_high"})
                self.assertTrue(0 < peer["ratio_low"] <= peer["ratio"] <= peer["ratio_high"])
        self.assertEqual(len(out.splitlines()), 6 if "tensor" in names else 4, out)
        drawn = xml.etree.ElementTree.parse(picture)
        lines = drawn.findall("{http://www.w3.org/2000/svg}polyline")
        self.assertEqual(len(lines), 2 + len(names))

    def test_every_operation_is_verified(self):
        """Beside MPI's, which start quickly, with elements twice as large."""
        against = ["--against", "mpi"] if "mpi" in PEERS else []
        for op in OPS:
            _, report = self.bench(op, "--nproc", "3", "--bytes", "100KiB", "--memory", "resident,foreign",
                                   "--dtype", "int32", "--peer-dtype", "int64", "--rounds", "1", *against)
            self.assertEqual([(row["verified"], row["dtype"], row["peer_dtype"]) for row in report["rows"]],
                             [(True, "int32", "int64")] * 2, op)
            self.assertEqual([set(row["peers"]) for row in report["rows"]], [set(against[1:])] * 2, op)
        _, report = self.bench("barrier", "--nproc", "3", "--rounds", "1")
        self.assertEqual([(row["bytes"], row["dtype"], row["memory"], row["verified"]) for row in report["rows"]],
                         [(0, "none", "none", True)])

    def test_progress_is_for_terminals(self):
        ours, theirs = pty.openpty()
        process = self.start("all_reduce", "--nproc", "2", "--bytes", "4KiB", "--rounds", "2", stderr=theirs)
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 4096):
                shown += chunk
        except OSError:  # nobody has the other end any more
            pass
        os.close(ours)
        out, _ = process.communicate(timeout=200)
        self.assertEqual(process.returncode, 0, shown)
        lines = shown.decode().split("\r\x1b[K")
        self.assertEqual([line for line in lines if "4.0 KiB resident" in line],
                         [f"all_reduce 4.0 KiB resident, {what}" for what in
                          ("warming up", "round 1 of 2", "round 2 of 2")])
        self.assertEqual(lines[-1], "", "the last line stays")
        self.assertNotIn("\x1b", out)

    def test_ranks_are_bound_to_cores_of_their_own(self):
        cores = os.sched_getaffinity(0)
        count = min(len(cores), 2)
        for binding, has_its_own in (("cores", True), ("none", False)):
            process = self.start("barrier", "--nproc", str(count), "--rounds", "10000", "--cpu-binding", binding)
            self.assertIn("barrier, ", process.stdout.readline())  # all ranks are there
            ranks = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            bound = [os.sched_getaffinity(int(rank)) for rank in ranks]
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=200)
            self.assertEqual(len(bound), count)
            if has_its_own:
                self.assertEqual(len(set.union(*bound)), sum(map(len, bound)), bound)
            else:
                self.assertEqual(bound, [cores] * count)

    def test_what_comparing_fingerprints_costs(self):
        out, report = self.bench("fingerprint", "--ranks", "4", "--rounds", "3")
        self.assertIn("comparing fingerprints with 4 ranks: ", out)
        self.assertEqual([(row["op"], row["ranks"]) for row in report["rows"]], [("fingerprint", 4)])

    def test_an_interrupted_bench_leaves_nothing(self):
        process = self.start("all_reduce", "--nproc", "2", "--bytes", "4KiB", "--rounds", "10000")
        self.assertIn("all_reduce, float32", process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=200)
        self.assertEqual(process.returncode, 1)
        self.assertIn("lockstep bench all_reduce: a signal has ended the bench.\n", err)
        self.assertEqual(list((self.folder / "tmp").iterdir()), [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
