// SPDX-License-Identifier: Apache-2.0
//
// Memory for tensors that are put together while a model loads: one after the other, most of similar size, dropped as
// soon as they are packed. Fresh pages cost more than what is written to them, so the largest buffer that was given
// back serves the next tensor. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace coluber {

class LoadBuffer {
 public:
  LoadBuffer() = default;
  LoadBuffer(LoadBuffer&& other) noexcept : bytes_(std::exchange(other.bytes_, 0)), data_(std::move(other.data_)) {}
  LoadBuffer& operator=(LoadBuffer&& other) noexcept {
    bytes_ = std::exchange(other.bytes_, 0);
    data_ = std::move(other.data_);
    return *this;
  }
  explicit LoadBuffer(int64_t bytes) : bytes_(std::max<int64_t>(bytes, 1)) {
    data_.reset(new std::byte[static_cast<size_t>(bytes_)]);
  }
  std::byte* get() const noexcept { return data_.get(); }
  int64_t bytes() const noexcept { return bytes_; }

 private:
  int64_t bytes_ = 0;
  std::unique_ptr<std::byte[]> data_;
};

class SpareBuffer {
 public:
  // At least so many bytes, of any content.
  LoadBuffer take(int64_t bytes) {
    if (spare_.get() != nullptr && spare_.bytes() >= bytes) return std::exchange(spare_, LoadBuffer());
    spare_ = LoadBuffer();  // too small: before the larger one is there
    return LoadBuffer(bytes);
  }
  void put_back(LoadBuffer buffer) noexcept {
    if (buffer.bytes() > spare_.bytes()) spare_ = std::move(buffer);
  }

 private:
  LoadBuffer spare_;
};

}  // namespace coluber
