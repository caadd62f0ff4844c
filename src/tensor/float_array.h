// SPDX-License-Identifier: Apache-2.0
//
// A layer's small weights where its kernels read them: a vector on the host, which costs nothing, or memory of a
// device. Owns them; read-only once made.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/device.h"

namespace coluber {

class FloatArray {
 public:
  FloatArray() = default;
  // Throws Error(kOutOfMemory) where the device has no room.
  FloatArray(std::vector<float> values, Device& device);

  const float* data() const noexcept { return data_; }  // null where it is empty
  int64_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }

 private:
  struct Free {
    Device* device;
    int64_t bytes;
    void operator()(float* memory) const noexcept { device->deallocate(memory, bytes); }
  };
  std::vector<float> host_;
  std::unique_ptr<float, Free> on_device_;
  const float* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace coluber
