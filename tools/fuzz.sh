#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds every libFuzzer target and runs each from its corpus, one after another.
#   tools/fuzz.sh [SECONDS [x_fuzz...]]     (default: 60 seconds, every target)
# A crash stops the run and leaves its input in build-fuzz/crashes/; put it into tests/fuzz/corpus/<target>/ with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "fuzz.sh: expected a number of seconds, found '$seconds'" >&2; exit 2; }
shift || true
build=${BUILD:-build-fuzz}
cmake --preset fuzz -B "$build" >/dev/null
if [ $# -gt 0 ]; then targets=("$@"); else targets=(fuzzers); fi
cmake --build "$build" -j "$(nproc)" --target "${targets[@]}"
if [ $# -gt 0 ]; then binaries=("${@/#/$build/fuzz/}"); else binaries=("$build"/fuzz/*_fuzz); fi
mkdir -p "$build/crashes"
for binary in "${binaries[@]}"; do
  name=$(basename "$binary")
  mkdir -p "$build/found/$name"
  echo "== $name for $seconds s"
  status=0
  "$binary" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$build/crashes/$name-" \
    "$build/found/$name" "tests/fuzz/corpus/$name" >"$build/$name.log" 2>&1 || status=$?
  grep -E "^stat::number_of_executed_units|^stat::average|ERROR|SUMMARY|Test unit|^Done|cov:.*DONE" "$build/$name.log" || true
  if [ "$status" != 0 ]; then
    tail -n 30 "$build/$name.log" >&2
    echo "fuzz.sh: $name ended with $status; its input is in $build/crashes/, its output in $build/$name.log" >&2
    exit 1
  fi
done
