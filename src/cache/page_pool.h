// SPDX-License-Identifier: Apache-2.0
//
// Pages of one size in one elastic range: `page(id)` is base + id * page_bytes for the life of the pool, while the
// memory behind free pages can be given back. Page 0 is the null page and is never handed out. Lowest free id first, so
// that used pages stay together and whole slabs at the end come free. Pages are counted: whoever keeps one holds a
// reference, and the page is free when the last one goes. Owns its memory; not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensor/device.h"
#include "tensor/elastic_range.h"

namespace coluber {

class PagePool {
 public:
  // `max_pages` counts the null page. Throws Error(kInvalidConfig) for sizes below one byte or two pages.
  PagePool(Device& device, std::string name, int64_t page_bytes, int64_t max_pages);

  // None where every page is in use. Throws Error(kOutOfMemory) where the memory behind a page cannot be had; the pool
  // is then as it was. A page's content is whatever was there before, or NaN where poisoning is on. The caller holds
  // the one reference.
  std::optional<int32_t> allocate();
  void retain(int32_t id);  // one reference more
  // One reference less; true where the page is free now. A page that is not in use is a broken invariant.
  bool release(int32_t id);
  bool in_use(int32_t id) const noexcept { return ref_count(id) > 0; }
  int32_t ref_count(int32_t id) const noexcept;
  // Gives back the slabs that hold free pages only.
  void trim();

  // Tests: pages are filled with 0xFF bytes as they are handed out, which is NaN in float32, bfloat16 and float16.
  void set_poison(bool poison) noexcept { poison_ = poison; }

  const std::string& name() const noexcept { return name_; }
  std::byte* base() const noexcept { return range_.base(); }
  std::byte* page(int32_t id) const noexcept { return range_.base() + static_cast<int64_t>(id) * page_bytes_; }
  int64_t page_bytes() const noexcept { return page_bytes_; }
  int64_t max_pages() const noexcept { return max_pages_; }
  int64_t num_used() const noexcept { return num_used_; }
  int64_t num_free() const noexcept { return max_pages_ - 1 - num_used_; }
  int64_t mapped_bytes() const noexcept { return range_.mapped_bytes(); }

 private:
  int64_t lowest_free() const noexcept;

  Device& device_;
  std::string name_;
  int64_t page_bytes_;
  int64_t max_pages_;
  int64_t num_used_ = 0;
  bool poison_ = false;
  ElasticRange range_;
  std::vector<uint64_t> used_;     // one bit a page
  std::vector<int32_t> refs_;      // by id, as far as ids were ever handed out
  mutable size_t first_word_ = 0;  // no free page lies in an earlier word
};

}  // namespace coluber
