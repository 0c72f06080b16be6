#!/usr/bin/env bash
# links_no_torch.sh PROGRAM: fails if PROGRAM needs, directly or not, a library of torch.
set -euo pipefail
needed=$(ldd "$1")
if grep -E 'torch|libc10' <<<"$needed"; then
  echo "$1 links libtorch" >&2
  exit 1
fi
# ldd must have seen something, or the check proves nothing.
grep -q 'libc\.so' <<<"$needed"
