// SPDX-License-Identifier: Apache-2.0
#include "cache/parking.h"

#include "base/error.h"

namespace coluber {

std::shared_ptr<ParkedSequence> ParkedSequence::park(HostBuffers& buffers, Device& device, const PagePool& slots,
                                                     int32_t slot, const PagePool* pages, std::span<const int32_t> ids,
                                                     const StateTag& tag) {
  const int64_t page_bytes = pages != nullptr ? pages->page_bytes() : 0;
  const int64_t bytes = slots.page_bytes() + std::ssize(ids) * page_bytes;
  HostBuffers::Buffer memory = buffers.take(bytes);
  if (memory.data() == nullptr) return nullptr;
  device.copy(memory.data(), slots.page(slot), slots.page_bytes());
  std::byte* to = memory.data() + slots.page_bytes();
  for (const int32_t id : ids) {
    device.copy(to, pages->page(id), page_bytes);
    to += page_bytes;
  }
  device.synchronize();
  auto parked = std::make_shared<ParkedSequence>();
  parked->memory_ = std::move(memory);
  parked->bytes_ = bytes;
  parked->num_pages_ = std::ssize(ids);
  parked->tag_ = tag;
  return parked;
}

void ParkedSequence::unpark(Device& device, const PagePool& slots, int32_t slot, const PagePool* pages,
                            std::span<const int32_t> ids) const {
  COLUBER_CHECK(std::ssize(ids) == num_pages_, "{} pages for a sequence parked with {}", ids.size(), num_pages_);
  device.copy(slots.page(slot), memory_.data(), slots.page_bytes());
  const std::byte* from = memory_.data() + slots.page_bytes();
  for (const int32_t id : ids) {
    device.copy(pages->page(id), from, pages->page_bytes());
    from += pages->page_bytes();
  }
  device.synchronize();
}

}  // namespace coluber
