"""07_digits on files in the form of MNIST, made here: a digit is a bright row and column, with noise.

    mnist_test.py COMMAND FOLDER [unittest arguments]      COMMAND is `lockstep`, FOLDER holds the examples
"""

import gzip
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

COMMAND = ""
FOLDER = pathlib.Path()
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx(*sizes, data):
    return bytes((0, 0, 8, len(sizes))) + b"".join(size.to_bytes(4, "big") for size in sizes) + data


def images_of(labels, rng):
    images = bytearray(rng.randbytes(784 * len(labels)).translate(bytes(i // 4 for i in range(256))))
    for number, label in enumerate(labels):
        for i in range(28):
            for row, column in ((2 * label + 4, i), (i, 2 * label + 4)):
                images[784 * number + 28 * row + column] = 250
    return bytes(images)


def write_mnist(folder, counts=(1280, 100)):
    rng = random.Random(1)
    for part, count in zip(("train", "t10k"), counts):
        labels = bytes(rng.randrange(10) for _ in range(count))
        pathlib.Path(folder, f"{part}-images-idx3-ubyte").write_bytes(
            idx(count, 28, 28, data=images_of(labels, rng)))
        pathlib.Path(folder, f"{part}-labels-idx1-ubyte").write_bytes(idx(count, data=labels))


class Mnist(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_two_ranks_learn_it(self):
        write_mnist(self.folder)
        result = subprocess.run([COMMAND, "run", "--nproc", "2", "--prefix", "", FOLDER / "07_digits", self.folder,
                                 "--report", self.folder / "new" / "report"],
                                capture_output=True, text=True, timeout=200, env=os.environ | {"OMP_NUM_THREADS": "1"})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"test accuracy (9[789]|100)\S* % of 100 images")
        self.assertIn("epoch  1/1 ", result.stdout)
        self.assertRegex(result.stdout, r"2 replicas: all \d+ weights are bitwise equal")
        self.assertIn("gradients of the ranks in order: bitwise equal", result.stdout)
        for picture in ("loss.svg", "timeline.svg"):
            self.assertIn("</svg>", (self.folder / "new" / "report" / picture).read_text())

    def test_a_folder_that_cannot_be_made_is_said_at_once(self):
        write_mnist(self.folder, (10, 10))
        report = self.folder / LABELS / "report"
        result = subprocess.run([FOLDER / "07_digits", self.folder, "--report", report],
                                capture_output=True, text=True, timeout=200)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn(f"cannot make the folder {report}: ", result.stderr)

    def test_what_is_wrong_with_a_file_is_said(self):
        write_mnist(self.folder, (10, 10))
        whole = {name: (self.folder / name).read_bytes() for name in (IMAGES, LABELS)}
        for name, content, complaint in (
                (IMAGES, None, "cannot read"),
                (IMAGES, gzip.compress(whole[IMAGES]), "is compressed; unpack it with gunzip"),
                (IMAGES, b"", "is no idx file of bytes with 3 dimensions"),
                (IMAGES, whole[LABELS], "is no idx file of bytes with 3 dimensions"),
                (IMAGES, whole[IMAGES][:-1], "should have 7840 bytes behind its header and has 7839"),
                (IMAGES, idx(2**32 - 1, 28, 28, data=b""), "and has 0"),
                (IMAGES, idx(10, 2**32 - 1, 28, data=b""), "larger than 4096"),
                (IMAGES, idx(10, 14, 28, data=bytes(10 * 14 * 28)), "images of 14 x 28"),
                (LABELS, idx(9, data=bytes(9)), "has 9 labels for 10 images"),
                (LABELS, idx(10, data=bytes((10,) * 10)), "a label above 9")):
            for other, bytes_of in whole.items():
                (self.folder / other).write_bytes(bytes_of)
            (self.folder / name).unlink()
            if content is not None:
                (self.folder / name).write_bytes(content)
            result = subprocess.run([FOLDER / "07_digits", self.folder], capture_output=True, text=True, timeout=200)
            self.assertEqual(result.returncode, 1, complaint)
            self.assertIn(complaint, result.stderr)
            self.assertIn(name, result.stderr)


class Demo(unittest.TestCase):
    """What tools/demo.sh does with a folder; the programs are not the real ones."""

    def demo(self, images):
        build = self.enterContext(tempfile.TemporaryDirectory())
        says_labels = f'for word; do cat "$word/{LABELS}" 2>/dev/null; done; exit 3'
        for name, script in (("bin/lockstep", says_labels), ("examples/01_ranks_meet", ""), ("examples/07_digits", "")):
            program = pathlib.Path(build, name)
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        tool = pathlib.Path(__file__).resolve().parents[1] / "tools" / "demo.sh"
        return subprocess.run([tool, build, images], capture_output=True, text=True, timeout=200)

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        write_mnist(self.folder, (1, 1))
        (self.folder / LABELS).write_text("labels of the test")

    def test_packed_files_are_unpacked(self):
        for pack in (False, True):
            if pack:
                for file in list(self.folder.iterdir()):
                    file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
                    file.unlink()
            result = self.demo(self.folder)
            self.assertIn("labels of the test", result.stdout, result.stderr)

    def test_a_file_that_is_missing_or_broken_is_named(self):
        (self.folder / IMAGES).unlink()
        result = self.demo(self.folder)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"neither {IMAGES} nor {IMAGES}.gz in {self.folder}", result.stderr)
        (self.folder / f"{IMAGES}.gz").write_bytes(b"no archive")
        self.assertIn(f"{IMAGES}.gz cannot be unpacked", self.demo(self.folder).stderr)


if __name__ == "__main__":
    FOLDER, COMMAND = pathlib.Path(sys.argv.pop(2)), sys.argv.pop(1)
    unittest.main()
