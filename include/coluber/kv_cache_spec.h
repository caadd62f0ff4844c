// SPDX-License-Identifier: Apache-2.0
//
// What a layer asks of the state cache: the size and kind of its page. Plain values, compared by value.
// A spec never allocates; the cache turns specs into pools and binds the pages with `bind_kv_cache`.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "coluber/dtype.h"
#include "coluber/tensor_view.h"

namespace coluber {

// The metadata backend of a recurrent layer (vLLM's members). Kinds outside this list use kCustom and a registered
// name.
enum class MambaAttentionBackendEnum { kMamba1, kMamba2, kShortConv, kLinear, kGdnAttn, kCustom };
std::string_view mamba_type_name(MambaAttentionBackendEnum type) noexcept;  // "MAMBA1", ..., "CUSTOM"
std::optional<MambaAttentionBackendEnum> parse_mamba_type(std::string_view name) noexcept;

// Which states a request keeps: one running state, one a block, the ones at step ends; kAuto is the engine's own choice
// of places and to layers the same as kNone.
enum class MambaCacheMode { kNone, kAll, kAlign, kAuto };
std::string_view mamba_cache_mode_name(MambaCacheMode mode) noexcept;  // "none", "all", "align", "auto"
std::optional<MambaCacheMode> parse_mamba_cache_mode(std::string_view name) noexcept;

struct EngineConfig;  // config.h

struct MambaSpec {
  int64_t block_size = 0;     // tokens a block of this group stands for
  std::vector<Shape> shapes;  // one a state, local to the tensor-parallel rank
  std::vector<DType> dtypes;  // same length
  std::optional<int64_t> page_size_padded;
  MambaAttentionBackendEnum mamba_type = MambaAttentionBackendEnum::kMamba2;
  MambaCacheMode mamba_cache_mode = MambaCacheMode::kNone;
  int64_t num_speculative_blocks = 0;
  int64_t num_prefill_checkpoint_blocks = 0;
  std::optional<int64_t> prefill_checkpoint_alignment;
  bool tp_replicated = false;

  int64_t state_content_size_bytes() const;
  // page_size_padded, or the content. Throws Error(kInvalidConfig) where the padding is smaller than the content.
  int64_t page_size_bytes() const;
  int64_t max_num_blocks_per_req(int64_t max_model_len) const;  // blocks of one request resident at once, at most
  int64_t max_memory_usage_bytes(int64_t max_model_len) const;  // their bytes
  int64_t block_table_cols(int64_t max_model_len) const;        // width of a block-table row; in align mode by position
  bool operator==(const MambaSpec&) const = default;
};

struct FullAttentionSpec {
  int64_t block_size = 16;  // tokens a page holds
  int64_t num_kv_heads = 0;
  int64_t head_size = 0;
  DType dtype = DType::kFloat32;
  std::optional<int64_t> page_size_padded;
  int64_t planes = 2;       // keys and values; 1 where a value is a part of its key (latent attention)
  bool row_scales = false;  // of elements of a byte: each token's row of a head ends in its scale, a float32

  // Elements of a head's row as it lies in a page.
  int64_t stored_head_size() const noexcept { return head_size + (row_scales ? 4 : 0); }
  // planes * block_size * num_kv_heads * stored_head_size * element size, or the padded size.
  int64_t page_size_bytes() const;
  int64_t max_num_blocks_per_req(int64_t max_model_len) const;
  int64_t max_memory_usage_bytes(int64_t max_model_len) const;
  int64_t block_table_cols(int64_t max_model_len) const { return max_num_blocks_per_req(max_model_len); }
  bool operator==(const FullAttentionSpec&) const = default;
};

using KVCacheSpec = std::variant<MambaSpec, FullAttentionSpec>;

}  // namespace coluber
