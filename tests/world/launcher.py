"""What the tests of `lockstep run` share: starting it, reading it, and seeing that nothing is left.

The command to test is the first argument of each test program.
"""

import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

from bounds import PATIENCE

COMMAND = sys.argv[1] if len(sys.argv) > 1 else ""
PYTHON = [sys.executable, "-S", "-E"]  # starts in a third of the time

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would the command


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])


def processes_with(mark):
    """The pids of all live processes whose environment has `mark`."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            environ = pathlib.Path("/proc", entry, "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environ:
            found.append(int(entry))
    return found


def until(condition, what):
    """Waits until condition() is true; it is asked again every few milliseconds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"never happened: {what}")
        select.select([], [], [], 0.005)


def is_alive(pid):
    try:
        return pathlib.Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Job:
    """A `lockstep run` that is going on."""

    def __init__(self, command, **options):
        self.process = subprocess.Popen(command, stdin=options.pop("stdin", subprocess.DEVNULL),
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        self.out, self.err = b"", b""

    @property
    def pid(self):
        return self.process.pid

    def read_until(self, pattern, stream="out"):
        """Reads until the stream has a match, and returns it."""
        pipe = self.process.stdout if stream == "out" else self.process.stderr
        deadline = time.monotonic() + PATIENCE
        while True:
            match = re.search(pattern.encode(), getattr(self, stream))
            if match:
                return match
            ready, _, _ = select.select([pipe], [], [], max(0, deadline - time.monotonic()))
            chunk = os.read(pipe.fileno(), 65536) if ready else b""
            if not chunk:
                raise AssertionError(f"{pattern} never came; out: {self.out!r} err: {self.err!r}")
            setattr(self, stream, getattr(self, stream) + chunk)

    def send(self, number):
        self.process.send_signal(number)

    def finish(self):
        """Waits for the end; gives the exit status, stdout and stderr."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, (self.out + out).decode(), (self.err + err).decode()


class LauncherTest(unittest.TestCase):
    """Every test has a folder of its own, and leaves no process and no scratch folder behind."""

    maxDiff = None

    def setUp(self):
        self.mark = f"LOCKSTEP_TEST_MARK={uuid.uuid4().hex}"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "tmp").mkdir()
        self.addCleanup(self.assert_nothing_left)

    def assert_nothing_left(self):
        """At once after a launcher that has ended; a launcher that was killed has a guard that needs a moment."""
        deadline = time.monotonic() + PATIENCE
        while (left := processes_with(self.mark)) and time.monotonic() < deadline:
            select.select([], [], [], 0.005)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        self.assertEqual(left, [], "processes were left running")
        self.assertEqual(list((self.folder / "tmp").iterdir()), [], "scratch files were left")

    def environment(self, **extra):
        name, value = self.mark.split("=")
        kept = {key: value for key, value in os.environ.items()
                if not key.startswith(("LOCKSTEP", "OMP_", "NO_COLOR", "TORCHELASTIC"))}
        return {**kept, name: value, "TMPDIR": str(self.folder / "tmp"), **extra}

    def start(self, *arguments, env=None, **options):
        options.setdefault("cwd", self.folder)
        return Job([*options.pop("before", []), COMMAND, "run", *map(str, arguments)],
                   env=self.environment(**(env or {})), **options)

    def run_job(self, *arguments, **options):
        """Runs to the end: (exit status, stdout, stderr without the line on threads)."""
        status, out, err = self.start(*arguments, **options).finish()
        return status, out, re.sub(r"lockstep: OMP_NUM_THREADS=.*\n", "", err)

    def script(self, text, name="program"):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def python(self, text, name="program.py"):
        """The words that run `text` as a Python program, quickly."""
        path = self.folder / name
        path.write_text(text)
        return [*PYTHON, str(path)]
