// SPDX-License-Identifier: Apache-2.0
//
// Times launches on a CUDA device: as a graph of many of them, replayed until the spread can be told, over memory of
// known values. Of benchmarks; throws Error for anything that the device reports. The thread that calls uses the
// device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "tensor/cuda_device.h"

namespace coluber {

// Device memory of pseudo-random values for as long as the object lives.
class DeviceArray {
 public:
  DeviceArray(CudaDevice& device, int64_t bytes);
  ~DeviceArray();
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  std::byte* data() const noexcept { return data_; }
  int64_t bytes() const noexcept { return bytes_; }
  // Repeats a block of uniform values over the whole array.
  void fill_float32(float low, float high, uint64_t seed);
  void fill_bfloat16(float low, float high, uint64_t seed);
  void copy_from(const void* from, int64_t bytes);

 private:
  void repeat(const void* block, int64_t block_bytes);
  CudaDevice& device_;
  int64_t bytes_;
  std::byte* data_;
};

struct Timing {
  double us = 0;  // of one launch, the median replay
  double least_us = 0;
  double most_us = 0;
};

// `launch(i)` puts launch i on the device's stream.
Timing time_launches(CudaDevice& device, int64_t launches, const std::function<void(int64_t)>& launch);

}  // namespace coluber
