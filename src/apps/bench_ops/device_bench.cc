// SPDX-License-Identifier: Apache-2.0
#include "apps/bench_ops/device_bench.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/roofline/roofline_cuda.h"

namespace coluber::bench_ops {
namespace {

constexpr int64_t kBlockElements = 1 << 20;
constexpr int kWarmUps = 2, kReplays = 9;
constexpr int64_t kStateBytes = int64_t{3} << 30;  // that the launches rotate through
constexpr int64_t kMostSets = 64, kMostSlots = 16384;

std::vector<int32_t> shuffled_slots(int64_t slots) {
  std::vector<int32_t> ids(static_cast<size_t>(slots - 1));
  std::iota(ids.begin(), ids.end(), 1);  // 0 is the null slot
  std::shuffle(ids.begin(), ids.end(), std::mt19937_64(7));
  return ids;
}

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

RotatingStates::RotatingStates(CudaDevice& device, int64_t batch, int64_t slot_bytes, DType state)
    : batch_(batch),
      slot_bytes_(slot_bytes),
      num_slots_(std::clamp(kStateBytes / slot_bytes, 2 * batch + 1, std::max(2 * batch + 1, kMostSlots))),
      sets_(std::clamp<int64_t>((num_slots_ - 1) / batch, 1, kMostSets)),
      state_(state),
      states_(device, num_slots_ * slot_bytes),
      indices_(device, (num_slots_ - 1) * 4) {
  if (state == DType::kFloat32) states_.fill_float32(-1, 1, 9);
  if (state == DType::kBFloat16) states_.fill_bfloat16(-1, 1, 9);
  indices_.copy_from(shuffled_slots(num_slots_).data(), indices_.bytes());
}

StateSlots RotatingStates::slots(int64_t launch) const {
  const auto* slot = reinterpret_cast<const int32_t*>(indices_.data()) + launch % sets_ * batch_;
  return {states_.data(), state_, slot_bytes_, slot, slot, 1, nullptr};
}

int64_t RotatingStates::launches() const noexcept { return batch_ >= 64 ? std::max<int64_t>(4, sets_) : kMostSets; }

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

double copy_bandwidth(CudaDevice& device) {
  constexpr int64_t kBytes = int64_t{2} << 30;
  DeviceArray from(device, kBytes), to(device, kBytes);
  from.fill_float32(-1, 1, 1);
  const auto copy = device.library().function<CopyCudaFunction>(kCopyCuda);
  const Timing timing = time_launches(
      device, 4, [&](int64_t) { check_cuda(copy(to.data(), from.data(), kBytes, device.stream()), "copy"); });
  return 2.0 * static_cast<double>(kBytes) / timing.us * 1e6;
}

double product_rate(CudaDevice& device) {
  ProductsCudaArgs args;
  args.blocks = device.info().multiprocessors * 2;
  args.repeats = 1 << 14;
  DeviceArray sums(device, int64_t{args.blocks} * 256 * 4);
  args.sums = reinterpret_cast<float*>(sums.data());
  const auto multiply = device.library().function<ProductsCudaFunction>(kProductsCuda);
  const Timing timing =
      time_launches(device, 4, [&](int64_t) { check_cuda(multiply(&args, device.stream()), "multiply"); });
  return flops_of(args) / timing.us * 1e6;
}

}  // namespace coluber::bench_ops
