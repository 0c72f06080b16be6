"""Tests of tools/fuzz.sh: it passes only if there was something to run, and all of it went well."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "fuzz.sh"


class FuzzScriptTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "tools").mkdir()
        shutil.copy(SCRIPT, self.root / "tools")
        (self.root / "build" / "fuzz" / "fuzz").mkdir(parents=True)

    def fuzz(self, *fuzzers):
        """Runs it where the fuzzers are these shell scripts."""
        for number, script in enumerate(fuzzers):
            program = self.root / "build" / "fuzz" / "fuzz" / f"fuzz{number}"
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        names = "".join(f"fuzz{number} seeds\n" for number in range(len(fuzzers)))
        (self.root / "build" / "fuzz" / "fuzzers.txt").write_text(names)
        return subprocess.run([self.root / "tools" / "fuzz.sh", "1"], capture_output=True, text=True, timeout=20)

    def test_no_fuzzers_is_a_failure(self):
        done = self.fuzz()
        self.assertEqual(done.returncode, 1)
        self.assertIn("there are no fuzzers", done.stderr)
        (self.root / "build" / "fuzz" / "fuzzers.txt").unlink()
        self.assertEqual(subprocess.run([self.root / "tools" / "fuzz.sh", "1"], capture_output=True).returncode, 1)

    def test_each_is_run_and_one_that_breaks_fails_all(self):
        self.assertEqual(self.fuzz("exit 0", "exit 0").returncode, 0)
        done = self.fuzz("exit 0", "exit 77")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stdout, "fuzz1 +BROKEN")


if __name__ == "__main__":
    unittest.main()
