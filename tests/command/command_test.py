"""The `lockstep` command as a person meets it: real processes, real shells.

    command_test.py COMMAND [unittest arguments]

COMMAND is the program to test. LOCKSTEP_START_MS is the most that starting it may cost (default 150).
"""

import json
import os
import pathlib
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import unittest

COMMAND = ""


def run(*arguments, env=None, **options):
    environment = {**os.environ, **(env or {})}
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=200, env=environment,
                          **options)


def words(*typed):
    """What completion offers when the last of `typed` is being typed."""
    answer = run("completion", "words", input="".join(word + "\0" for word in typed))
    return [line.split("\t")[0] for line in answer.stdout.splitlines()]


def commands(*path):
    """Every command below `path`, as lists of words."""
    out = []
    for name in words(*path, ""):
        out += [[*path, name], *commands(*path, name)]
    return out


class Help(unittest.TestCase):
    def test_alone_it_prints_its_help(self):
        result = run()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(result.stdout, run("--help").stdout)
        for name in words(""):
            self.assertIn(name, result.stdout)

    def test_every_command_has_help_and_every_option_a_description(self):
        everything = commands()
        self.assertIn(["doctor"], everything)
        self.assertIn(["completion", "bash"], everything)
        for command in everything:
            result = run(*command, "--help")
            self.assertEqual((result.returncode, result.stderr), (0, ""), command)
            self.assertIn("Usage: lockstep " + " ".join(command), result.stdout)
            offered = run("completion", "words", input="".join(word + "\0" for word in [*command, "--"]))
            for line in offered.stdout.splitlines():
                option, description = line.split("\t")
                self.assertTrue(description, f"{command} {option} has no description")
                self.assertIn(option, result.stdout)

    def test_a_mistake_is_one_sentence_a_hint_and_status_2(self):
        for command, arguments, sentence in [
            ("", ["docter"], "there is no command \"docter\"; did you mean 'doctor'?"),
            ("", [""], 'there is no command "".'),
            ("doctor", ["--jsno"], "there is no option \"--jsno\"; did you mean '--json'?"),
            ("doctor", ["--timeout", "soon"], '--timeout "soon" is not a time above zero, such as 10s.'),
            ("doctor", ["--timeout", "0"], '--timeout "0" is not a time above zero, such as 10s.'),
            ("doctor", ["--json=foo"], '--json takes no value, and was given "foo".'),
            ("doctor", ["--json", "--timeout"], "--timeout needs a value: DURATION."),
            ("doctor", ["--timeout="], "--timeout needs a value: DURATION."),
            ("doctor", ["--timeout", "1s", "--timeout", "2s"], "--timeout is given 2 times."),
            ("doctor", ["--master", ""], "--master is empty: give it a value, or leave the option out."),
            ("doctor", ["node0"], 'the argument "node0" was not expected.'),
            ("store", ["--port", "70000"], '--port is "70000" but must be a whole number from 0 to 65535.'),
            ("store", ["--port", "http"], '--port is "http" but must be a whole number from 0 to 65535.'),
            ("store", ["--port"], "--port needs a value: PORT."),
            ("store", ["--insecure", "--secret-file", ""],
             "--secret-file is empty: give it a value, or leave the option out."),
            ("store", ["--insecure", "--host", "localhost"],
             '--host "localhost" is not a numeric address of this host, such as 127.0.0.1 or ::1.'),
            ("store", ["--insecure", "--job-id", "a", "--job-id", "a"],
             '--job-id "a" is given twice: give each job a name of its own.'),
            ("doctor", ["--python", "/no/python"], '--python: there is no program "/no/python".'),
            ("completion", ["fish"], 'there is no command "fish"; there are bash and zsh.'),
            ("secret", [], "FILE is required."),
            ("secret", ["a", "b"], 'the argument "b" was not expected.'),
            ("secret", [""], "FILE is empty: give it a value."),
            ("run", ["--nproc"], "--nproc needs a value: N."),
            ("run", ["--nproc=", "true"], "--nproc needs a value: N."),
            ("run", ["-r"], "--redirects needs a value: STREAMS."),
            ("run", ["--env"], "--env needs a value: NAME=VALUE."),
            ("run", ["--tee", "", "true"], "--tee is empty: give it a value, or leave the option out."),
            ("run", ["-m=3", "true"], '"=3" behind a short option is not understood: leave it out.'),
            ("run", ["--nprco", "2", "true"], "there is no option \"--nprco\"; did you mean '--nproc'?"),
            ("bench store", ["--clients"], "--clients needs a value: LIST."),
            ("bench store", ["--clients", "1,x"],
             '--clients "1,x" is not a list of whole numbers from 1 to 4096, such as 1,16.'),
            ("bench launch", ["--nproc"], "--nproc needs a value: N,..."),
            ("bench launch", ["--nproc", "x"],
             '--nproc "x" is not a list of whole numbers from 1 to 4096, such as 1,16.'),
            ("bench launch", ["--nproc", "1,"],
             '--nproc "1," is not a list of whole numbers from 1 to 4096, such as 1,16.'),
            ("bench launch", ["--nproc", "1", "2"], 'the argument "2" was not expected.'),
            ("bench launch", ["--json", ""], "--json is empty: give it a value, or leave the option out."),
        ]:
            with self.subTest(command=command, arguments=arguments):
                result = run(*command.split(), *arguments)
                name = f"lockstep {command}".strip()
                self.assertEqual(result.stderr.splitlines(), [f"{name}: {sentence}", f"Try '{name} --help'."])
                self.assertEqual((result.returncode, result.stdout), (2, ""))

    def test_every_option_says_what_value_it_lacks(self):
        for command in commands():
            shown = re.findall(r"^  (?:-\w,)?(--[\w,-]+) (\S+)", run(*command, "--help").stdout, re.MULTILINE)
            for names, value in shown:
                result = run(*command, names.split(",")[-1])
                self.assertRegex(result.stderr, f": --[a-z-]+ needs a value: {re.escape(value)}\\.?\n", command)
                self.assertEqual((result.returncode, result.stdout), (2, ""))


class Completion(unittest.TestCase):
    def test_offers_what_the_commands_themselves_register(self):
        self.assertIn("run", words(""))
        self.assertIn("launch", words("bench", ""))
        self.assertIn("--nproc", words("run", "--np"))
        self.assertEqual(words("run", "--cpu-binding", ""), ["none", "cores", "numa"])
        self.assertEqual(words("run", "./train", "--np"), [])
        self.assertNotIn("words", words("completion", ""))


class Version(unittest.TestCase):
    def test_says_what_it_is_made_of(self):
        result = run("--version")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        for line in [r"lockstep \d+\.\d+\.\d+", r"wire version +\d+", r"build +\w+, \S+ \d+.*", r"OpenSSL +3\..*",
                     r"hwloc API +2\..*", r"torch helpers +\S.*"]:
            self.assertRegex(result.stdout, re.compile(f"^{line}$", re.MULTILINE))

    def test_output_that_cannot_be_written_is_noticed(self):
        for arguments in (["--version"], ["--help"], [], ["doctor", "--help"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=200)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn("the output could not be written", done.stderr)

    def test_works_whatever_the_environment_holds(self):
        self.assertEqual(run("--version", env={"RANK": "first", "LOCKSTEP_LOG": "?"}).returncode, 0)

    def test_starts_in_milliseconds(self):
        best = min(self.processor_seconds() for _ in range(20))
        self.assertLess(best, float(os.environ.get("LOCKSTEP_START_MS", "150")) / 1e3)

    @staticmethod
    def processor_seconds():
        """What one start costs; unlike the time that passes, it does not depend on what else runs here."""
        child = subprocess.Popen([COMMAND, "--version"], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        return usage.ru_utime + usage.ru_stime


class Secret(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name, "it's secret")

    def test_is_for_its_owner_alone_and_never_shown(self):
        result = run("secret", str(self.path))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(stat.S_IMODE(self.path.stat().st_mode), 0o600)
        text = self.path.read_text().strip()
        self.assertRegex(text, r"^[0-9a-f]{64}$")
        self.assertNotIn(text, result.stdout + result.stderr)

    def test_its_output_can_be_evaluated_by_a_shell(self):
        script = '''eval "$("$1" secret "$2" 2>/dev/null)" && cat "$LOCKSTEP_SECRET_FILE"'''
        shell = subprocess.run(["sh", "-c", script, "sh", COMMAND, self.path], capture_output=True, timeout=200)
        self.assertEqual(shell.stdout, self.path.read_bytes())

    def test_two_are_never_equal_and_none_is_overwritten(self):
        run("secret", str(self.path))
        first = self.path.read_text()
        again = run("secret", str(self.path))
        self.assertNotEqual(again.returncode, 0)
        self.assertIn(str(self.path), again.stderr)
        self.assertEqual(self.path.read_text(), first)
        self.path.unlink()
        run("secret", str(self.path))
        self.assertNotEqual(self.path.read_text(), first)


class Store(unittest.TestCase):
    def serve(self, *arguments):
        """A running store and its address."""
        child = subprocess.Popen([COMMAND, "store", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True)
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        return child, child.stdout.readline().strip()

    def test_prints_its_address_listens_there_and_stops_when_told(self):
        for stop in (signal.SIGTERM, signal.SIGINT):
            child, address = self.serve("--insecure")
            host, port = address.split(":")
            self.assertEqual(host, "127.0.0.1")
            socket.create_connection((host, int(port)), timeout=200).close()
            child.send_signal(stop)
            _, errors = child.communicate(timeout=200)
            self.assertEqual(child.returncode, 0)
            self.assertIn(stop.name, errors)
            self.assertIn("warning: whoever reaches that address can join", errors)

    def test_wants_a_secret_or_to_be_told_that_it_needs_none(self):
        for arguments in (["store"], ["store", "--host", "127.0.0.2"]):
            result = run(*arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn("lockstep secret FILE", result.stderr)
        result = run("store", "--insecure", "--secret-file", "x")
        self.assertEqual(result.returncode, 2)

    def test_serves_with_the_secret_of_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            secret = str(pathlib.Path(folder, "secret"))
            self.assertEqual(run("secret", secret).returncode, 0)
            _, address = self.serve("--secret-file", secret, "--job-id", "a", "--job-id", "b")
            self.assertRegex(address, r"^127\.0\.0\.1:\d+$")
            os.chmod(secret, 0o644)
            result = run("store", "--secret-file", secret)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("chmod", result.stderr)

    def test_a_port_that_is_taken_is_named_with_its_owner(self):
        child, address = self.serve("--insecure")
        port = address.split(":")[1]
        result = run("store", "--insecure", "--port", port)
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(result.stdout, "")
        self.assertIn(port, result.stderr)
        self.assertIn(str(child.pid), result.stderr)

    def test_bad_values_are_refused(self):
        for arguments in (["--port", "70000"], ["--port", "http"], ["--host", "not an address"],
                          ["--world-size", "0"], ["--epoch", "-1"], ["--job-id", ""], ["--job-id", "a", "--job-id", ""]):
            result = run("store", "--insecure", *arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""), (arguments, result.stderr))


class LaunchBench(unittest.TestCase):
    # Stands for one with torch, beside which there is no torchrun.
    PYTHON = """#!/bin/sh
case "$*" in
  *find_spec*) exit 0 ;;
  *torch.__version__*) echo 2.99 ;;
  "-m torch.distributed.run --nproc-per-node 2 --no-python true") exec true ;;
  *) exit 9 ;;
esac
"""

    def test_measures_the_torchrun_of_a_python(self):
        with tempfile.TemporaryDirectory() as folder:
            python, report = pathlib.Path(folder, "python"), pathlib.Path(folder, "report.json")
            python.write_text(self.PYTHON)
            python.chmod(0o755)
            result = run("bench", "launch", "--rounds", "1", "--against", "torchrun", "--python", python, "--json", report)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn("; torchrun ", result.stdout)
            written = json.loads(report.read_text())
            self.assertEqual(written["versions"]["torch"], "2.99")
            self.assertGreater(written["rows"][0]["peers"]["torchrun"]["ms"], 0)

    def test_a_python_without_torch_is_refused(self):
        result = run("bench", "launch", "--against", "torchrun", "--python", "false")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn('needs a Python with torch, and "false" has none; name one with --python', result.stderr)


class Doctor(unittest.TestCase):
    # `false` stands for an interpreter: importing torch would take longer than all of this.
    def test_json_is_for_programs(self):
        result = run("doctor", "--json", "--master", "127.0.0.1", "--python", "false")
        report = json.loads(result.stdout)
        self.assertEqual(result.returncode, 1 if report["status"] == "unusable" else 0)
        checks = {check["topic"]: check for check in report["checks"]}
        self.assertEqual(checks["shared memory"]["status"], "ok")
        self.assertEqual(checks["master"]["facts"]["addresses"], "127.0.0.1 (lo)")
        self.assertIn("lo", checks["interfaces"]["facts"]["names"])
        self.assertEqual(checks["torch"]["status"], "warning")
        self.assertGreater(checks["cores"]["facts"]["usable"], 0)
        self.assertEqual(checks["lockstep"]["facts"]["wire_version"], 1)
        with_torch = "torch helpers  not installed" not in run("--version").stdout
        self.assertRegex(checks["libtorch"]["facts"]["version"], r"\A\d+\.\d+" if with_torch else r"\A\Z")
        self.assertIn("this build was made with", checks["libtorch"]["found"])

    def test_without_a_terminal_there_are_no_colours(self):
        result = run("doctor", "--python", "false")
        self.assertNotIn("\033", result.stdout)
        self.assertRegex(result.stdout, r"(?m)^ok +shared memory ")
        self.assertRegex(result.stdout, r"(?m)^warning +torch ")

    def test_something_unusable_is_status_1(self):
        result = run("doctor", "--python", "false", env={"RANK": "first"})
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"(?m)^unusable +environment .*RANK")

    def test_on_a_terminal_there_are_colours_unless_refused(self):
        self.assertIn(b"\033[32mok", self.on_terminal({}))
        self.assertNotIn(b"\033[", self.on_terminal({"NO_COLOR": "1"}))

    @staticmethod
    def on_terminal(env):
        ours, theirs = os.openpty()
        environment = {**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, **env}
        child = subprocess.Popen([COMMAND, "doctor", "--python", "false"], stdout=theirs, env=environment)
        os.close(theirs)
        output = b""
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # EIO: the other side is closed
                chunk = b""
            if not chunk:
                break
            output += chunk
        child.wait(timeout=200)
        os.close(ours)
        return output


if __name__ == "__main__":
    COMMAND = sys.argv.pop(1)
    unittest.main()
