// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda_step.h"

#include <algorithm>

#include "base/error.h"

namespace coluber {

void CudaStep::begin() {
  device_.use();
  arrays_.reset();
  copied_.clear();
}

const void* CudaStep::array(const void* host, int64_t bytes) {
  for (const Copied& copied : copied_) {
    if (copied.host != host) continue;
    COLUBER_CHECK(copied.bytes >= bytes, "an array of {} bytes was copied as one of {}", bytes, copied.bytes);
    return copied.device;
  }
  void* memory = arrays_.take_bytes(bytes);
  device_.copy_later(memory, host, bytes);
  copied_.push_back({host, bytes, memory});
  return memory;
}

void fill_zeros(const Execution& on, float* values, int64_t count) {
  if (on.cuda == nullptr) {
    std::fill_n(values, count, 0.0f);
  } else {
    on.cuda->device().fill(values, std::byte{0}, count * static_cast<int64_t>(sizeof(float)));
  }
}

void copy_floats(const Execution& on, const float* from, float* to, int64_t count) {
  if (on.cuda == nullptr) {
    std::copy_n(from, count, to);
  } else {
    on.cuda->device().copy_later(to, from, count * static_cast<int64_t>(sizeof(float)));
  }
}

}  // namespace coluber
