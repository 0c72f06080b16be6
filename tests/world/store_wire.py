"""The store's bytes as docs/wire has them, for tests that are strangers, liars and fools to a server.

Speaks the handshake over TCP and AF_UNIX, and plain frames over the pipes that a local client gets. It does not seal:
over TCP it can send what a frame begins with, and no more.
"""

import hashlib
import hmac
import os
import select
import socket
import struct
import time

from bounds import PATIENCE

NO_RANK = 0xFFFFFFFF
STORE, CONTROL, DATA = 1, 2, 3  # roles
(ACCEPTED, NOT_LOCKSTEP, WRONG_VERSION, WRONG_ROLE, WRONG_JOB, WRONG_EPOCH, WRONG_SECRET) = range(7)
WRONG_TABLE = 9
TABLE = 0xda49a4e1  # of types and limits: kWireTable of base/wire_table.h
SET, GET, ADD, CHECK, WAIT, APPEND, MULTI_GET, MULTI_SET, QUEUE_PUSH = 1, 2, 4, 5, 6, 9, 10, 11, 12
ANSWERED, SILENT = 0, 1
MAX_FRAME = 32 << 20
HELLO_SIZE, PROOF_SIZE, VERDICT_SIZE = 72, 32, 8


def job_hash(job):
    return hashlib.sha256(b"lockstep job " + job.encode()).digest()[:16]


def client_hello(job, epoch=0, version=1, role=STORE, flags=0, rank=NO_RANK, magic=b"LKSC", table=TABLE):
    return (struct.pack("<4sHBBII", magic, version, role, flags, rank, table) + job_hash(job)
            + struct.pack("<Q", epoch) + os.urandom(32))


def server_hello(version=1, verdict=ACCEPTED):
    return struct.pack("<4sHBB", b"LKSS", version, verdict, 0) + bytes(64)


def proof(secret, hello, answer):
    return hmac.digest(secret, b"lockstep 1 client proof\0" + hello + answer, "sha256")


def request(op, body, number=1, answer=ANSWERED, timeout=60_000_000):
    return struct.pack("<QBBQ", number, op, answer, timeout) + body


def sized(text):
    return struct.pack("<I", len(text)) + text


def frame(message):
    return sized(message)


class Gone(Exception):
    """The other side has closed the connection."""


class Visitor:
    """A connection to a server; a stranger until it has proven itself."""

    def __init__(self, address, job="job", source="127.0.0.1"):
        """`address` is (host, port). `source` is where it comes from: one line a minute is logged for each."""
        self.job, self.hello, self.answer, self.pipes = job, b"", b"", ()
        self.socket = socket.create_connection(address, PATIENCE, source_address=(source, 0))

    @classmethod
    def next_door(cls, address, job="job", epoch=0):
        """Over AF_UNIX, as clients of the same host come."""
        name = f"{address[0]}:{address[1]}/{job_hash(job).hex()}/{epoch}"
        door = hashlib.sha256(name.encode()).digest()[:16].hex()
        return cls.at_name(f"lockstep/store/{address[1]}/{door}", job)

    @classmethod
    def at_name(cls, name, job="job"):
        """To an abstract name of AF_UNIX."""
        self = cls.__new__(cls)
        self.job, self.hello, self.answer, self.pipes = job, b"", b"", ()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(b"\0" + name.encode())
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        for end in self.pipes:
            os.close(end)
        self.pipes = ()

    def send(self, text):
        self.socket.sendall(text)

    def receive(self, size):
        text = b""
        while len(text) < size:
            try:
                part = self.socket.recv(size - len(text))
            except ConnectionResetError:
                part = b""
            if not part:
                raise Gone(f"after {len(text)} of {size} bytes")
            text += part
        return text

    def wait_for_end(self):
        """Until the server has closed the connection; what it still said."""
        text = b""
        while True:
            try:
                part = self.socket.recv(65536)
            except ConnectionResetError:
                part = b""
            if not part:
                return text
            text += part

    def say_hello(self, hello=None):
        """Returns the verdict of the server's hello, and the version that it speaks."""
        self.hello = hello or client_hello(self.job)
        self.send(self.hello)
        self.answer = self.receive(HELLO_SIZE)
        magic, version, verdict = struct.unpack_from("<4sHB", self.answer)
        assert magic == b"LKSS", magic
        return verdict, version

    def prove(self, secret):
        """Returns the verdict. An accepted client next door has its pipes then."""
        self.send(proof(secret, self.hello, self.answer))
        if self.socket.family != socket.AF_UNIX:
            return self.receive(VERDICT_SIZE)[0]
        text, descriptors, _, _ = socket.recv_fds(self.socket, VERDICT_SIZE + 1, 2)
        self.pipes = tuple(descriptors)  # to write to, to read from
        for end in self.pipes:
            os.set_blocking(end, False)
        return text[0]

    def enter(self, secret):
        """The whole handshake, as it should be."""
        verdict, _ = self.say_hello()
        assert verdict == ACCEPTED, verdict
        verdict = self.prove(secret)
        assert verdict == ACCEPTED, verdict
        return self

    def write(self, text):
        """Into the pipe, all of it."""
        text = memoryview(text)
        while text:
            _, ready, _ = select.select([], [self.pipes[0]], [], PATIENCE)
            assert ready, "the server does not read"
            try:
                text = text[os.write(self.pipes[0], text):]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise Gone("while it was written to") from None

    def read(self, size):
        """From the pipe, exactly so much."""
        text = bytearray()
        deadline = time.monotonic() + PATIENCE
        while len(text) < size:
            ready, _, _ = select.select([self.pipes[1]], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the server does not answer"
            part = os.read(self.pipes[1], size - len(text))
            if not part:
                raise Gone(f"after {len(text)} of {size} bytes")
            text += part
        return bytes(text)

    def read_answer(self):
        """The next answer: (its number, 0 or the error's code, the rest)."""
        message = self.read(struct.unpack("<I", self.read(4))[0])
        number, code = struct.unpack_from("<QB", message)
        return number, code, message[9:]

    def ask(self, op, body, **more):
        """One request, and its answer: (0 or the error's code, the rest)."""
        self.write(frame(request(op, body, **more)))
        return self.read_answer()[1:]

    def is_shown_out(self):
        """Reads what comes until the server has closed the pipe."""
        try:
            while True:
                self.read(1)
        except Gone:
            return True
