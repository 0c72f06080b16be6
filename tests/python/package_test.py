"""The package as pip installs it: in an environment of its own, next to the torch that is there."""

import argparse
import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "python"))

import build_backend  # noqa: E402

OPTIONS = argparse.Namespace(package_dir=None)

BEGINS = """
import torch, torch.distributed as dist
dist.init_process_group("cpu:lockstep", init_method=f"file://{FOLDER}/{NAME}", rank=0, world_size=1)
value = torch.ones(2)
"""
PROGRAMS = {
    "trains": BEGINS + """
dist.all_reduce(value)
print(dist.get_backend_config(), value.tolist())
dist.destroy_process_group()
""",
    "reduces at exit": "import atexit\natexit.register(lambda: print(dist.all_reduce(value)))\n" + BEGINS,
    "raises": BEGINS + """
dist.all_reduce(value, async_op=True)
raise KeyError("mine")
""",
    # Whose tensors the worker lets go of one after the other, while the interpreter ends.
    "leaves works behind": BEGINS + """
import time
class Slow:
    def __del__(self):
        time.sleep(0.05)
for _ in range(8):
    value = torch.ones(2)
    value.attached = Slow()
    dist.all_reduce(value, async_op=True)
del value
""",
    # Two ranks; those of rank 0 are daemon threads, in calls that wait for the other.
    "leaves threads behind": """
import os, threading, time
import torch, torch.distributed as dist
rank = 0 if os.fork() else 1
dist.init_process_group("lockstep", init_method=f"file://{FOLDER}/{NAME}", rank=rank, world_size=2)
groups = [dist.new_group() for _ in range(6)]
if rank:
    try:
        dist.recv(torch.empty(2), 0)  # until rank 0 has left
    finally:
        os._exit(0)
for group in groups:
    for call in (dist.all_reduce, dist.recv):
        threading.Thread(target=call, args=(torch.empty(2),), kwargs={"group": group}, daemon=True).start()
threading.excepthook = print
from lockstep_torch import _C
while len(_C.traced_collectives() + _C.traced_messages()) < 2 * len(groups):
    time.sleep(0.001)
""",
    "has another torch": """
import torch.distributed as dist
torch.__version__ = "2.99.1+cpu"
try:
    import lockstep_torch
except ImportError as error:
    print(error)
dist.Backend._plugins.clear()
dist.Backend.register_backend = None
import lockstep_torch_entry
lockstep_torch_entry.register()
import warnings
warnings.simplefilter("error")
lockstep_torch_entry.register()
print("goes on")
""",
    "does not load": """
sys.modules["lockstep_torch._C"] = None
try:
    import lockstep_torch
except ImportError as error:
    print(error)
"""}

# Runs each of them to the interpreter's end, in a fork: torch is imported once.
ALL = """
import json, os, sys
import torch
FOLDER, programs, ended = sys.argv[1], json.loads(sys.argv[2]), {}
for NAME, program in programs.items():
    if not (pid := os.fork()):
        for descriptor in (1, 2):
            os.dup2(os.open(f"{FOLDER}/{NAME}.{descriptor}", os.O_CREAT | os.O_WRONLY), descriptor)
        break
    ended[NAME] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
else:
    program = "print(json.dumps(ended))"
exec(program)
"""


class PackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        venv = pathlib.Path(cls.folder.name) / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        cls.python = venv / "bin" / "python"
        torch_site = subprocess.run([sys.executable, "-E", "-c",
                                     "import importlib.util, os; "
                                     "print(os.path.dirname(os.path.dirname(importlib.util.find_spec('torch').origin)))"],
                                    capture_output=True, text=True, check=True).stdout
        cls.site = next((venv / "lib").glob("python3*/site-packages"))
        (cls.site / "torch_of_the_test.pth").write_text(torch_site)
        made = subprocess.run([sys.executable, "-m", "pip", "--python", cls.python, "install", "--disable-pip-version-check",
                               "--no-deps", "--no-index", ROOT / "python", "--config-settings", f"package-dir={OPTIONS.package_dir}"],
                              capture_output=True, text=True, check=False)
        if made.returncode:
            raise AssertionError(made.stdout + made.stderr)

        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        ran = subprocess.run([cls.python, "-c", ALL, cls.folder.name, json.dumps(PROGRAMS)], capture_output=True,
                             text=True, check=True, timeout=200, cwd=cls.folder.name, env=clean)
        cls.ended = json.loads(ran.stdout)

    def outcome(self, name):
        """The exit status, stdout and stderr of one of the programs."""
        streams = (pathlib.Path(self.folder.name, f"{name}.{number}").read_text() for number in (1, 2))
        return (self.ended[name], *streams)

    def test_backend_is_there_without_an_import(self):
        status, printed, errors = self.outcome("trains")  # torch has a warning for groups of one device's backend
        self.assertEqual((status, printed), (0, "cpu:lockstep [1.0, 1.0]\n"), errors)

    def test_what_the_program_does_at_exit_may_use_its_groups(self):
        status, printed, errors = self.outcome("reduces at exit")
        self.assertEqual((status, printed), (0, "None\n"), errors)

    def test_an_exception_ends_the_program_as_any_other(self):
        status, _, errors = self.outcome("raises")
        self.assertEqual(status, 1, errors)
        self.assertIn("KeyError: 'mine'", errors)
        self.assertNotIn("terminate", errors)

    def test_a_program_that_waits_for_none_of_its_works_ends_well(self):
        status, _, errors = self.outcome("leaves works behind")
        self.assertEqual(status, 0, errors)

    def test_a_program_ends_well_while_its_threads_wait(self):
        status, printed, errors = self.outcome("leaves threads behind")
        self.assertEqual((status, printed), (0, ""), errors)

    def test_what_cannot_be_loaded_is_a_warning_or_a_sentence(self):
        """A torch of another version; and an entry point that fails, which must not break `import torch`, not even where
        warnings are errors."""
        _, printed, errors = self.outcome("has another torch")
        self.assertRegex(printed, r"^lockstep-torch was built for torch 2\.\d+\.\d+\S*, and this is torch 2\.99\.1\+cpu: "
                                  r"install it again\.\ngoes on\n$")
        said = "lockstep-torch could not make itself known to torch"
        self.assertRegex(errors, rf"(?m)UserWarning: {said}.*\n(?:.*\n)*{said}")

    def test_an_extension_that_does_not_load_says_what_it_was_built_for(self):
        _, printed, errors = self.outcome("does not load")
        self.assertRegex(printed, r"^lockstep-torch cannot be loaded with torch (2\.\d+\.\d+)\S*: .*_C.* "
                                  r"It works with the torch that it was built for, \1: install it again\.\n$", errors)

    def test_nothing_but_the_module_itself_is_seen_of_the_core(self):
        """It is linked in, and is not mixed up with one of a program that has it too."""
        extension = next((self.site / "lockstep_torch").glob("_C*.so"))
        names = subprocess.run(["nm", "-D", "--defined-only", extension], capture_output=True, text=True, check=True).stdout
        self.assertIn(" T PyInit__C\n", names)
        self.assertEqual([line for line in names.splitlines() if "lockstep" in line], [])

    def test_what_pip_runs_would_build_the_package(self):
        """Configures in earnest, and asks what would be built then."""
        torch = build_backend.find_torch()
        configure, compile_it = build_backend.commands(pathlib.Path(self.folder.name, "plain"), torch)
        subprocess.run(configure, capture_output=True, check=True)
        steps = subprocess.run([*compile_it, "--", "-n"], capture_output=True, text=True, check=True).stdout
        self.assertRegex(steps, r"Linking CXX shared module python/lockstep_torch/_C\.\S*\.so\n")
        for built in ("bench.py", "lockstep_torch_entry.py"):
            self.assertIn(built, steps)
        self.assertNotIn("_test", steps)

    def test_a_wheel_is_of_what_was_built_last(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            earlier = folder / "python" / "lockstep_torch-0.0.1.dist-info"
            earlier.mkdir(parents=True)
            with mock.patch.object(build_backend, "find_torch"), mock.patch("shutil.which"), \
                    mock.patch("subprocess.run", return_value=argparse.Namespace(returncode=0)):
                package = build_backend.build(folder)
            self.assertFalse(earlier.exists())
            for version in (1, 2):
                (package / f"lockstep_torch-0.0.{version}.dist-info").mkdir(parents=True)
            self.assertRaisesRegex(SystemExit, "holds 2 versions of the package", build_backend.write_wheel, package, folder)

    def test_no_compiler_is_one_sentence(self):
        ran = subprocess.run([self.python, ROOT / "python" / "build_backend.py", self.folder.name],
                             env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False)
        self.assertEqual(ran.stderr, "lockstep-torch: it is built from source, and there is no cmake and no ninja and "
                                     "no c++; tools/setup.sh installs what it needs.\n")

    def test_no_torch_is_one_sentence(self):
        (self.site / "torch_of_the_test.pth").rename(self.site / "hidden")
        try:
            ran = subprocess.run([self.python, ROOT / "python" / "build_backend.py", self.folder.name],
                                 capture_output=True, text=True, check=False)
        finally:
            (self.site / "hidden").rename(self.site / "torch_of_the_test.pth")
        self.assertRegex(ran.stderr, r"^lockstep-torch: .* has no torch; install torch first, and then this again\.\n$")

    def test_an_older_torch_is_one_sentence(self):
        older = self.site / "torch"  # found before that of the .pth
        older.mkdir()
        (older / "__init__.py").touch()
        (older / "version.py").write_text("__version__ = '2.9.1+cpu'\n")
        try:
            ran = subprocess.run([self.python, ROOT / "python" / "build_backend.py", self.folder.name],
                                 capture_output=True, text=True, check=False)
        finally:
            shutil.rmtree(older)
        self.assertRegex(ran.stderr, r"^lockstep-torch: it needs torch 2\.11 or newer, and .* has 2\.9\.1\+cpu; install a newer one")

    def test_a_torch_newer_than_what_was_tested_is_one_sentence(self):
        newer = pathlib.Path(self.folder.name, "newer")
        newer.mkdir()
        said = io.StringIO()
        for version, warns in (("2.11.0", False), ("2.13.1+cpu", False), ("2.14.0.dev20260101", True), ("3.0.0", True)):
            (newer / "version.py").write_text(f"__version__ = '{version}'\n")
            found = argparse.Namespace(stdout=f"{newer}/__init__.py\n")
            with mock.patch("subprocess.run", return_value=found), contextlib.redirect_stderr(said):
                self.assertEqual(build_backend.find_torch(), newer)
            self.assertEqual(said.getvalue().count("\n"), int(warns))
            if warns:
                self.assertRegex(said.getvalue(), rf"^lockstep-torch: it was tested with torch 2\.11 to 2\.13, and .* has "
                                                  rf"{re.escape(version)}; if it does not compile, install torch 2\.13")
            said = io.StringIO()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--package-dir", required=True)
    OPTIONS, rest = parser.parse_known_args()
    OPTIONS.package_dir = pathlib.Path(OPTIONS.package_dir).resolve()
    unittest.main(argv=[sys.argv[0], *rest], warnings="ignore")
