#!/usr/bin/env python3
"""Worlds on two hosts that have IPv6 addresses and no others: two network namespaces joined by a veth pair.

    world_hosts_test.py PROGRAM [unittest's arguments]      PROGRAM is world_rank

The namespaces are this test's own and are removed at the end, also after a failure; nothing outside them is changed.
"""

import os
import subprocess
import sys
import unittest

import rendezvous_rank
from rendezvous_rank import RendezvousTest

PORT = 29500


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, stdout=subprocess.DEVNULL)


class WorldOnTwoHosts(RendezvousTest):
    @classmethod
    def setUpClass(cls):
        cls.hosts = [f"lockstep-{os.getpid()}-{side}" for side in "ab"]
        for host in cls.hosts:
            ip("netns", "add", host)
            cls.addClassCleanup(subprocess.run, ["ip", "netns", "delete", host], check=True)
            ip("-n", host, "link", "set", "lo", "up")
        ip("-n", cls.hosts[0], "link", "add", "net0", "type", "veth", "peer", "name", "net0", "netns", cls.hosts[1])
        for side, host in enumerate(cls.hosts):
            ip("-n", host, "address", "add", f"fd78::{side + 1}/64", "dev", "net0", "nodad")
            ip("-n", host, "link", "set", "net0", "up")

    def run_world(self, size, secret):
        """Half of the ranks on each host; returns their answers."""
        ranks = [self.start({"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "fd78::1", "MASTER_PORT": PORT,
                             "LOCKSTEP_SECRET_FILE": secret},
                            prefix=["ip", "netns", "exec", self.hosts[2 * rank // size]])
                 for rank in range(size)]
        return [rank.answer() for rank in ranks]

    def test_reduces_and_passes_messages(self):
        secret = self.new_secret()
        for size in (2, 4):
            for rank, answer in enumerate(self.run_world(size, secret)):
                self.assertTrue(answer["ok"], answer)
                self.assertEqual(answer["sum"], size * (size + 1) / 2)
                self.assertTrue(answer["same"])
                self.assertEqual(answer["from"], (rank - 1) % size)
                self.assertEqual(answer["addresses"], [f"fd78::{2 * rank // size + 1}"])


if __name__ == "__main__":
    rendezvous_rank.PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
