#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs tests under sanitizers.
#   tools/sanitize.sh                                  every test, under ASan+UBSan and then under TSan
#   tools/sanitize.sh asan|tsan                        every test, under one of them
#   tools/sanitize.sh asan|tsan base_tests ...         these test binaries only; NAME=FILTER runs what GoogleTest's filter names
set -euo pipefail
cd "$(dirname "$0")/.."
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:allocator_may_return_null=1

run() {  # run PRESET [BINARY...]
  local preset=$1 build=build-$1 start=$SECONDS
  shift
  cmake --preset "$preset" >"/tmp/coluber-$preset.$$.log" 2>&1 || { cat "/tmp/coluber-$preset.$$.log"; exit 1; }
  rm -f "/tmp/coluber-$preset.$$.log"
  if [ $# -eq 0 ]; then
    cmake --build "$build" -j "$(nproc)"
    echo "== $preset: built in $((SECONDS - start)) s"
    ctest --test-dir "$build" --output-on-failure --no-tests=error
  else
    cmake --build "$build" -j "$(nproc)" --target "${@%%=*}"
    echo "== $preset: built in $((SECONDS - start)) s"
    for wanted in "$@"; do
      name=${wanted%%=*}
      filter=${wanted:${#name}}
      binary=$(find "$build" -name "$name" -type f -perm -u+x | head -n 1)
      [ -n "$binary" ] || { echo "sanitize.sh: the target $name made no program of that name in $build" >&2; exit 1; }
      "$binary" --gtest_brief=1 ${filter:+--gtest_filter="${filter#=}"}
      echo "== $preset: $name passed ($((SECONDS - start)) s)"
    done
  fi
}

case ${1:-all} in
  all) run asan; run tsan ;;
  asan | tsan) run "$@" ;;
  *) echo "sanitize.sh: expected asan or tsan, found '$1'" >&2; exit 2 ;;
esac
