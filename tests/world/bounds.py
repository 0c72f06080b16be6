"""How much longer things may take than on a plain build: CMake says so to every test."""

import os

TIME_FACTOR = float(os.environ.get("TEST_TIME_FACTOR", "1"))


def within(seconds):
    """The bound in seconds for what takes at most `seconds` on a plain build."""
    return seconds * TIME_FACTOR
