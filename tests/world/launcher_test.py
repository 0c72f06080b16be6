"""`lockstep run` on one host: exit codes, the report, restarts, signals, and that nothing is left.

    launcher_test.py COMMAND [unittest arguments]
"""

import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import time

from bounds import within
from launcher import COMMAND, LauncherTest, PATIENCE, is_alive, main, until


class ExitStatus(LauncherTest):
    def test_success_is_silent(self):
        self.assertEqual(self.run_job("--nproc", 3, "true"), (0, "", ""))

    def test_a_hundred_ranks(self):
        self.assertEqual(self.run_job("--nproc", 100, "true"), (0, "", ""))

    def test_it_is_that_of_the_first_rank_that_failed(self):
        status, _, err = self.run_job("--nproc", 3, "sh", "-c", "[ $RANK = 1 ] && exit 7; exec sleep 1000")
        self.assertEqual(status, 7)
        self.assertIn("exited with code 7", err)

    def test_it_is_128_and_the_signal(self):
        for name, number in (("KILL", 9), ("SEGV", 11), ("ABRT", 6), ("TERM", 15)):
            status, _, err = self.run_job("--nproc", 2, "sh", "-c", f"[ $RANK = 0 ] && kill -{name} $$; exec sleep 1000")
            self.assertEqual(status, 128 + number)
            self.assertRegex(err, rf"rank 0 \(host \S+, pid \d+\) was killed by SIG{name} \(signal {number}\)")

    def test_a_program_that_is_not_there(self):
        for words in (["./nothing"], ["nothing-of-that-name"], ["nothing.py"]):
            status, out, err = self.run_job(*words)
            self.assertEqual((status, out), (127, ""), words)
            self.assertRegex(err, r"\Alockstep run: there is no [^\n]+\.\n\Z")

    def test_a_program_that_cannot_be_executed(self):
        (self.folder / "plain").write_text("x")
        self.script("no program at all", "garbage")
        self.script("#!/no/such/interpreter\n", "lost")
        for name in ("plain", "garbage", "lost"):
            status, out, err = self.run_job("--nproc", 2, f"./{name}")
            self.assertEqual((status, out), (126, ""), name)
            self.assertIn(name, err)
            self.assertEqual(err.count("\n"), 1, err)

    def test_a_program_that_cannot_be_executed_is_not_restarted(self):
        self.script("no program at all", "garbage")
        status, _, err = self.run_job("--max-restarts", 3, "./garbage")
        self.assertEqual(status, 126)
        self.assertNotIn("restart", err)


class BadInput(LauncherTest):
    def test_each_wrong_value_is_one_sentence_and_exit_2(self):
        for words in (["--nproc", "0"], ["--nproc", "x"], ["--nproc", "gpu"], ["--nnodes", "x"], ["--nnodes", "1:2"],
                      ["--nnodes", "2"], ["--node-rank", "1"], ["--rdzv-endpoint", ":::"], ["--rdzv-id", "/"],
                      ["--rdzv-id", ""], ["--rdzv_id", ""], ["--role", ""], ["--role="], ["--nnodes", ""],
                      ["--max-restarts", "-1"], ["--restart-delay", "x"], ["--monitor-interval", "0"],
                      ["--join-timeout", "x"], ["--shutdown-timeout", "x"], ["--signals", "KILL"],
                      ["--cpu-binding", "x"], ["--env", "x"], ["--env", "RANK=1"], ["--redirects", "4", "--log-dir", "l"],
                      ["--redirects", "1"], ["--tee", "x"], ["--prefix", "{x}"], ["--local-ranks-filter", "x"],
                      ["--local-ranks-filter", "1"], ["--secret-file", "/nothing"], ["--nprco", "2"],
                      ["-m", "--no-python"], ["--rdzv-backend", "etcd"], ["--rdzv-conf", "x"], ["--nproc", "1", "--nproc", "2"],
                      ["--nproc", "1", "--nproc_per_node", "2"],
                      ["--redirects", "1:1", "--log-dir", "l"], ["--tee", "1:1"], ["--standalone", "--nnodes", "2"],
                      ["--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:1"],
                      ["--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:0", "--insecure"]):
            status, out, err = self.run_job(*words, "true", env={"CUDA_VISIBLE_DEVICES": ""})
            self.assertEqual((status, out), (2, ""), words)
            self.assertRegex(err, r"\Alockstep run: [^\n]+[.?]\nTry 'lockstep run --help'\.\n\Z", words)

    def test_no_program(self):
        status, _, err = self.run_job("--nproc", 2)
        self.assertEqual(status, 2)
        self.assertIn("no program was given", err)

    def test_a_log_folder_that_cannot_be_made(self):
        (self.folder / "file").write_text("")
        status, _, err = self.run_job("--log-dir", "file/logs", "true")
        self.assertEqual(status, 2)
        self.assertIn("cannot be made", err)

    def test_a_working_folder_that_was_removed(self):
        gone = self.folder / "gone"
        for words, expected in ((["true"], 0), (["--log-dir", "logs", "true"], 2), (["--log-dir", gone, "true"], 0)):
            gone.mkdir()
            status, _, err = self.run_job(*words, before=["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh"], cwd=gone)
            self.assertEqual(status, expected, err)
            shutil.rmtree(gone, ignore_errors=True)
        status, _, err = self.run_job("--log-dir", "logs", "true",
                                      before=["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh"])
        self.assertIn('"logs" is relative, and the working folder is not there any more', err)

    def test_an_environment_variable_that_does_not_parse(self):
        status, _, err = self.run_job("true", env={"LOCKSTEP_LOG": "shout"})
        self.assertEqual(status, 2)
        self.assertIn("LOCKSTEP_LOG", err)

    def test_a_variable_that_every_rank_would_refuse_is_refused_before_any_starts(self):
        for words, env, text in (([], {"LOCKSTEP_SOCKET_IFNAME": "nowhere0"}, '"nowhere0"'),
                                 (["--env", "LOCKSTEP_SOCKET_IFNAME=lo,nowhere0"], {}, '"nowhere0"'),
                                 (["--env", "LOCKSTEP_TIMEOUT=soon"], {}, 'LOCKSTEP_TIMEOUT="soon"')):
            status, out, err = self.run_job("--nproc", 2, *words, "echo", "started", env=env)
            self.assertEqual((status, out), (2, ""), err)
            self.assertIn(text, err)
        self.assertEqual(self.run_job("true", env={"LOCKSTEP_SOCKET_IFNAME": "lo"})[0], 0)


class Report(LauncherTest):
    def test_it_has_the_last_lines_of_stderr_and_a_table_of_the_others(self):
        status, _, err = self.run_job(
            "--nproc", 3, "sh", "-c",
            "case $RANK in 0) echo $$ > pid; mv pid rank_0; exit 0;;"
            # Rank 1 goes on when the launcher has seen rank 0's end: a pid is there until then.
            " 1) until [ -e rank_0 ]; do :; done; read pid < rank_0; while kill -0 $pid 2> /dev/null; do :; done;"
            " i=0; while [ $i -lt 50 ]; do echo line $i >&2; i=$((i+1)); done; exit 3;; esac;"
            "exec sleep 1000")
        self.assertEqual(status, 3)
        report = err[err.rindex("lockstep: rank 1"):]
        self.assertRegex(report, r"\Alockstep: rank 1 \(host \S+, pid \d+\) exited with code 3\.\n")
        self.assertIn("in attempt 1 of 1", report)
        self.assertNotIn("| line 29\n", report)
        self.assertIn("    | line 30\n", report)
        self.assertIn("    | line 49\n", report)
        self.assertRegex(report, r"\n  0 +\d+ +\S+ \S+ +exited with code 0\n")
        self.assertRegex(report, r"\n  2 +\d+ +\S+ \S+ +terminated by the launcher \(SIGTERM\)\n")

    def test_a_killed_rank_may_have_been_out_of_memory(self):
        _, _, err = self.run_job("sh", "-c", "kill -KILL $$")
        self.assertIn("was killed by SIGKILL (signal 9), possibly out of memory", err)

    def test_it_quotes_the_error_file(self):
        error = ('{"lockstep_error": 1, "code": "disconnected", "failure": "peer_died", "message": "rank 0 lost rank 1",'
                 ' "where": "tcp.cpp:42", "cause": {}}')
        status, _, err = self.run_job("sh", "-c", f"echo '{error}' > $LOCKSTEP_ERROR_FILE; exit 5")
        self.assertEqual(status, 5)
        self.assertIn("  error       disconnected (peer_died): rank 0 lost rank 1\n  made at     tcp.cpp:42\n", err)

    def test_it_quotes_torchs_error_file(self):
        error = '{"message": {"message": "RuntimeError: boom", "extraInfo": {}}}'
        _, _, err = self.run_job("sh", "-c", f"echo '{error}' > $TORCHELASTIC_ERROR_FILE; exit 1")
        self.assertIn("RuntimeError: boom", err)

    def test_a_rank_that_blames_another_is_not_the_first(self):
        blame = '{"lockstep_error": 1, "code": "disconnected", "failure": "peer_died", "message": "m", "cause": {"peer": 1}}'
        job = self.start(
            "--nproc", 3, "sh", "-c",
            f"echo rank $RANK pid $$; [ $RANK = 2 ] && exec sleep 1000; until [ -e go ]; do sleep 0.01; done; "
            f"[ $RANK = 1 ] && exit 6; echo '{blame}' > $LOCKSTEP_ERROR_FILE; exit 5")
        pids = [int(job.read_until(rf"rank {rank} pid (\d+)").group(1)) for rank in (0, 1)]
        # Both have ended when the launcher looks: it waits for the one that is blamed, but not for ever.
        job.send(signal.SIGSTOP)
        (self.folder / "go").touch()
        until(lambda: not any(map(is_alive, pids)), "both end")
        job.send(signal.SIGCONT)
        status, _, err = job.finish()
        self.assertEqual(status, 6)
        self.assertIn("lockstep: rank 1 ", err)

    def test_the_library_leaves_its_error_there(self):
        rank = pathlib.Path(COMMAND).parent.parent / "tests" / "world_rank"
        status, _, err = self.run_job("--nproc", 2, rank, "--desync")
        self.assertEqual(status, 1)
        self.assertIn("\n  error       invalid (desync): ranks are in different operations: rank ", err)
        _, _, err = self.run_job("--nproc", 2, "sh", "-c", f"[ $RANK = 1 ] && export WORLD_SIZE=3; exec {rank}")
        self.assertRegex(err, r"\n  error       invalid \(world_size_mismatch\): ")

    def test_it_says_where_the_core_dump_is(self):
        _, _, err = self.run_job("sh", "-c", "kill -SEGV $$", preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)))
        self.assertRegex(err, r"SIGSEGV \(signal 11\), core dumped")
        where = re.search(r"  core dump   (\S+)", err).group(1)
        self.assertTrue(where == "handed" or pathlib.Path(where).is_file(), err)

    def test_it_says_how_to_get_a_core_dump(self):
        _, _, err = self.run_job("sh", "-c", "kill -SEGV $$", preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_CORE, (0, 0)))
        self.assertIn("ulimit -c unlimited", err)


class Restarts(LauncherTest):
    def test_a_crash_that_goes_away(self):
        status, out, err = self.run_job(
            "--nproc", 2, "--max-restarts", 3, "--restart-delay", "10ms", "sh", "-c",
            "echo epoch $LOCKSTEP_EPOCH $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; "
            "[ $LOCKSTEP_EPOCH = 2 ] || exit 4")
        self.assertEqual(status, 0)
        for epoch in range(3):
            self.assertIn(f"epoch {epoch} {epoch} of 3\n", out)
        self.assertIn("restart 2 of 3 in 20.0 ms", err)

    def test_a_storm_ends_with_the_first_root_cause(self):
        start = time.monotonic()
        status, out, err = self.run_job("--max-restarts", 3, "--restart-delay", "100ms", "sh", "-c",
                                        "echo started; exit $((10 + LOCKSTEP_EPOCH))")
        self.assertEqual(status, 10)
        self.assertEqual(out.count("started"), 4)
        self.assertGreaterEqual(time.monotonic() - start, 0.1 + 0.2 + 0.4)
        self.assertRegex(err, r"gave up after 4 attempts; in the first one, rank 0 \(.*\) exited with code 10\n\Z")

    def test_each_attempt_has_its_own_store(self):
        _, out, _ = self.run_job("--max-restarts", 1, "--restart-delay", "1ms", "sh", "-c", "echo $LOCKSTEP_STORE; exit 1")
        self.assertEqual(len(set(out.split("\n"))), 3)

    def test_a_signal_during_the_delay_ends_the_job(self):
        job = self.start("--max-restarts", 1, "--restart-delay", "1h", "sh", "-c", "exit 1")
        job.read_until("restart 1 of 1", "err")
        job.send(signal.SIGTERM)
        self.assertEqual(job.finish()[0], 143)


class Signals(LauncherTest):
    READY = "trap 'echo got %s; exit 0' %s; echo ready; while :; do sleep 0.01; done"

    def test_ending_signals_are_passed_on(self):
        for name in ("INT", "TERM", "HUP", "QUIT"):
            job = self.start("--nproc", 2, "sh", "-c", self.READY % (name, name))
            job.read_until("(?s)ready.*ready")
            job.send(getattr(signal, f"SIG{name}"))
            status, out, err = job.finish()
            self.assertEqual(status, 128 + getattr(signal, f"SIG{name}"))
            self.assertEqual(out.count(f"got {name}"), 2)
            self.assertIn(f"stopped by SIG{name}", err)

    def test_user_signals_are_passed_on_and_the_job_goes_on(self):
        # A shell that is about to read would hear of the signal after that.
        program = "trap 'echo got USR1; got=1' USR1; echo ready; while [ -z \"$got\" ]; do sleep 0.05; done; read line"
        job = self.start("sh", "-c", program, stdin=subprocess.PIPE)
        job.read_until("ready")
        job.send(signal.SIGUSR1)
        job.read_until("got USR1")
        job.process.stdin.write(b"x\n")
        job.process.stdin.flush()
        status, _, _ = job.finish()
        self.assertEqual(status, 0)

    def test_one_that_ignores_them_is_killed(self):
        job = self.start("--shutdown-timeout", "0.2", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
        job.read_until("ready")
        job.send(signal.SIGTERM)
        self.assertEqual(job.finish()[0], 143)

    def test_a_second_signal_kills_at_once(self):
        job = self.start("--shutdown-timeout", "1h", "sh", "-c",
                         "trap 'echo got it' INT; echo ready; while :; do sleep 1; done")
        job.read_until("ready")
        job.send(signal.SIGINT)
        job.read_until("got it")
        job.send(signal.SIGINT)
        self.assertEqual(job.finish()[0], 130)

    def test_a_stopped_rank_is_stopped_for_good(self):
        job = self.start("--nproc", 2, "sh", "-c", "[ $RANK = 1 ] && kill -STOP $$; echo ready; exec sleep 1000")
        job.read_until("ready")
        job.send(signal.SIGTERM)
        self.assertEqual(job.finish()[0], 143)

    def test_signals_that_were_ignored_at_the_start_stay_ignored(self):
        job = self.start("sh", "-c", "echo ready; read line", stdin=subprocess.PIPE,
                         preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        job.read_until("ready")
        job.send(signal.SIGHUP)
        job.process.stdin.write(b"x\n")
        job.process.stdin.flush()
        self.assertEqual(job.finish()[0], 0)

    def test_an_end_is_seen_where_sigchld_was_ignored_at_the_start(self):
        ignored = lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        self.assertEqual(self.run_job("--nproc", 2, "true", preexec_fn=ignored), (0, "", ""))
        self.assertEqual(self.run_job("sh", "-c", "exit 7", preexec_fn=ignored)[0], 7)

    def test_suspending_the_launcher_suspends_the_ranks(self):
        job = self.start("sh", "-c", "echo pid $$; while :; do :; done")
        pid = int(job.read_until(r"pid (\d+)").group(1))
        state = lambda process: pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
        job.send(signal.SIGTSTP)
        until(lambda: state(job.pid) == "T" and state(pid) == "T", "both stop")
        job.send(signal.SIGCONT)
        until(lambda: state(pid) != "T", "the rank goes on")
        job.send(signal.SIGTERM)
        self.assertEqual(job.finish()[0], 143)

    def test_a_storm_of_signals_and_children_has_no_effect(self):
        """F35: SIGUSR1 at 1 kHz while ranks orphan hundreds of short-lived children."""
        job = self.start("--nproc", 2, "sh", "-c",
                         "trap '' USR1; echo ready; i=0; while [ $i -lt 300 ]; do (sh -c : &); i=$((i+1)); done; echo done")
        job.read_until("(?s)ready.*ready")
        for _ in range(300):
            if job.process.poll() is not None:
                break
            job.send(signal.SIGUSR1)
            try:
                job.process.wait(0.001)
            except subprocess.TimeoutExpired:
                pass
        status, out, err = job.finish()
        self.assertEqual((status, out.count("done")), (0, 2), err)


class NothingIsLeft(LauncherTest):
    """setUp's own check looks for every process that has the test's mark."""

    def test_a_child_of_a_rank_that_failed(self):
        status, _, _ = self.run_job("--nproc", 2, "sh", "-c", "sleep 1000 & [ $RANK = 0 ] && exit 9; wait")
        self.assertEqual(status, 9)

    def test_a_child_that_outlives_its_rank(self):
        self.assertEqual(self.run_job("sh", "-c", "sleep 1000 & exit 0")[0], 0)

    def test_a_daemon_of_its_own_session(self):
        self.assertEqual(self.run_job("sh", "-c", "setsid -f sleep 1000; exit 0")[0], 0)

    def test_a_daemon_that_ignores_sigterm(self):
        daemon = self.script("#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n")
        status, _, _ = self.run_job("--shutdown-timeout", "0.1", "sh", "-c", f"setsid -f {daemon}; exit 0")
        self.assertEqual(status, 0)

    def test_a_killed_launcher(self):
        """F43: the ranks, their children and the scratch folder go with it."""
        job = self.start("--nproc", 2, "sh", "-c", "sleep 1000 & echo pid $! $$; wait")
        job.read_until(r"(?s)pid.*pid \d+ \d+\n")
        pids = [int(pid) for pid in re.findall(rb"\d+", b"".join(re.findall(rb"pid [\d ]+", job.out)))]
        self.assertEqual(len(pids), 4)
        start = time.monotonic()
        job.send(signal.SIGKILL)
        until(lambda: not any(map(is_alive, pids)), "all processes of the ranks end")
        self.assertLess(time.monotonic() - start, within(5))
        until(lambda: not list((self.folder / "tmp").iterdir()), "the scratch folder goes")
        self.assertEqual(job.finish()[0], -signal.SIGKILL)

    def test_children_that_the_launcher_had_before_are_spared(self):
        job = self.start("true", before=["sh", "-c", "sleep 1000 & echo pid $!; exec \"$@\"", "sh"])
        pid = int(job.read_until(r"pid (\d+)").group(1))
        self.assertEqual(job.process.wait(timeout=PATIENCE), 0)
        self.assertTrue(is_alive(pid))
        os.kill(pid, signal.SIGKILL)
        job.finish()


class Store(LauncherTest):
    """F18: it is the launcher's, and so no rank takes it along."""

    def test_the_others_shrink_the_world_when_rank_0_dies(self):
        status, out, err = self.run_job("--nproc", 3, os.environ["WORLD_RANK"], "--shrink")
        self.assertEqual(status, 128 + signal.SIGKILL, err)
        answers = [json.loads(line.split("] ", 1)[1]) for line in out.splitlines()]
        self.assertEqual([answer.get("sum") for answer in answers], [3.0, 3.0], (out, err))
        for answer in answers:
            self.assertIn("rank 0 died", answer["heard"])


class Limits(LauncherTest):
    """F31: descriptors."""

    def limited(self, soft, hard):
        return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_too_few_descriptors_are_refused_before_anything_starts(self):
        status, out, err = self.run_job("--nproc", 100, "sh", "-c", "echo started", preexec_fn=self.limited(64, 64))
        self.assertEqual((status, out), (2, ""))
        self.assertIn("100 ranks need 664 open files in the launcher, and the limit is 64", err)

    def test_the_soft_limit_is_raised_for_the_launcher_alone(self):
        status, out, _ = self.run_job("--nproc", 20, "sh", "-c", "ulimit -Sn", preexec_fn=self.limited(64, 4096))
        self.assertEqual((status, out.count("64\n")), (0, 20))


class Bench(LauncherTest):
    def test_the_report_has_a_row_for_each_number_of_ranks(self):
        path = self.folder / "report.json"
        subprocess.run([COMMAND, "bench", "launch", "--rounds", "3", "--nproc", "1,2", "--json", path], check=True,
                       timeout=PATIENCE, env=self.environment(), stdout=subprocess.DEVNULL)
        report = json.loads(path.read_text())
        self.assertEqual([row["nproc"] for row in report["rows"]], [1, 2])
        self.assertGreater(report["machine"]["cores"], 0)
        for row in report["rows"]:
            self.assertLess(0, row["program_ms"])
            self.assertLess(0, row["ms"])
            self.assertLessEqual(row["overhead_low_ms"], row["overhead_ms"])
            self.assertLessEqual(row["overhead_ms"], row["overhead_high_ms"])
            self.assertEqual(row["peers"], {})

    def test_what_cannot_be_done_is_refused_before_anything_is_measured(self):
        for words, text in ((["bench", "launch", "--json", "/nonexistent/x"], "/nonexistent/x"),
                            (["bench", "store", "--json", "/nonexistent/x"], "/nonexistent/x"),
                            (["bench", "all_reduce", "--json", "/nonexistent/x"], "/nonexistent/x"),
                            (["bench", "all_reduce", "--plot", "/nonexistent/x"], "/nonexistent/x"),
                            (["bench", "ddp", "--json", "/nonexistent/x"], "/nonexistent/x"),
                            (["bench", "launch", "--against", "torchrun", "--torchrun", "/nonexistent/x"], "--torchrun")):
            done = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=PATIENCE, env=self.environment())
            self.assertEqual((done.returncode, done.stdout), (2, ""), (words, done.stderr))
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    main()
