#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh BUILD: installs BUILD into a fresh prefix, builds examples/custom_layer against it, and runs what came out. Also
# compiles every public header alone. Exits 77 (skipped) where BUILD has no archive to install yet.
set -eu

build=${1:?usage: tests/install/run.sh BUILD_FOLDER}
source=$(cd "$(dirname "$0")/../.." && pwd)
if [ ! -f "$build/libcoluber.a" ]; then
  echo "skipped: $build/libcoluber.a is not built (target coluber_archive)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

cmake --install "$build" --prefix "$prefix" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
for header in "$prefix"/include/coluber/*.h; do
  name=coluber/$(basename "$header")
  echo "#include \"$name\"" | "${CXX:-c++}" -std=c++20 -Wall -Wextra -Werror -fsyntax-only -I "$prefix/include" -x c++ - ||
    { echo "FAIL: $name does not compile alone"; exit 1; }
done

cmake -S "$source/examples/custom_layer" -B "$work/example" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix" >"$work/configure.log" ||
  { cat "$work/configure.log"; exit 1; }
cmake --build "$work/example" -j 2 >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
"$work/example/tide_check" "$work/tide"

for example in quickstart streaming; do
  cmake -S "$source/examples/$example" -B "$work/$example" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix" >"$work/configure.log" ||
    { cat "$work/configure.log"; exit 1; }
  cmake --build "$work/$example" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
done

expect() {  # expect TEXT COMMAND...: the command's output holds the text
  text=$1
  shift
  "$@" >"$work/out" 2>"$work/err" || { echo "FAIL: $* ended with $?"; cat "$work/out" "$work/err"; exit 1; }
  grep -q -- "$text" "$work/out" || { echo "FAIL: $* does not print '$text'"; cat "$work/out"; exit 1; }
  echo "ok    $(basename "$1") $2: '$text'"
}
expect '"mamba_type": *"CUSTOM"' "$work/example/tide_coluber" inspect "$work/tide" --json
expect '"backend": *"tide"' "$work/example/tide_coluber" inspect "$work/tide" --json
expect 'CUSTOM' "$work/example/tide_coluber" inspect "$work/tide"
expect '"output_ids"' "$work/example/tide_coluber" run "$work/tide" --prompt-ids 1,2,3 -n 4 --json
expect '[a-z]' "$work/quickstart/quickstart" "$source/models/asp-7m"
expect 'the first was stopped' "$work/streaming/streaming" "$source/models/asp-7m"
expect 'coluber' "$prefix/bin/coluber" --version
for page in man/man1/coluber.1 bash-completion/completions/coluber zsh/site-functions/_coluber fish/vendor_completions.d/coluber.fish; do
  grep -q 'max.*tokens' "$prefix/share/$page" || { echo "FAIL: share/$page does not tell of --max-tokens"; exit 1; }
done
# The installed command finds its built-in model from anywhere.
cd /
expect '"output_ids"' "$prefix/bin/coluber" run -p "The river" -n 4 --json
