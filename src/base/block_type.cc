// SPDX-License-Identifier: Apache-2.0
#include "base/block_type.h"

#include <array>
#include <atomic>
#include <mutex>

#include "base/error.h"

namespace coluber {
namespace {

// DType is a byte, and its enum ends far below.
constexpr int kFirst = 128, kMost = 128;

struct Table {
  std::array<BlockType, kMost> types;
  std::atomic<int> count = 0;  // entries below it never change again
  std::mutex registering;
};

Table& table() noexcept {
  static Table all;
  return all;
}

}  // namespace

DType register_block_type(const BlockType& type) {
  Table& all = table();
  const std::lock_guard lock(all.registering);
  const int count = all.count.load(std::memory_order_relaxed);
  const bool sensible = !type.name.empty() && type.elements > 0 && type.bytes > 0 && type.to_float != nullptr;
  if (!sensible || count == kMost || parse_dtype(type.name)) {
    throw make_error(ErrorCode::kInvalidArgument,
                     "the block type '{}' of {} elements in {} bytes cannot be registered as number {}: expected a new "
                     "name, positive sizes, a conversion, and at most {} types",
                     type.name, type.elements, type.bytes, count + 1, kMost);
  }
  all.types[static_cast<size_t>(count)] = type;
  all.count.store(count + 1, std::memory_order_release);
  return static_cast<DType>(kFirst + count);
}

const BlockType* find_block_type(DType dtype) noexcept {
  const int index = static_cast<int>(dtype) - kFirst;
  if (index < 0 || index >= table().count.load(std::memory_order_acquire)) return nullptr;
  return &table().types[static_cast<size_t>(index)];
}

std::optional<DType> parse_block_type(std::string_view name) noexcept {
  const int count = table().count.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i) {
    if (table().types[static_cast<size_t>(i)].name == name) return static_cast<DType>(kFirst + i);
  }
  return std::nullopt;
}

}  // namespace coluber
