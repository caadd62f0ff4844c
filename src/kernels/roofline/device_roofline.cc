// SPDX-License-Identifier: Apache-2.0
#include "kernels/roofline/device_roofline.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/roofline/device_timing.h"
#include "kernels/roofline/roofline_cuda.h"

namespace coluber {
namespace {

constexpr int64_t kMostCopied = int64_t{2} << 30, kLeastCopied = int64_t{64} << 20;
constexpr int64_t kBlockBytes = 4096;  // of the copy's blocks of threads
constexpr int64_t kLaunches = 4;

}  // namespace

int64_t copy_bytes(int64_t free_bytes, int64_t l2_bytes) {
  const int64_t bytes = std::min(kMostCopied, free_bytes / 4) / kBlockBytes * kBlockBytes;
  return bytes >= std::max(kLeastCopied, 4 * l2_bytes) ? bytes : 0;
}

double copy_bandwidth(CudaDevice& device) {
  device.use();
  const int64_t free = device.free_bytes();
  const int64_t bytes = copy_bytes(free, device.info().l2_bytes);
  if (bytes == 0)
    throw make_error(ErrorCode::kOutOfMemory,
                     "{} has {} bytes of memory free, too few to measure its bandwidth beside the {} of its "
                     "second-level cache; leave more free, as with a smaller --gpu-memory-utilization",
                     device.name(), free, device.info().l2_bytes);
  DeviceArray from(device, bytes), to(device, bytes);
  from.fill_float32(-1, 1, 1);
  const auto copy = device.library().function<CopyCudaFunction>(kCopyCuda);
  const Timing timing = time_launches(
      device, kLaunches, [&](int64_t) { check_cuda(copy(to.data(), from.data(), bytes, device.stream()), "copy"); });
  return 2.0 * static_cast<double>(bytes) / timing.us * 1e6;
}

double product_rate(CudaDevice& device) {
  device.use();
  ProductsCudaArgs args;
  args.blocks = device.info().multiprocessors * 2;
  args.repeats = 1 << 14;
  DeviceArray sums(device, int64_t{args.blocks} * 256 * 4);
  args.sums = reinterpret_cast<float*>(sums.data());
  const auto multiply = device.library().function<ProductsCudaFunction>(kProductsCuda);
  const Timing timing =
      time_launches(device, kLaunches, [&](int64_t) { check_cuda(multiply(&args, device.stream()), "multiply"); });
  return flops_of(args) / timing.us * 1e6;
}

}  // namespace coluber
