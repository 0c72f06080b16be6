"""Runs of `lockstep bench` that a test looks at."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would the bench


class BenchTest(unittest.TestCase):
    command = None  # the path of `lockstep`

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, *arguments, stderr=subprocess.PIPE):
        (self.folder / "tmp").mkdir(exist_ok=True)
        # Ranks that share cores with other tests may well be slow, and be called so.
        return subprocess.Popen(["env", "LOCKSTEP_LOG=error", f"TMPDIR={self.folder}/tmp", self.command, "bench", *arguments],
                                stdout=subprocess.PIPE, stderr=stderr, text=True)

    def beside(self, *peers):
        """The arguments that have these peers measured too. torch's ranks are run by the test's Python."""
        python = ["--python", os.environ["PYTHON_EXEC"]] if "PYTHON_EXEC" in os.environ else []
        return ["--against", ",".join(peers), *python] if peers else []

    def bench(self, *arguments):
        """Runs to the end; gives the table and the report."""
        report = self.folder / "report.json"
        process = self.start(*arguments, "--json", str(report))
        out, err = process.communicate(timeout=300)
        self.assertEqual((process.returncode, err), (0, ""), out)
        self.assertEqual(list((self.folder / "tmp").iterdir()), [], "scratch files were left")
        return out, json.loads(report.read_text())
