"""F28: a rank that the kernel's OOM killer takes, inside a memory cgroup of the test's own.

    launcher_oom_test.py COMMAND [unittest arguments]
    launcher_oom_test.py --probe        exits 0 if such a cgroup can be made here
"""

import os
import pathlib
import sys
import time

LIMIT = 96 << 20


class Cgroup:
    """A memory cgroup below the one of this process, v1 or v2; removed at the end of the with block."""

    def __init__(self):
        lines = [line.split(":", 2) for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()]
        paths = {controllers: path for _, controllers, path in lines}
        v1 = next((path for controllers, path in paths.items() if "memory" in controllers.split(",")), None)
        root, path, self.file = ("/sys/fs/cgroup/memory", v1, "memory.limit_in_bytes") if v1 else (
            "/sys/fs/cgroup", paths[""], "memory.max")
        self.folder = pathlib.Path(root + path, f"lockstep-test-{os.getpid()}")

    def __enter__(self):
        self.folder.mkdir()
        try:
            (self.folder / self.file).write_text(str(LIMIT))
        except OSError:
            self.folder.rmdir()
            raise
        return self

    def __exit__(self, *_):
        # The kernel takes a while to forget a process that has ended.
        deadline = time.monotonic() + 10
        while True:
            try:
                return self.folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                os.sched_yield()

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))


def probe():
    """Makes one and puts a process into it."""
    try:
        with Cgroup() as cgroup:
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


if sys.argv[1:] == ["--probe"]:
    sys.exit(0 if probe() else 1)

from launcher import LauncherTest, main  # noqa: E402


class OutOfMemory(LauncherTest):
    def test_the_report_says_what_the_cgroup_counted(self):
        program = self.python("""
import os
if os.environ["RANK"] == "1":
    hoard = [bytearray(os.urandom(1 << 20)) for _ in range(400)]
    print("kept", len(hoard))
else:
    os.read(0, 1)
    os.execvp("sleep", ["sleep", "1000"])
""")
        with Cgroup() as cgroup:
            status, out, err = self.run_job("--nproc", 2, *program, preexec_fn=cgroup.enter)
        self.assertEqual((status, out), (137, ""))
        self.assertRegex(err, r"lockstep: rank 1 \(host \S+, pid \d+\) was killed by SIGKILL \(signal 9\), "
                              r"possibly out of memory: the cgroup counted 1 OOM kill\.\n")


if __name__ == "__main__":
    main()
