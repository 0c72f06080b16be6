#!/usr/bin/env bash
# install_test.sh BUILD CONSUMER: what BUILD installs is enough for the project CONSUMER.
set -euo pipefail
build=$1 consumer=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

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

# refused COMPONENT SENTENCE: asking for COMPONENT fails, and CMake says SENTENCE (which it may wrap).
refused() {
  local log
  if log=$(cmake -S "$consumer" -B "$work/$1" -G Ninja -DCMAKE_PREFIX_PATH="$work/moved" -DCOMPONENT="$1" 2>&1); then
    fail "component $1 was accepted"
  fi
  tr -s ' \n' ' ' <<<"$log" | grep -qF "$2" || { printf '%s\n' "$log"; fail "component $1: not said: $2"; }
}
refused nonsense "Lockstep has no component 'nonsense'; it has: core."
refused torch "was built without libtorch, so it has no component 'torch'."
echo "installed, moved, consumed; unknown components refused"
