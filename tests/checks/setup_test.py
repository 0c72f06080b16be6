"""Tests of tools/setup.sh on a machine that is made up: dpkg-query, apt-get, id and python3 are small scripts."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "setup.sh"

# Says that every package it is asked about is installed, but those in the file `missing`.
DPKG_QUERY = """#!/bin/bash
for word in "$@"; do
  case "$word" in -*) continue ;; esac
  grep -qx "$word" "$MACHINE/missing" || echo "installed:$word"
done
"""
APT_GET = """#!/bin/bash
echo "$*" >>"$MACHINE/apt"
case "$1" in install)
  [ ! -e "$MACHINE/apt_fails" ] || { echo "E: no space"; exit 100; }
  for word in "${@:4}"; do echo "Setting up $word:amd64 (1.0-1) ..."; done ;;
esac
"""
ID = """#!/bin/bash
cat "$MACHINE/uid"
"""
# A python3 whose torch, if any, lies where the file `python_torch` says.
PYTHON = """#!/bin/bash
cat "$MACHINE/python_torch" 2>/dev/null
"""


class SetupTest(unittest.TestCase):
    def setUp(self):
        self.machine = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.machine)
        self.tree = self.machine / "tree"
        (self.tree / "tools").mkdir(parents=True)
        shutil.copy(TOOL, self.tree / "tools")
        (self.machine / "bin").mkdir()
        for name, text in {"dpkg-query": DPKG_QUERY, "apt-get": APT_GET, "id": ID, "python3": PYTHON}.items():
            self.program(self.machine / "bin" / name, text)
        self.missing()
        self.user(0)

    def program(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def missing(self, *packages):
        (self.machine / "missing").write_text("".join(f"{package}\n" for package in packages))

    def user(self, uid):
        (self.machine / "uid").write_text(f"{uid}\n")

    def torch(self, name, version="2.13.0"):
        """A made-up libtorch; returns its prefix and its Torch_DIR."""
        folder = self.machine / name / "share/cmake/Torch"
        folder.mkdir(parents=True)
        (folder / "TorchConfig.cmake").touch()
        (folder / "TorchConfigVersion.cmake").write_text(f'set(PACKAGE_VERSION "{version}")\n')
        return self.machine / name, folder

    def venv(self):
        """A .venv as an earlier run has left it; returns its Torch_DIR."""
        folder = self.torch("venv_torch")[1]
        self.program(self.tree / ".venv/bin/python", f"#!/bin/bash\necho {folder}\n")
        (self.tree / ".venv/lockstep_torch").write_text("2.13.0\n")
        return folder

    def setup(self, *args, **environment):
        return subprocess.run(
            [self.tree / "tools/setup.sh", *args], capture_output=True, text=True, check=False,
            env={"MACHINE": self.machine, "PATH": f"{self.machine}/bin:/usr/bin:/bin", "HOME": "/", **environment})

    def recorded(self):
        return pathlib.Path((self.tree / "build/setup/torch_dir").read_text().strip())

    def apt_calls(self):
        calls = self.machine / "apt"
        return calls.read_text().splitlines() if calls.exists() else []

    def test_with_everything_in_place_it_does_nothing(self):
        folder = self.torch("given")[1]
        first = self.setup("build", "check", "package", Torch_DIR=str(folder))
        self.assertEqual((first.returncode, first.stderr), (0, ""))
        again = self.setup("build", "check", "package", Torch_DIR=str(folder))
        self.assertEqual((again.returncode, again.stdout, again.stderr), (0, "", ""))
        self.assertEqual(self.apt_calls(), [])

    def test_root_installs_exactly_what_is_missing_with_a_line_each(self):
        self.missing("libssl-dev", "libhwloc-dev")
        done = self.setup("--no-torch")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.apt_calls(),
                         ["update -qq", "install --no-install-recommends -y libhwloc-dev libssl-dev"])
        self.assertIn("setup:   libhwloc-dev (1.0-1)\nsetup:   libssl-dev (1.0-1)\n", done.stdout)

    def test_mpi_is_wanted_by_those_who_ask_alone(self):
        self.missing("libopenmpi-dev", "openmpi-bin")
        self.assertEqual(self.setup("--no-torch", "build", "check", "package").returncode, 0)
        self.assertEqual(self.apt_calls(), [])
        self.assertEqual(self.setup("--no-torch", "build", "mpi").returncode, 0)
        self.assertIn("install --no-install-recommends -y libopenmpi-dev openmpi-bin", self.apt_calls())

    def test_zsh_is_wanted_by_the_tests_alone(self):
        self.missing("zsh")
        (self.machine / "bin/zsh").unlink(missing_ok=True)
        path = f"{self.machine}/bin:{self.machine}/rest"
        (self.machine / "rest").mkdir()
        for folder in ("/usr/bin", "/bin"):
            for program in pathlib.Path(folder).iterdir():
                link = self.machine / "rest" / program.name
                if program.name != "zsh" and not link.is_symlink():
                    link.symlink_to(program)
        self.assertEqual(self.setup("--no-torch", "build", "check", "package", PATH=path).returncode, 0)
        self.assertEqual(self.apt_calls(), [])
        self.assertEqual(self.setup("--no-torch", "build", "test", PATH=path).returncode, 0)
        self.assertIn("install --no-install-recommends -y zsh", self.apt_calls())

    def test_an_install_that_fails_is_shown_and_stops_it(self):
        self.missing("libssl-dev")
        (self.machine / "apt_fails").touch()
        done = self.setup("--no-torch")
        self.assertEqual(done.returncode, 1)
        self.assertIn("E: no space", done.stderr)

    def test_who_is_not_root_is_told_the_packages_and_the_command(self):
        self.user(1000)
        self.missing("libssl-dev", "libhwloc-dev")
        done = self.setup("--no-torch")
        self.assertEqual(done.returncode, 1)
        self.assertIn("missing Debian packages: libhwloc-dev libssl-dev\n", done.stderr)
        self.assertIn("apt-get install --no-install-recommends -y libhwloc-dev libssl-dev\n", done.stderr)
        self.assertEqual(self.apt_calls(), [])

    def test_who_is_not_root_goes_on_if_nothing_is_missing(self):
        self.user(1000)
        self.assertEqual(self.setup("--no-torch").returncode, 0)

    def test_a_program_not_from_debian_will_do(self):
        self.program(self.machine / "bin/mold", "#!/bin/bash\n")
        self.missing("mold")
        self.assertEqual(self.setup("--no-torch").returncode, 0)
        self.assertEqual(self.apt_calls(), [])

    def test_libtorch_is_taken_from_the_first_place_that_has_it(self):
        given, prefix = self.torch("given")[1], self.torch("prefix")[0]
        python, venv = self.torch("python")[1], self.venv()
        (self.machine / "python_torch").write_text(f"{python}\n")
        for environment, expected in [
            ({"Torch_DIR": str(given), "CMAKE_PREFIX_PATH": str(prefix)}, given),
            ({"CMAKE_PREFIX_PATH": f"/nowhere:{prefix}"}, prefix / "share/cmake/Torch"),
            ({}, python),
        ]:
            self.assertEqual(self.setup(**environment).returncode, 0)
            self.assertEqual(self.recorded(), expected)
        (self.machine / "python_torch").unlink()
        self.assertEqual(self.setup().returncode, 0)
        self.assertEqual(self.recorded(), venv)

    def test_a_torch_that_is_too_old_is_passed_over(self):
        (self.machine / "python_torch").write_text(f"{self.torch('old', '2.6.1')[1]}\n")
        venv = self.venv()
        self.assertEqual(self.setup().returncode, 0)
        self.assertEqual(self.recorded(), venv)

    def test_a_torch_that_is_too_old_is_refused_where_it_was_named(self):
        prefix, folder = self.torch("old", "2.6.1")
        for environment in ({"Torch_DIR": str(folder)}, {"CMAKE_PREFIX_PATH": str(prefix)}):
            done = self.setup(**environment)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(done.stderr, f"setup: {list(environment)[0]} names libtorch 2.6.1 in {prefix}, and 2.7.0 or newer "
                                          "is needed\n")

    def test_a_prefix_may_have_a_space(self):
        prefix, folder = self.torch("my libtorch")
        self.assertEqual(self.setup(CMAKE_PREFIX_PATH=f"/nowhere;{prefix}").returncode, 0)
        self.assertEqual(self.recorded(), folder)

    def test_what_needs_the_python_of_torch_is_refused_where_there_is_none(self):
        prefix, folder = self.torch("given")
        done = self.setup("build", "python", Torch_DIR=str(folder))
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"needs a Python that has torch, and the libtorch in {prefix} came without one", done.stderr)
        self.venv()
        self.assertEqual(self.setup("build", "python").returncode, 0)

    def test_programs_that_cannot_be_fetched_stop_those_who_need_them_alone(self):
        python = self.torch("site/torch")[1]
        (self.machine / "python_torch").write_text(f"{python}\n")
        (self.machine / "site/torch/version.py").write_text("__version__ = '2.13.0+cu130'\n")
        pip = """#!/bin/bash
echo "$*" >>"$MACHINE/pip"
[ -e "$MACHINE/reached" ] || { echo "no such host"; exit 1; }
"""
        # What makes an environment, and says where torch is.
        self.program(self.machine / "bin/python3", PYTHON + f"""
[ "$1 $2" != "-m venv" ] || {{
  mkdir -p "$4/lib/python3.11/site-packages" "$4/bin"
  cp "$MACHINE/pip.sh" "$4/bin/python"
}}
""")
        self.program(self.machine / "pip.sh", pip)
        pips = lambda: (self.machine / "pip").read_text().count("install")
        left = self.setup("build", "programs-if-reached")
        self.assertEqual(left.returncode, 0, left.stderr)
        self.assertIn("could not be fetched, so their test is left out: no such host\n", left.stdout)
        self.assertFalse((self.tree / "build/setup/programs/complete").exists())
        needed = self.setup("build", "programs")
        self.assertEqual(needed.returncode, 1)
        self.assertIn("no such host\nsetup: pip install pytorch-lightning accelerate failed\n", needed.stderr)
        (self.machine / "reached").touch()
        for _ in range(2):  # once fetched, they are there
            self.assertEqual(self.setup("build", "programs-if-reached").returncode, 0)
        self.assertEqual(pips(), 3)
        # As pip knows it, whose versions of torch need not say what they were built for.
        self.assertEqual((self.tree / "build/setup/programs/torch.txt").read_text(), "torch==2.13.0\n")
        (self.machine / "python_torch").write_text(f"{self.torch('other/torch')[1]}\n")
        self.assertEqual(self.setup("build", "programs").returncode, 0)  # which see another torch now
        self.assertEqual(pips(), 4)
        (self.machine / "other/torch/share/cmake/Torch/TorchConfigVersion.cmake").write_text('set(PACKAGE_VERSION "2.14.0")\n')
        for _ in range(2):  # of another version in its place
            self.assertEqual(self.setup("build", "programs").returncode, 0)
            self.assertEqual(pips(), 5)

    def test_programs_are_left_out_where_their_python_has_lost_its_torch(self):
        python = self.machine / "lost/bin/python3"
        self.program(python, "#!/bin/bash\n")
        (self.tree / "build/setup/programs").mkdir(parents=True)
        (self.tree / "build/setup/programs/complete").touch()
        (self.tree / "build/setup/torch_python").write_text(f"{python}\n")
        needed = self.setup("--no-torch", "build", "programs")
        self.assertEqual((needed.returncode, needed.stderr),
                         (1, f"setup: {python} has no torch any more, and Lightning and accelerate need it\n"))
        left = self.setup("--no-torch", "build", "programs-if-reached")
        self.assertEqual((left.returncode, left.stdout),
                         (0, f"setup: {python} has no torch any more, so the test of Lightning and accelerate is left out\n"))
        self.assertFalse((self.tree / "build/setup/programs/complete").exists())

    def test_the_benchmarks_leave_peers_in_python_out_where_there_is_none(self):
        shutil.copy(TOOL.parent / "bench.sh", self.tree / "tools")
        self.program(self.tree / "release/bin/lockstep", '#!/bin/bash\necho "$*" >>"$MACHINE/bench"\n')
        (self.tree / "build/setup").mkdir(parents=True)
        for python, has, has_not in (("", ["--against mpi", "--against plain "], ["gloo", "torchrun", "plain,torch"]),
                                     ("/opt/my py/bin/python3", ["gloo,mpi", "plain,torch", "--against torchrun --python /opt/my py/bin/python3"], [])):
            (self.machine / "bench").unlink(missing_ok=True)
            (self.tree / "build/setup/torch_python").write_text(f"{python}\n")
            done = subprocess.run([self.tree / "tools/bench.sh", self.tree / "release", self.tree / "reports"],
                                  capture_output=True, text=True, env={"MACHINE": self.machine, "PATH": "/usr/bin:/bin"})
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual("left out" in done.stdout, not python)
            ran = (self.machine / "bench").read_text()
            for text in has:
                self.assertIn(text, ran)
            for text in has_not:
                self.assertNotIn(text, ran)

    def test_a_python_without_headers_gets_them(self):
        (self.machine / "python_torch").write_text(f"{self.torch('python')[1]}\n")
        self.missing("python3-dev")
        self.assertEqual(self.setup().returncode, 0)
        self.assertEqual(self.apt_calls(), [])
        self.program(self.machine / "bin/python3", PYTHON + 'case "$*" in *Python.h*) exit 1 ;; esac\n')
        self.assertEqual(self.setup().returncode, 0)
        self.assertIn("install --no-install-recommends -y python3-dev", self.apt_calls())

    def test_a_wrong_torch_dir_is_named(self):
        done = self.setup(Torch_DIR="/nowhere")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "setup: Torch_DIR is /nowhere, which holds no TorchConfig.cmake\n")

    def test_an_unknown_argument_is_named(self):
        done = self.setup("everything")
        self.assertEqual(done.returncode, 2)
        self.assertIn('unknown argument "everything"', done.stderr)

    def test_make_clean_leaves_what_set_up_has_found_and_fetched(self):
        shutil.copy(TOOL.parent.parent / "Makefile", self.tree)
        clean = lambda: subprocess.run(["make", "-s", "clean"], cwd=self.tree, capture_output=True, text=True, timeout=60)
        self.assertEqual(clean().returncode, 0, "a fresh clone has nothing to clean")
        for name in ("setup/torch_dir", "data/digits.csv", "release/bin/lockstep"):
            self.program(self.tree / "build" / name, "")
        self.assertEqual(clean().returncode, 0)
        self.assertEqual(sorted(path.name for path in (self.tree / "build").iterdir()), ["data", "setup"])


if __name__ == "__main__":
    unittest.main()
