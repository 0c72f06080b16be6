#!/usr/bin/env python3
"""What only root can arrange: ranks on two hosts, which are two network namespaces on one machine joined by two veth
pairs, and ranks of two users.

    rendezvous_hosts_test.py PROGRAM [unittest's arguments]      PROGRAM is rendezvous_rank
    rendezvous_hosts_test.py --probe                             exits with 0 if namespaces can be made here

The namespaces are this test's own and are removed at the end, also after a failure; nothing outside them is changed.
"""

import os
import shutil
import signal
import subprocess
import sys
import unittest

import rendezvous_rank
from rendezvous_rank import RendezvousTest, free_port

PORT = 29500


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, stdout=subprocess.DEVNULL)


class TwoHosts(RendezvousTest):
    @classmethod
    def setUpClass(cls):
        cls.hosts = [f"lockstep-{os.getpid()}-{side}" for side in "ab"]
        for host in cls.hosts:
            ip("netns", "add", host)
            cls.addClassCleanup(subprocess.run, ["ip", "netns", "delete", host], check=True)
            ip("-n", host, "link", "set", "lo", "up")
        for number in (0, 1):
            ip("-n", cls.hosts[0], "link", "add", f"net{number}", "type", "veth", "peer", "name", f"net{number}",
               "netns", cls.hosts[1])
            for side, host in enumerate(cls.hosts):
                ip("-n", host, "address", "add", f"10.77.{number}.{side + 1}/24", "dev", f"net{number}")
                ip("-n", host, "address", "add", f"fd77:{number}::{side + 1}/64", "dev", f"net{number}", "nodad")
                ip("-n", host, "link", "set", f"net{number}", "up")

    def start_on(self, host, rank, size, **variables):
        return self.start({"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": PORT,
                           **variables}, prefix=["ip", "netns", "exec", self.hosts[host]])

    def start_world(self, **variables):
        """Two ranks on each host."""
        return [self.start_on(rank // 2, rank, 4, **variables) for rank in range(4)]

    def assert_two_hosts(self, ranks, addresses):
        answers = [rank.answer() for rank in ranks]
        for rank, answer in enumerate(answers):
            self.assertTrue(answer["ok"], answer)
            self.assertEqual((answer["local_rank"], answer["local_size"]), (rank % 2, 2))
            self.assertEqual(answer["addresses"], addresses[rank // 2])
            self.assertEqual(answer["members"], answers[0]["members"])
            self.assertEqual(answer["members"][3]["addresses"], addresses[1])
            self.assertEqual(answer["secret"], answers[0]["secret"])
        self.assert_talks(ranks)
        return answers

    def listening_addresses(self, host):
        lines = subprocess.run(["ip", "netns", "exec", self.hosts[host], "cat", "/proc/net/tcp", "/proc/net/tcp6"],
                               check=True, capture_output=True, text=True).stdout.splitlines()
        return {line.split()[1] for line in lines if line.split()[3] == "0A"}

    def test_the_address_is_the_one_that_routes_to_the_master(self):
        ranks = self.start_world(LOCKSTEP_SECRET_FILE=self.new_secret())
        self.assert_two_hosts(ranks, [["10.77.0.1"], ["10.77.0.2"]])
        self.assertEqual(self.listening_addresses(0), {f"01004D0A:{PORT:04X}"}, "exactly the address of the master")
        self.assertEqual(self.listening_addresses(1), set())

    def test_ipv6(self):
        ranks = self.start_world(LOCKSTEP_SECRET_FILE=self.new_secret(), MASTER_ADDR="fd77:1::1")
        self.assert_two_hosts(ranks, [["fd77:1::1"], ["fd77:1::2"]])

    def test_interfaces_by_name(self):
        secret = self.new_secret()
        ranks = self.start_world(LOCKSTEP_SECRET_FILE=secret, GLOO_SOCKET_IFNAME="net1")
        self.assert_two_hosts(ranks, [["10.77.1.1"], ["10.77.1.2"]])
        self.finish(ranks)
        ranks = self.start_world(LOCKSTEP_SECRET_FILE=secret, LOCKSTEP_SOCKET_IFNAME="net1,net0",
                                 GLOO_SOCKET_IFNAME="lo")
        self.assert_two_hosts(ranks, [["10.77.1.1", "10.77.0.1"], ["10.77.1.2", "10.77.0.2"]])

    def test_an_unknown_interface_lists_those_there_are(self):
        answer = self.start_on(0, 0, 4, LOCKSTEP_SECRET_FILE=self.new_secret(), LOCKSTEP_SOCKET_IFNAME="eth9").answer()
        for text in ("eth9", "lo", "net0", "net1"):
            self.assertIn(text, answer["message"])

    def test_without_a_secret_it_is_refused_unless_insecure_is_said(self):
        answer = self.start_on(0, 0, 4).answer()
        self.assert_failure(answer, "no_secret", "export LOCKSTEP_SECRET_FILE=")
        ranks = self.start_world(LOCKSTEP_INSECURE=1)
        answers = self.assert_two_hosts(ranks, [["10.77.0.1"], ["10.77.0.2"]])
        self.assertTrue(answers[0]["insecure"])
        ranks[0].wait_for_log("insecure was asked for")

    def test_a_master_that_is_not_here_cannot_be_served(self):
        answer = self.start_on(0, 0, 4, LOCKSTEP_SECRET_FILE=self.new_secret(), MASTER_ADDR="10.77.0.2").answer()
        self.assertIn("10.77.0.2:29500 is not an address of this host", answer["message"])

    def test_a_master_on_loopback_cannot_serve_two_hosts(self):
        answer = self.start_on(0, 0, 4, LOCKSTEP_SECRET_FILE=self.new_secret(), MASTER_ADDR="127.0.0.1",
                               LOCAL_WORLD_SIZE=2).answer()
        self.assertIn("cannot reach it", answer["message"])

    def test_one_host_stays_on_loopback_whatever_its_name(self):
        ranks = [self.start_on(0, rank, 2, LOCAL_WORLD_SIZE=2) for rank in range(2)]
        self.assert_world(ranks)

    def test_a_rank_twice_on_different_hosts(self):
        secret = self.new_secret()
        ranks = [self.start_on(0, rank, 3, LOCKSTEP_SECRET_FILE=secret, LOCKSTEP_LOG="rendezvous=debug")
                 for rank in (0, 1)]
        for rank in ranks:
            rank.wait_for_log("has arrived")
        ranks.append(self.start_on(1, 1, 3, LOCKSTEP_SECRET_FILE=secret))
        for rank in ranks:
            self.assert_failure(rank.answer(10), "duplicate_rank", f"pid {ranks[1].pid}", f"pid {ranks[2].pid}")

    def test_a_file_between_hosts_carries_the_secret(self):
        url = f"file://{self.folder}/job?world_size=2&rank="
        ranks = [self.start({}, ["--url", url + str(rank)], prefix=["ip", "netns", "exec", self.hosts[rank]])
                 for rank in range(2)]
        answers = [rank.answer() for rank in ranks]
        self.assertTrue(all(answer["ok"] for answer in answers), answers)
        self.assertEqual([answer["addresses"] for answer in answers], [["10.77.0.1"], ["10.77.0.2"]])
        self.assertEqual(answers[0]["secret"], answers[1]["secret"])
        self.assertFalse(answers[0]["insecure"])

    def test_slurm_with_names_that_nobody_knows_says_which(self):
        answer = self.start({"SLURM_PROCID": 1, "SLURM_NTASKS": 2, "SLURM_JOB_NODELIST": "no-such-host-[1-2].invalid",
                             "LOCKSTEP_SECRET_FILE": self.new_secret(), "LOCKSTEP_TIMEOUT": 3},
                            prefix=["ip", "netns", "exec", self.hosts[0]]).answer(30)
        self.assertFalse(answer["ok"])
        self.assertIn("no-such-host-1.invalid", answer["message"])


class TwoUsers(RendezvousTest):
    def setUp(self):
        super().setUp()
        # Where another user can start it.
        os.chmod(self.folder, 0o755)
        self.program = shutil.copy(rendezvous_rank.PROGRAM, self.folder)

    def start_as(self, user, rank, port, **variables):
        return self.start({"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **variables},
                          program=self.program, user=user, group=user, extra_groups=[], cwd="/")

    def test_another_user_gets_no_secret_on_loopback(self):
        port = free_port()
        waiting = self.start_as(54321, 0, port, LOCKSTEP_LOG="rendezvous=debug")
        waiting.wait_for_log("rank 0 (", "has arrived")
        answer = self.start_as(54322, 1, port).answer(10)
        self.assert_failure(answer, "rejected", f"process {waiting.pid} of user 54321", "user 54322")
        self.assert_world([waiting, self.start_as(54321, 1, port)])

    def test_a_file_of_another_user_is_refused(self):
        path = os.path.join(self.folder, "job")
        with open(path, "wb"):
            pass
        os.chown(path, 54321, 54321)
        answer = self.start({}, ["--url", f"file://{path}?rank=0&world_size=2"]).answer()
        self.assert_failure(answer, "rejected", "belongs to user 54321")
        self.assertEqual(os.path.getsize(path), 0, "nothing was written to it")


def can_make_namespaces():
    host = f"lockstep-{os.getpid()}-probe"
    try:
        made = subprocess.run(["ip", "netns", "add", host], stderr=subprocess.DEVNULL).returncode == 0
        if not made:
            return False
        linked = subprocess.run(["ip", "-n", host, "link", "add", "net0", "type", "veth", "peer", "name", "net1"],
                                stderr=subprocess.DEVNULL).returncode == 0
        ip("netns", "delete", host)
        return linked
    except OSError:
        return False


if __name__ == "__main__":
    if sys.argv[1:] == ["--probe"]:
        sys.exit(0 if can_make_namespaces() else 1)
    rendezvous_rank.PROGRAM = os.path.abspath(sys.argv.pop(1))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    unittest.main()
