#!/usr/bin/env bash
# The checks behind `make check`. Every step runs even if an earlier one failed; the last lines name what failed and give
# the sum, and the exit status says whether all of it passed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
reports=build/reports
mkdir -p $reports
passed=0
failures=() # what failed, by name
incomplete=() # what has found nothing, and has not seen everything

# step NAME COMMAND...: one check, one verdict. Status 3 of tidy.py: nothing bad, but not everything was read.
step() {
  local name=$1 start=$SECONDS status=0
  shift
  printf '\n== %s\n' "$name"
  "$@" || status=$?
  if [ $status -eq 0 ]; then
    passed=$((passed + 1))
    printf '== %s: ok (%d s)\n' "$name" $((SECONDS - start))
  elif [ $status -eq 3 ] && [ "$1 ${2-}" = "python3 tools/tidy.py" ]; then
    incomplete+=("$name")
    printf '== %s: NOT COMPLETE (%d s)\n' "$name" $((SECONDS - start))
  else
    failures+=("$name")
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
  local preset=$1 report=$reports/$1.xml status tests bad
  rm -f "$report"
  printf '\n== %s tests\n' "$preset"
  plain_addresses ctest --preset "$preset" --output-junit "$PWD/$report"
  status=$?
  if [ ! -s "$report" ]; then failures+=("$preset tests (no report)"); return 1; fi
  tests=$(sed -n '0,/tests="/s/.*tests="\([0-9]*\)".*/\1/p' "$report")
  mapfile -t bad < <(sed -n "s/.*<testcase name=\"\([^\"]*\)\".*status=\"fail\".*/$preset \1/p" "$report")
  if [ $status -ne 0 ] && [ ${#bad[@]} -eq 0 ]; then bad=("$preset tests"); fi
  passed=$((passed + tests - ${#bad[@]}))
  failures+=("${bad[@]}")
  return $status
}

step "format" check_format
step "layers" python3 tools/check_layers.py
# The fuzzers run beside the steps that follow, after which their verdict is asked for.
fuzz_log=$(mktemp)
fuzzers=
end_fuzzers() {
  if [ -n "$fuzzers" ]; then kill -- "-$fuzzers" 2>/dev/null; fi
  rm -f "$fuzz_log"
}
trap end_fuzzers EXIT
wait_for_fuzzers() {
  local status=0
  wait "$fuzzers" || status=$?
  fuzzers=
  cat "$fuzz_log"
  return $status
}

if step "clang with -Wthread-safety: base..backend and every fuzzer" build_preset fuzz; then
  set -m # a process group of their own, to be ended as one
  nice -n 10 tools/fuzz.sh 5 >"$fuzz_log" 2>&1 &
  set +m
  fuzzers=$!
fi
step "clang-tidy and -Wthread-safety on what changed" python3 tools/tidy.py
if step "asan build" build_preset asan; then run_tests asan; fi
if [ -n "$fuzzers" ]; then step "fuzzers, 5 s each, beside the above" wait_for_fuzzers; fi
if step "tsan build" build_preset tsan; then run_tests tsan; fi

printf '\n'
for name in "${failures[@]}"; do printf 'FAILED: %s\n' "$name"; done
for name in "${incomplete[@]}"; do printf 'NOT COMPLETE: %s; what it has not read is named above, and a second run goes on there\n' "$name"; done
printf '%d passed, %d failed%s\n' "$passed" "${#failures[@]}" \
  "$([ ${#incomplete[@]} -eq 0 ] || printf ', %d not complete' "${#incomplete[@]}")"
[ ${#failures[@]} -eq 0 ]
