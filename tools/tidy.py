#!/usr/bin/env python3
"""Runs clang-tidy on the C++ files that changed.

    tools/tidy.py [--build build/fuzz] [--torch build/release] [--seconds 300] [--all]

The commands are those of --build, which clang has made. It has no torch: what it does not compile is read with the commands
of --torch, if that build is there, whatever its compiler; gcc knows nothing of the locks' annotations, so that this is where
they are checked in what needs torch. Those come last, because one of them takes longer than ten of the others.

What changed: against the merge base with origin/main; where that is HEAD itself, against HEAD~1; in a repository with
one commit, everything. Uncommitted files count. A header that changed brings the sources of its folder that include
it. A file that was clean is not read again until it or something it includes changes, so a second run goes on where
the first has ended. After --seconds no further file is started.

Exit status: 0 if every file was read and is clean; 1 if one is not; 3 if none is known to be bad, but some were not
read, because they were late or because no build here has a command for them. They are named.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIDY = "clang-tidy-16"
CLANG = "clang++-16"
UNREAD = 3  # the exit status; check.sh knows it
# A test may look at what it moved from, and need not be fast.
TEST_CHECKS = "-bugprone-use-after-move,-performance-*"


def git(*args):
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def changed_files():
    """Paths relative to ROOT, or None for everything."""
    head = git("rev-parse", "HEAD")
    base = git("merge-base", "HEAD", "origin/main")
    if base is None or base == head:
        base = git("rev-parse", "HEAD~1")
    if base is None:
        return None
    changed = git("diff", "--name-only", "--diff-filter=d", base) or ""
    untracked = git("ls-files", "--others", "--exclude-standard") or ""
    return set(changed.splitlines()) | set(untracked.splitlines())


def compile_commands(build):
    """{path relative to ROOT: (folder, arguments for clang)} for our own sources."""
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        for source in [path] if not path.is_relative_to(build) else sources_of_batch(path):
            if source.is_relative_to(ROOT):
                command = entry["command"].replace(entry["file"], str(source))
                commands[source.relative_to(ROOT).as_posix()] = (entry["directory"], for_clang(command))
    return commands


def sources_of_batch(path):
    """What a file of cmake/LockstepBatches.cmake has the compiler read as one; none of another file that a build makes."""
    if path.parent.name != "batches" or not path.exists():
        return []
    return [ROOT / name for name in re.findall(r'^#include "([^"]+\.cpp)"$', path.read_text(), flags=re.MULTILINE)]


def for_clang(command):
    """The arguments alone, without what another compiler has made or understands alone."""
    words = shlex.split(command)
    # The launcher (ccache and its environment) and the compiler go.
    start = next(i for i, word in enumerate(words) if re.search(r"(^|/)(clang|g|c)\+\+(-\d+)?$", word))
    arguments = ["-Qunused-arguments", "-Wno-unknown-warning-option", "-Wthread-safety"]
    rest = iter(words[start + 1:])
    for word in rest:
        if word == "-o":
            next(rest)
        elif word == "-include":
            header = next(rest)
            if not header.endswith("cmake_pch.hxx"):
                arguments += [word, header]
        elif word not in ("-c", "-Winvalid-pch", "-Werror"):
            arguments.append(word)
    return arguments


def includes(path):
    return set(re.findall(r'#include ["<](lockstep/[^">]+)[">]', (ROOT / path).read_text(encoding="utf-8")))


def select(commands, changed):
    if changed is None:
        return sorted(commands)
    headers = {path.removeprefix("src/") for path in changed if path.endswith(".h")}
    folders = {os.path.dirname(path) for path in changed}
    return sorted(path for path in commands
                  if path in changed or (os.path.dirname(path) in folders and includes(path) & headers))


def without_command(commands, changed):
    """Sources that changed and cannot be read."""
    return sorted(path for path in changed or () if path.endswith(".cpp") and path not in commands)


def key(directory, arguments):
    """A hash of all that clang-tidy would read: the preprocessed file with its comments, and the configuration."""
    done = subprocess.run([CLANG, *arguments, "-E", "-C", "-P"], cwd=directory, capture_output=True, check=False)
    digest = hashlib.sha256(done.stdout)
    digest.update((ROOT / ".clang-tidy").read_bytes())
    return digest.hexdigest() if done.returncode == 0 else None


def tidy(path, command, cache, deadline):
    """Returns (verdict, text); the verdict is "clean", "cached", "late" or "bad"."""
    if time.monotonic() > deadline:
        return "late", ""
    stamp = key(*command)
    if stamp and (cache / stamp).exists():
        return "cached", ""
    is_test = path.endswith("_test.cpp") or path.startswith(("tests/", "src/lockstep/testing/"))
    relaxed = [f"--checks={TEST_CHECKS}"] if is_test else []
    directory, arguments = command
    done = subprocess.run([TIDY, "--quiet", *relaxed, ROOT / path, "--", *arguments],
                          cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return "bad", done.stdout + done.stderr
    if stamp:
        (cache / stamp).touch()
    return "clean", ""


def verdict_of(counts, unread):
    """The exit status."""
    if counts["bad"]:
        return 1
    return UNREAD if unread else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build/fuzz")
    parser.add_argument("--torch", default="build/release")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()

    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "lockstep-tidy"
    cache.mkdir(parents=True, exist_ok=True)
    own = compile_commands(ROOT / options.build)
    has_torch = (ROOT / options.torch / "compile_commands.json").exists()
    commands = (compile_commands(ROOT / options.torch) if has_torch else {}) | own
    changed = None if options.all else changed_files()
    files = sorted(select(commands, changed), key=lambda path: (path not in own, path))
    deadline = time.monotonic() + options.seconds
    counts = {"clean": 0, "cached": 0, "late": 0, "bad": 0}
    late = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        verdicts = pool.map(lambda f: tidy(f, commands[f], cache, deadline), files)
        for path, (verdict, text) in zip(files, verdicts):
            counts[verdict] += 1
            if verdict == "late":
                late.append(path)
            if text:
                print(re.sub(r"^\d+ warnings generated\.\n", "", text, flags=re.MULTILINE), flush=True)
    print(f"tidy: {len(files)} files: " + ", ".join(f"{count} {name}" for name, count in counts.items() if count))
    unknown = without_command(commands, changed)
    if late:
        print(f"tidy: NOT READ, because the {options.seconds:.0f} s were over: {' '.join(late)}")
    if unknown:
        print(f"tidy: NOT READ, because no build here has a command for them: {' '.join(unknown)}")
    return verdict_of(counts, late + unknown)


if __name__ == "__main__":
    sys.exit(main())
