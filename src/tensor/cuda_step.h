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

struct HostArray {
  const void* host = nullptr;
  int64_t bytes = 0;
};
template <typename T>
HostArray host_array(const std::vector<T>& values) {
  return {values.data(), static_cast<int64_t>(values.size() * sizeof(T))};
}

class CudaStep {
 public:
  explicit CudaStep(CudaDevice& device) : device_(device), arrays_(device) {}
  ~CudaStep();
  CudaStep(const CudaStep&) = delete;
  CudaStep& operator=(const CudaStep&) = delete;

  CudaDevice& device() const noexcept { return device_; }
  // Forgets the arrays of the step before, and has the calling thread use the device.
  void begin();
  // The same, with arrays that lie at the same place in every step that begins with arrays of the same sizes: copied
  // together, now. Returns whether that place has moved for all.
  bool begin_with(std::span<const HostArray> arrays);
  // While work is recorded to be done again, `array` throws Error(kInternal) for what the step did not begin with.
  void set_recording(bool recording) noexcept { recording_ = recording; }
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
  std::byte* fixed_ = nullptr;
  int64_t fixed_bytes_ = 0;
  std::vector<std::byte> staged_;
  bool recording_ = false;
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
