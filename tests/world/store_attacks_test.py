#!/usr/bin/env python3
"""A store that serves a job, as a process, and others who come to it with what they should not send: versions, proofs,
lengths, and answers that they do not read. The job is not disturbed, and the log names each of them once.

    COMMAND=FILE store_attacks_test.py PROGRAM [unittest's arguments]      PROGRAM is rendezvous_rank, COMMAND lockstep
"""

import os
import pathlib
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest

import rendezvous_rank
import store_wire as wire
from bounds import MEMORY_FACTOR, within
from rendezvous_rank import RendezvousTest, clean_environment
from store_wire import Visitor, frame, request, sized

KNOCKS = 3  # of each offender: one line in the log all the same
MIB = 1 << 20
EIGHT_MIB = 8 * MIB  # the largest value
MANY = 16  # answers of that size: 128 MiB
# Of lengths and counts, as far as the field holds them; and what is just beyond a limit is named where it is used.
WRONG_LENGTHS = (0, 2**31 - 1, 2**31, 2**32 - 1)


class Job:
    """A `lockstep store`, and two ranks that have met there."""

    def __init__(self, test):
        self.test = test
        path = test.new_secret()
        self.secret = pathlib.Path(path).read_bytes()
        self.log_path = pathlib.Path(test.folder, "log")
        with open(self.log_path, "wb") as log:
            self.server = subprocess.Popen(
                [os.environ["COMMAND"], "store", "--job-id", "job", "--epoch", "5", "--secret-file", path],
                env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        test.addCleanup(self.end)
        host, port = self.server.stdout.readline().decode().strip().split(":")
        self.address = (host, int(port))
        self.ranks = [test.start({"RANK": rank, "WORLD_SIZE": 2, "LOCKSTEP_STORE": f"{host}:{port}",
                                  "LOCKSTEP_JOB_ID": "job", "LOCKSTEP_EPOCH": 5, "LOCKSTEP_SECRET_FILE": path})
                      for rank in range(2)]
        test.assert_world(self.ranks)
        self.memory_before = self.memory()

    def end(self):
        self.server.kill()
        self.server.wait()
        self.server.stdout.close()

    def visitor(self, source):
        return Visitor(self.address, source=source)

    def neighbour(self):
        """A client of this host that has been let in."""
        visitor = Visitor.next_door(self.address, epoch=5)
        self.test.addCleanup(visitor.__exit__)
        verdict, _ = visitor.say_hello(wire.client_hello("job", epoch=5))
        self.test.assertEqual(verdict, wire.ACCEPTED)
        self.test.assertEqual(visitor.prove(self.secret), wire.ACCEPTED)
        self.test.assertEqual(len(visitor.pipes), 2)
        return visitor

    def memory(self):
        """The server's resident bytes."""
        return int(pathlib.Path(f"/proc/{self.server.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    def log(self):
        return self.log_path.read_text().splitlines()

    def assert_unharmed(self, growth=16 * MIB):
        self.test.assertIsNone(self.server.poll(), self.log())
        self.test.assert_talks(self.ranks)
        self.test.assertLess(self.memory() - self.memory_before, growth * MEMORY_FACTOR)

    def assert_logged_once(self, who, *texts):
        lines = [line for line in self.log() if who in line]
        self.test.assertEqual(len(lines), 1, lines)
        for text in texts:
            self.test.assertIn(text, lines[0])


class AttackTest(RendezvousTest):
    def setUp(self):
        super().setUp()
        self.job = Job(self)

    def refused_at_hello(self, source, hello, verdict, *logged):
        """Who says `hello` hears `verdict` and is gone, as often as it comes, and is logged once."""
        for _ in range(KNOCKS):
            start = time.monotonic()
            with self.job.visitor(source) as visitor:
                self.assertEqual(visitor.say_hello(hello), (verdict, 1))
                self.assertEqual(visitor.wait_for_end(), b"")
            self.assertLess(time.monotonic() - start, within(10))
        self.job.assert_logged_once(f"rejected {source}:", *logged)


class Handshakes(AttackTest):
    """F12 and F13."""

    def test_what_a_server_refuses(self):
        self.refused_at_hello("127.0.1.1", wire.client_hello("job", epoch=5, version=2), wire.WRONG_VERSION,
                              "wire version 2", "version 1", "the same release")
        self.refused_at_hello("127.0.1.2", wire.client_hello("job", epoch=5, version=65535), wire.WRONG_VERSION,
                              "wire version 65535", "version 1")
        self.refused_at_hello("127.0.1.3", wire.client_hello("job", epoch=5, flags=2), wire.NOT_LOCKSTEP,
                              "not Lockstep's handshake")
        self.refused_at_hello("127.0.1.4", wire.client_hello("job", epoch=5, table=0x11223344), wire.WRONG_TABLE,
                              "built with table 11223344", f"this side with table {wire.TABLE:08x}", "the same sources")
        self.refused_at_hello("127.0.1.5", wire.client_hello("job", epoch=5, magic=b"GET "), wire.NOT_LOCKSTEP,
                              "not Lockstep's handshake")
        self.refused_at_hello("127.0.1.6", wire.client_hello("job", epoch=5, role=wire.CONTROL), wire.WRONG_ROLE,
                              "not served here")
        self.refused_at_hello("127.0.1.7", wire.client_hello("job", epoch=5, role=99), wire.WRONG_ROLE)
        self.refused_at_hello("127.0.1.8", wire.client_hello("another job", epoch=5), wire.WRONG_JOB,
                              "there is no such job here")
        # A process that an earlier start of the job has left, and one of a start that is still to come.
        self.refused_at_hello("127.0.1.9", wire.client_hello("job", epoch=4, rank=1), wire.WRONG_EPOCH,
                              "rank 1 of epoch 4", "an earlier run")
        self.refused_at_hello("127.0.1.10", wire.client_hello("job", epoch=2**64 - 1), wire.WRONG_EPOCH)
        self.refused_at_hello("127.0.1.11", wire.client_hello("job", epoch=5, flags=1), wire.WRONG_SECRET,
                              "has no secret and this side has one")
        self.job.assert_unharmed()

    def test_a_wrong_secret_is_found_at_the_proof(self):
        for _ in range(KNOCKS):
            with self.job.visitor("127.0.2.1") as visitor:
                self.assertEqual(visitor.say_hello(wire.client_hello("job", epoch=5, rank=1)), (wire.ACCEPTED, 1))
                self.assertEqual(visitor.prove(os.urandom(32)), wire.WRONG_SECRET)
                self.assertEqual(visitor.wait_for_end(), b"")
        self.job.assert_logged_once("rejected 127.0.2.1:", "rank 1 of epoch 5", "secret")
        # One that finds the server's own proof wrong leaves without a word.
        with self.job.visitor("127.0.2.2") as visitor:
            visitor.say_hello(wire.client_hello("job", epoch=5, rank=1))
            visitor.socket.shutdown(socket.SHUT_WR)
            self.assertEqual(visitor.wait_for_end(), b"")
        self.job.assert_logged_once("rejected 127.0.2.2:", "it may hold another one")
        self.job.assert_unharmed()

    def test_a_handshake_that_was_recorded_opens_nothing(self):
        with self.job.visitor("127.0.3.1") as visitor:
            hello = wire.client_hello("job", epoch=5)
            visitor.say_hello(hello)
            proof = wire.proof(self.job.secret, hello, visitor.answer)
            self.assertEqual(visitor.prove(self.job.secret), wire.ACCEPTED)
        for _ in range(KNOCKS):
            with self.job.visitor("127.0.3.2") as visitor:
                self.assertEqual(visitor.say_hello(hello), (wire.ACCEPTED, 1))
                visitor.send(proof)
                self.assertEqual(visitor.receive(wire.VERDICT_SIZE)[0], wire.WRONG_SECRET)
                self.assertEqual(visitor.wait_for_end(), b"")
        self.job.assert_logged_once("rejected 127.0.3.2:", "secret")
        # Nor does a server's own hello, sent back to it.
        with self.job.visitor("127.0.3.3") as visitor:
            visitor.say_hello(hello)
            answer = visitor.answer
        self.refused_at_hello("127.0.3.4", answer, wire.NOT_LOCKSTEP)
        self.job.assert_unharmed()

    def test_a_server_of_another_version_is_refused_by_a_rank_with_both_versions(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            host, port = server.getsockname()
            rank = self.start({"RANK": 0, "WORLD_SIZE": 2, "LOCKSTEP_STORE": f"{host}:{port}", "LOCKSTEP_JOB_ID": "job",
                               "LOCKSTEP_SECRET_FILE": os.path.join(self.folder, "secret")})
            server.settimeout(wire.PATIENCE)
            peer, _ = server.accept()
            with peer:
                self.assertEqual(len(peer.recv(wire.HELLO_SIZE, socket.MSG_WAITALL)), wire.HELLO_SIZE)
                peer.sendall(wire.server_hello(version=7, verdict=wire.WRONG_VERSION))
                start = time.monotonic()
                self.assert_failure(rank.answer(10), "version_mismatch", "wire version 7", "version 1", f"{host}:{port}")
                self.assertLess(time.monotonic() - start, within(10))


class Lengths(AttackTest):
    """F15: a length or a count is compared with its limit before anything is made for it."""

    def shown_out(self, message, *logged):
        """A neighbour that sends `message` is disconnected, and the log says why."""
        visitor = self.job.neighbour()
        before = len(self.job.log())
        visitor.write(message)
        self.assertTrue(visitor.is_shown_out())
        lines = self.job.log()[before:]
        self.assertEqual(len(lines), 1, lines)
        for text in ("disconnected", f"process {os.getpid()} of user", *logged):
            self.assertIn(text, lines[0])

    def test_of_frames(self):
        for length in (*WRONG_LENGTHS, wire.MAX_FRAME + 1):
            self.shown_out(struct.pack("<I", length), f"announces {length} bytes; 1 to {wire.MAX_FRAME} are allowed")
        # Over TCP too, where the length is not sealed.
        for number, length in enumerate((*WRONG_LENGTHS, wire.MAX_FRAME + 1)):
            with self.job.visitor(f"127.0.4.{number + 1}") as visitor:
                self.assertEqual(visitor.say_hello(wire.client_hello("job", epoch=5)), (wire.ACCEPTED, 1))
                self.assertEqual(visitor.prove(self.job.secret), wire.ACCEPTED)
                visitor.send(struct.pack("<I", length))
                self.assertEqual(visitor.wait_for_end(), b"")
            self.job.assert_logged_once(f"disconnected 127.0.4.{number + 1}:", f"announces {length} bytes")
        self.job.assert_unharmed()

    def test_of_keys_values_and_lists(self):
        key, four = sized(b"key"), struct.Struct("<I").pack
        for length in (*WRONG_LENGTHS, 1025):
            self.shown_out(frame(request(wire.GET, four(length) + b"key")), "wire format")
        for length in (2**31 - 1, 2**31, 2**32 - 1, EIGHT_MIB + 1):
            for op in (wire.SET, wire.APPEND, wire.QUEUE_PUSH):
                self.shown_out(frame(request(op, key + four(length) + b"value")), "wire format")
        for count in (2**31 - 1, 2**31, 2**32 - 1, 131_073):
            for op in (wire.CHECK, wire.WAIT, wire.MULTI_GET, wire.MULTI_SET):
                self.shown_out(frame(request(op, four(count) + key)), f"names {count} keys; at most 131072")
        self.shown_out(frame(request(wire.CHECK, four(131_072) + key)), "more keys announced than sent")
        self.job.assert_unharmed()

    def test_of_numbers(self):
        """64 bits: a timeout may be any number, and a sum that does not fit is an error of that call."""
        visitor = self.job.neighbour()
        for timeout in (0, 2**31 - 1, 2**32, 2**62, 2**64 - 1):
            self.assertEqual(visitor.ask(wire.ADD, sized(b"n") + struct.pack("<q", 0), timeout=timeout, number=timeout)[0], 0)
        self.assertEqual(visitor.ask(wire.ADD, sized(b"n") + struct.pack("<q", 2**63 - 1))[0], 0)
        code, _ = visitor.ask(wire.ADD, sized(b"n") + struct.pack("<q", 1))
        self.assertNotEqual(code, 0)
        self.job.assert_unharmed()

    def test_what_is_announced_takes_no_memory(self):
        visitors = [self.job.neighbour() for _ in range(100)]
        for visitor in visitors:
            visitor.write(struct.pack("<I", wire.MAX_FRAME) + bytes(1000))
        self.job.assert_unharmed()


class SlowReaders(AttackTest):
    """F20."""

    def test_one_that_reads_nothing_is_not_answered_further(self):
        slow, busy = self.job.neighbour(), self.job.neighbour()
        self.assertEqual(busy.ask(wire.SET, sized(b"bulk") + sized(bytes(EIGHT_MIB)))[0], 0)
        for number in range(MANY):
            slow.write(frame(request(wire.GET, sized(b"bulk"), number=number)))
        self.assertEqual(busy.ask(wire.GET, sized(b"bulk"))[0], 0)
        # The value, and two answers.
        self.job.assert_unharmed(4 * EIGHT_MIB)
        # It may come back to it.
        for number in range(MANY):
            self.assertEqual(slow.read_answer()[:2], (number, 0))

    def test_one_whose_answers_come_all_at_once_is_shown_out(self):
        slow, busy = self.job.neighbour(), self.job.neighbour()
        for number in range(MANY):  # all wait for one key
            slow.write(frame(request(wire.GET, sized(b"bulk"), number=number)))
        slow.write(frame(request(wire.SET, sized(b"ready") + sized(b""))))
        self.assertEqual(busy.ask(wire.GET, sized(b"ready"))[0], 0)
        self.assertEqual(busy.ask(wire.SET, sized(b"bulk") + sized(bytes(EIGHT_MIB)))[0], 0)
        self.assertTrue(slow.is_shown_out())
        self.job.assert_logged_once("disconnected", f"process {os.getpid()} of user", "it does not read its answers")
        self.job.assert_unharmed(80 * MIB)


if __name__ == "__main__":
    rendezvous_rank.PROGRAM = os.path.abspath(sys.argv.pop(1))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    unittest.main()
