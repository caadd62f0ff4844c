// SPDX-License-Identifier: Apache-2.0
//
// A sequence's states and attention pages in host memory or in a file, while its places in the pools serve others. Made
// by one copy of the states and one a page; gives the same bytes back. Its memory is that of the buffers it was given;
// its file has no name, so that nothing stays however the process ends. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

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
  // The same, into a file of the folder. Null where it cannot be made or written whole (a full disk); `problem` then
  // says why.
  static std::shared_ptr<ParkedSequence> park_in_file(Device& device, const PagePool& slots, int32_t slot,
                                                      const PagePool* pages, std::span<const int32_t> ids,
                                                      const StateTag& tag, const std::string& folder,
                                                      std::string& problem);
  ParkedSequence() = default;
  ~ParkedSequence();
  ParkedSequence(const ParkedSequence&) = delete;
  ParkedSequence& operator=(const ParkedSequence&) = delete;

  // Into a slot and as many pages as were parked. False where the file cannot be read: slot and pages then hold nothing
  // of use, and `problem` says why.
  bool unpark(Device& device, const PagePool& slots, int32_t slot, const PagePool* pages, std::span<const int32_t> ids,
              std::string& problem) const;

  const StateTag& tag() const noexcept { return tag_; }
  int64_t num_pages() const noexcept { return num_pages_; }
  int64_t bytes() const noexcept { return bytes_; }
  bool is_in_file() const noexcept { return fd_ >= 0; }

 private:
  HostBuffers::Buffer memory_;
  int fd_ = -1;  // without memory
  int64_t bytes_ = 0;
  int64_t num_pages_ = 0;
  StateTag tag_;
};

}  // namespace coluber
