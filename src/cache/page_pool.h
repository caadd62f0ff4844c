// SPDX-License-Identifier: Apache-2.0
//
// Pages of one size in one elastic range: `page(id)` is base + id * stride_bytes for the life of the pool, while the
// memory behind free pages can be given back. Page 0 is the null page and is never handed out. Pages are counted:
// whoever keeps one holds a reference, and the page is free when the last one goes. Owns its memory; not thread-safe.
//
// A pool of its own hands out the lowest free id first, so that used pages stay together and whole slabs at the end
// come free. Two kinds of pages may also share one pool: then a page of the second kind is a run of neighbouring pages
// of the first, named by the first of them. Runs lie at the low end and single pages at the high one.
#pragma once

#include <cstdint>
#include <memory>
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
  // Runs of `run` pages of `host`, which hands out its own pages from the high end on from now on.
  PagePool(PagePool& host, std::string name, int64_t run);

  // None where every page is in use, or no run is free. Throws Error(kOutOfMemory) where the memory behind a page
  // cannot be had; the pool is then as it was. A page's content is whatever was there before, or NaN where poisoning is
  // on. The caller holds the one reference.
  std::optional<int32_t> allocate();
  void retain(int32_t id);  // one reference more
  // One reference less; true where the page is free now. A page that is not in use is a broken invariant.
  bool release(int32_t id);
  bool in_use(int32_t id) const noexcept { return ref_count(id) > 0; }
  int32_t ref_count(int32_t id) const noexcept;
  // Gives back slabs that hold free pages only, from the last one on, until at most `keep_bytes` of such are left.
  // Constant time where there are none.
  void trim(int64_t keep_bytes = 0);

  // Tests: pages are filled with 0xFF bytes as they are handed out, which is NaN in float32, bfloat16 and float16.
  void set_poison(bool poison) noexcept { poison_ = poison; }

  const std::string& name() const noexcept { return name_; }
  std::byte* base() const noexcept { return blocks_->range.base(); }
  std::byte* page(int32_t id) const noexcept { return base() + static_cast<int64_t>(id) * stride_bytes(); }
  int64_t page_bytes() const noexcept { return run_ * blocks_->bytes; }
  int64_t stride_bytes() const noexcept { return blocks_->bytes; }  // between ids
  int64_t max_pages() const noexcept { return blocks_->count; }     // ids are below it
  int64_t num_used() const noexcept { return num_used_; }
  int64_t num_free() const noexcept { return (blocks_->count - 1 - blocks_->num_used) / run_; }
  // Of a shared pool, all of it.
  int64_t used_bytes() const noexcept { return blocks_->num_used * blocks_->bytes; }
  int64_t mapped_bytes() const noexcept { return blocks_->range.mapped_bytes(); }
  // Of them, in slabs that hold free pages only: what `trim` gives back.
  int64_t idle_bytes() const noexcept { return blocks_->idle_slabs * slab_bytes(); }
  int64_t slab_bytes() const noexcept { return blocks_->range.slab_bytes(); }
  bool shares(const PagePool& other) const noexcept { return blocks_ == other.blocks_; }

 private:
  struct Blocks {
    Device& device;
    int64_t bytes;
    int64_t count;
    ElasticRange range;
    std::vector<uint64_t> used;       // one bit a block
    std::vector<int32_t> refs;        // by id, as far as ids were ever handed out
    std::vector<int32_t> slab_pages;  // used blocks that lie in a slab, whole or in part
    int64_t idle_slabs = 0;           // mapped, and no used block in them
    int64_t num_used = 0;
    bool has_runs = false;
    int64_t low_word = 0;   // no free block lies in an earlier word
    int64_t high_word = 0;  // nor in a later one

    Blocks(Device& of, int64_t block_bytes, int64_t block_count);
    bool is_used(int64_t id) const noexcept;
    void set_used(int64_t id, bool is_used) noexcept;
    void map(int64_t id, int64_t run);
    int64_t first_slab(int64_t id) const noexcept { return id * bytes / range.slab_bytes(); }
    int64_t last_slab(int64_t id) const noexcept { return ((id + 1) * bytes - 1) / range.slab_bytes(); }
  };

  int64_t lowest_free() const noexcept;
  int64_t highest_free() const noexcept;
  int64_t lowest_run() const noexcept;
  int64_t find_free() const noexcept;

  std::string name_;
  std::shared_ptr<Blocks> blocks_;
  int64_t run_ = 1;
  int64_t num_used_ = 0;
  bool poison_ = false;
  bool is_host_ = false;  // of runs
};

}  // namespace coluber
