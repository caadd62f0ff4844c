// SPDX-License-Identifier: Apache-2.0
//
// Times operations on a CUDA device: a graph of many launches over inputs that rotate through more memory than the
// second-level cache holds, replayed until the spread can be told. Throws Error for anything that the device reports.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/state_slots.h"
#include "tensor/cuda_device.h"

namespace coluber::bench_ops {

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

// So many states that launches in turn never find one in the second-level cache, a batch of shuffled slots a launch;
// never those of the launch before.
class RotatingStates {
 public:
  RotatingStates(CudaDevice& device, int64_t batch, int64_t slot_bytes, DType state);
  StateSlots slots(int64_t launch) const;
  int64_t launches() const noexcept;  // that a graph should hold

 private:
  int64_t batch_, slot_bytes_, num_slots_, sets_;
  DType state_;
  DeviceArray states_, indices_;
};

struct Timing {
  double us = 0;  // of one launch, the median replay
  double least_us = 0;
  double most_us = 0;
};

// `launch(i)` puts launch i on the device's stream.
Timing time_launches(CudaDevice& device, int64_t launches, const std::function<void(int64_t)>& launch);

// Bytes a second, read and written, of the fastest plain copy.
double copy_bandwidth(CudaDevice& device);
// Operations a second of bfloat16 products by mma.sync (kernels/roofline/roofline_cuda.h).
double product_rate(CudaDevice& device);

struct Row {
  std::string operation, shape, state;
  int64_t batch = 0;
  Timing timing;
  double useful_bytes = 0;  // state, inputs and outputs once each
  double useful_flops = 0;
  int64_t tokens = 1;  // of a sequence
};

// What the command line says of a case.
struct Case {
  int64_t batch = 256;
  DType state = DType::kFloat32;
  bool overlap = true;    // a launch reads its states while the one before it still runs
  int64_t tokens = 8192;  // of a sequence's prefill
};

}  // namespace coluber::bench_ops
