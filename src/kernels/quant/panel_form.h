// SPDX-License-Identifier: Apache-2.0
//
// How a weight in blocks is held for SIMD: the block types that have a panel form (BlockType::panel) lie in memory
// sixteen rows together, so that vector lanes are rows, and are expanded to float32 by vectors instead of row by row.
// Not a second copy and not larger: a group is the same bytes in another order. Tells the layout, the exchange of
// bytes at load and the functions that expand; PackedMatrix owns the memory, kernels/gemm decides what is expanded
// when.
//
//   group = sixteen rows' blocks of the same k; the units of a block (a scale, or four bytes of codes) one after the
//           other as in the file, each of all sixteen rows side by side: byte b of the unit at offset o of row r lies
//           at 16 o + r * unit + b
//   panel = for each block of k the groups of all its strips (of sixteen rows), so that it is read in one stream
//
// What an expansion gives are the values of BlockType::to_float, bit for bit but for the sign of zeros: codes are whole
// numbers that float32 holds, scales of GGUF times such a code need at most 24 bits, and a product of two such that is
// followed by a sum is one fused multiply-add, which rounds as the sum alone does. Where that holds for ordinary blocks
// only (a scale near the ends of float32, a code for NaN), `regular` tells, and a matrix with others keeps its rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/quant/scaled_types.h"

namespace coluber {

// A panel: groups from `data`, `strips` of them a block of k.
struct PanelBlocks {
  const std::byte* data = nullptr;
  int64_t strips = 0;
  int64_t elements = 0, bytes = 0;  // of a row's block
};

// Expands k from `first`, `count` of them (multiples of kStep), of `strips` strips from `first_strip` to
// out [count, 16 * strips].
using ExpandPanel = void(const PanelBlocks& from, int64_t first_strip, int64_t strips, int64_t first, int64_t count,
                         float* out);

// One row of A times all k below `count` of them: sums [16 * strips], each one chain of fused multiply-adds over k.
using MultiplyPanel = void(const PanelBlocks& from, int64_t first_strip, int64_t strips, const float* a, int64_t count,
                           float* sums);
struct PanelFunctions {
  ExpandPanel* expand = nullptr;
  MultiplyPanel* multiply = nullptr;  // null: no faster than to expand a few k at a time
};

struct PanelForm {
  static constexpr int64_t kRows = 16;
  static constexpr int64_t kStep = 32;  // divides K, or the block does not have a panel form

  struct Units {
    int64_t bytes = 0;  // of a unit: 1, 2 or 4
    int64_t count = 0;
  };
  std::array<Units, 4> units;  // those of a block, in order
  PanelFunctions avx2, avx512;
  bool (*regular)(const std::byte* blocks, int64_t count) = nullptr;  // null: all blocks are
};

// Row `lane`'s block into a group, and back.
void put_into_group(const PanelForm& form, const std::byte* block, int64_t lane, std::byte* group);
void take_from_group(const PanelForm& form, const std::byte* group, int64_t lane, std::byte* block);
// Successive blocks of kRows rows, `row_stride` bytes apart, into as many groups, `group_stride` bytes apart.
struct RowsOfBlocks {
  const std::byte* first = nullptr;
  int64_t row_stride = 0;
  int64_t count = 0;  // blocks of a row
};
void put_into_groups(const PanelForm& form, const RowsOfBlocks& rows, std::byte* groups, int64_t group_stride);

// Of GGUF's types and of groups that share a scale; null for those without.
const PanelForm* ggml_panel_form(std::string_view ggml_name);
const PanelForm* scaled_panel_form(const ScaledType& type);

}  // namespace coluber
