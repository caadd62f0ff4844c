// SPDX-License-Identifier: Apache-2.0
//
// One contiguous virtual range whose physical memory is mapped and given back in slabs, so that `base + index * stride`
// stays valid while the memory behind it grows and shrinks. Owns the range. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/device.h"

namespace coluber {

class ElasticRange {
 public:
  ElasticRange(Device& device, int64_t max_bytes);  // reserves; maps nothing
  ~ElasticRange();
  ElasticRange(const ElasticRange&) = delete;
  ElasticRange& operator=(const ElasticRange&) = delete;

  std::byte* base() const noexcept { return base_; }
  int64_t max_bytes() const noexcept { return max_bytes_; }
  int64_t mapped_bytes() const noexcept { return mapped_slabs_ * slab_bytes_; }
  int64_t slab_bytes() const noexcept { return slab_bytes_; }
  bool is_mapped(int64_t offset, int64_t bytes) const noexcept;
  // Maps every slab that touches [offset, offset + bytes). Mapped slabs keep their content. New memory reads as zero.
  void map(int64_t offset, int64_t bytes);
  // Gives back the slabs that lie wholly in [offset, offset + bytes).
  void unmap(int64_t offset, int64_t bytes);

 private:
  Device& device_;
  std::byte* base_ = nullptr;
  int64_t max_bytes_ = 0;
  int64_t slab_bytes_ = 0;
  int64_t mapped_slabs_ = 0;
  std::vector<bool> mapped_;
};

}  // namespace coluber
