#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds every libFuzzer target and runs each for SECONDS (default 60) from its corpus. A crash stops the run and leaves its input
# in build-fuzz/crashes/; put it into tests/fuzz/corpus/<target>/ with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
cmake --preset fuzz >/dev/null
cmake --build build-fuzz -j "$(nproc)" --target fuzzers
mkdir -p build-fuzz/crashes
for target in $(find build-fuzz -name '*_fuzz' -type f -perm -u+x | sort); do
  name=$(basename "$target")
  mkdir -p "build-fuzz/corpus/$name" "tests/fuzz/corpus/$name"
  echo "== $name for $seconds s"
  "$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix=build-fuzz/crashes/ \
    "build-fuzz/corpus/$name" "tests/fuzz/corpus/$name" 2>&1 | grep -E "^stat::|ERROR|SUMMARY|Test unit|Done" || true
  [ "${PIPESTATUS[0]}" = 0 ] || { echo "fuzz: $name failed; see build-fuzz/crashes" >&2; exit 1; }
done
