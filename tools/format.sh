#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats every C++ source, or with --check says which are not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.inl' '*.cu' '*.cuh')
if [ "${1:-}" = --check ]; then
  clang-format-19 --dry-run --Werror "${files[@]}" && echo "format: ${#files[@]} files are formatted"
else
  clang-format-19 -i "${files[@]}"
fi
