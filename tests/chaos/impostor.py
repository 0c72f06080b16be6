#!/usr/bin/env python3
"""Comes to the listeners of a job as one who is not of it, or with lengths that cannot be.

    impostor.py KIND JOB SECRET-FILE NET ADDRESS...        # 127.0.0.1:29400, or @name for an abstract local socket

KIND is what is wrong: the job, the epoch, the secret, that the handshake is a replay of another, or, after one that
is right, the lengths. Comes several times to each, to a TCP listener from an address of its own (NET.x.x, NET as in
127.1), and prints a line of JSON for each: {"address", "source", "role", "heard": what became of each time, "seconds":
how long the slowest took}.
"""

import json
import os
import pathlib
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "world"))

import store_wire as wire  # noqa: E402
from store_wire import Gone, Visitor  # noqa: E402

KNOCKS = 3
ROLES = (wire.STORE, wire.CONTROL, wire.DATA)
LENGTHS = (0, 2**31 - 1, 2**32 - 1)  # of what the field holds
SHOWN_OUT = "shown out"


def crc32c(text):
    crc = 0xFFFFFFFF
    for byte in text:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def errand(kind, size):
    """docs/wire/links.md, for a group that there is not."""
    text = b"LKLL" + os.urandom(8) + struct.pack("<HH", size, kind)
    return text + struct.pack("<I", crc32c(text))


def lengths_of(role):
    """What a connection of that role may begin with, and must not."""
    if role == wire.DATA:
        return [errand(1, 65535), errand(65535, 0), errand(1, 65535)]
    return [struct.pack("<I", length) + bytes(60) for length in LENGTHS]  # an introduction is read whole


class Impostor:
    def __init__(self, kind, job, secret, net):
        self.kind, self.job, self.secret, self.net = kind, job, secret, net

    def hello(self, role):
        return wire.client_hello("another" if self.kind == "job" else self.job, role=role, rank=0,
                                 epoch=7 if self.kind == "epoch" else 0)

    def visit(self, address, number):
        """The role that is served there is found by asking for each."""
        heard, seconds = [], 0.0
        for role in (wire.STORE,) if address.startswith("@") else ROLES:
            source = f"{self.net}.{number}.{role}"
            before = f"{self.net}.{number}.{100 + role}"
            recorded = self.record(address, before, role) if self.kind == "replay" else None
            for knock in range(KNOCKS):
                began = time.monotonic()
                with self.visitor(address, source) as visitor:
                    heard.append(self.knock(visitor, role, knock, recorded))
                seconds = max(seconds, time.monotonic() - began)
                if heard[0] == wire.WRONG_ROLE:
                    break
            if heard[0] != wire.WRONG_ROLE:
                return {"address": address, "source": source, "role": role, "heard": heard, "seconds": seconds}
            heard = []
        return {"address": address, "source": "", "role": 0, "heard": heard, "seconds": seconds}

    def visitor(self, address, source):
        if address.startswith("@"):
            return Visitor.at_name(address[1:], self.job)
        host, _, port = address.rpartition(":")
        return Visitor((host, int(port)), self.job, source)

    def record(self, address, source, role):
        """What is said in a handshake that is right; nothing if the role is not served."""
        with self.visitor(address, source) as visitor:
            verdict, _ = visitor.say_hello(self.hello(role))
            if verdict != wire.ACCEPTED:
                return None
            assert visitor.prove(self.secret) == wire.ACCEPTED
            return visitor.hello, wire.proof(self.secret, visitor.hello, visitor.answer)

    def knock(self, visitor, role, number, recorded):
        """A verdict, or SHOWN_OUT."""
        verdict, _ = visitor.say_hello(recorded[0] if recorded else self.hello(role))
        if verdict != wire.ACCEPTED:
            return verdict
        if recorded:
            visitor.send(recorded[1])
            return visitor.receive(wire.VERDICT_SIZE)[0]
        verdict = visitor.prove(os.urandom(32) if self.kind == "secret" else self.secret)
        if verdict != wire.ACCEPTED or self.kind != "lengths":
            return verdict
        text = lengths_of(role)[number]
        try:
            visitor.write(text) if visitor.pipes else visitor.send(text)
            said = visitor.is_shown_out() if visitor.pipes else visitor.wait_for_end() is not None
        except (BrokenPipeError, ConnectionResetError, Gone):
            said = True
        return SHOWN_OUT if said else "kept"


def main():
    kind, job, secret_file, net, *addresses = sys.argv[1:]
    impostor = Impostor(kind, job, pathlib.Path(secret_file).read_bytes(), net)
    for number, address in enumerate(addresses):
        print(json.dumps(impostor.visit(address, number)), flush=True)


if __name__ == "__main__":
    main()
