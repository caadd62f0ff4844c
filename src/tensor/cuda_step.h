// SPDX-License-Identifier: Apache-2.0
//
// A step on a CUDA device: the device, and copies there of the small arrays of the host that its kernels read (slots,
// starts, positions). Copies live from their first use in a step until the next step begins. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coluber/execution.h"
#include "tensor/cuda_device.h"
#include "tensor/workspace.h"

namespace coluber {

class CudaStep {
 public:
  explicit CudaStep(CudaDevice& device) : device_(device), arrays_(device) {}

  CudaDevice& device() const noexcept { return device_; }
  // Forgets the arrays of the step before, and has the calling thread use the device.
  void begin();
  // Where `bytes` bytes of the host lie on the device. They must not change before the next step begins, and where they
  // begin names them.
  const void* array(const void* host, int64_t bytes);

 private:
  struct Copied {
    const void* host;
    int64_t bytes;
    const void* device;
  };
  CudaDevice& device_;
  Workspace arrays_;
  std::vector<Copied> copied_;
};

// What a kernel reads instead of an array of the host.
template <typename T>
const T* device_array(const Execution& on, std::span<const T> host) {
  if (on.cuda == nullptr || host.empty()) return host.data();
  return static_cast<const T*>(on.cuda->array(host.data(), static_cast<int64_t>(host.size_bytes())));
}
template <typename T>
const T* device_array(const Execution& on, const std::vector<T>& host) {
  return device_array(on, std::span<const T>(host));
}

// On activations, in the order of the step's work.
void fill_zeros(const Execution& on, float* values, int64_t count);
void copy_floats(const Execution& on, const float* from, float* to, int64_t count);

}  // namespace coluber
