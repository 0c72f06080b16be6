#!/usr/bin/env bash
# The checks behind `make check`. Every step runs even if an earlier one failed; the last line is the sum, and the exit
# status says whether all of it passed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
reports=build/reports
mkdir -p $reports
passed=0
failed=0

# step NAME COMMAND...: one check, one verdict.
step() {
  local name=$1 start=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  if "$@"; then
    passed=$((passed + 1))
    printf '== %s: ok (%d s)\n' "$name" $((SECONDS - start))
  else
    failed=$((failed + 1))
    printf '== %s: FAILED (%d s)\n' "$name" $((SECONDS - start))
    return 1
  fi
}

quiet() { # the output of a command; where nobody watches, only if it fails
  if [ -t 1 ]; then "$@"; return; fi
  local log
  log=$(mktemp)
  "$@" >"$log" 2>&1 || { cat "$log"; rm -f "$log"; return 1; }
  rm -f "$log"
}

check_format() {
  git ls-files -z --cached --others --exclude-standard '*.h' '*.cpp' | xargs -0 -r clang-format-16 --dry-run -Werror
}

# gcc's ThreadSanitizer cannot live with more than 28 random bits in an address; then run without randomness.
plain_addresses() {
  if [ "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 28)" -gt 28 ]; then setarch -R "$@"; else "$@"; fi
}

build_preset() { quiet cmake --preset "$1" && quiet cmake --build --preset "$1"; }

# run_tests PRESET: ctest's own numbers go into the sum, test by test.
run_tests() {
  local preset=$1 report=$reports/$1.xml tests failures
  rm -f "$report"
  printf '\n== %s tests\n' "$preset"
  plain_addresses ctest --preset "$preset" --output-junit "$PWD/$report"
  local status=$?
  if [ ! -s "$report" ]; then failed=$((failed + 1)); return 1; fi
  tests=$(sed -n '0,/tests="/s/.*tests="\([0-9]*\)".*/\1/p' "$report")
  failures=$(sed -n '0,/failures="/s/.*failures="\([0-9]*\)".*/\1/p' "$report")
  if [ $status -ne 0 ] && [ "$failures" -eq 0 ]; then failures=1; fi
  passed=$((passed + tests - failures))
  failed=$((failed + failures))
  return $status
}

step "format" check_format
step "layers" python3 tools/check_layers.py
if step "clang with -Wthread-safety: every layer and fuzzer" build_preset fuzz; then
  step "fuzzers, 5 s each" tools/fuzz.sh 5
fi
step "clang-tidy on what changed" python3 tools/tidy.py
for preset in asan tsan; do
  if step "$preset build" build_preset $preset; then run_tests $preset; fi
done

printf '\n%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
