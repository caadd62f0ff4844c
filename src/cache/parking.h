// SPDX-License-Identifier: Apache-2.0
//
// A sequence's states and attention pages in host memory, while its places in the pools serve others. Made by one copy
// of the states and one a page; gives the same bytes back. Its memory is that of the buffers it was given. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cache/host_buffers.h"
#include "cache/page_pool.h"
#include "cache/state_tag.h"

namespace coluber {

class ParkedSequence {
 public:
  // Null where the host has no memory. `pages` may be null for models without attention; then `ids` is empty.
  // `buffers` outlives what is parked.
  static std::shared_ptr<ParkedSequence> park(HostBuffers& buffers, Device& device, const PagePool& slots, int32_t slot,
                                              const PagePool* pages, std::span<const int32_t> ids, const StateTag& tag);
  // Into a slot and as many pages as were parked.
  void unpark(Device& device, const PagePool& slots, int32_t slot, const PagePool* pages,
              std::span<const int32_t> ids) const;

  const StateTag& tag() const noexcept { return tag_; }
  int64_t num_pages() const noexcept { return num_pages_; }
  int64_t bytes() const noexcept { return bytes_; }

 private:
  HostBuffers::Buffer memory_;
  int64_t bytes_ = 0;
  int64_t num_pages_ = 0;
  StateTag tag_;
};

}  // namespace coluber
