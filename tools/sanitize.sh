#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs tests under sanitizers. Without arguments: every test under ASan+UBSan and under TSan.
#   tools/sanitize.sh asan base_tests formats_tests ...    only these test binaries
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)
run() {
  preset=$1; shift
  cmake --preset "$preset" >/dev/null
  if [ $# -gt 0 ]; then
    cmake --build "build-$preset" -j "$jobs" --target "$@"
    for binary in "$@"; do
      path=$(find "build-$preset" -name "$binary" -type f -perm -u+x | head -n 1)
      echo "== $preset: $binary"
      "$path" --gtest_brief=1
    done
  else
    cmake --build "build-$preset" -j "$jobs"
    ctest --test-dir "build-$preset" --output-on-failure --no-tests=error
  fi
}
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1
if [ $# -gt 0 ]; then run "$@"; else run asan; run tsan; fi
