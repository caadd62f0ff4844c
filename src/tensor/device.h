// SPDX-License-Identifier: Apache-2.0
//
// Where memory lives and copies run. The CPU implementation is here; a CUDA one fills the same seam from its own
// library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace coluber {

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const noexcept = 0;
  virtual bool is_host() const noexcept = 0;  // its memory can be read and written by the program itself
  // Aligned to 128 bytes, not initialised. Throws Error(kOutOfMemory) naming the bytes.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void deallocate(void* memory, int64_t bytes) noexcept = 0;
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  virtual void fill(void* memory, std::byte value, int64_t bytes) = 0;
  virtual void synchronize() = 0;
  // A reserved range of addresses whose memory is mapped and given back in slabs (elastic_range.h).
  virtual int64_t slab_bytes() const noexcept = 0;
  virtual void* reserve(int64_t bytes) = 0;
  virtual void release(void* base, int64_t bytes) noexcept = 0;
  virtual void map(void* address, int64_t bytes) = 0;  // throws Error(kOutOfMemory)
  virtual void unmap(void* address, int64_t bytes) noexcept = 0;
};

Device& cpu_device();

}  // namespace coluber
