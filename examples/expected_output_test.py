"""Runs a program under `lockstep run`, and compares what its ranks print with a file; the order of the lines differs.

    expected_output_test.py COMMAND NPROC PROGRAM EXPECTED      COMMAND is `lockstep`
"""

import pathlib
import re
import subprocess
import sys


def main(command, nproc, program, expected):
    result = subprocess.run([command, "run", "--nproc", nproc, program], capture_output=True, text=True, timeout=100)
    printed = sorted(re.sub(r"^\[rank \d+\] ", "", line) for line in result.stdout.splitlines())
    wanted = sorted(pathlib.Path(expected).read_text().splitlines())
    if result.returncode == 0 and printed == wanted:
        return 0
    print(f"{program} ended with {result.returncode} and printed\n{result.stdout}{result.stderr}", file=sys.stderr)
    print(f"but {expected} has\n" + "\n".join(wanted), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
