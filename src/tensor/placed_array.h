// SPDX-License-Identifier: Apache-2.0
//
// A layer's small weights and tables where its kernels read them: a vector on the host, which costs nothing, or memory
// of a device. Owns them; read-only once made.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensor/device.h"

namespace coluber {

template <typename T>
class PlacedArray {
  static_assert(std::is_trivially_copyable_v<T>, "elements are copied as bytes");

 public:
  PlacedArray() = default;
  // Throws Error(kOutOfMemory) where the device has no room.
  PlacedArray(std::vector<T> values, Device& device) : size_(static_cast<int64_t>(values.size())) {
    if (values.empty()) return;
    if (device.is_host()) {
      host_ = std::move(values);
      data_ = host_.data();
      return;
    }
    const int64_t bytes = size_ * static_cast<int64_t>(sizeof(T));
    on_device_ = std::unique_ptr<T, Free>(static_cast<T*>(device.allocate(bytes)), Free{&device, bytes});
    device.copy(on_device_.get(), values.data(), bytes);
    data_ = on_device_.get();
  }

  const T* data() const noexcept { return data_; }  // null where it is empty
  int64_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }

 private:
  struct Free {
    Device* device;
    int64_t bytes;
    void operator()(T* memory) const noexcept { device->deallocate(memory, bytes); }
  };
  std::vector<T> host_;
  std::unique_ptr<T, Free> on_device_;
  const T* data_ = nullptr;
  int64_t size_ = 0;
};

using FloatArray = PlacedArray<float>;

}  // namespace coluber
