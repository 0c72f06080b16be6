"""What the ranks of an example print, compared with the file that says so; the order of the lines differs.

    expected_output.py COMMAND NPROC PROGRAM EXPECTED      runs PROGRAM under COMMAND, which is `lockstep`
"""

import pathlib
import re
import subprocess
import sys


def lines_of(printed):
    """Sorted, without what the launcher puts before them."""
    return sorted(re.sub(r"^\[rank \d+\] ", "", line) for line in printed.splitlines())


def differences(printed, expected):
    """What is wrong with `printed`, as text; nothing if it has the lines of the file `expected`."""
    wanted = lines_of(pathlib.Path(expected).read_text(encoding="utf-8"))
    if lines_of(printed) == wanted:
        return ""
    return f"it printed\n{printed}but {expected} has\n" + "\n".join(wanted)


def main(command, nproc, program, expected):
    result = subprocess.run([command, "run", "--nproc", nproc, program], capture_output=True, text=True, timeout=200)
    wrong = differences(result.stdout, expected)
    if result.returncode == 0 and not wrong:
        return 0
    print(f"{program} ended with {result.returncode}: {wrong}{result.stderr}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
