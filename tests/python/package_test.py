"""The package as pip installs it: in an environment of its own, next to the torch that is there."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPTIONS = argparse.Namespace(package_dir=None)

TRAINS = """
import torch, torch.distributed as dist
dist.init_process_group("cpu:lockstep", init_method="file://{file}", rank=0, world_size=1)
value = torch.ones(2)
dist.all_reduce(value)
print(dist.get_backend_config(), value.tolist())
dist.destroy_process_group()
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

    def run_python(self, code, **environment):
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=False, timeout=100,
                              cwd=self.folder.name, env={**clean, **environment})

    def test_backend_is_there_without_an_import(self):
        ran = self.run_python(TRAINS.format(file=f"{self.folder.name}/job"))
        self.assertEqual((ran.stdout, ran.returncode), ("cpu:lockstep [1.0, 1.0]\n", 0), ran.stderr)

    def test_an_exception_ends_the_program_as_any_other(self):
        ran = self.run_python(TRAINS.format(file=f"{self.folder.name}/job2").replace(
            "dist.all_reduce(value)", "dist.all_reduce(value, async_op=True); raise KeyError('mine')"))
        self.assertEqual(ran.returncode, 1, ran.stderr)
        self.assertIn("KeyError: 'mine'", ran.stderr)
        self.assertNotIn("terminate", ran.stderr)

    def test_what_cannot_be_loaded_is_a_warning_or_a_sentence(self):
        """A torch of another version; and an entry point that fails, which must not break `import torch`."""
        ran = self.run_python("import torch\nimport torch.distributed as dist\n"
                              "torch.__version__ = '2.99.1+cpu'\n"
                              "try:\n import lockstep_torch\nexcept ImportError as e:\n print(e)\n"
                              "dist.Backend._plugins.clear()\ndist.Backend.register_backend = None\n"
                              "import lockstep_torch_entry\nlockstep_torch_entry.register()\nprint('goes on')")
        self.assertRegex(ran.stdout, r"^lockstep-torch was built for torch 2\.\d+\.\d+, and this is torch 2\.99\.1\+cpu: "
                                     r"install it again\.\ngoes on\n$")
        self.assertIn("UserWarning: lockstep-torch could not make itself known to torch", ran.stderr)

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


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--package-dir", required=True)
    OPTIONS, rest = parser.parse_known_args()
    OPTIONS.package_dir = pathlib.Path(OPTIONS.package_dir).resolve()
    unittest.main(argv=[sys.argv[0], *rest], warnings="ignore")
