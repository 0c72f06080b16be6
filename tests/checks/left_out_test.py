"""Tests of cmake/LockstepLeaveOut.cmake: what is left out is said when the tree is configured, and after the tests.

    left_out_test.py CMAKE [unittest arguments]
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CMAKE = ""


class LeftOutTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def configure(self, *lines):
        """Runs lines of CMake; returns what it says and what it leaves for `make test`."""
        script = self.folder / "script.cmake"
        left_out = self.folder / "left_out.txt"
        script.write_text("\n".join([f'include("{ROOT}/cmake/LockstepLeaveOut.cmake")', *lines,
                                     f'lockstep_write_left_out("{left_out}")']))
        done = subprocess.run([CMAKE, "-DLOCKSTEP_TESTS=ON", "-P", script], capture_output=True, text=True, check=True, timeout=30)
        return done.stdout, left_out.read_text()

    def test_tests_that_are_left_out_are_named_with_the_reason(self):
        said, left = self.configure('lockstep_leave_out("there is no zsh" zsh_completion)',
                                    'lockstep_leave_out("this takes root" a b)')
        self.assertEqual(left, "Left out, because there is no zsh: zsh_completion\nLeft out, because this takes root: a, b\n")
        self.assertIn("-- Left out, because this takes root: a, b\n", said)

    def test_nothing_is_said_where_nothing_is_left_out(self):
        self.assertEqual(self.configure(), ("", ""))

    def test_make_test_repeats_it_after_the_tests_and_ends_as_they_did(self):
        shutil.copy(ROOT / "Makefile", self.folder)
        (self.folder / "build/release").mkdir(parents=True)
        (self.folder / "build/release/tests_left_out.txt").write_text("Left out, because of this: that\n")
        (self.folder / "tools").mkdir()
        (self.folder / "bin").mkdir()
        for name in ("tools/setup.sh", "bin/cmake"):
            (self.folder / name).write_text("#!/bin/sh\n")
            (self.folder / name).chmod(0o755)
        ctest = self.folder / "bin/ctest"
        for status in (0, 8):
            ctest.write_text(f"#!/bin/sh\necho the sum of ctest\nexit {status}\n")
            ctest.chmod(0o755)
            done = subprocess.run(["make", "-s", "test"], cwd=self.folder, capture_output=True, text=True, timeout=60,
                                  env={"PATH": f"{self.folder}/bin:/usr/bin:/bin"})
            self.assertEqual(done.returncode == 0, status == 0)
            self.assertTrue(done.stdout.startswith("the sum of ctest\nLeft out, because of this: that\n"), done.stdout)


if __name__ == "__main__":
    CMAKE = sys.argv.pop(1)
    unittest.main()
