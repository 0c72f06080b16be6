"""Two hosts on one machine: two network namespaces with a wire between them, each with a host name of its own.

    hosts.py        exits 0 if they can be made here
"""

import os
import re
import subprocess
import sys

ADDRESSES = ("10.231.77.1", "10.231.77.2")  # exist inside the namespaces only
GATEWAY, THIRD_ADDRESS = "10.231.78.1", "10.231.78.2"
NAMES = ("hosta", "hostb", "hostc")


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=200)


def remove_stale():
    """What a test program that was killed has left."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=200).stdout
    for name, pid in re.findall(r"^(lockstep(\d+)x?[abc])\b", listed, re.MULTILINE):
        if not os.path.exists(f"/proc/{pid}"):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=200)


class TwoHosts:
    """Made by `with`, removed at its end, with everything that lives in it."""

    def __init__(self, pair=""):
        """`pair` tells two pairs of one process apart."""
        self.spaces = tuple(f"lockstep{os.getpid()}{pair}{letter}" for letter in "ab")
        self.wires = tuple(f"lk{os.getpid()}{pair}{letter}" for letter in "ab")  # at most 15 characters

    def __enter__(self):
        remove_stale()
        try:
            for space in self.spaces:
                ip("netns", "add", space)
                ip("-n", space, "link", "set", "lo", "up")
            ip("-n", self.spaces[0], "link", "add", self.wires[0], "type", "veth", "peer", "name", self.wires[1],
               "netns", self.spaces[1])
            for space, wire, address in zip(self.spaces, self.wires, ADDRESSES):
                ip("-n", space, "address", "add", f"{address}/24", "dev", wire)
                ip("-n", space, "link", "set", wire, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for space in self.spaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, timeout=200)

    def enter(self, host):
        """The words before a command that run it on that host. (`ip netns exec` would hide the cgroups' files.)"""
        return ["nsenter", f"--net=/run/netns/{self.spaces[host]}", "unshare", "--uts", "sh", "-c",
                f'hostname {NAMES[host]}; exec "$@"', "sh"]

    def cut(self):
        ip("-n", self.spaces[0], "link", "set", self.wires[0], "down")

    def cut_one_way(self, host):
        """What that host sends is lost; what is sent to it arrives."""
        ip("-n", self.spaces[host], "neighbour", "replace", ADDRESSES[1 - host], "lladdr", "02:00:00:00:00:01", "dev",
           self.wires[host], "nud", "permanent")

    def mend(self):
        """Undoes every cut."""
        ip("-n", self.spaces[0], "link", "set", self.wires[0], "up")
        for host in (0, 1):
            subprocess.run(["ip", "-n", self.spaces[host], "neighbour", "delete", ADDRESSES[1 - host], "dev",
                            self.wires[host]], capture_output=True, timeout=200)


class ThreeHosts(TwoHosts):
    """The third one is behind the first: a wire of its own leads to it, and the way to the second goes through there."""

    def __enter__(self):
        super().__enter__()
        first, second, third = self.spaces = (*self.spaces, f"lockstep{os.getpid()}c")
        here, there = (f"lk{os.getpid()}{letter}" for letter in "cd")
        try:
            ip("netns", "add", third)
            ip("-n", third, "link", "set", "lo", "up")
            ip("-n", first, "link", "add", here, "type", "veth", "peer", "name", there, "netns", third)
            for space, wire, address in ((first, here, GATEWAY), (third, there, THIRD_ADDRESS)):
                ip("-n", space, "address", "add", f"{address}/24", "dev", wire)
                ip("-n", space, "link", "set", wire, "up")
            ip("-n", third, "route", "add", "default", "via", GATEWAY)
            ip("-n", second, "route", "add", "default", "via", ADDRESSES[0])
            subprocess.run([*self.enter(0), "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True, timeout=200)
        except BaseException:
            self.__exit__()
            raise
        return self


def probe():
    try:
        with TwoHosts() as hosts:
            return subprocess.run([*hosts.enter(1), "true"], capture_output=True, timeout=200).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


if __name__ == "__main__":
    sys.exit(0 if probe() else 1)
