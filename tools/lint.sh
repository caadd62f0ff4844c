#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over the files that differ from BASE (default: all), two at a time; the list of checks is in .clang-tidy.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build-lint}
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCOLUBER_TESTS=OFF -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >"/tmp/coluber-lint.$$.log" 2>&1 ||
  { cat "/tmp/coluber-lint.$$.log"; exit 1; }
rm -f "/tmp/coluber-lint.$$.log"
# The SIMD sources are compiled three times in one unit under target regions that clang-tidy's parser does not follow.
mapfile -t files < <(git ls-files 'src/*.cc' | grep -v -E '_(test|bench|fuzz)\.cc$')
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy-19 -p "$build" --quiet 2>/dev/null
echo "lint: ${#files[@]} files are clean"
