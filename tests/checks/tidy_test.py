"""Tests of tools/tidy.py: which files it reads, and which it says it cannot."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))

import tidy


class TidyTest(unittest.TestCase):
    COMMANDS = {"src/lockstep/base/text.cpp": None, "src/lockstep/base/text_test.cpp": None}

    def test_a_header_brings_the_sources_of_its_folder(self):
        self.assertEqual(tidy.select(self.COMMANDS, {"src/lockstep/base/text.h"}), sorted(self.COMMANDS))
        self.assertEqual(tidy.select(self.COMMANDS, {"src/lockstep/base/text_test.cpp"}), ["src/lockstep/base/text_test.cpp"])

    def test_sources_that_changed_and_have_no_command_are_named(self):
        changed = {"src/lockstep/base/text.cpp", "src/lockstep/base/text.h", "src/lockstep/ddp/bucket.cpp", "README.md"}
        self.assertEqual(tidy.without_command(self.COMMANDS, changed), ["src/lockstep/ddp/bucket.cpp"])
        self.assertEqual(tidy.without_command(self.COMMANDS, None), [])


if __name__ == "__main__":
    unittest.main()
