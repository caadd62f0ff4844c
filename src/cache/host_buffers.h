// SPDX-License-Identifier: Apache-2.0
//
// Host memory for what is put aside: in large pages where the system grants them, and kept for the next one, since
// fresh memory is cleared by the system page by page, which takes longer than the copy. Keeps at most what the largest
// buffer had, or `kLeastKept`. Buffers give themselves back and must not outlive their owner. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace coluber {

class HostBuffers {
 public:
  static constexpr int64_t kLeastKept = int64_t{16} << 20;

  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
      swap(other);
      return *this;
    }
    ~Buffer();

    std::byte* data() const noexcept { return data_; }  // null: there was no memory
    int64_t capacity() const noexcept { return capacity_; }

   private:
    friend class HostBuffers;
    void swap(Buffer& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(data_, other.data_);
      std::swap(capacity_, other.capacity_);
    }

    HostBuffers* owner_ = nullptr;
    std::byte* data_ = nullptr;
    int64_t capacity_ = 0;
  };

  HostBuffers() = default;
  ~HostBuffers();
  HostBuffers(const HostBuffers&) = delete;
  HostBuffers& operator=(const HostBuffers&) = delete;

  // At least so many bytes, of any content; a buffer without data where the host has no memory.
  Buffer take(int64_t bytes);
  int64_t kept_bytes() const noexcept { return kept_bytes_; }
  // What is kept goes back to the system.
  void drop_kept();

 private:
  struct Kept {
    std::byte* data = nullptr;
    int64_t capacity = 0;
  };
  void give(std::byte* data, int64_t capacity);
  void drop(const Kept& kept);

  std::vector<Kept> kept_;  // oldest first
  int64_t kept_bytes_ = 0;
  int64_t largest_ = 0;
};

}  // namespace coluber
