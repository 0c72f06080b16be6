"""`lockstep run` on one host: what the ranks print and where it goes, and what each rank is given.

    launcher_output_test.py COMMAND [unittest arguments]
"""

import json
import os
import pathlib
import pty
import re
import select
import signal
import socket
import subprocess
import unittest

from launcher import COMMAND, LauncherTest, PATIENCE, PYTHON, main, until

# Prints what the rank was given, as one line of JSON.
DUMP = """
import json, os, stat
fds = {}
for name in os.listdir("/proc/self/fd"):
    try:
        fds[int(name)] = os.readlink("/proc/self/fd/" + name)
    except OSError:
        pass
print(json.dumps({"env": dict(os.environ), "fds": fds, "argv": open("/proc/self/cmdline").read().split("\\0")}))
"""


def lines_by_rank(out):
    found = {}
    for line in out.splitlines():
        rank, text = re.fullmatch(r"\[rank (\d+)\] (.*)", line).groups()
        found.setdefault(int(rank), []).append(text)
    return found


def cpu_time(pid):
    """In ticks, with that of the kernel for it."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


class Output(LauncherTest):
    def test_lines_are_never_torn(self):
        program = self.python("""
import os, random
rank = os.environ["RANK"]
random.seed(rank)
text = "".join("%s:%d:%s\\n" % (rank, i, "x" * random.randrange(300)) for i in range(2000)).encode()
at = 0
while at < len(text):
    size = random.randrange(1, 3000)
    os.write(1, text[at:at + size])
    at += size
""")
        status, out, _ = self.run_job("--nproc", 6, *program)
        self.assertEqual(status, 0)
        for rank, texts in lines_by_rank(out).items():
            self.assertEqual([text.split(":x")[0].rstrip(":") for text in texts], [f"{rank}:{i}" for i in range(2000)])

    def test_streams_stay_apart(self):
        status, out, err = self.run_job("sh", "-c", "echo to out; echo to err >&2")
        self.assertEqual((status, out, err), (0, "[rank 0] to out\n", "[rank 0] to err\n"))

    def test_the_last_line_needs_no_newline(self):
        self.assertEqual(self.run_job("printf", "a\\nb")[1], "[rank 0] a\n[rank 0] b\n")

    def test_bytes_that_are_no_text_pass(self):
        job = self.start("printf", "\\377\\001\\n")
        self.assertEqual(job.process.communicate(timeout=PATIENCE)[0], b"[rank 0] \xff\x01\n")

    def test_the_prefix_is_a_template(self):
        _, out, _ = self.run_job("--nproc", 2, "--role", "actor", "--prefix", "<{role}{local_rank}@{host}> ", "sh", "-c",
                                 "[ $RANK = 0 ] || echo x")
        self.assertEqual(out, f"<actor1@{socket.gethostname()}> x\n")
        self.assertEqual(self.run_job("--prefix", "", "echo", "x")[1], "x\n")

    def test_a_filter_shows_some_ranks_only(self):
        _, out, _ = self.run_job("--nproc", 4, "--local-ranks-filter", "1,3", "sh", "-c", "echo hello")
        self.assertEqual(sorted(lines_by_rank(out)), [1, 3])

    def test_colours_are_for_terminals(self):
        for extra, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
            ours, theirs = pty.openpty()
            process = subprocess.Popen([COMMAND, "run", "echo", "x"], stdin=subprocess.DEVNULL, stdout=theirs,
                                       stderr=subprocess.PIPE, env=self.environment(**extra))
            os.close(theirs)
            process.communicate(timeout=PATIENCE)
            shown = b""
            while b"\n" not in shown:
                shown += os.read(ours, 4096)
            self.assertEqual(b"\x1b[36m[rank 0] \x1b[0mx" in shown, coloured)
            os.close(ours)

    def test_a_reader_that_goes_away_does_not_end_the_job(self):
        job = self.start("sh", "-c", "i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done; touch finished")
        job.read_until("line 1\n")
        job.process.stdout.close()
        self.assertEqual(job.process.wait(timeout=PATIENCE), 0)
        self.assertTrue((self.folder / "finished").exists())
        job.process.stderr.close()

    def test_a_reader_that_does_not_read_holds_up_neither_signals_nor_the_watch(self):
        # Rank 0 begins when rank 1 has spoken: what comes behind a full output waits with it.
        job = self.start("--nproc", 2, "sh", "-c", "if [ $RANK = 0 ]; then until [ -e spoken ]; do sleep 0.02; done; exec yes; fi; "
                                                   "echo waiting >&2; touch spoken; exec sleep 1000")
        job.read_until("waiting", "err")
        io = lambda: dict(line.split(": ") for line in pathlib.Path(f"/proc/{job.pid}/io").read_text().splitlines())
        seen = [-1]

        def stuck():  # it has read all that it will of what rank 0 writes
            before, seen[0] = seen[0], int(io()["rchar"])
            select.select([], [], [], 0.1)
            return before == seen[0] > 100_000

        until(stuck, "the launcher stops reading")
        job.send(signal.SIGTERM)
        status, _, _ = job.finish()
        self.assertEqual(status, 143)

    def test_a_reader_that_never_reads_costs_no_time_and_a_signal_ends_the_launcher(self):
        # A little more than the launcher's own memory and pipe take: the rest fits into the pipe of the rank.
        job = self.start("sh", "-c", "echo pid $$ >&2; yes $(printf %0999d 0) | head -n 1140")
        rank = int(job.read_until(r"pid (\d+)\n", "err").group(1))
        until(lambda: not os.path.exists(f"/proc/{rank}"), "the rank ends")

        def idle():  # for longer than the launcher gives outputs that have a writer left
            before = cpu_time(job.pid)
            select.select([], [], [], 1.5)
            return cpu_time(job.pid) == before

        until(idle, "the launcher waits for its reader, and does nothing else")
        self.assertIsNone(job.process.poll())
        job.send(signal.SIGTERM)
        self.assertEqual(job.process.wait(timeout=PATIENCE), 0)
        job.finish()

    def test_two_signals_end_a_job_that_nobody_reads(self):
        job = self.start("sh", "-c", "echo waiting >&2; exec yes")
        job.read_until("waiting", "err")
        job.send(signal.SIGSTOP)  # so that it sees both at once
        job.send(signal.SIGTERM)
        job.send(signal.SIGINT)
        job.send(signal.SIGCONT)
        self.assertIn(job.process.wait(timeout=PATIENCE), (130, 143))
        job.finish()

    def test_output_of_a_grandchild_is_shown_to_its_end(self):
        # It is asked to end as soon as its rank has, and takes its time.
        _, out, _ = self.run_job(
            "sh", "-c", "trap '' TERM; (i=0; while [ $i -lt 100 ]; do echo $i; i=$((i+1)); done) & exit 0")
        self.assertIn("[rank 0] 0\n", out)
        self.assertIn("[rank 0] 99\n", out)


class Logs(LauncherTest):
    ECHO = ["sh", "-c", "echo out $RANK; echo err $RANK >&2"]

    def logs(self):
        (job,) = (self.folder / "logs").iterdir()
        return {str(path.relative_to(job)): path.read_text() for path in sorted(job.rglob("*.log"))}

    def test_a_log_folder_alone_copies_everything(self):
        status, out, err = self.run_job("--nproc", 2, "--log-dir", "logs", "--rdzv-id", "exp", *self.ECHO)
        self.assertEqual(status, 0)
        self.assertEqual(sorted(out.splitlines()), ["[rank 0] out 0", "[rank 1] out 1"])
        self.assertEqual(self.logs(), {"attempt_0/0/stdout.log": "out 0\n", "attempt_0/0/stderr.log": "err 0\n",
                                       "attempt_0/1/stdout.log": "out 1\n", "attempt_0/1/stderr.log": "err 1\n"})
        self.assertTrue(next((self.folder / "logs").iterdir()).name.startswith("exp-"))

    def test_redirects_are_not_shown(self):
        _, out, err = self.run_job("--nproc", 2, "--log-dir", "logs", "--redirects", "0:1,1:3", *self.ECHO)
        self.assertEqual((out, err), ("", "[rank 0] err 0\n"))
        self.assertEqual(self.logs(), {"attempt_0/0/stdout.log": "out 0\n", "attempt_0/1/stdout.log": "out 1\n",
                                       "attempt_0/1/stderr.log": "err 1\n"})

    def test_tee_is_stronger_than_redirects(self):
        _, out, _ = self.run_job("--log-dir", "logs", "--redirects", "3", "--tee", "1", *self.ECHO)
        self.assertEqual(out, "[rank 0] out 0\n")
        self.assertEqual(len(self.logs()), 2)

    def test_each_attempt_has_its_folder_and_the_report_names_the_log(self):
        status, _, err = self.run_job("--log-dir", "logs", "--max-restarts", 1, "--restart-delay", "1ms", "sh", "-c",
                                      "echo problem >&2; exit 3")
        self.assertEqual(status, 3)
        self.assertEqual(list(self.logs()), ["attempt_0/0/stderr.log", "attempt_0/0/stdout.log", "attempt_1/0/stderr.log",
                                             "attempt_1/0/stdout.log"])
        self.assertRegex(err, rf"  log         {self.folder}/logs/job-\w+/attempt_1/0/stderr.log\n")

    def test_a_full_disk_costs_the_log_and_not_the_job(self):
        """The second attempt finds a full device where its log should be."""
        status, out, err = self.run_job(
            "--log-dir", "logs", "--max-restarts", 1, "--restart-delay", "1ms", "sh", "-c",
            "[ $LOCKSTEP_EPOCH = 1 ] && echo hello && exit 0; next=${LOCKSTEP_ERROR_FILE%/*/*}/../attempt_1/0; "
            "mkdir -p $next; ln -s /dev/full $next/stdout.log; exit 1")
        self.assertEqual((status, out), (0, "[rank 0] hello\n"))
        self.assertRegex(err, r"attempt_1/0/stdout.log cannot be written any more.*; the job goes on without it\n")


class Grants(LauncherTest):
    def ranks(self, *arguments, **options):
        status, out, err = self.run_job(*arguments, *self.python(DUMP), **options)
        self.assertEqual(status, 0, err)
        return [json.loads(texts[0]) for _, texts in sorted(lines_by_rank(out).items())]

    def test_every_variable_of_torchrun_and_ours(self):
        ranks = self.ranks("--nproc", 2, "--rdzv-id", "exp", "--max-restarts", 5, "--env", "MINE=a b")
        for rank, given in enumerate(ranks):
            env = given["env"]
            expected = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                        "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "default", "ROLE_RANK": str(rank),
                        "ROLE_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": "0",
                        "TORCHELASTIC_MAX_RESTARTS": "5", "TORCHELASTIC_RUN_ID": "exp",
                        "TORCHELASTIC_USE_AGENT_STORE": "False", "LOCKSTEP_EPOCH": "0", "MINE": "a b"}
            self.assertEqual({name: env.get(name) for name in expected}, expected)
            self.assertRegex(env["LOCKSTEP_JOB_ID"], r"\Aexp-[0-9a-f]{12}\Z")
            self.assertRegex(env["LOCKSTEP_STORE"], r"\A127\.0\.0\.1:\d+\Z")
            self.assertNotEqual(env["LOCKSTEP_STORE"].split(":")[1], env["MASTER_PORT"])
            self.assertNotEqual(env["LOCKSTEP_ERROR_FILE"], env["TORCHELASTIC_ERROR_FILE"])
        self.assertEqual(ranks[0]["env"]["LOCKSTEP_STORE"], ranks[1]["env"]["LOCKSTEP_STORE"])

    def test_descriptors_are_the_standard_ones_and_the_secret(self):
        reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        ranks = self.ranks("--nproc", 2, pass_fds=[writer])
        os.close(reader)
        os.close(writer)
        for given in ranks:
            fds = {int(number): target for number, target in given["fds"].items() if not target.startswith("/proc/")}
            secret = int(given["env"]["LOCKSTEP_SECRET_FD"])
            self.assertIn("memfd", fds[secret])
            self.assertEqual(set(fds), {0, 1, 2, secret})
            self.assertNotIn("LOCKSTEP_STORE_FD", given["env"])

    def test_the_agent_serves_the_store_where_the_variable_says(self):
        program = self.python("""
import os, socket
host, port = os.environ["LOCKSTEP_STORE"].split(":")
assert host == "127.0.0.1"
socket.create_connection((host, int(port))).close()
print("there")
""")
        status, out, err = self.run_job("--nproc", 3, *program)
        self.assertEqual((status, out.count("there")), (0, 3), err)

    def test_rank_0_can_bind_the_master_port_and_nobody_else_is_given_it(self):
        program = self.python("""
import os, socket
port = int(os.environ["MASTER_PORT"])
taken = socket.socket()
try:
    taken.bind(("127.0.0.1", port))
    print("free for all")
except OSError:
    print("held")
torch = socket.socket(socket.AF_INET6)
torch.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
torch.bind(("::", port))
torch.listen()
socket.create_connection(("127.0.0.1", port))
print("bound")
""")
        self.assertEqual(self.run_job(*program)[:2], (0, "[rank 0] held\n[rank 0] bound\n"))

    def test_the_secret_is_in_its_descriptor_and_nowhere_else(self):
        program = self.python("""
import json, os
secret = os.pread(int(os.environ["LOCKSTEP_SECRET_FD"]), 100, 0)
parent = "/proc/%d/" % os.getppid()
print(json.dumps([secret.hex(), [open(parent + name, "rb").read().hex() for name in ("cmdline", "environ")],
                  [open("/proc/self/" + name, "rb").read().hex() for name in ("cmdline", "environ")]]))
""")
        _, out, err = self.run_job("--nproc", 2, "--log-dir", "logs", *program, env={"LOCKSTEP_LOG": "trace"})
        seen = [json.loads(texts[0]) for texts in lines_by_rank(out).values()]
        secret = seen[0][0]
        self.assertEqual(len(secret), 64)
        self.assertEqual(seen[1][0], secret)
        for text in (bytes.fromhex(secret).hex(), bytes.fromhex(secret).hex().upper()):
            for _, parent, own in seen:
                for blob in parent + own:
                    self.assertNotIn(text.encode().hex(), blob)
                    self.assertNotIn(secret, blob)
            self.assertNotIn(text, err)

    def test_threads_are_divided_unless_the_user_says_otherwise(self):
        cores = len(os.sched_getaffinity(0))
        _, out, err = self.start("--nproc", 2, "sh", "-c", "echo $OMP_NUM_THREADS").finish()
        self.assertEqual(lines_by_rank(out), {0: [str(max(1, cores // 2))], 1: [str(max(1, cores // 2))]})
        self.assertEqual(err.count("OMP_NUM_THREADS"), 1)
        for words, env in ((["--env", "OMP_NUM_THREADS=7"], {}), ([], {"OMP_NUM_THREADS": "7"})):
            _, out, err = self.start("--nproc", 2, *words, "sh", "-c", "echo $OMP_NUM_THREADS", env=env).finish()
            self.assertEqual((lines_by_rank(out), err), ({0: ["7"], 1: ["7"]}, ""))

    def test_binding_gives_each_rank_its_own_cores(self):
        cores = len(os.sched_getaffinity(0))
        _, out, _ = self.run_job("--nproc", cores, "--cpu-binding", "cores", "grep", "Cpus_allowed_list",
                                 "/proc/self/status")
        self.assertEqual(len(set(text for texts in lines_by_rank(out).values() for text in texts)), cores)

    def test_rank_0_reads_stdin_and_the_others_nothing(self):
        job = self.start("--nproc", 2, "sh", "-c", "read line; echo \"<$line>\"", stdin=subprocess.PIPE)
        job.process.stdin.write(b"hello\n")
        job.process.stdin.flush()
        _, out, _ = job.finish()
        self.assertEqual(lines_by_rank(out), {0: ["<hello>"], 1: ["<>"]})

    def test_arguments_are_passed_as_they_are(self):
        program = self.python("import sys; print(sys.argv[1:])")
        _, out, _ = self.run_job(*program, "--nproc", "9", "-m", "a b", "", "--help", "--", "$HOME")
        self.assertEqual(out, "[rank 0] ['--nproc', '9', '-m', 'a b', '', '--help', '--', '$HOME']\n")
        _, out, _ = self.run_job("--nproc", "1", "--", *program, "--", "run")
        self.assertEqual(out, "[rank 0] ['--', 'run']\n")

    def test_a_program_may_have_the_name_of_a_command_of_ours(self):
        self.script("#!/bin/sh\necho $1", "store")
        _, out, _ = self.run_job("store", "served", env={"PATH": f"{self.folder}:{os.environ['PATH']}"})
        self.assertEqual(out, "[rank 0] served\n")


class Programs(LauncherTest):
    def test_python_scripts_and_modules_as_torchrun(self):
        (self.folder / "hello.py").write_text("import sys; print(__name__, sys.argv[1:], sys.orig_argv[1])\n")
        for words in (["hello.py", "x"], ["-m", "hello", "x"], ["--nproc_per_node", "1", "./hello.py", "x"]):
            self.assertEqual(self.run_job(*words)[:2], (0, "[rank 0] __main__ ['x'] -u\n"), words)

    def test_no_python_runs_the_file_itself(self):
        self.script("#!/bin/sh\necho a shell script\n", "odd.py")
        self.assertEqual(self.run_job("--no-python", "./odd.py")[:2], (0, "[rank 0] a shell script\n"))

    def test_another_interpreter(self):
        self.script("#!/bin/sh\necho interpreter \"$@\"\n", "mine")
        (self.folder / "x.py").write_text("")
        for words, env in ((["--python", "./mine"], {}), ([], {"PYTHON_EXEC": "./mine"})):
            self.assertEqual(self.run_job(*words, "x.py", "a", env=env)[1], "[rank 0] interpreter -u x.py a\n")


class DryRun(LauncherTest):
    def test_it_shows_each_rank_and_starts_nothing(self):
        status, out, err = self.run_job("--dry-run", "--nproc", 2, "--log-dir", "logs", "--env", "MINE=1", "sh", "-c",
                                        "touch started")
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["tmp"])
        for text in ("rank 0 on ", "rank 1 on ", "  RANK=1\n", "  MINE=1\n", "  MASTER_PORT=<free port>\n",
                     "attempt_0/1/stdout.log, and shown", 'executes /', '"touch started"'):
            self.assertIn(text, out)
        self.assertNotIn("LOCKSTEP_STORE_FD", out)

    def test_it_shows_a_host_of_several(self):
        status, out, _ = self.run_job("--dry-run", "--nproc", 2, "--nnodes", 3, "--node-rank", 1, "--insecure",
                                      "--rdzv-endpoint", "node0:29400", "true")
        self.assertEqual(status, 0)
        for text in ("  RANK=3\n", "  WORLD_SIZE=6\n", "  GROUP_RANK=1\n", "  MASTER_ADDR=node0\n"):
            self.assertIn(text, out)


if __name__ == "__main__":
    main()
