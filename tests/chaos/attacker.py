#!/usr/bin/env python3
"""A stranger who bothers listeners: connects and leaves, speaks HTTP, sends noise, announces huge frames, or holds a connection
and sends a byte a second.

    attacker.py NICE RATE ADDRESS...        # 127.0.0.1:29400, or @name for an abstract local socket

At most RATE connections a second, at the priority NICE. Says "ready"; then a line on stdin says "on" or "off", and its
end ends it. Says at the end how many connections it has made.
"""

import os
import random
import select
import socket
import sys
import time

HELD = 64  # connections that are kept open, for each listener
SLICE = 0.01
GREETINGS = (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", None, b"\xff\xff\xff\x7f", b"\x00" * 8 + b"\xff" * 8, b"L")


def connect(address):
    """Nothing if the listener has no room."""
    local = address.startswith("@")
    connection = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
    connection.setblocking(False)
    try:
        host, _, port = address.rpartition(":")
        connection.connect("\0" + address[1:] if local else (host, int(port)))
    except BlockingIOError:
        return connection
    except OSError:
        connection.close()
        return None
    return connection


class Attack:
    def __init__(self, addresses):
        self.random = random.Random(14)
        self.held = {address: [] for address in addresses}
        self.count = 0

    def bother(self, address):
        connection = connect(address)
        if not connection:
            return
        self.count += 1
        greeting = self.random.choice(GREETINGS)
        try:
            connection.send(self.random.randbytes(200) if greeting is None else greeting)
        except OSError:
            pass
        held = self.held[address]
        held.append(connection)
        if len(held) > HELD:
            held.pop(self.random.randrange(len(held))).close()

    def drip(self):
        for connection in (one for held in self.held.values() for one in held):
            try:
                connection.send(b"x")
            except OSError:
                pass

    def let_go(self):
        for held in self.held.values():
            while held:
                held.pop().close()


def main():
    priority, rate, addresses = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    os.nice(priority)
    attack, on, rest = Attack(addresses), False, b""
    print("ready", flush=True)
    next_drip = time.monotonic()
    while True:
        ready, _, _ = select.select([0], [], [], SLICE)
        if ready:
            chunk = os.read(0, 4096)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:  # of two that came at once the first counts too
                on = line == b"on"
                attack.bother(addresses[0]) if on else attack.let_go()
        if not on:
            continue
        for _ in range(max(1, int(rate * SLICE))):
            attack.bother(attack.random.choice(addresses))
        if time.monotonic() >= next_drip:
            next_drip = time.monotonic() + 1
            attack.drip()
    print(attack.count)


if __name__ == "__main__":
    main()
