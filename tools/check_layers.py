#!/usr/bin/env python3
"""Checks that every file under src/lockstep and python/ includes only what its layer may see, and that no file there
or under tools/ reads the environment but the one that may.

    tools/check_layers.py [ROOT]      ROOT is the tree to read (default: this one)

Prints one line per violation, "file:line: what", and exits 1 if there is any. The table below is the one of
docs/architecture.md; the CMake link graph enforces the same one at link time.
"""

import pathlib
import re
import sys

BELOW_TENSOR = ["base", "store", "transport", "collective", "backend"]

# Layer -> the other layers whose headers it may include. None: anything.
LAYERS = {
    "base": [],
    "store": ["base"],
    "transport": ["base", "store"],
    "collective": ["base", "store", "transport"],
    "backend": ["base", "store", "transport", "collective"],
    "object": ["base"],
    "tensor": BELOW_TENSOR + ["object"],
    "ddp": BELOW_TENSOR + ["object", "tensor"],
    "optim": BELOW_TENSOR + ["tensor", "ddp"],
    "dtensor": BELOW_TENSOR + ["tensor"],
    "tp": BELOW_TENSOR + ["tensor", "dtensor"],
    "rpc": ["base", "store", "transport", "object", "tensor", "optim"],
    "launch": ["base", "store"],
    "testing": None,
}

# What python/, which knows all of torch, may include of ours.
PYTHON_SEES = BELOW_TENSOR + ["tensor"]

TORCH_LAYERS = ["tensor", "ddp", "optim", "dtensor", "tp", "rpc", "testing"]
LOOP_LAYERS = ["store", "transport", "backend", "rpc", "launch", "testing"]

# (include pattern, the folders under src/lockstep that may include it, why). Folders are prefixes; "*.cpp" at the
# end restricts to source files. The first pattern that matches decides.
EXTERNAL = [
    (r"(spdlog|fmt)/", ["base/*.cpp"], "spdlog and fmt are seen by .cpp files of base/ only"),
    (r"openssl/", ["base/"], "OpenSSL is wrapped by base/"),
    (r"hwloc(\.h|/)", ["base/"], "hwloc is wrapped by base/"),
    (r"msgpack(\.hpp|/)", ["object/*.cpp"], "msgpack is wrapped by object/"),
    (r"CLI/", [], "the command line is parsed in tools/ only"),
    (r"asio(\.hpp|/)", [f"{layer}/" for layer in LOOP_LAYERS], "Asio is for the layers that own a loop"),
    (r"torch/csrc/distributed/", ["tensor/borrowed/", "testing/"], "c10d is known by tensor/borrowed/ only"),
    (r"(torch|ATen|c10|caffe2)/", [f"{layer}/" for layer in TORCH_LAYERS], "torch is never seen below tensor/"),
    (r"nccl\.h", ["backend/nccl/"], "NCCL is seen by backend/nccl/ only"),
    (r"(cuda|cuda_runtime|cuda_runtime_api|cuda_fp16|cuda_bf16|nvml)\.h", ["backend/cuda/", "backend/nccl/"],
     "CUDA is seen by backend/cuda/ and backend/nccl/ only"),
    (r"mpi\.h", ["backend/mpi/"], "MPI is seen by backend/mpi/ only"),
]

# Standard headers that a layer has no business with.
FORBIDDEN_STANDARD = {
    "collective": (r"(thread|mutex|shared_mutex|condition_variable|future|stop_token)",
                   "collective/ has no threads: its algorithms are plain loops"),
}

# x_test.cpp, x_fuzz.cpp, and what several of them share.
TEST_STEMS = ("_test", "_fuzz", "_test_support")
TEST_ONLY = re.compile(r"(gtest|gmock)/")
GETENV = re.compile(r"\b(secure_)?getenv\s*\(")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
# Comments, then string and character literals (raw strings first). A digit before ' is a digit separator.
TOKENS = re.compile(
    r'//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/'
    r'|(?P<literal>R"(?P<d>[^(\s]*)\(.*?\)(?P=d)"|"(?:[^"\\\n]|\\.)*"|(?<![0-9a-fA-F])\'(?:[^\'\\\n]|\\.)*\')',
    re.DOTALL)


def blank(text, literals):
    """The text with comments (and literals, if asked) turned to spaces; every line keeps its number."""
    def spaces(match):
        if match.group("literal") is not None and not literals:
            return match.group(0)
        return re.sub(r"[^\n]", " ", match.group(0))
    return TOKENS.sub(spaces, text)


def is_test(path):
    return path.stem.endswith(TEST_STEMS) or path.parts[0] == "testing"


def may_include_external(path, folders):
    name = path.as_posix()
    for folder in folders:
        if folder.endswith("*.cpp"):
            if name.startswith(folder[:-5]) and path.suffix == ".cpp":
                return True
        elif name.startswith(folder):
            return True
    return False


def check_include(path, quote, target):
    """What is wrong with this include in this file (a path under src/lockstep), or None."""
    layer = path.parts[0] if len(path.parts) > 1 else ""  # "" : lockstep.h and its like, which see everything
    if target.startswith("lockstep/"):
        parts = target.split("/")
        other = parts[1] if len(parts) > 2 else ""
        if target.removesuffix(".h").endswith(TEST_STEMS) and not is_test(path):
            return f"{target}: what tests share is for tests"
        if layer in ("", other):
            return None
        if other == "":
            return f"{layer}/ may not include {target}: it includes everything"
        if other not in LAYERS:
            return f"{target}: there is no layer {other}/"
        allowed = LAYERS[layer]
        if allowed is None or other in allowed or (other == "testing" and is_test(path)):
            return None
        return f"{layer}/ may not include {target} (it may include: {', '.join(allowed) or 'no other layer'})"
    if path.suffix == ".h" and target == "torch/torch.h" and path.as_posix() != "lockstep.h":
        return "no header but lockstep.h includes torch/torch.h: it costs every user ten seconds"
    for pattern, folders, reason in EXTERNAL:
        if re.match(pattern + ("$" if pattern.endswith(r"\.h") else ""), target):
            allowed = layer == "" or may_include_external(path, folders)
            return None if allowed else f"{target}: {reason}"
    if TEST_ONLY.match(target):
        return None if is_test(path) else f"{target}: GoogleTest is for tests and testing/"
    if layer in FORBIDDEN_STANDARD and not is_test(path):
        pattern, reason = FORBIDDEN_STANDARD[layer]
        if re.fullmatch(pattern, target):
            return f"<{target}>: {reason}"
    if quote == '"':
        return f'"{target}": write the path from src/, as "lockstep/base/status.h"'
    return None


def check_file(path, text):
    """Yields (line, what) for the file at path (under src/lockstep)."""
    code = blank(text, literals=False)
    if len(path.parts) > 1 and path.parts[0] not in LAYERS:
        yield 1, f"there is no layer {path.parts[0]}/; a new one needs its row in tools/check_layers.py"
        return
    for match in INCLUDE.finditer(code):
        wrong = check_include(path, match.group(1), match.group(2))
        if wrong:
            yield code.count("\n", 0, match.start(2)) + 1, wrong
    if path.as_posix() != "base/environment.cpp" and not is_test(path):
        yield from check_getenv(text)


def check_python_file(text):
    """Yields (line, what) for a C++ file of python/."""
    code = blank(text, literals=False)
    for match in INCLUDE.finditer(code):
        quote, target = match.group(1), match.group(2)
        line = code.count("\n", 0, match.start(2)) + 1
        if target.startswith("lockstep/"):
            layer = target.split("/")[1]
            if layer not in PYTHON_SEES:
                yield line, f"python/ may not include {target} (it may include: {', '.join(PYTHON_SEES)})"
        elif quote == '"' and not target.startswith("extension/"):
            yield line, f'"{target}": write the path from src/ or python/, as "extension/work.h"'
    yield from check_getenv(text)


def check_getenv(text):
    for match in GETENV.finditer(blank(text, literals=True)):
        line = text.count("\n", 0, match.start()) + 1
        yield line, "getenv is called by base/environment.cpp only: take the Environment as an argument"


def sources(folder):
    return sorted(p for p in folder.rglob("*") if p.suffix in (".h", ".cpp", ".cu", ".inc"))


def check_tree(root):
    """Returns the number of files read under src/lockstep and the violations, each "src/lockstep/x.h:3: what"."""
    layers = root / "src" / "lockstep"
    files = sources(layers)
    found = [(file, check_file(file.relative_to(layers), file.read_text(encoding="utf-8"))) for file in files]
    found += [(file, check_python_file(file.read_text(encoding="utf-8"))) for file in sources(root / "python")]
    found += [(file, check_getenv(file.read_text(encoding="utf-8"))) for file in sources(root / "tools")]
    return len(files), [f"{file.relative_to(root).as_posix()}:{line}: {what}"
                        for file, wrongs in found for line, what in wrongs]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    count, violations = check_tree(root)
    if count == 0:
        print(f"check_layers: no sources under {root}/src/lockstep", file=sys.stderr)
        return 2
    for violation in violations:
        print(violation)
    print(f"check_layers: {count} files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
