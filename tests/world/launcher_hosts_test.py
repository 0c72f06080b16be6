"""`lockstep run` on two hosts: agents that meet, fail, restart and end as one.

    RENDEZVOUS_RANK=FILE launcher_hosts_test.py COMMAND [unittest arguments]
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

from bounds import within
from hosts import ADDRESSES, NAMES, TwoHosts
from launcher import COMMAND, LauncherTest, PATIENCE, is_alive, main, until

ENDPOINT = f"{ADDRESSES[0]}:29400"
WAIT = ["sh", "-c", "echo rank $RANK ready; exec sleep 1000"]


class HostsTest(LauncherTest):
    @classmethod
    def setUpClass(cls):
        cls.hosts = cls.enterClassContext(TwoHosts())

    def setUp(self):
        super().setUp()
        self.secret = str(self.folder / "job.secret")
        subprocess.run([COMMAND, "secret", self.secret], check=True, capture_output=True, timeout=PATIENCE)

    def agent(self, host, *words, nproc=1, secret=None, node_rank=True, nnodes=2, endpoint=ENDPOINT,
              before=()):
        """Starts the agent of one host."""
        options = ["--nnodes", nnodes, "--rdzv-endpoint", endpoint, "--nproc", nproc]
        options += ["--node-rank", host] if node_rank is True else [] if node_rank is None else ["--node-rank", node_rank]
        options += ["--secret-file", secret or self.secret] if secret != "" else []
        return self.start(*options, *words, before=[*self.hosts.enter(host), *before])

    def both(self, *words, **options):
        """Runs one command on both hosts to the end: [(status, out, err), (status, out, err)]."""
        jobs = [self.agent(host, *words, **options) for host in (0, 1)]
        return [job.finish() for job in jobs]


class Meeting(HostsTest):
    SHOW = ["sh", "-c", "echo $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE group $GROUP_RANK/$GROUP_WORLD_SIZE "
                        "role $ROLE_RANK/$ROLE_WORLD_SIZE id $TORCHELASTIC_RUN_ID job $LOCKSTEP_JOB_ID master $MASTER_ADDR"]

    def shown(self, out):
        return sorted(re.sub(r"\[rank \d+\] ", "", line) for line in out.splitlines())

    def test_hosts_may_have_different_numbers_of_ranks(self):
        first = self.agent(0, "--rdzv-id", "exp", *self.SHOW, nproc=2)
        second = self.agent(1, "--rdzv-id", "exp", *self.SHOW, nproc=1)
        (status0, out0, err0), (status1, out1, err1) = first.finish(), second.finish()
        self.assertEqual((status0, status1), (0, 0), err0 + err1)
        job = re.search(r"job (exp-[0-9a-f]{12})", out0).group(1)
        tail = f"id exp job {job} master {ADDRESSES[0]}"
        self.assertEqual(self.shown(out0), [f"0/3 local 0/2 group 0/2 role 0/3 {tail}",
                                            f"1/3 local 1/2 group 0/2 role 1/3 {tail}"])
        self.assertEqual(self.shown(out1), [f"2/3 local 0/1 group 1/2 role 2/3 {tail}"])

    def test_node_ranks_by_arrival(self):
        results = self.both(*self.SHOW, node_rank=None)
        self.assertEqual([status for status, _, _ in results], [0, 0], results)
        self.assertEqual([out[:12] for _, out, _ in results], ["[rank 0] 0/2", "[rank 1] 1/2"])

    def test_the_server_may_come_last(self):
        second = self.agent(1, *self.SHOW)
        second.read_until("still waiting for the agent of node 0", "err")
        first = self.agent(0, *self.SHOW)
        self.assertEqual((first.finish()[0], second.finish()[0]), (0, 0))

    def test_the_name_of_the_endpoint_may_come_last(self):
        known = self.folder / "hosts"
        for node_rank in (True, None):
            known.write_text("")
            # Each agent reads its host names from our file.
            own_names = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
                         f'mount --bind {known} /etc/hosts && exec "$@"', "sh"]
            jobs = [self.agent(host, *self.SHOW, node_rank=node_rank, endpoint="late.invalid:29400", before=own_names)
                    for host in (0, 1)]
            for job in jobs:
                job.read_until('still waiting for the .*cannot look up host "late.invalid"', "err")
            known.write_text(f"{ADDRESSES[0]} late.invalid\n")
            results = [job.finish() for job in jobs]
            self.assertEqual([status for status, _, _ in results], [0, 0], results)
            self.assertEqual([out[:12] for _, out, _ in results], ["[rank 0] 0/2", "[rank 1] 1/2"])

    def test_ranks_reach_the_store_of_node_0_from_the_other_host(self):
        program = self.python("""
import os, socket
host, port = os.environ["LOCKSTEP_STORE"].split(":")
socket.create_connection((host, int(port))).close()
print("reached", host)
""")
        results = self.both(*program)
        self.assertEqual([status for status, _, _ in results], [0, 0], results)
        self.assertEqual(results[1][1], f"[rank 1] reached {ADDRESSES[0]}\n")

    def test_the_job_secret_is_the_files(self):
        digits = pathlib.Path(self.secret).read_text().strip()
        program = self.python("import os; print(os.pread(int(os.environ['LOCKSTEP_SECRET_FD']), 99, 0).hex())")
        self.assertEqual([out.split()[-1] for _, out, _ in self.both(*program)], [digits, digits])

    def test_insecure_needs_no_secret(self):
        results = self.both("--insecure", "sh", "-c", "echo got $LOCKSTEP_INSECURE$LOCKSTEP_SECRET_FD", secret="")
        self.assertEqual([out for _, out, _ in results], ["[rank 0] got 1\n", "[rank 1] got 1\n"])
        self.assertEqual([err.count("warning: the job has no secret") for _, _, err in results], [1, 1])


class Refusals(HostsTest):
    def test_no_secret_is_refused_with_the_line_to_add(self):
        status, out, err = self.agent(0, "true", secret="").finish()
        self.assertEqual((status, out), (2, ""))
        self.assertIn("add --secret-file", err)

    def test_a_wrong_secret(self):
        other = str(self.folder / "other.secret")
        subprocess.run([COMMAND, "secret", other], check=True, capture_output=True, timeout=PATIENCE)
        first = self.agent(0, *WAIT)
        stranger = self.agent(1, *WAIT, secret=other)
        status, _, err = stranger.finish()
        self.assertEqual(status, 2, err)
        self.assertIn("secret", err)
        second = self.agent(1, *WAIT)  # the job is not affected
        first.read_until("rank 0 ready")
        second.send(signal.SIGTERM)
        self.assertEqual((first.finish()[0], second.finish()[0]), (143, 143))

    def test_a_wrong_secret_of_another_agent_of_the_same_host(self):
        """It has the port, and says why it refuses: another port would not help."""
        other = str(self.folder / "other.secret")
        subprocess.run([COMMAND, "secret", other], check=True, capture_output=True, timeout=PATIENCE)
        copy = self.folder / pathlib.Path(COMMAND).name  # the same program, at another place
        shutil.copy(COMMAND, copy)
        for place in (COMMAND, copy):
            first = self.agent(0, *WAIT, node_rank=None, before=["sh", "-c", f'shift; exec {place} "$@"', "sh"])
            listening = pathlib.Path("/proc", str(first.pid), "net", "tcp")
            until(lambda: re.search(f":{29400:04X} 0+:0000 0A", listening.read_text()), "the first agent serves")
            status, _, err = self.agent(0, "true", node_rank=None, secret=other).finish()
            self.assertEqual(status, 2, err)
            self.assertIn("refuses this agent", err)
            self.assertNotIn("taken", err)
            first.send(signal.SIGTERM)
            first.finish()

    def test_a_node_rank_that_two_claim(self):
        first, second = self.agent(0, *WAIT, nnodes=3), self.agent(1, *WAIT, nnodes=3)
        second.read_until("still waiting for node 2 of 3", "err")
        status, _, err = self.agent(1, *WAIT, nnodes=3).finish()
        self.assertEqual(status, 2)
        self.assertRegex(err, rf"--node-rank 1 is claimed twice: by host {NAMES[1]}, pid {second.pid} and by host "
                              rf"{NAMES[1]}, pid \d+")
        first.send(signal.SIGINT)
        self.assertEqual((first.finish()[0], second.finish()[0]), (130, 130))

    def test_unequal_numbers_of_nodes(self):
        first = self.agent(0, *WAIT)
        status, _, err = self.agent(1, *WAIT, nnodes=3).finish()
        self.assertEqual(status, 2)
        self.assertIn(f"this agent (host {NAMES[1]}) has --nnodes 3, node 0 (host {NAMES[0]}) has --nnodes 2", err)
        first.send(signal.SIGTERM)
        self.assertEqual(first.finish()[0], 143)

    def test_one_host_too_many(self):
        jobs = [self.agent(host, *WAIT, node_rank=None) for host in (0, 1)]
        for job in jobs:
            job.read_until("ready")
        status, _, err = self.agent(1, "true", node_rank=None).finish()
        self.assertEqual(status, 2)
        self.assertIn("is one too many", err)
        jobs[0].send(signal.SIGTERM)
        self.assertEqual([job.finish()[0] for job in jobs], [143, 143])

    def test_a_host_that_does_not_come(self):
        status, _, err = self.agent(0, "--join-timeout", "3", "true").finish()
        self.assertEqual(status, 2)
        self.assertIn("node 1 of 2 did not come within 3.0 s", err)

    def test_a_server_that_is_not_there(self):
        status, _, err = self.agent(1, "--join-timeout", "0.5", "true").finish()
        self.assertEqual(status, 2)
        self.assertRegex(err, f"not reached in [\\d.]+ m?s: No connection to the store at {re.escape(ENDPOINT)} .*refused")

    def test_a_name_that_nobody_knows(self):
        status, _, err = self.agent(1, "--join-timeout", "1.2", "true", endpoint="no.such.host.invalid:1").finish()
        self.assertEqual(status, 2)
        self.assertRegex(err, 'not reached in [\\d.]+ s: cannot look up host "no.such.host.invalid"')
        for node_rank in (0, None):
            status, _, err = self.agent(0, "--join-timeout", "1.2", "true", node_rank=node_rank,
                                        endpoint="no.such.host.invalid:1").finish()
            self.assertEqual(status, 2)
            self.assertRegex(err, 'not found in [\\d.]+ s: cannot look up host "no.such.host.invalid"')

    def test_node_0_on_the_wrong_host(self):
        status, _, err = self.agent(1, "true", node_rank=0).finish()
        self.assertEqual(status, 2)
        self.assertIn("is no address of this host", err)

    def stranger(self, does):
        """Starts a program on host 0 that has the port of the endpoint, as `s`."""
        program = (f"import signal, socket\ns = socket.create_server(('{ADDRESSES[0]}', 29400))\n"
                   f"print('bound', flush=True)\n{does}")
        stranger = subprocess.Popen([*self.hosts.enter(0), "python3", "-c", program], stdout=subprocess.PIPE)
        self.addCleanup(stranger.communicate, timeout=PATIENCE)
        self.addCleanup(stranger.kill)
        stranger.stdout.readline()
        return stranger

    def test_a_port_that_is_taken(self):
        """F16: the error names the port and who has it."""
        stranger = self.stranger("signal.pause()")
        status, _, err = self.agent(0, "true").finish()
        self.assertEqual(status, 2)
        self.assertIn(f"port 29400 on {ADDRESSES[0]} is taken by pid {stranger.pid}", err)
        self.assertIn("give --rdzv-endpoint another port", err)
        self.assertNotIn("or 0", err)

    def test_a_stranger_that_answers(self):
        """F16, by arrival: what it says is no refusal by an agent."""
        stranger = self.stranger("while True:\n  guest, _ = s.accept()\n  guest.recv(4096)\n"
                                 "  guest.sendall(b'HTTP/1.1 400 Bad Request'.ljust(200))\n  guest.close()")
        status, _, err = self.agent(0, "true", node_rank=None).finish()
        self.assertEqual(status, 2)
        self.assertRegex(err, f"port 29400 on [0-9.]+ is taken by pid {stranger.pid} .*another port, the same on all "
                              r"hosts\. It does not answer as an agent: .*does not speak Lockstep's protocol")
        self.assertNotIn("refuses", err)
        status, _, err = self.agent(1, "true").finish()
        self.assertEqual(status, 2)
        self.assertRegex(err, f"what answers at --rdzv-endpoint {re.escape(ENDPOINT)} refuses this agent .*does not speak")

    def test_a_stranger_that_stays_silent_is_not_asked_for_long(self):
        """F16, by arrival: it might be another agent of this host. A busy machine has several tries."""
        stranger = self.stranger("while True:\n  guest, _ = s.accept()\n  print('asked', flush=True)\n"
                                 "  while guest.recv(4096): pass")

        def seconds_asked():
            agent = self.agent(0, "true", node_rank=None)
            stranger.stdout.readline()
            start = time.monotonic()
            status, _, err = agent.finish()
            asked = time.monotonic() - start
            self.assertEqual(status, 2)
            self.assertRegex(err, f"port 29400 on [0-9.]+ is taken by pid {stranger.pid} .*another port, the same on all "
                                  r"hosts\. It does not answer as an agent: .* was not reached")
            return asked

        self.assertTrue(any(seconds_asked() < 4 for _ in range(5)))


class Rendezvous(HostsTest):
    """The library's own ranks, RENDEZVOUS_RANK, meet through what the launcher has given them."""

    RANK = os.environ["RENDEZVOUS_RANK"]

    def worlds(self, out):
        return [json.loads(line.split("] ", 1)[1]) for line in out.splitlines()]

    def test_on_one_host(self):
        status, out, err = self.run_job("--nproc", 3, self.RANK)
        self.assertEqual(status, 0, err)
        worlds = self.worlds(out)
        self.assertEqual(sorted(world["rank"] for world in worlds), [0, 1, 2])
        self.assertEqual({world["local_size"] for world in worlds}, {3})

    def test_on_two_hosts(self):
        results = self.both(self.RANK, nproc=2)
        self.assertEqual([status for status, _, _ in results], [0, 0], results)
        worlds = self.worlds(results[0][1] + results[1][1])
        self.assertEqual(sorted(world["rank"] for world in worlds), [0, 1, 2, 3])
        hosts = {tuple(member["host"] for member in world["members"]) for world in worlds}
        self.assertEqual(hosts, {(NAMES[0], NAMES[0], NAMES[1], NAMES[1])})
        self.assertEqual({world["insecure"] for world in worlds}, {False})

    def test_after_a_restart(self):
        results = self.both("--max-restarts", 1, "--restart-delay", "10ms", "sh", "-c",
                            f"[ $RANK$LOCKSTEP_EPOCH = 10 ] && exit 5; exec {self.RANK} < /dev/null")
        self.assertEqual([status for status, _, _ in results], [0, 0], results)
        for _, out, _ in results:
            self.assertEqual(self.worlds(out.splitlines()[-1])[0]["epoch"], 1)


class Failures(HostsTest):
    def test_every_agent_reports_the_first_failure_and_exits_with_its_code(self):
        results = self.both("sh", "-c", "[ $RANK = 2 ] && { echo the reason >&2; exit 7; }; exec sleep 1000", nproc=2)
        for status, _, err in results:
            self.assertEqual(status, 7)
            self.assertRegex(err, rf"lockstep: rank 2 \(host {NAMES[1]}, pid \d+\) exited with code 7\.\n")
            self.assertIn("    | the reason\n", err)
        # Each lists the ranks of its host, and says where the others are.
        self.assertIn(f"The agents of the other hosts report on their ranks:\n  {NAMES[1]} (node 1)  rank 3\n",
                      results[0][2])
        self.assertIn(f"The agents of the other hosts report on their ranks:\n  {NAMES[0]} (node 0)  ranks 0, 1\n",
                      results[1][2])

    def test_a_program_that_one_host_cannot_execute(self):
        self.script("garbage", "garbage")
        first, second = self.agent(0, *WAIT), self.agent(1, "./garbage")
        for status, _, err in (first.finish(), second.finish()):
            self.assertEqual(status, 126)
            self.assertIn(f"rank 1 (host {NAMES[1]}) could not be started", err)

    def test_a_restart_is_agreed_by_all(self):
        results = self.both("--max-restarts", 2, "--restart-delay", "10ms", "sh", "-c",
                            "echo rank $RANK epoch $LOCKSTEP_EPOCH; "
                            "[ $RANK$LOCKSTEP_EPOCH = 00 ] && exit 3; [ $RANK$LOCKSTEP_EPOCH = 11 ] && exit 4; "
                            "[ $LOCKSTEP_EPOCH = 2 ] && exit 0; exec sleep 1000")
        for rank, (status, out, err) in enumerate(results):
            self.assertEqual(status, 0, err)
            # Each epoch once at most: who is stopped as it starts says nothing.
            epochs = re.findall(r"epoch (\d)", out)
            self.assertEqual(epochs, sorted(set(epochs)))
            self.assertEqual(epochs[-1], "2")
            self.assertIn(str(rank), epochs)
            self.assertIn("rank 0 (host hosta", err)
            self.assertIn("rank 1 (host hostb", err)

    def test_a_signal_to_one_agent_stops_all(self):
        jobs = [self.agent(host, *WAIT) for host in (0, 1)]
        for job in jobs:
            job.read_until("ready")
        jobs[1].send(signal.SIGTERM)
        results = [job.finish() for job in jobs]
        self.assertEqual([status for status, _, _ in results], [143, 143])
        self.assertIn(f"stopped by SIGTERM on host {NAMES[1]}", results[0][2])

    def waiting_agents(self, wait="exec sleep 1000", endpoint=ENDPOINT):
        """An agent on each host, and the pids of their ranks, which are up."""
        jobs = [self.agent(host, "sh", "-c", f"echo pid $$ ready; {wait}", endpoint=endpoint) for host in (0, 1)]
        return jobs, [int(job.read_until(r"pid (\d+) ready").group(1)) for job in jobs]

    def assert_agents_end(self, harm, ends):
        """After `harm`, the agents `ends` and all ranks are gone within the bound of F43, and say why."""
        jobs, pids = self.waiting_agents()
        start = time.monotonic()
        harm(jobs)
        results = [jobs[host].finish() for host in ends]
        until(lambda: not any(map(is_alive, pids)), "the ranks end")
        self.assertLess(time.monotonic() - start, within(5.5))
        for status, _, err in results:
            self.assertEqual(status, 1, err)
            self.assertIn("is gone", err)
        return jobs

    def test_a_killed_agent_stops_the_others(self):
        jobs = self.assert_agents_end(lambda jobs: jobs[1].send(signal.SIGKILL), [0])
        self.assertEqual(jobs[1].finish()[0], -signal.SIGKILL)

    def test_a_killed_server_stops_the_others(self):
        jobs = self.assert_agents_end(lambda jobs: jobs[0].send(signal.SIGKILL), [1])
        self.assertEqual(jobs[0].finish()[0], -signal.SIGKILL)

    def test_a_stopped_agent_stops_the_others_and_agents_that_were_stopped_together_go_on(self):
        """The second pair's machine was suspended, for as long as the first pair's agents bear silence (F34)."""
        asleep, _ = self.waiting_agents("until [ -e awake ]; do sleep 0.05; done", f"{ADDRESSES[0]}:29401")
        (first, second), pids = self.waiting_agents()
        for job in (*asleep, second):
            job.send(signal.SIGSTOP)
        start = time.monotonic()
        status, _, err = first.finish()
        until(lambda: not is_alive(pids[0]), "the rank of the other host ends")
        self.assertLess(time.monotonic() - start, within(5.5))
        self.assertEqual(status, 1, err)
        self.assertIn("is gone", err)
        for job in (*asleep, second):
            job.send(signal.SIGCONT)
        self.assertEqual(second.finish()[0], 1)
        self.assertFalse(is_alive(pids[1]))
        (self.folder / "awake").touch()
        for job in asleep:
            status, _, err = job.finish()
            self.assertEqual(status, 0, err)

    def test_a_wire_that_is_cut_stops_both(self):
        with TwoHosts("x") as hosts:  # the others' wire stays whole
            self.hosts = hosts
            self.assert_agents_end(lambda _: hosts.cut(), [0, 1])


if __name__ == "__main__":
    main()
