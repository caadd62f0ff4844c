// SPDX-License-Identifier: Apache-2.0
#include "tensor/workspace.h"

#include <algorithm>

#include "base/error.h"
#include "tensor/huge_pages.h"

namespace coluber {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kFirstBlockBytes = int64_t{1} << 16;

int64_t round_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

// Rows of activations lie pages apart, so that a tile of a product would meet as many page table entries as it has
// rows.
Workspace::Block Workspace::allocate(int64_t size) {
  auto* memory = static_cast<std::byte*>(device_.allocate(size));
  if (device_.is_host()) ask_for_huge_pages(memory, size);
  return {std::unique_ptr<std::byte, Free>(memory, Free{&device_, size}), size, 0};
}

void* Workspace::take_bytes(int64_t bytes) {
  COLUBER_CHECK(bytes >= 0 && bytes <= INT64_MAX - kAlignment, "{} bytes of scratch memory asked for", bytes);
  // Nothing is handed out twice, not even an empty piece.
  const int64_t wanted = std::max(round_up(bytes), kAlignment);
  while (current_ < blocks_.size() && blocks_[current_].size - blocks_[current_].used < wanted) ++current_;
  if (current_ == blocks_.size()) {
    const int64_t size = std::max({wanted, capacity_bytes(), kFirstBlockBytes});
    blocks_.push_back(allocate(size));
  }
  Block& block = blocks_[current_];
  void* piece = block.memory.get() + block.used;
  block.used += wanted;
  return piece;
}

void Workspace::reset() {
  if (blocks_.size() > 1) {
    const int64_t size = capacity_bytes();
    blocks_.clear();  // first, so that the peak is not the sum of old and new
    blocks_.push_back(allocate(size));
  }
  for (Block& block : blocks_) block.used = 0;
  current_ = 0;
}

int64_t Workspace::capacity_bytes() const noexcept {
  int64_t total = 0;
  for (const Block& block : blocks_) total += block.size;
  return total;
}

WorkspaceScope::WorkspaceScope(Workspace& workspace)
    : workspace_(workspace),
      block_(workspace.current_),
      used_(block_ < workspace.blocks_.size() ? workspace.blocks_[block_].used : 0) {}

WorkspaceScope::~WorkspaceScope() {
  for (size_t i = block_ + 1; i < workspace_.blocks_.size(); ++i) workspace_.blocks_[i].used = 0;
  if (block_ < workspace_.blocks_.size()) workspace_.blocks_[block_].used = used_;
  workspace_.current_ = block_;
}

}  // namespace coluber
