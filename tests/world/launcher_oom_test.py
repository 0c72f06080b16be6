"""F28: a rank that the kernel's OOM killer takes, inside a memory cgroup of the test's own.

    launcher_oom_test.py COMMAND [unittest arguments]
"""

from cgroup import Cgroup
from launcher import LauncherTest, main

LIMIT = 96 << 20


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
        with Cgroup(LIMIT) as cgroup:
            status, out, err = self.run_job("--nproc", 2, *program, preexec_fn=cgroup.enter)
        self.assertEqual((status, out), (137, ""))
        self.assertRegex(err, r"lockstep: rank 1 \(host \S+, pid \d+\) was killed by SIGKILL \(signal 9\), "
                              r"possibly out of memory: the cgroup counted 1 OOM kill\.\n")


if __name__ == "__main__":
    main()
