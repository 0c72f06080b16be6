"""Tests of tools/tidy.py: which files it reads, and which it says it cannot."""

import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

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

    def test_a_source_in_a_batch_has_the_command_of_its_batch(self):
        with tempfile.TemporaryDirectory() as folder:
            batch = pathlib.Path(folder, "batches", "x_0.cpp")
            batch.parent.mkdir()
            batch.write_text('#include "src/lockstep/ddp/bucket.cpp"\n#include "src/lockstep/ddp/sampler.cpp"\n')
            made = pathlib.Path(folder, "made.cpp")
            entries = [{"file": str(path), "directory": folder, "command": f"/usr/bin/c++ -O2 -c {path} -o x.o"}
                       for path in (batch, made)]
            pathlib.Path(folder, "compile_commands.json").write_text(json.dumps(entries))
            commands = tidy.compile_commands(pathlib.Path(folder))
        self.assertEqual(sorted(commands), ["src/lockstep/ddp/bucket.cpp", "src/lockstep/ddp/sampler.cpp"])
        self.assertIn(str(tidy.ROOT / "src/lockstep/ddp/bucket.cpp"), commands["src/lockstep/ddp/bucket.cpp"][1])

    def run_on(self, changed, verdict):
        """The exit status, and what is printed, where `verdict` is that of each file."""
        said = []
        with (mock.patch.object(tidy, "compile_commands", return_value=self.COMMANDS),
              mock.patch.object(tidy, "changed_files", return_value=changed),
              mock.patch.object(tidy, "tidy", return_value=(verdict, "")), mock.patch.object(sys, "argv", ["tidy.py"]),
              mock.patch("builtins.print", lambda text, **_: said.append(text))):
            return tidy.main(), "\n".join(said)

    def test_a_file_that_nobody_read_is_named_and_never_ok(self):
        changed = {"src/lockstep/base/text.cpp"}
        self.assertEqual(self.run_on(changed, "clean")[0], 0)
        self.assertEqual(self.run_on(changed, "bad")[0], 1)
        status, said = self.run_on(changed, "late")
        self.assertEqual(status, tidy.UNREAD)
        self.assertRegex(said, "NOT READ.* s were over: src/lockstep/base/text.cpp")
        status, said = self.run_on(changed | {"src/lockstep/ddp/new.cpp"}, "clean")
        self.assertEqual(status, tidy.UNREAD)
        self.assertRegex(said, "NOT READ.*no build.*: src/lockstep/ddp/new.cpp")


if __name__ == "__main__":
    unittest.main()
