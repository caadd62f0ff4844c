// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda_step.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace coluber {

namespace {

constexpr int64_t kArrayAlignment = 64;
constexpr int64_t kLeastFixedBytes = int64_t{1} << 16;

int64_t place_bytes(const HostArray& array) {
  return (array.bytes + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment;
}

}  // namespace

CudaStep::~CudaStep() {
  if (fixed_ != nullptr) device_.deallocate(fixed_, fixed_bytes_);
}

bool CudaStep::begin_with(std::span<const HostArray> arrays) {
  begin();
  int64_t bytes = 0;
  for (const HostArray& array : arrays) bytes += place_bytes(array);
  const bool moves = bytes > fixed_bytes_;
  if (moves) {
    if (fixed_ != nullptr) device_.deallocate(fixed_, fixed_bytes_);
    fixed_ = nullptr;
    fixed_bytes_ = std::max(2 * bytes, kLeastFixedBytes);
    fixed_ = static_cast<std::byte*>(device_.allocate(fixed_bytes_));
  }
  staged_.resize(static_cast<size_t>(bytes));
  int64_t at = 0;
  for (const HostArray& array : arrays) {
    if (array.bytes == 0) continue;
    std::memcpy(staged_.data() + at, array.host, static_cast<size_t>(array.bytes));
    copied_.push_back({array.host, array.bytes, fixed_ + at});
    at += place_bytes(array);
  }
  device_.copy_later(fixed_, staged_.data(), bytes);
  return moves;
}

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
  COLUBER_CHECK(!recording_, "an array of {} bytes is read that the recorded step did not begin with", bytes);
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
