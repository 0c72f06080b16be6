"""How much more things may take than on a quiet machine and without a sanitizer: CMake says so to every test."""

import os

TIME_FACTOR = float(os.environ.get("TEST_TIME_FACTOR", "1"))
MEMORY_FACTOR = int(os.environ.get("TEST_MEMORY_FACTOR", "1"))
PATIENCE = 150  # seconds, for what must happen: less than ctest's


def within(seconds):
    """The bound in seconds for what takes at most `seconds` there."""
    return seconds * TIME_FACTOR
