"""docs/from-pytorch.md is complete and true: it has every public name of torch.distributed, and its lines of C++ run.

    from_pytorch_test.py COMMAND PROGRAM COMPILER [unittest arguments]      COMMAND is `lockstep`, PROGRAM has the lines

It must be run by a python3 that has torch. That the lines compile is PROGRAM's being there.
"""

import ast
import inspect
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as distnn

sys.dont_write_bytecode = True
import document  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "from-pytorch.md").read_text(encoding="utf-8")
RANKS = 3
COMMAND = PROGRAM = COMPILER = ""

IMPORTED = {"log", "logging", "nn", "sys", "timedelta", "torch", "traceback", "typing"}  # Python's and torch's own
NEWER = {"dist.gather_single", "dist.get_backend_impl"}  # than the torch of this test
PRIVATE_HERE = {"dist._coalescing_manager", "dist._make_nccl_premul_sum"}  # which programs use all the same


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def functions_of(module):
    """Those that a program calls: not the parts of a derivative."""
    return {name for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
            and not name.endswith(("_backward", "_setup_context"))}


def names_of_torch():
    """As the page spells them."""
    groups = {"dist": public(dist) - IMPORTED, "distnn": functions_of(distnn),
              "funcol": functions_of(funcol) | {"AsyncCollectiveTensor"}, "store": public(dist.Store),
              "work": public(dist.Work), "group": public(dist.ProcessGroup), "ReduceOp": public(dist.ReduceOp),
              "DebugLevel": public(dist.DebugLevel) - {"name", "value"}}
    return {f"{group}.{name}" for group, names in groups.items() for name in names}


def missing_names(page, wanted):
    """Those that stand in no code span of the page but its C++."""
    lines = {row.cpp for row in document.read(page).rows}
    spans = "\n".join(span for span in document.SPAN.findall(document.FENCE.sub("", page)) if span not in lines)
    return sorted(name for name in wanted if not re.search(rf"\b{re.escape(name)}\b", spans))


def unknown_names(rows):
    """What the Python of the rows takes from torch.distributed that is not there."""
    modules = {"dist": dist, "distnn": distnn, "funcol": funcol}
    return sorted(f"{module}.{name}" for row in rows for text in row.python
                  for module, name in re.findall(r"\b(dist|distnn|funcol)\.(\w+)", text)
                  if not hasattr(modules[module], name) and f"{module}.{name}" not in NEWER)


def is_python(text):
    try:
        ast.parse(f"try: pass\n{text}: pass" if text.startswith("except ") else text)
    except SyntaxError:
        return False
    return True


class Page(unittest.TestCase):
    def test_every_public_name_of_torch_distributed_is_there(self):
        self.assertEqual(missing_names(PAGE, names_of_torch() | PRIVATE_HERE), [],
                         "add a row to a table of docs/from-pytorch.md, or to its table 'Not here'")

    def test_its_python_is_python_that_torch_has(self):
        rows = document.read(PAGE).rows
        self.assertEqual([text for row in rows for text in row.python if not is_python(text)], [])
        self.assertEqual(unknown_names(rows), [])

    def test_nothing_is_said_to_be_there_and_not_to_be(self):
        page = document.read(PAGE)
        there = "\n".join(text for row in page.rows for text in row.python)
        both = [name for name in page.absent
                if re.fullmatch(r"\w+\.\w+", name) and re.search(rf"\b{re.escape(name)}\(", there)]
        self.assertEqual(both, [])


class Lines(unittest.TestCase):
    def test_every_line_runs(self):
        rows = document.read(PAGE).rows
        with tempfile.TemporaryDirectory() as folder:
            # A line on stdin ends the breakpoint.
            result = subprocess.run([COMMAND, "run", "--nproc", str(RANKS), "--prefix", "", PROGRAM, folder],
                                    input="\n", capture_output=True, text=True, timeout=200)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(sorted(result.stdout.splitlines()),
                         [f"rank {rank} has run {len(rows)} lines" for rank in range(RANKS)])

    def test_its_programs_run(self):
        self.assertEqual(len(document.read(PAGE).programs), 2)
        first = subprocess.run([COMMAND, "run", "--nproc", str(RANKS), "--prefix", "", PROGRAM, "--program", "1"],
                               capture_output=True, text=True, timeout=200)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual(sorted(first.stdout.splitlines()), [f"rank {rank} of 3: 6" for rank in range(RANKS)])
        second = subprocess.run([PROGRAM, "--program", "2"], capture_output=True, text=True, timeout=200)
        self.assertEqual(second.returncode, 0, second.stderr)

    def test_the_program_of_the_readme_trains(self):
        result = subprocess.run([PROGRAM, "--program", "3"], capture_output=True, text=True, timeout=200)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(result.stdout, "3 batches\n")


# Enough of <lockstep/lockstep.h> for the program of a small page; the real one takes a compiler ten seconds.
STAND_IN = """#pragma once
#include <optional>
#include <stdexcept>
namespace lockstep {
inline int init_process_group() { return 0; }
inline int get_rank() { return 0; }
namespace base {
struct Environment {
  std::optional<int> rank, world_size;
  static std::optional<Environment> read() { return Environment{}; }
};
}
}
"""
SMALL_PAGE = """
# A page

## Calls

```cpp
int given_number = 7;
```

| Python | C++ | |
|---|---|---|
| `dist.get_rank()` | `int rank = lockstep::get_rank();` | |
| `dist.barrier()` | `LINE` | |
"""


class ChecksCanFail(unittest.TestCase):
    def run_page(self, line):
        """(whether it compiles, the exit status, stderr)"""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "lockstep").mkdir()
            (folder / "lockstep" / "lockstep.h").write_text(STAND_IN, encoding="utf-8")
            (folder / "page.md").write_text(SMALL_PAGE.replace("LINE", line), encoding="utf-8")
            document.main(folder / "page.md", folder / "page.cpp")
            compiled = subprocess.run([COMPILER, "-std=c++20", f"-I{folder}", f"-I{ROOT / 'tests' / 'from_pytorch'}",
                                       folder / "page.cpp", "-o", folder / "page"], capture_output=True, timeout=200)
            if compiled.returncode != 0:
                return False, None, compiled.stderr.decode()
            ran = subprocess.run([folder / "page", folder], capture_output=True, text=True, timeout=200)
            return True, ran.returncode, ran.stderr

    def test_a_line_that_does_not_compile(self):
        compiles, _, errors = self.run_page("lockstep::no_such_call();")
        self.assertFalse(compiles)
        self.assertIn("no_such_call", errors)

    def test_a_line_that_throws_is_named(self):
        compiles, status, errors = self.run_page('if (given_number == 7) throw std::runtime_error("no barrier");')
        self.assertEqual((compiles, status), (True, 1), errors)
        self.assertIn("line 13, ", errors)
        self.assertIn("no barrier", errors)

    def test_a_row_without_a_line(self):
        for cell in ("", "prose", "`a();` and `b();`", "`not_a_statement()`"):
            with self.assertRaises(document.Malformed):
                document.read(SMALL_PAGE.replace("`LINE`", cell))

    def test_names(self):
        page = SMALL_PAGE.replace("LINE", "dist.reduce();")
        self.assertEqual(missing_names(page, {"dist.get_rank", "dist.get_ranks", "dist.barrier", "dist.reduce"}),
                         ["dist.get_ranks", "dist.reduce"])
        rows = document.read(page.replace("dist.barrier()", "dist.barriere()")).rows
        self.assertEqual(unknown_names(rows), ["dist.barriere"])
        self.assertEqual([is_python("dist.send(x, dst=1)"), is_python("send(x, {.dst = 1})")], [True, False])
        self.assertGreater(len(names_of_torch()), 150)


if __name__ == "__main__":
    COMPILER, PROGRAM, COMMAND = sys.argv.pop(3), sys.argv.pop(2), sys.argv.pop(1)
    unittest.main()
