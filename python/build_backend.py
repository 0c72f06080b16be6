"""Builds the wheel of lockstep-torch, for pip (PEP 517) and for `make wheel`.

    pip install ./python                                           against the torch that this Python has
    pip install ./python --config-settings package-dir=FOLDER      what is built already: build/release/python
    python python/build_backend.py FOLDER                          leaves the wheel in FOLDER

What goes wrong is one sentence that says what to do.
"""

import base64
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
OLDEST_TORCH = "2.11"  # that it was built and tested with; CMakeLists.txt reads this line
NEWEST_TORCH = "2.13"


def fail(sentence):
    sys.exit(f"lockstep-torch: {sentence}")


def find_torch():
    """The folder of the torch that this Python has. pip hides it from a build, but not from a fresh interpreter."""
    code = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s and s.origin else '')"
    found = subprocess.run([sys.executable, "-E", "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    if not found:
        fail(f"{sys.executable} has no torch; install torch first, and then this again.")
    folder = pathlib.Path(found).parent
    version = re.search(r"__version__ = '([^']*)'", (folder / "version.py").read_text(encoding="utf-8")).group(1)
    release, oldest, newest = ([int(part) for part in text.split(".")[:2]] for text in (version, OLDEST_TORCH, NEWEST_TORCH))
    if release < oldest:
        fail(f"it needs torch {OLDEST_TORCH} or newer, and {sys.executable} has {version}; install a newer one, and then this again.")
    if release > newest:
        print(f"lockstep-torch: it was tested with torch {OLDEST_TORCH} to {NEWEST_TORCH}, and {sys.executable} has {version}; if it "
              f"does not compile, install torch {NEWEST_TORCH}, and then this again.", file=sys.stderr, flush=True)
    return folder


def commands(folder, torch):
    """What configures and builds it."""
    return [["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
             "-DLOCKSTEP_TESTS=OFF", "-DLOCKSTEP_MPI=OFF", f"-DTorch_DIR={torch}/share/cmake/Torch",
             f"-DLOCKSTEP_TORCH_PYTHON={sys.executable}"],
            ["cmake", "--build", folder, "--target", "lockstep_torch_package"]]


def build(folder):
    """Puts the package together in `folder`; returns where it is."""
    missing = [program for program in ("cmake", "ninja", "c++") if not shutil.which(program)]
    if missing:
        fail(f"it is built from source, and there is no {' and no '.join(missing)}; tools/setup.sh installs what it needs.")
    torch = find_torch()
    shutil.rmtree(folder / "python", ignore_errors=True)  # of another version, or for another Python
    for command in commands(folder, torch):
        if subprocess.run(command, check=False).returncode:
            fail(f"the build in {folder} has failed, for the reason above; tools/setup.sh installs what it needs.")
    return folder / "python"


def tag():
    version = "".join(map(str, sys.version_info[:2]))
    return f"cp{version}-cp{version}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def write_wheel(package, folder):
    """A zip of the package with its WHEEL and RECORD."""
    found = sorted(package.glob("lockstep_torch-*.dist-info"))
    if len(found) != 1:
        fail(f"{package} holds {len(found)} versions of the package, and not one; remove it, and build it again.")
    info = found[0]
    name = f"{info.name.removesuffix('.dist-info')}-{tag()}.whl"
    files = {path.relative_to(package).as_posix(): path.read_bytes()
             for part in ("lockstep_torch", info.name, "lockstep_torch_entry.py")
             for path in ([package / part] if (package / part).is_file() else sorted((package / part).iterdir()))
             if path.is_file()}
    files[f"{info.name}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: lockstep\nRoot-Is-Purelib: false\nTag: {tag()}\n".encode()
    record = f"{info.name}/RECORD"
    lines = [f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
             for path, data in files.items()]
    files[record] = ("\n".join([*lines, f"{record},,"]) + "\n").encode()
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    built = (config_settings or {}).get("package-dir")
    return write_wheel(pathlib.Path(built) if built else build(ROOT / "build" / "wheel"), pathlib.Path(wheel_directory))


def build_sdist(sdist_directory, config_settings=None):
    fail("there is no source distribution: it is built from the whole tree, by pip install ./python.")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        fail("usage: build_backend.py FOLDER")
    pathlib.Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    print(pathlib.Path(sys.argv[1]) / build_wheel(sys.argv[1]))
