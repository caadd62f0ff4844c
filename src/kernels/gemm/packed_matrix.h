// SPDX-License-Identifier: Apache-2.0
//
// A weight matrix W [N, K] packed once at load for the matrix products of this processor. Owns its memory. The element
// type is the one it was stored in (float32, bfloat16, float16, or a block type): products widen in registers or, of
// blocks, a tile in the cache; nothing ever expands the whole matrix.
//
// One layout serves every SIMD tier, one row as well as many, so a weight is held once: panels of kPanel successive
// outputs (the last as wide as needed, in multiples of kPanelStep, filled up with zeros), panel after panel; inside a
// panel k ascends and each k has the panel's outputs side by side. A block type (base/block_type.h) with a panel form
// has its blocks in this order, the bytes of kPanelStep outputs interleaved (kernels/quant/panel_form.h); the others
// are held as their file has them: rows of whole blocks. Bfloat16 holds two successive k of an output side by side (an
// odd K is filled up with a zero): one load then feeds a bf16 dot, or two widenings that cost a shift and a mask.
//
// On a device that is not the host a weight is its rows [N, K], one behind the other.
//
// Where columns stand in another order (TensorView::column_order), k is counted in it: products gather a row of their
// input once, and unpack_row puts its values where they belong.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/block_type.h"
#include "base/thread_pool.h"
#include "coluber/tensor_view.h"
#include "kernels/quant/panel_form.h"
#include "tensor/device.h"

namespace coluber {

class PackedMatrix {
 public:
  static constexpr int64_t kPanel = 64;
  static constexpr int64_t kPanelStep = 16;

  PackedMatrix() = default;
  // `weight`: [N, K], rows may be strided, elements of a row contiguous. Throws Error(kUnsupported) for other types
  // than these, Error(kInvalidArgument) for other shapes, Error(kOutOfMemory) naming the bytes.
  static PackedMatrix pack(const TensorView& weight, ThreadPool& pool);
  // Rows as they are, in the memory of a device: for the device's products and look-ups alone. Throws
  // Error(kUnsupported) for block types, Error(kOutOfMemory) naming the bytes.
  static PackedMatrix upload(const TensorView& weight, Device& device);
  // A float32 matrix in memory of the caller, who has laid it out as panels and outlives it.
  static PackedMatrix borrow(float* panels, int64_t n, int64_t k) noexcept;

  int64_t n() const noexcept { return n_; }
  int64_t k() const noexcept { return k_; }
  DType dtype() const noexcept { return dtype_; }
  int64_t bytes() const noexcept { return bytes_; }
  const std::byte* data() const noexcept { return data_.get(); }
  // Null unless the elements are blocks.
  const BlockType* block_type() const noexcept { return block_type_; }
  // Null unless blocks are interleaved; where they are rows, panels say only which rows go together.
  const PanelForm* panel_form() const noexcept { return panel_form_; }
  // `count` elements from `first` of a row of blocks that is not interleaved, both multiples of a block, as float32.
  void decode_blocks(int64_t row, int64_t first, int64_t count, float* out) const;
  // Of interleaved blocks.
  PanelBlocks panel_blocks(int64_t panel) const noexcept;
  // Which column each k is of; empty: k itself.
  std::span<const int32_t> column_order() const noexcept { return column_order_; }
  // Writes row `row` as float32 [K], columns in order: the embedding look-up of a tied head.
  void unpack_row(int64_t row, float* out) const;
  // The same with columns as they stand.
  void unpack_stored_row(int64_t row, float* out) const;

  int64_t num_panels() const noexcept { return (n_ + kPanel - 1) / kPanel; }
  // Outputs that panel `panel` holds, the zeros among them: kPanel or, for the last, a smaller multiple of kPanelStep.
  int64_t panel_width(int64_t panel) const noexcept;
  // K, rounded up to a whole pair for bfloat16.
  int64_t padded_k() const noexcept { return dtype_ == DType::kBFloat16 ? (k_ + 1) / 2 * 2 : k_; }
  // First element of a panel, in elements from data().
  int64_t panel_offset(int64_t panel) const noexcept { return panel * kPanel * padded_k(); }

 private:
  struct Free {
    int64_t bytes;
    Device* device;  // null: pages of the host
    void operator()(std::byte* memory) const noexcept;
  };
  std::unique_ptr<std::byte[], Free> data_;
  static PackedMatrix pack_blocks(const TensorView& weight, const BlockType& type, ThreadPool& pool);
  void keep_rows(const TensorView& weight, ThreadPool& pool);
  void interleave(const TensorView& weight, ThreadPool& pool);
  std::byte* group_of(int64_t row, int64_t block) const noexcept;

  DType dtype_ = DType::kFloat32;
  const BlockType* block_type_ = nullptr;
  const PanelForm* panel_form_ = nullptr;
  int64_t n_ = 0, k_ = 0, bytes_ = 0;
  std::vector<int32_t> column_order_;
};

}  // namespace coluber
