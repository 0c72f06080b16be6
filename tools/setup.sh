#!/usr/bin/env bash
# Installs what is missing to build and test Lockstep, and records where libtorch is.
#
#   tools/setup.sh [build] [test] [mpi] [check] [package]   the groups of Debian packages wanted (default: build)
#   tools/setup.sh ... python                           libtorch must come with a Python that has torch
#   tools/setup.sh ... digits                           fetch the images that the demo trains on
#   tools/setup.sh ... suite                            fetch what torch's own tests import, to build/setup/packages
#   tools/setup.sh ... programs                         fetch Lightning and accelerate, to a Python at build/setup/programs
#   tools/setup.sh ... programs-if-reached              the same, and go on without them where that fails
#   tools/setup.sh --no-torch ...                       do not look for libtorch
#
# As root it installs the missing Debian packages; otherwise it names them and stops. libtorch is looked for in
# Torch_DIR, CMAKE_PREFIX_PATH, the torch that python3 imports, and .venv, which it makes if need be. With
# everything in place it does nothing, in well under a second and without the network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

torch_version=2.13.0
torch_oldest=2.7.0 # the first whose wheels all have the C++11 ABI
state=build/setup

# One per line: the Debian package, then, where a program not from Debian will do as well, its name.
build_packages='
build-essential g++
ca-certificates
ccache ccache
cmake cmake
git git
iproute2 ip
libasio-dev
libcli11-dev
libfmt-dev
libgmock-dev
libgtest-dev
libhwloc-dev
libhwy-dev
libmsgpack-cxx-dev
libspdlog-dev
libssl-dev
mold mold
ninja-build ninja
nlohmann-json3-dev
python3 python3
'
test_packages='
zsh zsh
'
check_packages='
clang-16 clang++-16
clang-format-16 clang-format-16
clang-tidy-16 clang-tidy-16
libclang-rt-16-dev
'
mpi_packages='
libopenmpi-dev
openmpi-bin
'
package_packages='
dpkg-dev dpkg-shlibdeps
file file
'

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Reads "package [program]" lines, prints the packages that are not there.
missing_packages() {
  local wanted installed package program
  wanted=$(cat)
  installed=' '
  if command -v dpkg-query >/dev/null; then
    # dpkg-query fails when one of the packages is unknown to it; what it knows it prints all the same.
    installed=" $(awk 'NF {print $1}' <<<"$wanted" \
      | xargs dpkg-query -W -f='${db:Status-Status}:${Package}\n' 2>/dev/null \
      | sed -n 's/^installed://p' | tr '\n' ' ' || true)"
  fi
  while read -r package program; do
    [ -n "$package" ] || continue
    case "$installed" in *" $package "*) continue ;; esac
    if [ -n "$program" ] && command -v "$program" >/dev/null; then continue; fi
    printf '%s\n' "$package"
  done <<<"$wanted"
}

# Makes sure of the packages given as "package [program]" lines.
need_packages() {
  local missing
  missing=$(missing_packages)
  [ -n "$missing" ] || return 0
  if ! command -v dpkg-query >/dev/null; then
    say "this is not Debian, so these could not be checked or installed; the build will tell:" $missing
    return 0
  fi
  if [ "$(id -u)" -ne 0 ]; then
    say "missing Debian packages:" $missing >&2
    fail "not root; run:  sudo apt-get update && sudo apt-get install --no-install-recommends -y" $missing
  fi
  install_packages $missing
}

install_packages() {
  local log=$state/apt.log
  say "installing $# Debian packages (log: $log)"
  export DEBIAN_FRONTEND=noninteractive
  if [ ! -e $state/apt_updated ] || [ -n "$(find $state/apt_updated -mmin +60)" ]; then
    apt-get update -qq >>"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "apt-get update failed"; }
    touch $state/apt_updated
  fi
  if ! apt-get install --no-install-recommends -y "$@" 2>&1 | tee -a "$log" \
    | awk -v wanted=" $* " '$1 == "Setting" { sub(":.*", "", $3); if (index(wanted, " " $3 " ")) { print "setup:   " $3 " " $4; fflush() } }'
  then
    tail -n 20 "$log" >&2
    fail "apt-get install failed"
  fi
}

# Prints the folder of TorchConfig.cmake of the torch that this python finds; torch itself is not imported
# (that takes seconds).
torch_dir_of_python() {
  local folder
  folder=$("$1" -c '
import importlib.util, os
spec = importlib.util.find_spec("torch")
print(os.path.join(os.path.dirname(spec.origin), "share/cmake/Torch") if spec and spec.origin else "")' 2>/dev/null) \
    && [ -e "$folder/TorchConfig.cmake" ] && printf '%s\n' "$folder"
}

torch_version_in() {
  sed -n 's/^set(PACKAGE_VERSION "\(.*\)")/\1/p' "$1/TorchConfigVersion.cmake" 2>/dev/null || true
}

is_recent_enough() { # folder
  [ "$(printf '%s\n' "$torch_oldest" "$(torch_version_in "$1")" | sort -V | head -n 1)" = "$torch_oldest" ]
}

record_torch() { # folder, python or ""
  if [ "$(cat $state/torch_dir 2>/dev/null)" != "$1" ]; then
    say "libtorch $(torch_version_in "$1") in ${1%/share/cmake/Torch}"
    printf '%s\n' "$1" >$state/torch_dir
  fi
  printf '%s\n' "$2" | cmp -s - $state/torch_python || printf '%s\n' "$2" >$state/torch_python
}

require_recent() { # folder, who named it
  is_recent_enough "$1" || fail "$2 names libtorch $(torch_version_in "$1") in ${1%/share/cmake/Torch}, and $torch_oldest or newer is needed"
}

find_torch() {
  local folder prefix prefixes
  if [ -n "${Torch_DIR:-}" ]; then
    [ -e "$Torch_DIR/TorchConfig.cmake" ] || fail "Torch_DIR is $Torch_DIR, which holds no TorchConfig.cmake"
    require_recent "$Torch_DIR" Torch_DIR
    record_torch "$Torch_DIR" ""
    return
  fi
  IFS=':;' read -r -a prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}"; do
    if [ -e "$prefix/share/cmake/Torch/TorchConfig.cmake" ]; then
      require_recent "$prefix/share/cmake/Torch" CMAKE_PREFIX_PATH
      record_torch "$prefix/share/cmake/Torch" ""
      return
    fi
  done
  if folder=$(torch_dir_of_python python3) && is_recent_enough "$folder"; then
    record_torch "$folder" "$(command -v python3)"
    return
  fi
  # Its marker is written last, so an install that was cut short is done again.
  if [ "$(cat .venv/lockstep_torch 2>/dev/null)" != "$torch_version" ]; then
    make_venv
  fi
  folder=$(torch_dir_of_python .venv/bin/python) || fail "no libtorch in .venv; remove .venv and run this again"
  record_torch "$folder" "$PWD/.venv/bin/python"
}

need_torch_python() {
  [ -n "$(cat $state/torch_python)" ] || fail "this needs a Python that has torch, and the libtorch in $(sed 's,/share/cmake/Torch$,,' \
$state/torch_dir) came without one: unset Torch_DIR and CMAKE_PREFIX_PATH"
}

# The headers of the Python that torch belongs to, for lockstep-torch, and venv, for its test.
need_python_headers() {
  local python
  python=$(cat $state/torch_python 2>/dev/null) || return 0
  [ -n "$python" ] || return 0
  "$python" -c '
import ensurepip, os, sys, sysconfig, venv
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' >/dev/null 2>&1 \
    || need_packages <<<$'python3-dev\npython3-venv'
}

make_venv() {
  local log=$state/pip.log
  if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    need_packages <<<'python3-venv'
  fi
  say "installing torch $torch_version into .venv (log: $log)"
  python3 -m venv --clear .venv >"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "python3 -m venv failed"; }
  # Byte code is made of the modules that are used, as they are first imported: of all it would take three times as long.
  .venv/bin/python -m pip install --disable-pip-version-check -q --no-compile "torch==$torch_version" numpy >>"$log" 2>&1 \
    || { tail -n 20 "$log" >&2; fail "pip install torch==$torch_version failed"; }
  env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -c \
    'import torch.distributed.checkpoint, torch.distributed.fsdp, torch.distributed.optim, torch.distributed.run' >>"$log" 2>&1 \
    || { tail -n 20 "$log" >&2; fail "torch $torch_version cannot be imported"; }
  printf '%s\n' "$torch_version" >.venv/lockstep_torch
}

# The UCI digits, 1,797 images of 8 x 8, which lie in scikit-learn's wheel. The package itself is not installed.
digits=build/data/digits.csv
digits_sum=6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8
digits_are_here() { echo "$digits_sum  $digits" | sha256sum --check --status 2>/dev/null; }

# A Python that has pip: the one with torch, if it does. Sets pip_python.
find_pip() { # log
  for pip_python in "$(cat $state/torch_python 2>/dev/null)" python3 $state/pip/bin/python; do
    if [ -n "$pip_python" ] && "$pip_python" -m pip --version >/dev/null 2>&1; then return; fi
  done
  python3 -c 'import ensurepip, venv' 2>/dev/null || need_packages <<<'python3-venv'
  python3 -m venv $state/pip >"$1" 2>&1 || { tail -n 20 "$1" >&2; fail "python3 -m venv failed"; }
}

fetch_digits() {
  local pip_python folder log=$state/digits.log
  if digits_are_here; then return; fi
  find_pip "$log"
  say "fetching images of handwritten digits to $digits (log: $log)"
  folder=$(mktemp -d)
  "$pip_python" -m pip download --disable-pip-version-check -q --no-deps --only-binary=:all: scikit-learn -d "$folder" \
    >"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "pip download scikit-learn failed"; }
  mkdir -p "$(dirname $digits)"
  "$pip_python" -c '
import glob, gzip, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
open(sys.argv[2], "wb").write(gzip.decompress(wheel.read("sklearn/datasets/data/digits.csv.gz")))
' "$folder" $digits
  rm -rf "$folder"
  digits_are_here || fail "$digits is not what it should be; give another file to the example, or see tools/setup.sh"
}

# What torch's own distributed suite imports beside torch. It is put beside the Python that has torch, not into it.
suite_packages=$state/packages
fetch_suite() {
  local pip_python log=$state/suite.log
  if [ -e $suite_packages/expecttest/__init__.py ]; then return; fi
  find_pip "$log"
  say "fetching expecttest to $suite_packages (log: $log)"
  "$pip_python" -m pip install --disable-pip-version-check -q --no-deps --target $suite_packages expecttest==0.3.0 \
    >"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "pip install expecttest failed"; }
}

# An environment of their own, that sees the torch that was found: what they need beside it is much. Its marker says which
# torch it is, of which version, and is written last. No other torch is ever put there: pip fails where theirs has to be another one.
programs=$state/programs
fetch_programs() { # yes: or fail
  local python folder site seen log=$state/programs.log
  python=$(cat $state/torch_python 2>/dev/null) || return 0
  [ -n "$python" ] || return 0
  if ! folder=$(torch_dir_of_python "$python"); then
    [ "$1" != yes ] || fail "$python has no torch any more, and Lightning and accelerate need it"
    say "$python has no torch any more, so the test of Lightning and accelerate is left out"
    rm -f $programs/complete
    return 0
  fi
  site=${folder%/torch/share/cmake/Torch}
  seen="$(torch_version_in "$folder") $site"
  if [ "$(cat $programs/complete 2>/dev/null)" = "$seen" ]; then return; fi
  say "fetching Lightning and accelerate to $programs (log: $log)"
  if install_programs "$python" "$site" >"$log" 2>&1; then
    printf '%s\n' "$seen" >$programs/complete
  elif [ "$1" = yes ]; then
    tail -n 20 "$log" >&2
    fail "pip install pytorch-lightning accelerate failed"
  else
    say "they could not be fetched, so their test is left out: $(grep -v '^$' "$log" | tail -n 1)"
  fi
}

install_programs() { # python, the folder that has its torch
  "$1" -m venv --clear $programs || return
  printf '%s\n' "$2" >"$(echo $programs/lib/python3*/site-packages)/torch.pth"
  sed -n "s/^__version__ = '\([^'+]*\).*/torch==\1/p" "$2/torch/version.py" >$programs/torch.txt
  $programs/bin/python -m pip install --disable-pip-version-check -q --no-compile --retries 1 --constraint $programs/torch.txt \
    pytorch-lightning==2.6.* accelerate==1.* || return
  [ ! -e "$(echo $programs/lib/python3*/site-packages)/torch" ]
}

main() {
  local with_torch=yes with_digits=no with_suite=no with_programs=no with_python=no packages='' group
  for group in "$@"; do
    case "$group" in
      --no-torch) with_torch=no ;;
      build) packages+=$build_packages ;;
      test) packages+=$test_packages ;;
      check) packages+=$check_packages ;;
      mpi) packages+=$mpi_packages ;;
      package) packages+=$package_packages ;;
      python) with_python=yes ;;
      digits) with_digits=yes ;;
      suite) with_suite=yes ;;
      programs) with_programs=yes ;;
      programs-if-reached) with_programs=if-reached ;;
      *)
        printf 'setup: unknown argument "%s" (build, test, mpi, check, package, python, digits, suite, programs, programs-if-reached, --no-torch)\n' "$group" >&2
        exit 2 ;;
    esac
  done
  [ -n "$packages" ] || packages=$build_packages
  mkdir -p $state
  need_packages <<<"$packages"
  if [ $with_torch = yes ]; then
    find_torch
    if [ $with_python = yes ]; then need_torch_python; fi
    need_python_headers
  fi
  if [ $with_digits = yes ]; then fetch_digits; fi
  if [ $with_suite = yes ]; then fetch_suite; fi
  if [ $with_programs != no ]; then fetch_programs $with_programs; fi
}

main "$@"
