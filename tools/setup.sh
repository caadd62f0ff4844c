#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what a build needs, from Debian's packages. Safe to run again: does nothing where everything is there.
#   tools/setup.sh build|test|dev
# Needs root or sudo; without either it says exactly what to install.
set -euo pipefail
what=${1:-build}

build=(ca-certificates g++ make cmake ninja-build ccache pkg-config nlohmann-json3-dev libfmt-dev libspdlog-dev libexpected-dev
       libcli11-dev libpcre2-dev libutf8proc-dev libxxhash-dev libedit-dev
       libboost1.81-dev libssl-dev libcurl4-openssl-dev prometheus-cpp-dev python3-pip)
test=(libgtest-dev libgmock-dev python3 python3-venv git openssl chromium)
dev=(libbenchmark-dev clang-19 clang-tidy-19 clang-format-19 libclang-rt-19-dev python3-venv debootstrap)
case $what in
  build) need=("${build[@]}") ;;
  test) need=("${build[@]}" "${test[@]}") ;;
  dev) need=("${build[@]}" "${test[@]}" "${dev[@]}") ;;
  *) echo "setup.sh: expected build, test or dev, found '$what'" >&2; exit 2 ;;
esac

missing=()
for package in "${need[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done

# What tests need of PyPI. Without it (no network, say) those tests skip, and say so.
python_packages() {
  [ "$what" != build ] || return 0
  local wanted="$(dirname "$0")/../tests/server/requirements.txt" venv=$HOME/.cache/coluber/test-venv
  cmp -s "$wanted" "$venv/requirements.txt" && return 0
  echo "installing Python packages of the tests into $venv" >&2
  if python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"; then
    cp "$wanted" "$venv/requirements.txt"
  else
    rm -rf "$venv"
    echo "setup.sh: Python packages could not be installed; the tests of the server with other programs' clients will skip" >&2
  fi
}
if [ ${#missing[@]} -eq 0 ]; then
  python_packages
  exit 0
fi

if [ "$(id -u)" = 0 ]; then run=(env)
elif command -v sudo >/dev/null 2>&1; then run=(sudo env)
else
  echo "setup.sh: these packages are missing and neither root nor sudo is at hand. As root, run:" >&2
  echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
if ! command -v apt-get >/dev/null 2>&1; then
  echo "setup.sh: this is no Debian system; install the equivalents of: ${missing[*]}" >&2
  exit 1
fi
echo "installing ${#missing[@]} packages: ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${run[@]}" DEBIAN_FRONTEND=noninteractive apt-get update &&
       "${run[@]}" DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "setup.sh: installing failed; the lines above are apt's" >&2
  exit 1
fi
python_packages
