// SPDX-License-Identifier: Apache-2.0
#include "cache/page_pool.h"

#include <bit>
#include <limits>
#include <utility>

#include "base/error.h"
#include "cache/arithmetic.h"

namespace coluber {
namespace {

constexpr int64_t kBits = 64;

int64_t checked_range_bytes(const std::string& name, int64_t page_bytes, int64_t max_pages) {
  if (page_bytes < 1 || max_pages < 2 || max_pages > std::numeric_limits<int32_t>::max())
    throw make_error(ErrorCode::kInvalidConfig,
                     "pool '{}': {} pages of {} bytes, expected 2 to 2147483647 pages of at least one byte", name,
                     max_pages, page_bytes);
  return checked_mul(page_bytes, max_pages);
}

}  // namespace

PagePool::PagePool(Device& device, std::string name, int64_t page_bytes, int64_t max_pages)
    : device_(device),
      name_(std::move(name)),
      page_bytes_(page_bytes),
      max_pages_(max_pages),
      range_(device, checked_range_bytes(name_, page_bytes, max_pages)),
      used_(static_cast<size_t>(ceil_div(max_pages, kBits)), 0) {
  used_[0] = 1;
  // Bits beyond the last page read as used, so that the search needs no bound of its own.
  for (int64_t id = max_pages; id % kBits != 0; ++id)
    used_[static_cast<size_t>(id / kBits)] |= uint64_t{1} << (id % kBits);
}

int64_t PagePool::lowest_free() const noexcept {
  while (first_word_ < used_.size() && used_[first_word_] == ~uint64_t{0}) ++first_word_;
  if (first_word_ == used_.size()) return 0;
  return static_cast<int64_t>(first_word_) * kBits + std::countr_one(used_[first_word_]);
}

std::optional<int32_t> PagePool::allocate() {
  const int64_t id = lowest_free();
  if (id == 0) return std::nullopt;
  if (static_cast<size_t>(id) >= refs_.size()) refs_.resize(static_cast<size_t>(id) + 1, 0);
  range_.map(id * page_bytes_, page_bytes_);
  if (poison_) device_.fill(page(static_cast<int32_t>(id)), std::byte{0xFF}, page_bytes_);
  used_[static_cast<size_t>(id / kBits)] |= uint64_t{1} << (id % kBits);
  refs_[static_cast<size_t>(id)] = 1;
  ++num_used_;
  return static_cast<int32_t>(id);
}

int32_t PagePool::ref_count(int32_t id) const noexcept {
  return id > 0 && static_cast<size_t>(id) < refs_.size() ? refs_[static_cast<size_t>(id)] : 0;
}

void PagePool::retain(int32_t id) {
  COLUBER_CHECK(in_use(id), "pool '{}': page {} of {} is shared but not in use", name_, id, max_pages_);
  ++refs_[static_cast<size_t>(id)];
}

bool PagePool::release(int32_t id) {
  COLUBER_CHECK(in_use(id), "pool '{}': page {} of {} is released but not in use", name_, id, max_pages_);
  if (--refs_[static_cast<size_t>(id)] > 0) return false;
  const auto word = static_cast<size_t>(id / kBits);
  used_[word] &= ~(uint64_t{1} << (id % kBits));
  if (word < first_word_) first_word_ = word;
  --num_used_;
  return true;
}

void PagePool::trim() {
  int64_t free_from = 0;  // the null page holds nothing
  for (int64_t id = 1; id <= max_pages_; ++id) {
    const bool used = id < max_pages_ && in_use(static_cast<int32_t>(id));
    if (!used && id < max_pages_) continue;
    // The last run reaches the end of the range, whose last slab may be longer than the pages.
    const int64_t end = id == max_pages_ ? range_.max_bytes() : id * page_bytes_;
    if (end > free_from * page_bytes_) range_.unmap(free_from * page_bytes_, end - free_from * page_bytes_);
    free_from = id + 1;
  }
}

}  // namespace coluber
