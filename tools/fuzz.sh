#!/usr/bin/env bash
# fuzz.sh SECONDS: runs every fuzzer of build/fuzz for SECONDS on its seeds, two at a time. What a run discovers stays
# in build/fuzz/corpus/<name>; an input that breaks something is left in build/fuzz/broken/ and named.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=$1
mkdir -p build/fuzz/broken
# addr2line, which is everywhere, names the frames.
export ASAN_OPTIONS=external_symbolizer_path=$(command -v addr2line) UBSAN_OPTIONS=print_stacktrace=1

run_one() { # name, seeds, seconds
  local name=$1 seeds=$2 seconds=$3
  local found=build/fuzz/corpus/$name log=build/fuzz/$name.log
  mkdir -p "$found"
  if build/fuzz/fuzz/"$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/broken/$name-" "$found" "$seeds" >"$log" 2>&1; then
    printf 'fuzz: %-28s ok, %s runs\n' "$name" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
  else
    tail -n 40 "$log"
    printf 'fuzz: %-28s BROKEN, see %s\n' "$name" "$log"
    return 1
  fi
}
export -f run_one

grep -qs . build/fuzz/fuzzers.txt || { echo "fuzz: there are no fuzzers: build/fuzz/fuzzers.txt names none" >&2; exit 1; }
# xargs exits 123 when any of them failed.
xargs -P 2 -L 1 bash -c 'run_one "$1" "$2" "$0"' "$seconds" <build/fuzz/fuzzers.txt
