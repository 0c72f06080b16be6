"""Changes a bit of a running rank's shared memory from outside, as a bad memory chip or another process would."""

import os
import struct

COUNT = 5003  # elements of the contribution: see scenes.cpp
WINDOW = 1 << 20
# A posting (transport/shm/board.h): 5 words of fingerprint, the total in bytes, the factor, what follows; and its size.
HEADER = struct.pack("<Qd", 4 * COUNT, 1.0)
BEFORE_TOTAL = 40
POSTING = 96
# A block (transport/shm/board.cpp), which begins at a multiple of 128: the round that was posted last (8 bytes), two postings,
# four entries, and the group's failure. What else is in it is looked at only by who sleeps for long.
ALIGNMENT = 128
POSTINGS, ENTRY, ENTRIES = 384, 64, 4
FAILURES = -(-(POSTINGS + 2 * POSTING + ENTRIES * ENTRY) // ALIGNMENT) * ALIGNMENT


def payload(rank):
    """What lies at the beginning of its contribution."""
    return struct.pack("<16i", *(signed((i * 2654435761 & 0xFFFFFFFF) ^ rank) for i in range(16)))


def signed(word):
    return word - (1 << 32) if word >> 31 else word


def find(descriptor, wanted):
    """Where `wanted` lies in a file that is mostly holes; None if nowhere."""
    at = 0
    while True:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
            end = os.lseek(descriptor, at, os.SEEK_HOLE)
        except OSError:  # no further data
            return None
        while at < end:
            window = os.pread(descriptor, min(WINDOW + len(wanted), end - at), at)
            if wanted in window:
                return at + window.index(wanted)
            at += WINDOW
        at = end


def words_of(posting, rank):
    """Where the words lie by which all members go in every round, and how long they are."""
    block = posting - POSTINGS - (0 if posting % ALIGNMENT == 0 else POSTING)
    return [(block, 8)] + ([(block + FAILURES, 4)] if rank == 0 else [])


def flip(pid, rank, what, bit):
    """Changes bit number `bit`, counted round and round, of what the rank has posted. False if it is not there yet."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        if not os.readlink(path).startswith("/memfd:lockstep"):
            continue
        descriptor = os.open(path, os.O_RDWR)
        try:
            # The contribution is written first: once the header is there, it is.
            header, body = find(descriptor, HEADER), find(descriptor, payload(rank))
            if header is None or body is None:
                continue
            posting = header - BEFORE_TOTAL
            first, size = (posting, POSTING) if what == "header" else (body, 4 * COUNT)
            if what == "words":
                words = words_of(posting, rank)
                first, size = words[bit % len(words)]
                bit //= len(words)
            place, bit = first + bit // 8 % size, bit % 8
            old = os.pread(descriptor, 1, place)[0]
            os.pwrite(descriptor, bytes([old ^ 1 << bit]), place)
            return True
        finally:
            os.close(descriptor)
    return False
