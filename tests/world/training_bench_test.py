"""`lockstep bench ddp`: real ranks that train, measured and verified, in a report that others can read.

    training_bench_test.py COMMAND PEERS [unittest arguments]      PEERS is "plain" or "plain,torch"
"""

import sys
import unittest
import xml.etree.ElementTree

import bench_runs

COMMAND, PEERS = sys.argv[1], sys.argv[2]
ROW = {"op", "model", "option", "nproc", "hosts", "threads", "batch", "bytes", "dtype", "median_us", "cpu_s", "overlap",
       "exposed_comm_us", "verified", "peers"}


class TrainingBench(bench_runs.BenchTest):
    command = COMMAND

    def test_a_step_beside_every_peer(self):
        picture = self.folder / "plot.svg"
        names = [name for peer in PEERS.split(",") for name in ([peer, "torch_tuned"] if peer == "torch" else [peer])]
        out, report = self.bench("ddp", "--nproc", "2", "--model", "mlp-8x2", "--option", "default,no_sync", "--batch",
                                 "2", "--rounds", "1", "--plot", str(picture), *self.beside(*PEERS.split(",")))
        self.assertEqual(set(report), {"machine", "versions", "rows"})
        self.assertEqual(set(report["versions"]), {"lockstep", *names})
        self.assertEqual([row["option"] for row in report["rows"]], ["default", "no_sync"])
        for row in report["rows"]:
            self.assertEqual(set(row), ROW)
            self.assertEqual((row["op"], row["model"], row["nproc"], row["batch"], row["bytes"], row["verified"]),
                             ("ddp", "mlp-8x2", 2, 2, 2 * (8 * 8 + 8) * 4, True))
            self.assertGreater(row["median_us"], 0)
            self.assertTrue(0 <= row["overlap"] <= 1)
            self.assertGreaterEqual(row["exposed_comm_us"], 0)
            self.assertEqual(set(row["peers"]), set(names))
            for peer in row["peers"].values():
                self.assertEqual(set(peer), {"median_us", "ratio", "ratio_low", "ratio_high"})
                self.assertTrue(0 < peer["ratio_low"] <= peer["ratio"] <= peer["ratio_high"])
        self.assertEqual(len(out.splitlines()), 4, out)
        drawn = xml.etree.ElementTree.parse(picture)
        self.assertEqual(len(drawn.findall("{http://www.w3.org/2000/svg}polyline")), 2 * (1 + len(names)))

    def test_every_other_model_trains(self):
        out, report = self.bench("ddp", "--nproc", "1", "--model", "gpt-small,resnet18", "--batch", "1", "--option",
                                 "static_graph", "--rounds", "1")
        self.assertEqual([(row["model"], row["verified"]) for row in report["rows"]],
                         [("gpt-small", True), ("resnet18", True)], out)

    def test_options_that_are_more_than_a_flag_are_given_to_both_sides(self):
        options = ["bucket_cap_mb_list", "skip_all_reduce_unused_params", "bf16_compress_hook"]
        out, report = self.bench("ddp", "--nproc", "2", "--model", "mlp-8x2", "--option", ",".join(options), "--batch",
                                 "2", "--rounds", "1", *self.beside(PEERS.split(",")[-1]))
        self.assertEqual([(row["option"], row["verified"]) for row in report["rows"]],
                         [(option, True) for option in options], out)

    def test_wrong_values_are_refused_in_one_sentence(self):
        for option, value in (("--model", "vgg"), ("--option", "fast"), ("--against", "gloo"), ("--batch", "0"),
                              ("--nproc", "two"), ("--cpu-binding", "socket"), ("--json", "/nowhere/report")):
            process = self.start("ddp", option, value)
            out, err = process.communicate(timeout=200)
            self.assertEqual((process.returncode, out), (2, ""), err)
            self.assertEqual(err.count("lockstep bench ddp: "), 1, err)
            self.assertIn(value, err)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
