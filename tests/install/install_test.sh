#!/usr/bin/env bash
# install_test.sh BUILD CONSUMER TORCH_DIR: what BUILD installs is enough for the project CONSUMER. TORCH_DIR is the
# libtorch that it was built with, or empty.
set -euo pipefail
build=$1 consumer=$2 torch_dir=${3:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the consumer compiles is the same each time, but for the folder that it lies in.
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1
fi

fail() { printf 'install_test: %s\n' "$*" >&2; exit 1; }

cmake --install "$build" --prefix "$work/prefix" >"$work/install.log" || { cat "$work/install.log"; fail "install"; }
for file in lib/cmake/Lockstep/LockstepConfig.cmake include/lockstep/base/status.h share/doc/lockstep/copyright; do
  [ -e "$work/prefix/$file" ] || fail "$file was not installed"
done
if find "$work/prefix/include" -name '*_test*' | grep .; then fail "a test was installed"; fi
"$work/prefix/bin/lockstep" --version | grep -x 'lockstep [0-9.]*' >/dev/null || fail "lockstep --version"
[ -s "$work/prefix/share/bash-completion/completions/lockstep" ] || fail "no bash completion"
[ -s "$work/prefix/share/zsh/site-functions/_lockstep" ] || fail "no zsh completion"
# The prefix may be moved: no installed file names it, the build or the source tree.
if grep -rlF -e "$work" -e "$build" "$work/prefix/lib/cmake" "$work/prefix/include"; then fail "a path was baked in"; fi
mv "$work/prefix" "$work/moved"

cmake -S "$consumer" -B "$work/core" -G Ninja -DCMAKE_PREFIX_PATH="$work/moved" \
  -DEXAMPLES="$consumer/../../examples" >"$work/core.log" 2>&1 \
  || { cat "$work/core.log"; fail "the consumer does not configure"; }
cmake --build "$work/core" >"$work/core.log" 2>&1 || { cat "$work/core.log"; fail "the consumer does not build"; }
printed=$("$work/core/consumer")
[ "$printed" = "invalid: a consumer outside the tree" ] || fail "the consumer printed: $printed"

printed=$("$work/moved/bin/lockstep" run --nproc 4 "$work/core/all_reduce")
[ "$(grep -c 'the sum over 4 ranks is 10' <<<"$printed")" = 4 ] || fail "all_reduce printed: $printed"

# refused COMPONENT SENTENCE [OPTION...]: asking for COMPONENT fails, and CMake says SENTENCE (which it may wrap).
refused() {
  local component=$1 sentence=$2 log
  shift 2
  if log=$(cmake -S "$consumer" -B "$work/refused" -G Ninja -DCMAKE_PREFIX_PATH="$work/moved" -DCOMPONENT="$component" \
      "$@" 2>&1); then
    fail "component $component was accepted"
  fi
  rm -rf "$work/refused"
  tr -s ' \n' ' ' <<<"$log" | grep -qF "$sentence" || { printf '%s\n' "$log"; fail "component $component: not said: $sentence"; }
}
components=core
if [ -n "$torch_dir" ]; then components+=', torch'; fi
if [ -e "$work/moved/lib/cmake/Lockstep/LockstepMpiTargets.cmake" ]; then
  components+=', mpi'
  # Without the component nobody looks for MPI; with it a program links.
  if grep -q MPI_CXX "$work/core/CMakeCache.txt"; then fail "core looked for MPI"; fi
  { cmake -S "$consumer" -B "$work/mpi" -G Ninja -DCMAKE_PREFIX_PATH="$work/moved" -DCOMPONENT=mpi \
    && cmake --build "$work/mpi" --target mpi_consumer && "$work/mpi/mpi_consumer"; } >"$work/mpi.log" 2>&1 \
    || { cat "$work/mpi.log"; fail "the consumer of component mpi"; }
else
  refused mpi "was built without MPI, so it has no component 'mpi'."
fi
refused nonsense "Lockstep has no component 'nonsense'; it has: $components."
if [ -z "$torch_dir" ]; then
  refused torch "was built without libtorch, so it has no component 'torch'."
  echo "installed, moved, consumed; unknown components refused"
  exit
fi

# A libtorch of another version: only what says so is looked at.
mkdir -p "$work/other/share/cmake/Torch" "$work/other/lib"
touch "$work/other/lib/libtorch.so" "$work/other/lib/libtorch_cpu.so" "$work/other/lib/libc10.so"
touch "$work/other/share/cmake/Torch/TorchConfig.cmake"
echo 'set(PACKAGE_VERSION "9.8.7")' >"$work/other/share/cmake/Torch/TorchConfigVersion.cmake"
refused torch "and works with no other, but the one in $work/other/share/cmake/Torch is 9.8.7; set Torch_DIR." \
  -DTorch_DIR="$work/other/share/cmake/Torch"

cmake -S "$consumer" -B "$work/torch" -G Ninja -DCMAKE_PREFIX_PATH="$work/moved" -DCOMPONENT=torch \
  -DEXAMPLES="$consumer/../../examples" -DTorch_DIR="$torch_dir" >"$work/torch.log" 2>&1 || { cat "$work/torch.log"; fail "torch: it does not configure"; }
cmake --build "$work/torch" --target tensors own_backend >"$work/torch.log" 2>&1 || { cat "$work/torch.log"; fail "torch: it does not build"; }
printed=$("$work/moved/bin/lockstep" run --nproc 2 "$work/torch/tensors")
[ "$(grep -c 'the sum over 2 ranks is 3' <<<"$printed")" = 2 ] || fail "tensors printed: $printed"
python3 "$consumer/../../examples/expected_output.py" "$work/moved/bin/lockstep" 3 "$work/torch/own_backend" \
  "$consumer/../../examples/06_own_backend/expected_output.txt" || fail "own_backend"
echo "installed, moved, consumed, with torch and without; unknown components and another torch refused"
