"""A memory cgroup of a test's own, below that of the test.

    cgroup.py        exits 0 if one can be made here
"""

import os
import pathlib
import sys
import time


class Cgroup:
    """Made by `with` and removed at its end; v1 or v2."""

    def __init__(self, limit):
        """`limit` in bytes."""
        lines = [line.split(":", 2) for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()]
        paths = {controllers: path for _, controllers, path in lines}
        v1 = next((path for controllers, path in paths.items() if "memory" in controllers.split(",")), None)
        root, path, self.limits = ("/sys/fs/cgroup/memory", v1, {"memory.limit_in_bytes": limit}) if v1 else (
            "/sys/fs/cgroup", paths[""], {"memory.max": limit})
        # Where there is swap, as much of it would be used instead.
        self.swap = {"memory.memsw.limit_in_bytes": limit} if v1 else {"memory.swap.max": 0}
        self.folder = pathlib.Path(root + path, f"lockstep-test-{os.getpid()}")

    def __enter__(self):
        self.folder.mkdir()
        try:
            swap = {name: value for name, value in self.swap.items() if (self.folder / name).exists()}
            for name, value in (self.limits | swap).items():
                (self.folder / name).write_text(str(value))
        except OSError:
            self.folder.rmdir()
            raise
        return self

    def __exit__(self, *_):
        # The kernel takes a while to forget a process that has ended.
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                os.sched_yield()

    def enter(self):
        """Puts the calling process into it."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))


def probe():
    """Makes one and puts a process into it."""
    try:
        with Cgroup(96 << 20) as cgroup:
            child = os.fork()
            if child == 0:
                try:
                    cgroup.enter()
                except OSError:
                    os._exit(1)
                os._exit(0)
            return os.waitpid(child, 0)[1] == 0
    except (OSError, KeyError):
        return False


if __name__ == "__main__":
    sys.exit(0 if probe() else 1)
