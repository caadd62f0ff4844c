// SPDX-License-Identifier: Apache-2.0
#include "tensor/float_array.h"

#include <utility>

namespace coluber {

FloatArray::FloatArray(std::vector<float> values, Device& device) : size_(static_cast<int64_t>(values.size())) {
  if (values.empty()) return;
  if (device.is_host()) {
    host_ = std::move(values);
    data_ = host_.data();
    return;
  }
  const int64_t bytes = size_ * static_cast<int64_t>(sizeof(float));
  on_device_ = std::unique_ptr<float, Free>(static_cast<float*>(device.allocate(bytes)), Free{&device, bytes});
  device.copy(on_device_.get(), values.data(), bytes);
  data_ = on_device_.get();
}

}  // namespace coluber
