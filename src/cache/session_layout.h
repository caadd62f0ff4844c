// SPDX-License-Identifier: Apache-2.0
//
// How the states and attention pages of a saved sequence lie in bytes, described so fully that another layout can be
// made of them without the model: packing of states, order of convolution windows, tokens of an attention page, shares
// of tensor-parallel ranks. Conversions move elements and never change them. Plain values and pure functions; file
// format: session_file.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cache_layout.h"
#include "cache/state_parts.h"
#include "coluber/mamba_base.h"

namespace coluber {

// A convolution's window as (W-1, channels), the contract's and the engine's, or as (channels, W-1).
enum class ConvLayout : uint8_t { kSd, kDs };

struct SavedState {
  std::string name;  // "conv", "recurrent"
  DType dtype = DType::kFloat32;
  Shape shape;        // of this rank's share, in the contract's order
  Shape whole_shape;  // of all ranks together
  StateSplit split;
  StateLaneOrder order = StateLaneOrder::kContract;
  ConvLayout conv = ConvLayout::kSd;
  int64_t offset = 0;  // in the sequence's states

  bool is_conv_window() const { return name.starts_with("conv") && shape.rank() == 2; }
  int64_t bytes() const { return dtype_bytes(dtype, shape.count()); }
  bool operator==(const SavedState&) const = default;
};

// A layer's keys and values in a page: `planes` of [block_size, kv_heads, head_size], then [block_size, extra].
struct SavedAttention {
  DType dtype = DType::kFloat32;
  int64_t planes = 2;  // 1: values are part of the keys; such pages are not shared out
  int64_t kv_heads = 0;
  int64_t whole_kv_heads = 0;
  int64_t head_size = 0;
  int64_t extra = 0;
  int64_t offset = 0;  // in the page

  int64_t bytes(int64_t block_size) const;
  bool operator==(const SavedAttention&) const = default;
};

struct SavedLayer {
  std::string name;
  std::string kind;                         // "mamba2", "full_attention"
  std::vector<SavedState> states;           // of a recurrent layer
  std::optional<SavedAttention> attention;  // of an attention layer

  int64_t state_bytes() const;
  bool operator==(const SavedLayer&) const = default;
};

struct SessionLayout {
  StatePacking packing = StatePacking::kAligned;
  TensorParallelRank rank;
  int64_t block_size = 0;          // tokens of an attention page; 0: no attention layer
  std::vector<SavedLayer> layers;  // in the model's order
  int64_t slot_bytes = 0;          // all states of a sequence
  int64_t page_bytes = 0;          // one attention page of all layers

  int64_t num_pages(int64_t num_tokens) const {
    return block_size > 0 ? num_tokens / block_size + (num_tokens % block_size > 0 ? 1 : 0) : 0;
  }
  bool operator==(const SessionLayout&) const = default;
};

// Bytes that somebody keeps: the states in one piece, attention pages one a piece.
struct SessionBytes {
  std::span<const std::byte> states;
  std::vector<std::span<const std::byte>> pages;
  std::vector<std::shared_ptr<const void>> owners;
};

struct LayoutChange {
  std::optional<StatePacking> packing;
  std::optional<ConvLayout> conv;
  std::optional<int64_t> block_size;
  TensorParallelRank rank;
};

// `from` (a whole one or a rank's) as the share of `change.rank`, with offsets for the packing. Kernels' own orders of
// elements are kept where nothing else about a state changes. Throws Error(kInvalidConfig) where a state cannot be
// shared out so.
SessionLayout changed_layout(const SessionLayout& from, const LayoutChange& change);

struct SessionPart {
  const SessionLayout* layout = nullptr;
  const SessionBytes* bytes = nullptr;
};
// The content of `parts`, which are all ranks of one session in order (one part: a whole session), in layout `to`.
// Throws Error(kInvalidData) where the layouts describe different models or the parts disagree.
SessionBytes convert_session(std::span<const SessionPart> parts, const SessionLayout& to, int64_t num_tokens);

// Why states in layout `a` cannot become those of layout `b` ("layer 'x': state conv is float32 ..."); empty where they
// can. Offsets, orders, packing and page sizes may differ, elements may not.
std::string difference(const SessionLayout& a, const SessionLayout& b);

}  // namespace coluber
