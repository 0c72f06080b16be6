#!/usr/bin/env bash
# What `make demo` shows: two ranks that train a network together, and one that dies on purpose.
#
#   tools/demo.sh [BUILD [IMAGES]]    the build to show (default: build/release), and what it trains on: a file
#                                     of lines, or a folder with the four files of MNIST, packed or not
#
# Exits 0 if everything went as announced.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=${1:-build/release}
lockstep=$build/bin/lockstep
training=$build/examples/07_digits
example=$build/examples/01_ranks_meet
images=${2:-build/data/digits.csv}
pictures=build/reports/demo
victim=2
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

bold='' dim='' green='' red='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\033[1m' dim=$'\033[2m' green=$'\033[32m' red=$'\033[31m' plain=$'\033[0m'
fi

title() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
tell() { printf '%s\n' "$@"; }
fail() {
  printf '\n%sNot as announced: %s%s\n' "$red" "$1" "$plain" >&2
  exit 1
}
# Shows the command and runs it. Its output goes to the terminal as it is, and to files below $logs.
show() {
  local status=0
  printf '\n%s$ lockstep run %s%s\n' "$dim" "${*//"$build/examples/"/}" "$plain"
  rm -rf "$logs/run"
  # The number of threads per rank does not matter here; unset, the launcher would say what it chose.
  OMP_NUM_THREADS=1 "$lockstep" run --log-dir "$logs/run" "$@" || status=$?
  return "$status"
}
# What rank $1 wrote to $2 (stdout or stderr) in the last run.
written_by() { find "$logs/run" -path "*/$1/$2.log" -exec cat {} +; }

for program in "$lockstep" "$training" "$example"; do
  [ -x "$program" ] || fail "there is no $program; run 'make demo', or build the preset first"
done
[ -r "$images" ] || fail "there is no $images; run 'make demo', or tools/setup.sh build digits"
if [ -d "$images" ]; then
  mnist=$logs/mnist
  mkdir "$mnist"
  for name in {train,t10k}-{images-idx3,labels-idx1}-ubyte; do
    if [ -r "$images/$name" ]; then
      ln -s "$(realpath "$images/$name")" "$mnist/$name"
    elif [ -r "$images/$name.gz" ]; then
      gzip -dc "$images/$name.gz" >"$mnist/$name" || fail "$images/$name.gz cannot be unpacked; fetch it again"
    else
      fail "there is neither $name nor $name.gz in $images"
    fi
  done
  images=$mnist
fi
mkdir -p "$pictures"

title "1. Two ranks train a network on handwritten digits"
tell "The launcher starts the same program twice. Each rank has a replica of the network and half of the" \
  "images; after each batch their gradients are averaged, while the backward pass still runs. Then rank 0" \
  "tests the network on images that it has not seen, compares the replicas, and trains once more alone."
show --nproc 2 --prefix '' "$training" "$images" --report "$pictures" || fail "the job should have ended with status 0, not $?"
for claim in "test accuracy" "replicas: .* bitwise equal" "one process .* bitwise equal"; do
  grep -q "$claim" <(written_by 0 stdout) || fail "rank 0 did not print '$claim'"
done

title "2. One of them dies"
tell "Four ranks meet, and rank $victim kills itself (SIGKILL, as the kernel does when memory runs out)." \
  "The launcher notices at once, stops the other three, which would wait for ever, and reports" \
  "the first failure: which rank, where, how it ended, and the last it wrote."
show --nproc 4 "$example" --kill "$victim"
status=$?
[ "$status" -eq 137 ] || fail "the launcher's status should be that of the dead rank, 137 (128 + SIGKILL), not $status"
grep -q "on purpose" <(written_by "$victim" stderr) || fail "rank $victim did not announce its end"
# Its table has the process id of every rank in the third column.
pids=$(written_by 0 stdout | awk '$1 ~ /^[0-3]$/ && NF > 3 { print $3 }')
[ "$(wc -w <<<"$pids")" -eq 4 ] || fail "rank 0 did not print a table of four ranks"
for pid in $pids; do
  ! kill -0 "$pid" 2>/dev/null || fail "process $pid is still running"
done

title "3. What this machine offers"
printf '\n%s$ lockstep doctor%s\n' "$dim" "$plain"
"$lockstep" doctor || fail "something here is unusable; the lines above say what to do about it"

printf '\n%s%sEverything went as announced.%s The exit status of the second job was 137, and nothing is left running.\n' \
  "$green" "$bold" "$plain"
tell "Next: examples/README.md has more programs, docs/launching.md all that the launcher can do."
