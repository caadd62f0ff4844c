#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of a bundle (tools/gpu_bundle.sh) on this machine's GPU, some of them under compute-sanitizer too, and
# says what they ran on. Checkpoints are those of this checkout, and of ../shared/golden where it lies beside it.
#   tools/test_gpu.sh BUNDLE.tar.xz
set -uo pipefail
bundle=${1:?the bundle, as make gpu-bundle makes it}
if [ ! -f "$bundle" ]; then
  echo "test_gpu.sh: there is no '$bundle': make gpu-bundle makes it where nvcc is, GPU_BUNDLE=PATH names another" >&2
  exit 1
fi
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "test_gpu.sh: no NVIDIA GPU here (nvidia-smi finds none): the tests of CUDA kernels are skipped"
  exit 0
fi
COLUBER_SOURCE_DIR=$(cd "$(dirname "$0")/.." && pwd)
export COLUBER_SOURCE_DIR
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tar -C "$folder" -xf "$bundle" || exit 1
cd "$folder"/*/ || exit 1
export COLUBER_CUDA_LIBRARY=$PWD/libcoluber_cuda.so
# Where the system's loader finds no cuBLASLt, Python's packages may hold one.
if [ -z "${COLUBER_CUBLASLT_LIBRARY:-}" ]; then
  found=$(python3 -c 'import glob, sys; print("\n".join(f for p in sys.path for f in glob.glob(p + "/nvidia/*/lib/libcublasLt.so.1[23]")))' 2>/dev/null)
  [ -z "$found" ] || export COLUBER_CUBLASLT_LIBRARY=${found##*$'\n'}
fi
failed=0
step() {
  local name=$1 start=$SECONDS
  shift
  "$@" >output.txt 2>&1
  local status=$?
  if [ $status -eq 0 ]; then
    echo "ok      $name ($((SECONDS - start)) s): $(grep -E 'PASSED|SUMMARY' output.txt | tail -n 1)"
  else
    echo "FAILED  $name ($((SECONDS - start)) s, exit $status)"
    tail -n 60 output.txt
    failed=1
  fi
}

date -u '+%Y-%m-%d %H:%M UTC'
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
step "kernels" ./kernels_tests --gtest_brief=1 --gtest_filter='*Cuda*'
step "device" ./tensor_tests --gtest_brief=1 --gtest_filter='*Cuda*'
step "golden folders" ./parity_tests --gtest_brief=1 --gtest_filter='OnCuda/*'
step "engine" ./engine_system_tests --gtest_brief=1 --gtest_filter='*OnCuda*:DeviceChoice.*'
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -n "$sanitizer" ]; then
  "$sanitizer" --version | tail -n 1
  for tool in memcheck racecheck initcheck; do
    step "kernels under $tool" "$sanitizer" --tool "$tool" --error-exitcode 9 ./kernels_tests --gtest_brief=1 \
      --gtest_filter='*Cuda*.NoState*:*Cuda*.ManyRows*'
  done
else
  echo "skipped kernels under compute-sanitizer: it is not installed"
fi
exit $failed
