"""Tests of tools/check_layers.py: small trees, each with one kind of violation, which must be found and named."""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_layers.py"
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("check_layers", TOOL)
check_layers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_layers)


def write(root, files):
    for name, text in files.items():
        path = pathlib.Path(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def check(files):
    """The violations in a tree of {path: text}."""
    with tempfile.TemporaryDirectory() as root:
        write(root, files)
        return check_layers.check_tree(pathlib.Path(root))[1]


def run(files):
    """Runs the tool as the tests do; returns its exit status and what it prints."""
    with tempfile.TemporaryDirectory() as root:
        write(root, files)
        done = subprocess.run([sys.executable, TOOL, root], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout


class CheckLayersTest(unittest.TestCase):
    def assert_clean(self, name, text):
        self.assertEqual(check({f"src/lockstep/{name}": text}), [])

    def assert_found(self, name, text, line, *words):
        lines = check({f"src/lockstep/{name}": text})
        self.assertEqual(len(lines), 1, lines)
        self.assertTrue(lines[0].startswith(f"src/lockstep/{name}:{line}: "), lines[0])
        for word in words:
            self.assertIn(word, lines[0])

    def test_a_layer_may_include_itself_and_what_its_row_says(self):
        self.assert_clean("store/a.cpp", '#include "lockstep/store/a.h"\n#include "lockstep/base/status.h"\n')
        self.assert_clean("launch/a.cpp", '#include "lockstep/store/store.h"\n#include <sys/wait.h>\n')
        self.assert_clean("optim/a.h", '#include "lockstep/ddp/bucket.h"\n')
        self.assert_clean("tp/a.h", '#include "lockstep/dtensor/mesh.h"\n')
        self.assert_clean("transport/tcp/a.h", '#include "lockstep/transport/connection.h"\n')

    def test_a_layer_may_not_include_what_stands_above_it(self):
        self.assert_found("base/a.h", '\n#include "lockstep/store/store.h"\n', 2, "base/", "store/store.h")
        self.assert_found("store/a.cpp", "#include <lockstep/transport/tcp.h>\n", 1, "store/", "it may include: base")
        self.assert_found("collective/a.cpp", '#include "lockstep/backend/work.h"\n', 1, "backend/work.h")
        self.assert_found("store/a.h", '#include "lockstep/lockstep.h"\n', 1, "includes everything")

    def test_siblings_do_not_include_each_other(self):
        self.assert_found("ddp/a.h", '#include "lockstep/dtensor/mesh.h"\n', 1, "dtensor/mesh.h")
        self.assert_found("ddp/a.h", '#include "lockstep/rpc/agent.h"\n', 1, "rpc/agent.h")
        self.assert_found("rpc/a.h", '#include "lockstep/ddp/bucket.h"\n', 1, "ddp/bucket.h")
        self.assert_found("rpc/a.h", '#include "lockstep/collective/ring.h"\n', 1, "collective/ring.h")
        self.assert_found("launch/a.h", '#include "lockstep/backend/work.h"\n', 1, "backend/work.h")

    def test_python_sees_torch_and_what_is_up_to_tensor(self):
        self.assertEqual(check({"python/extension/a.cpp": '#include "extension/a.h"\n#include <torch/csrc/utils/pybind.h>\n'
                                                          '#include "lockstep/tensor/messages.h"\n'}), [])
        for text, word in [('#include "lockstep/ddp/bucket.h"\n', "ddp/bucket.h"), ('#include "a.h"\n', "extension/"),
                           ('auto a = getenv("A");\n', "getenv")]:
            lines = check({"python/extension/a.cpp": text})
            self.assertEqual(len(lines), 1, lines)
            self.assertIn(word, lines[0])

    def test_an_unknown_layer_needs_its_row(self):
        self.assert_found("extra/a.h", "int a;\n", 1, "no layer extra/")
        self.assert_found("store/a.h", '#include "lockstep/extra/a.h"\n', 1, "no layer extra/")

    def test_spdlog_and_fmt_are_for_sources_of_base(self):
        self.assert_clean("base/log.cpp", "#include <spdlog/spdlog.h>\n#include <fmt/format.h>\n")
        self.assert_found("base/log.h", "#include <spdlog/spdlog.h>\n", 1, "base/ only")
        self.assert_found("store/a.cpp", "#pragma once\n\n#include <fmt/core.h>\n", 3, "base/ only")

    def test_torch_is_not_seen_below_tensor(self):
        for header in ("torch/torch.h", "ATen/core/Tensor.h", "c10/util/Exception.h"):
            for layer in ("base", "store", "transport", "collective", "backend", "launch"):
                self.assert_found(f"{layer}/a.cpp", f"#include <{header}>\n", 1, "below tensor/")
            self.assert_clean("tensor/a.cpp", f"#include <{header}>\n")

    def test_c10d_is_known_by_borrowed_only(self):
        header = "torch/csrc/distributed/c10d/Backend.hpp"
        self.assert_clean("tensor/borrowed/a.cpp", f"#include <{header}>\n")
        self.assert_found("tensor/a.cpp", f"#include <{header}>\n", 1, "tensor/borrowed/")

    def test_no_header_but_lockstep_h_includes_all_of_torch(self):
        self.assert_clean("lockstep.h", '#include <torch/torch.h>\n#include "lockstep/ddp/data_parallel.h"\n')
        self.assert_clean("ddp/a.cpp", "#include <torch/torch.h>\n")
        self.assert_found("ddp/a.h", "#include <torch/torch.h>\n", 1, "no header but lockstep.h")
        self.assert_found("testing/a.h", "#include <torch/torch.h>\n", 1, "no header but lockstep.h")

    def test_cuda_nccl_and_mpi_stay_in_their_folders(self):
        self.assert_clean("backend/cuda/a.cpp", "#include <cuda_runtime.h>\n")
        self.assert_clean("backend/nccl/a.cpp", "#include <nccl.h>\n#include <cuda_runtime.h>\n")
        self.assert_clean("backend/mpi/a.cpp", "#include <mpi.h>\n")
        self.assert_found("backend/native/a.cpp", "#include <cuda_runtime.h>\n", 1, "backend/cuda/")
        self.assert_found("backend/cuda/a.cpp", "#include <nccl.h>\n", 1, "backend/nccl/")
        self.assert_found("ddp/a.cpp", "#include <mpi.h>\n", 1, "backend/mpi/")

    def test_wrapped_libraries_stay_wrapped(self):
        self.assert_clean("base/crypto.cpp", "#include <openssl/evp.h>\n#include <hwloc.h>\n")
        self.assert_found("store/a.cpp", "#include <openssl/evp.h>\n", 1, "OpenSSL")
        self.assert_found("launch/a.cpp", "#include <hwloc.h>\n", 1, "hwloc")
        self.assert_found("launch/a.cpp", "#include <CLI/CLI.hpp>\n", 1, "tools/")
        self.assert_clean("store/server.cpp", "#include <asio/io_context.hpp>\n")
        self.assert_found("base/a.cpp", "#include <asio.hpp>\n", 1, "loop")

    def test_collective_has_no_threads(self):
        self.assert_found("collective/ring.cpp", "#include <thread>\n", 1, "no threads")
        self.assert_clean("collective/ring_test.cpp", "#include <thread>\n")

    def test_googletest_is_for_tests(self):
        self.assert_clean("base/status_test.cpp", "#include <gtest/gtest.h>\n")
        self.assert_clean("testing/world.h", "#include <gmock/gmock.h>\n")
        self.assert_found("base/status.h", "#include <gtest/gtest.h>\n", 1, "GoogleTest")

    def test_tests_may_use_testing_and_others_may_not(self):
        self.assert_clean("base/status_test.cpp", '#include "lockstep/testing/matchers.h"\n')
        self.assert_clean("store/frame_fuzz.cpp", '#include "lockstep/testing/fuzz.h"\n')
        self.assert_found("store/a.cpp", '#include "lockstep/testing/matchers.h"\n', 1, "testing/matchers.h")
        self.assert_found("base/a_test.cpp", '#include "lockstep/store/store.h"\n', 1, "store/store.h")

    def test_what_tests_share_is_for_tests(self):
        self.assert_clean("store/tcp_test_support.h", "#include <gtest/gtest.h>\n")
        self.assert_clean("store/tcp_test.cpp", '#include "lockstep/store/tcp_test_support.h"\n')
        self.assert_found("store/tcp.cpp", '#include "lockstep/store/tcp_test_support.h"\n', 1, "for tests")

    def test_getenv_is_for_one_file(self):
        self.assert_clean("base/environment.cpp", 'auto a = ::getenv("A");\n')
        self.assert_found("launch/a.cpp", '\nauto a = std::getenv("A");\n', 2, "getenv")
        self.assert_found("ddp/a.h", 'auto a = secure_getenv ("A");\n', 1, "getenv")
        self.assert_clean("launch/a.cpp", '// never getenv("A")\nauto a = "getenv(";\n/*\ngetenv(\n*/\n')

    def test_getenv_is_found_in_the_command_too(self):
        lines = check({"src/lockstep/base/a.h": "int a;\n", "tools/lockstep/main.cpp": 'getenv("A");\n'})
        self.assertEqual(len(lines), 1)
        self.assertTrue(lines[0].startswith("tools/lockstep/main.cpp:1: getenv"), lines[0])

    def test_includes_are_written_from_src(self):
        self.assert_found("base/a.cpp", '#include "status.h"\n', 1, "write the path from src/")

    def test_what_is_commented_out_does_not_count_and_lines_stay_right(self):
        self.assert_clean("base/a.cpp", '// #include "lockstep/store/a.h"\n/*\n#include <torch/torch.h>\n*/\n')
        text = '/* two\nlines */ const char* url = "http://x"; // "\n#  include <torch/torch.h>  // why\n'
        self.assert_found("base/a.cpp", text, 3, "torch/torch.h")
        self.assert_found("base/a.cpp", "int a = 1'000;\nchar c = '\"';\n#include <ATen/ATen.h>\n", 3, "torch")
        self.assert_found("base/a.cpp", 'auto s = R"x(\n// " )x";\n#include <ATen/ATen.h>\n', 3, "torch")

    def test_every_violation_is_named(self):
        lines = check({
            "src/lockstep/base/a.h": "#include <torch/torch.h>\n#include <fmt/core.h>\n",
            "src/lockstep/store/b.cpp": '#include "lockstep/rpc/agent.h"\n',
        })
        self.assertEqual([line.split(": ")[0] for line in lines],
                         ["src/lockstep/base/a.h:1", "src/lockstep/base/a.h:2", "src/lockstep/store/b.cpp:1"])

    def test_the_exit_status_is_the_verdict(self):
        status, printed = run({"src/lockstep/base/a.h": "int a;\n#include <torch/torch.h>\n"})
        self.assertEqual(status, 1)
        self.assertTrue(printed.startswith("src/lockstep/base/a.h:2: "), printed)
        self.assertEqual(run({"src/lockstep/base/a.h": "int a;\n"}), (0, "check_layers: 1 files, 0 violations\n"))

    def test_an_empty_tree_is_an_error_not_a_pass(self):
        self.assertEqual(run({"README.md": ""})[0], 2)


if __name__ == "__main__":
    unittest.main()
