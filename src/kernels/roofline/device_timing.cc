// SPDX-License-Identifier: Apache-2.0
#include "kernels/roofline/device_timing.h"

#include <algorithm>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"

namespace coluber {
namespace {

constexpr int64_t kBlockElements = 1 << 20;
constexpr int kWarmUps = 2, kReplays = 9;

}  // namespace

DeviceArray::DeviceArray(CudaDevice& device, int64_t bytes)
    : device_(device), bytes_(bytes), data_(static_cast<std::byte*>(device.allocate(bytes))) {
  device.fill(data_, std::byte{0}, bytes);
}
DeviceArray::~DeviceArray() { device_.deallocate(data_, bytes_); }

void DeviceArray::copy_from(const void* from, int64_t bytes) {
  COLUBER_CHECK(bytes <= bytes_, "{} bytes into an array of {}", bytes, bytes_);
  device_.copy(data_, from, bytes);
}

void DeviceArray::repeat(const void* block, int64_t block_bytes) {
  copy_from(block, std::min(block_bytes, bytes_));
  for (int64_t done = block_bytes; done < bytes_; done *= 2)
    device_.copy(data_ + done, data_, std::min(done, bytes_ - done));
}

void DeviceArray::fill_float32(float low, float high, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> block(kBlockElements);
  for (float& value : block) value = uniform(generator);
  repeat(block.data(), kBlockElements * 4);
}

void DeviceArray::fill_bfloat16(float low, float high, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<uint16_t> block(kBlockElements);
  for (uint16_t& value : block) value = float_to_bfloat16(uniform(generator));
  repeat(block.data(), kBlockElements * 2);
}

Timing time_launches(CudaDevice& device, int64_t launches, const std::function<void(int64_t)>& launch) {
  const CudaDeviceApi& api = device.api();
  const CudaStream stream = device.stream();
  check_cuda(api.begin_capture(stream), "record a graph");
  for (int64_t i = 0; i < launches; ++i) launch(i);
  void *graph = nullptr, *begin = nullptr, *end = nullptr;
  check_cuda(api.end_capture(stream, &graph), "make a graph");
  check_cuda(api.create_event(&begin), "make an event");
  check_cuda(api.create_event(&end), "make an event");
  std::vector<double> us;
  for (int i = 0; i < kWarmUps + kReplays; ++i) {
    check_cuda(api.record_event(begin, stream), "record an event");
    check_cuda(api.launch_graph(graph, stream), "launch a graph");
    check_cuda(api.record_event(end, stream), "record an event");
    device.synchronize();
    double elapsed = 0;
    check_cuda(api.elapsed_us(begin, end, &elapsed), "read an event");
    if (i >= kWarmUps) us.push_back(elapsed / static_cast<double>(launches));
  }
  check_cuda(api.destroy_graph(graph), "give back a graph");
  check_cuda(api.destroy_event(begin), "give back an event");
  check_cuda(api.destroy_event(end), "give back an event");
  std::sort(us.begin(), us.end());
  return {us[us.size() / 2], us.front(), us.back()};
}

}  // namespace coluber
