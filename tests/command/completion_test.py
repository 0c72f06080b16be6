"""Types half a command line into a real shell, presses the tab key, and sees what the shell ran.

    completion_test.py COMMAND SHELL
"""

import json
import os
import pathlib
import pty
import select
import subprocess
import sys
import tempfile
import time
import unittest

COMMAND = SHELL = ""

START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
PREPARE = {
    "bash": "",
    "zsh": "autoload -U compinit; compinit -u -D",
}


class Completion(unittest.TestCase):
    def test_the_script_has_no_syntax_errors(self):
        script = subprocess.run([COMMAND, "completion", SHELL], capture_output=True, timeout=200, check=True).stdout
        result = subprocess.run([SHELL, "-n"], input=script, capture_output=True, timeout=200)
        self.assertEqual((result.returncode, result.stderr), (0, b""))

    def test_the_tab_key_completes_commands_options_and_files(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "a_long_file_name").write_text("")
            self.type_lines(folder, [
                PREPARE[SHELL],
                f'eval "$({COMMAND} completion {SHELL})"',
                "lockstep doct\t--js\t--pyth\tfalse > doctor.json",
                "lockstep secret a_lo\t 2> secret.txt",
                "exit",
            ])
            report = json.loads(pathlib.Path(folder, "doctor.json").read_text())
            self.assertIn("checks", report)
            # Not made, because it is there: the name was completed.
            self.assertIn("a_long_file_name", pathlib.Path(folder, "secret.txt").read_text())

    def type_lines(self, folder, lines):
        """Runs an interactive shell on a terminal; its output is for the message of a failure."""
        environment = {**os.environ, "PATH": f"{pathlib.Path(COMMAND).parent}:{os.environ['PATH']}",
                       "TERM": "dumb", "HOME": folder, "HISTFILE": ""}
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.execvpe(START[SHELL][0], START[SHELL], environment)
        os.write(terminal, "".join(line + "\r" for line in lines).encode())
        seen, deadline = b"", time.monotonic() + 200
        try:
            while time.monotonic() < deadline:
                if select.select([terminal], [], [], 1)[0]:
                    seen += os.read(terminal, 4096)
        except OSError:  # EIO: the shell has ended
            pass
        else:
            os.kill(pid, 9)
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
        self.assertTrue(os.WIFEXITED(status), f"the shell did not end:\n{seen.decode(errors='replace')}")


if __name__ == "__main__":
    SHELL, COMMAND = sys.argv.pop(2), sys.argv.pop(1)
    unittest.main()
