#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts what a machine with a GPU needs to test and time the CUDA kernels and the engine on them into one folder: the programs, stripped, with
# libcoluber_cuda.so and the shared libraries that they link (all but glibc's) beside them.
#   tools/gpu_bundle.sh BUILD FOLDER
set -euo pipefail
build=$1 folder=$2
limit_mib=20
rm -rf "$folder" && mkdir -p "$folder"
programs=("$build/src/kernels_tests" "$build/src/tensor_tests" "$build/tests/engine_system_tests" "$build/tests/parity_tests"
          "$build/coluber-bench-ops")
cp "${programs[@]}" "$build/libcoluber_cuda.so" "$folder"
# The loader and glibc must be the machine's own: they belong together.
ldd "${programs[@]}" | awk '$2 == "=>" && $3 ~ "^/" {print $3}' | sort -u |
  grep -Ev '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread))\.so[^/]*$' | xargs -r cp -L -t "$folder"
strip "$folder"/*
for program in "${programs[@]}"; do
  if ! readelf -d "$folder/$(basename "$program")" | grep -q 'RPATH.*\$ORIGIN'; then
    echo "gpu_bundle.sh: $program does not look for libraries beside itself (RPATH \$ORIGIN); build it with the preset cuda" >&2
    exit 1
  fi
done
# The programs hold much of the same library: a dictionary longer than all of them finds it.
XZ_OPT=-9 tar -C "$(dirname "$folder")" -cJf "$folder.tar.xz" "$(basename "$folder")"
bytes=$(stat -c %s "$folder.tar.xz")
if [ "$bytes" -gt $((limit_mib * 1048576)) ]; then
  echo "gpu_bundle.sh: $folder.tar.xz has $bytes bytes, more than $limit_mib MiB" >&2
  exit 1
fi
echo "$folder.tar.xz: $((bytes / 1024)) KiB"
