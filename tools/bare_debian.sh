#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves the README's two commands on a bare Debian 12: makes a minimal root with debootstrap that has nothing but git and make, clones
# this repository's HEAD into it, and runs `make run` twice and `make test` there. Needs root and the network for packages.
#
#   tools/bare_debian.sh [FOLDER]      (default: a temporary folder, removed at the end; a FOLDER is kept, and its root used again)
#
# The root uses this machine's package source and resolver; the tests there see no ../shared, as any clone does.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
[ "$(id -u)" = 0 ] || { echo "bare_debian.sh: needs root, for debootstrap and chroot" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "bare_debian.sh: debootstrap is missing; run 'make setup-dev'" >&2; exit 1; }

keep=${1:-}
root=${keep:-$(mktemp -d)/bookworm}
mounted=()
cleanup() {
  for ((i = ${#mounted[@]} - 1; i >= 0; i--)); do umount "${mounted[i]}" || umount -l "${mounted[i]}" || true; done
  # Never into what is still mounted: that would be this machine's own /dev.
  [ -n "$keep" ] || rm -rf --one-file-system "$(dirname "$root")"
}
trap cleanup EXIT
mirror=$({ sed -n 's/^URIs: *\(\S*\/debian\)\/* *$/\1/p; s/^deb *\(\[.*\] *\)\?\(\S*\/debian\)\/* .*/\2/p' \
  /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true; } | head -n 1)  # either place may be missing

if [ ! -e "$root/usr/bin/git" ]; then
  debootstrap --variant=minbase --include=git,make,ca-certificates bookworm "$root" ${mirror:+"$mirror"} >"$root.log" 2>&1 ||
    { tail -n 20 "$root.log" >&2; exit 1; }
fi
for folder in proc sys dev dev/pts; do  # ptys are a file system of their own, which the command line's tests open
  mount --bind "/$folder" "$root/$folder"
  mounted+=("$root/$folder")
done
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
rm -rf "$root/root/coluber"
git clone -q "$here" "$root/root/coluber"

inside() { chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb bash -c "cd /root/coluber && $1"; }
timed() {  # timed SECONDS COMMAND
  local start=$SECONDS
  echo "== $2"
  inside "$2"
  echo "== '$2' took $((SECONDS - start)) s"
  [ $((SECONDS - start)) -le "$1" ] || { echo "bare_debian.sh: expected at most $1 s" >&2; exit 1; }
}
timed 1200 "make run"
timed 2 "make run"
timed 1200 "make test"
