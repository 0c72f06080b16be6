#!/usr/bin/env bash
# package_test.sh BUILD: the .deb that `make package` makes of what BUILD has built holds the command, the core and no
# torch, and works from where it is unpacked.
set -euo pipefail
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { printf 'package_test: %s\n' "$*" >&2; exit 1; }

# Not compressed, to be quick about it; `make package` does that.
(cd "$build" && cpack -G DEB -B "$work" -D CPACK_DEBIAN_COMPRESSION_TYPE=none) >"$work/log" 2>&1 \
  || { cat "$work/log"; fail "cpack"; }
deb=$(find "$work" -maxdepth 1 -name 'lockstep_*.deb')
[ -f "$deb" ] || { ls "$work"; fail "there is not exactly one .deb"; }

[ "$(dpkg-deb -f "$deb" Package)" = lockstep ] || fail "its name is $(dpkg-deb -f "$deb" Package)"
dpkg-deb -f "$deb" Depends | grep -q libc6 || fail "it depends on $(dpkg-deb -f "$deb" Depends)"
if dpkg-deb -f "$deb" Depends | grep -qi torch; then fail "it depends on torch"; fi

dpkg -x "$deb" "$work/root"
for file in bin/lockstep lib/cmake/Lockstep/LockstepConfig.cmake include/lockstep/base/status.h \
  share/doc/lockstep/copyright share/bash-completion/completions/lockstep; do
  [ -s "$(find "$work/root/usr" -path "*/$file" -print -quit)" ] || fail "$file is not in it"
done
if find "$work/root" -name '*_test*' | grep .; then fail "a test is in it"; fi
if find "$work/root/usr/lib" "$work/root/usr/libexec" -name '*torch*' | grep .; then fail "torch is in it"; fi
"$work/root/usr/bin/lockstep" --version | grep -x 'lockstep [0-9.]*' >/dev/null || fail "lockstep --version"
"$work/root/usr/bin/lockstep" run --nproc 2 true || fail "lockstep run"
echo "packed, unpacked, started"
