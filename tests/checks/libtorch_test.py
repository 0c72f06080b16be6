"""Tests of cmake/FindLibtorch.cmake: which libtorch is built with, of several that are made up.

    libtorch_test.py CMAKE
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

CMAKE = sys.argv[1]
MODULES = pathlib.Path(__file__).resolve().parents[2] / "cmake"
PROJECT = f"""cmake_minimum_required(VERSION 3.25)
project(looks NONE)
set(CMAKE_FIND_LIBRARY_PREFIXES lib)
set(CMAKE_FIND_LIBRARY_SUFFIXES .so)
list(APPEND CMAKE_MODULE_PATH "{MODULES}")
find_package(Libtorch REQUIRED)
message(STATUS "libraries: ${{Libtorch_torch_cpu_LIBRARY}}")
"""


class LibtorchTest(unittest.TestCase):
    def setUp(self):
        self.machine = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.machine)
        self.tree = self.machine / "tree"
        (self.tree / "build/setup").mkdir(parents=True)
        (self.tree / "CMakeLists.txt").write_text(PROJECT)

    def torch(self, name):
        """A made-up libtorch; returns its Torch_DIR."""
        folder = self.machine / name / "share/cmake/Torch"
        folder.mkdir(parents=True)
        (folder / "TorchConfig.cmake").touch()
        (folder / "TorchConfigVersion.cmake").write_text('set(PACKAGE_VERSION "2.13.0")\n')
        (self.machine / name / "lib").mkdir()
        for library in ("torch", "torch_cpu", "c10"):
            (self.machine / name / f"lib/lib{library}.so").touch()
        return str(folder)

    def record(self, folder):
        """As set-up does."""
        (self.tree / "build/setup/torch_dir").write_text(f"{folder}\n")

    def found(self, *words, **environment):
        """Configures, in the same folder each time; the name of the libtorch that is built with."""
        kept = {name: value for name, value in os.environ.items() if name not in ("Torch_DIR", "CMAKE_PREFIX_PATH")}
        done = subprocess.run([CMAKE, "-S", self.tree, "-B", self.tree / "build/release", *words], capture_output=True,
                              text=True, timeout=100, env={**kept, **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        return pathlib.Path(re.search("libraries: (.*)", done.stdout).group(1)).parents[1].name

    def test_what_set_up_says_now_is_taken_also_in_a_folder_that_was_configured_with_another(self):
        first, second = self.torch("first"), self.torch("second")
        self.record(first)
        self.assertEqual(self.found(), "first")
        self.record(second)
        self.assertEqual(self.found(), "second")
        self.assertEqual(self.found(), "second")
        self.assertEqual(self.found(Torch_DIR=first), "first")
        self.assertEqual(self.found(), "second")

    def test_torch_dir_is_stronger_than_the_prefixes_as_in_set_up(self):
        first, second = self.torch("first"), self.torch("second")
        self.record(second)
        self.assertEqual(self.found(Torch_DIR=first, CMAKE_PREFIX_PATH=str(self.machine / "second")), "first")

    def test_an_argument_is_the_strongest_and_stays(self):
        first, second, third = self.torch("first"), self.torch("second"), self.torch("third")
        self.record(first)
        self.assertEqual(self.found(f"-DTorch_DIR={second}"), "second")
        self.record(third)
        self.assertEqual(self.found(), "second")
        self.assertEqual(self.found(f"-DTorch_DIR={first}"), "first")
        self.assertEqual(self.found(), "first")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
