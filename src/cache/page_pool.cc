// SPDX-License-Identifier: Apache-2.0
#include "cache/page_pool.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/error.h"
#include "cache/arithmetic.h"

namespace coluber {
namespace {

constexpr int64_t kBits = 64;

int64_t checked_count(const std::string& name, int64_t page_bytes, int64_t max_pages) {
  if (page_bytes < 1 || max_pages < 2 || max_pages > std::numeric_limits<int32_t>::max())
    throw make_error(ErrorCode::kInvalidConfig,
                     "pool '{}': {} pages of {} bytes, expected 2 to 2147483647 pages of at least one byte", name,
                     max_pages, page_bytes);
  return max_pages;
}

}  // namespace

PagePool::Blocks::Blocks(Device& of, int64_t block_bytes, int64_t block_count)
    : device(of),
      bytes(block_bytes),
      count(block_count),
      range(of, checked_mul(block_bytes, block_count)),
      used(static_cast<size_t>(ceil_div(block_count, kBits)), 0),
      high_word(std::ssize(used) - 1) {
  used[0] = 1;
  // Bits beyond the last block read as used, so that the search needs no bound of its own.
  for (int64_t id = count; id % kBits != 0; ++id) set_used(id, true);
}

bool PagePool::Blocks::is_used(int64_t id) const noexcept {
  return (used[static_cast<size_t>(id / kBits)] >> (id % kBits) & 1) != 0;
}

void PagePool::Blocks::set_used(int64_t id, bool is_used) noexcept {
  uint64_t& word = used[static_cast<size_t>(id / kBits)];
  const uint64_t bit = uint64_t{1} << (id % kBits);
  word = is_used ? word | bit : word & ~bit;
  if (is_used) return;
  low_word = std::min(low_word, id / kBits);
  high_word = std::max(high_word, id / kBits);
}

void PagePool::Blocks::map(int64_t id, int64_t run) {
  if (const auto last = static_cast<size_t>(last_slab(id + run - 1)); last >= slab_pages.size())
    slab_pages.resize(last + 1, 0);
  const int64_t before = range.mapped_bytes();
  // What was mapped holds no page yet, also where the memory for all of it could not be had.
  const auto count_idle = [&] { idle_slabs += (range.mapped_bytes() - before) / range.slab_bytes(); };
  try {
    range.map(id * bytes, run * bytes);
  } catch (...) {
    count_idle();
    throw;
  }
  count_idle();
}

PagePool::PagePool(Device& device, std::string name, int64_t page_bytes, int64_t max_pages)
    : name_(std::move(name)),
      blocks_(std::make_shared<Blocks>(device, page_bytes, checked_count(name_, page_bytes, max_pages))) {}

PagePool::PagePool(PagePool& host, std::string name, int64_t run)
    : name_(std::move(name)), blocks_(host.blocks_), run_(run) {
  if (run < 1 || run >= blocks_->count)
    throw make_error(ErrorCode::kInvalidConfig, "pool '{}': runs of {} pages in a pool of {}, expected 1 to {}", name_,
                     run, blocks_->count, blocks_->count - 1);
  COLUBER_CHECK(blocks_->num_used == 0 && !blocks_->has_runs, "pool '{}' is shared after its first page", host.name_);
  blocks_->has_runs = true;
  host.is_host_ = true;
}

// ---- free ids: 0 where there is none ---------------------------------------------------------------------------

int64_t PagePool::lowest_free() const noexcept {
  const std::vector<uint64_t>& used = blocks_->used;
  int64_t& word = blocks_->low_word;
  while (word < std::ssize(used) && used[static_cast<size_t>(word)] == ~uint64_t{0}) ++word;
  if (word == std::ssize(used)) return 0;
  return word * kBits + std::countr_one(used[static_cast<size_t>(word)]);
}

int64_t PagePool::highest_free() const noexcept {
  const std::vector<uint64_t>& used = blocks_->used;
  int64_t& word = blocks_->high_word;
  while (word >= 0 && used[static_cast<size_t>(word)] == ~uint64_t{0}) --word;
  if (word < 0) return 0;
  return word * kBits + kBits - 1 - std::countl_one(used[static_cast<size_t>(word)]);
}

// Runs keep to a grid, so that they leave no gaps between each other; single pages may lie anywhere between them.
int64_t PagePool::lowest_run() const noexcept {
  const int64_t lowest = lowest_free();
  if (lowest == 0) return 0;
  for (int64_t id = 1 + (lowest - 1) / run_ * run_; id + run_ <= blocks_->count; id += run_) {
    int64_t taken = 0;
    while (taken < run_ && !blocks_->is_used(id + taken)) ++taken;
    if (taken == run_) return id;
  }
  return 0;
}

int64_t PagePool::find_free() const noexcept {
  if (run_ > 1) return lowest_run();
  return is_host_ ? highest_free() : lowest_free();
}

// ---- pages -----------------------------------------------------------------------------------------------------

std::optional<int32_t> PagePool::allocate() {
  const int64_t id = find_free();
  if (id == 0) return std::nullopt;
  Blocks& blocks = *blocks_;
  if (static_cast<size_t>(id) >= blocks.refs.size()) blocks.refs.resize(static_cast<size_t>(id) + 1, 0);
  blocks.map(id, run_);
  const auto page_id = static_cast<int32_t>(id);
  if (poison_) blocks.device.fill(page(page_id), std::byte{0xFF}, page_bytes());
  for (int64_t block = id; block < id + run_; ++block) {
    blocks.set_used(block, true);
    for (int64_t slab = blocks.first_slab(block); slab <= blocks.last_slab(block); ++slab)
      if (blocks.slab_pages[static_cast<size_t>(slab)]++ == 0) --blocks.idle_slabs;
  }
  blocks.refs[static_cast<size_t>(id)] = 1;
  blocks.num_used += run_;
  ++num_used_;
  return page_id;
}

int32_t PagePool::ref_count(int32_t id) const noexcept {
  return id > 0 && static_cast<size_t>(id) < blocks_->refs.size() ? blocks_->refs[static_cast<size_t>(id)] : 0;
}

void PagePool::retain(int32_t id) {
  COLUBER_CHECK(in_use(id), "pool '{}': page {} of {} is shared but not in use", name_, id, max_pages());
  ++blocks_->refs[static_cast<size_t>(id)];
}

bool PagePool::release(int32_t id) {
  COLUBER_CHECK(in_use(id), "pool '{}': page {} of {} is released but not in use", name_, id, max_pages());
  Blocks& blocks = *blocks_;
  if (--blocks.refs[static_cast<size_t>(id)] > 0) return false;
  for (int64_t block = id; block < id + run_; ++block) {
    blocks.set_used(block, false);
    for (int64_t slab = blocks.first_slab(block); slab <= blocks.last_slab(block); ++slab)
      if (--blocks.slab_pages[static_cast<size_t>(slab)] == 0) ++blocks.idle_slabs;
  }
  blocks.num_used -= run_;
  --num_used_;
  return true;
}

void PagePool::trim(int64_t keep_bytes) {
  Blocks& blocks = *blocks_;
  for (int64_t slab = std::ssize(blocks.slab_pages) - 1; slab >= 0 && idle_bytes() > keep_bytes; --slab) {
    const int64_t at = slab * slab_bytes();
    if (blocks.slab_pages[static_cast<size_t>(slab)] > 0 || !blocks.range.is_mapped(at, slab_bytes())) continue;
    blocks.range.unmap(at, slab_bytes());
    --blocks.idle_slabs;
  }
}

}  // namespace coluber
