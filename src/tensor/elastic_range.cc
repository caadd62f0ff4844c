// SPDX-License-Identifier: Apache-2.0
#include "tensor/elastic_range.h"

#include <limits>

#include "base/error.h"

namespace coluber {

ElasticRange::ElasticRange(Device& device, int64_t max_bytes) : device_(device), slab_bytes_(device.slab_bytes()) {
  if (max_bytes < 0 || max_bytes > std::numeric_limits<int64_t>::max() / 2) {
    throw make_error(ErrorCode::kInvalidArgument, "cannot reserve a range of {} bytes", max_bytes);
  }
  const int64_t slabs = (max_bytes + slab_bytes_ - 1) / slab_bytes_;
  max_bytes_ = slabs * slab_bytes_;
  if (slabs == 0) return;
  mapped_.resize(static_cast<size_t>(slabs), false);
  base_ = static_cast<std::byte*>(device_.reserve(max_bytes_));
}

ElasticRange::~ElasticRange() {
  if (base_ == nullptr) return;
  unmap(0, max_bytes_);
  device_.release(base_, max_bytes_);
}

bool ElasticRange::is_mapped(int64_t offset, int64_t bytes) const noexcept {
  if (offset < 0 || bytes < 0 || offset > max_bytes_ - bytes) return false;
  if (bytes == 0) return true;
  for (int64_t slab = offset / slab_bytes_; slab <= (offset + bytes - 1) / slab_bytes_; ++slab) {
    if (!mapped_[static_cast<size_t>(slab)]) return false;
  }
  return true;
}

void ElasticRange::map(int64_t offset, int64_t bytes) {
  COLUBER_CHECK(offset >= 0 && bytes >= 0 && offset <= max_bytes_ - bytes, "offset {}, {} bytes, range of {}", offset,
                bytes, max_bytes_);
  if (bytes == 0) return;
  const int64_t last = (offset + bytes - 1) / slab_bytes_;
  for (int64_t slab = offset / slab_bytes_; slab <= last;) {
    int64_t end = slab;
    while (end <= last && !mapped_[static_cast<size_t>(end)]) ++end;
    // A run of slabs in one call; the ones that are there already keep their content.
    if (end > slab) {
      device_.map(base_ + slab * slab_bytes_, (end - slab) * slab_bytes_);
      for (int64_t i = slab; i < end; ++i) mapped_[static_cast<size_t>(i)] = true;
      mapped_slabs_ += end - slab;
    }
    slab = end + 1;
  }
}

void ElasticRange::unmap(int64_t offset, int64_t bytes) {
  COLUBER_CHECK(offset >= 0 && bytes >= 0 && offset <= max_bytes_ - bytes, "offset {}, {} bytes, range of {}", offset,
                bytes, max_bytes_);
  const int64_t stop = (offset + bytes) / slab_bytes_;
  for (int64_t slab = (offset + slab_bytes_ - 1) / slab_bytes_; slab < stop;) {
    int64_t end = slab;
    while (end < stop && mapped_[static_cast<size_t>(end)]) ++end;
    if (end > slab) {
      device_.unmap(base_ + slab * slab_bytes_, (end - slab) * slab_bytes_);
      for (int64_t i = slab; i < end; ++i) mapped_[static_cast<size_t>(i)] = false;
      mapped_slabs_ -= end - slab;
    }
    slab = end + 1;
  }
}

}  // namespace coluber
