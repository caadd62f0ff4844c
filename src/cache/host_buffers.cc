// SPDX-License-Identifier: Apache-2.0
#include "cache/host_buffers.h"

#include <algorithm>
#include <new>

#include "base/error.h"
#include "cache/arithmetic.h"
#include "tensor/device.h"

namespace coluber {
namespace {

// Below this the allocator's own memory is as quick, and less is wasted.
constexpr int64_t kSmall = int64_t{1} << 20;

}  // namespace

HostBuffers::Buffer::~Buffer() {
  if (data_ != nullptr) owner_->give(data_, capacity_);
}

HostBuffers::~HostBuffers() { drop_kept(); }

void HostBuffers::drop_kept() {
  for (const Kept& kept : kept_) drop(kept);
  kept_.clear();
  kept_bytes_ = 0;
}

void HostBuffers::drop(const Kept& kept) { cpu_device().release(kept.data, kept.capacity); }

HostBuffers::Buffer HostBuffers::take(int64_t bytes) {
  Buffer buffer;
  // The smallest that is large enough, unless most of it would lie idle.
  auto best = kept_.end();
  buffer.owner_ = this;
  for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
    const bool fits = kept->capacity >= bytes && kept->capacity / 2 <= bytes;
    if (fits && (best == kept_.end() || kept->capacity < best->capacity)) best = kept;
  }
  if (best != kept_.end()) {
    buffer.data_ = best->data;
    buffer.capacity_ = best->capacity;
    kept_bytes_ -= best->capacity;
    kept_.erase(best);
    return buffer;
  }
  if (bytes < kSmall) {
    buffer.capacity_ = std::max<int64_t>(bytes, 1);
    buffer.data_ = new (std::nothrow) std::byte[static_cast<size_t>(buffer.capacity_)];
    return buffer;
  }
  Device& host = cpu_device();
  buffer.capacity_ = round_up(bytes, host.slab_bytes());
  std::byte* range = nullptr;
  try {
    range = static_cast<std::byte*>(host.reserve(buffer.capacity_));
    host.map(range, buffer.capacity_);
    buffer.data_ = range;
  } catch (const Error&) {  // there is no memory: the caller does without
    if (range != nullptr) host.release(range, buffer.capacity_);
  }
  return buffer;
}

void HostBuffers::give(std::byte* data, int64_t capacity) {
  if (capacity < kSmall) {
    delete[] data;
    return;
  }
  largest_ = std::max(largest_, capacity);
  kept_.push_back({data, capacity});
  kept_bytes_ += capacity;
  while (kept_bytes_ > std::max(largest_, kLeastKept)) {
    drop(kept_.front());
    kept_bytes_ -= kept_.front().capacity;
    kept_.erase(kept_.begin());
  }
}

}  // namespace coluber
