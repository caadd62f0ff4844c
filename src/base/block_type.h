// SPDX-License-Identifier: Apache-2.0
//
// Types of quantised weights: a row is a whole number of blocks, each of which holds a fixed number of elements in a
// fixed number of bytes (codes, scales and all). A registered type is a DType like any other, above the enum's own
// values: dtype_name, dtype_bytes, parse_dtype and convert_to_float know it, so that a tensor of it can be named,
// measured, cut by rows and read. Who reads a format registers its types (kernels/quant); nothing here knows any.
// Registration may happen on any thread; a type is never removed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "coluber/dtype.h"

namespace coluber {

struct PanelForm;

struct BlockType {
  std::string_view name;  // "Q4_0"; must outlive the process
  int64_t elements = 0;   // of a block
  int64_t bytes = 0;      // of a block
  // `count` whole blocks at any address as float32: what the type's values are, bit for bit.
  void (*to_float)(const std::byte* blocks, int64_t count, float* out) = nullptr;
  // How kernels hold and expand it by vectors (kernels/quant/panel_form.h); null where they go row by row.
  const PanelForm* panel = nullptr;
};

// Throws Error(kInvalidArgument) where the name is taken or the sizes make no sense.
DType register_block_type(const BlockType& type);
// Null for the types of the enum.
const BlockType* find_block_type(DType dtype) noexcept;
std::optional<DType> parse_block_type(std::string_view name) noexcept;

}  // namespace coluber
