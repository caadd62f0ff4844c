// SPDX-License-Identifier: Apache-2.0
#include "coluber/kv_cache_spec.h"

#include <array>
#include <utility>

#include "base/error.h"
#include "cache/arithmetic.h"

namespace coluber {
namespace {

using TypeName = std::pair<MambaAttentionBackendEnum, std::string_view>;
constexpr std::array<TypeName, 6> kTypeNames = {{{MambaAttentionBackendEnum::kMamba1, "MAMBA1"},
                                                 {MambaAttentionBackendEnum::kMamba2, "MAMBA2"},
                                                 {MambaAttentionBackendEnum::kShortConv, "SHORT_CONV"},
                                                 {MambaAttentionBackendEnum::kLinear, "LINEAR"},
                                                 {MambaAttentionBackendEnum::kGdnAttn, "GDN_ATTN"},
                                                 {MambaAttentionBackendEnum::kCustom, "CUSTOM"}}};

using ModeName = std::pair<MambaCacheMode, std::string_view>;
constexpr std::array<ModeName, 4> kModeNames = {{{MambaCacheMode::kNone, "none"},
                                                 {MambaCacheMode::kAll, "all"},
                                                 {MambaCacheMode::kAlign, "align"},
                                                 {MambaCacheMode::kAuto, "auto"}}};

int64_t padded_page_bytes(int64_t content, std::optional<int64_t> padded) {
  if (!padded) return content;
  if (*padded < content)
    throw make_error(
        ErrorCode::kInvalidConfig,
        "page_size_padded is {} bytes, smaller than the {} bytes of content; raise it to at least the content", *padded,
        content);
  return *padded;
}

void require_lengths(int64_t max_model_len, int64_t block_size) {
  if (block_size < 1 || max_model_len < 1)
    throw make_error(ErrorCode::kInvalidConfig,
                     "block_size is {} and max_model_len is {}, expected both to be at least 1", block_size,
                     max_model_len);
}

}  // namespace

std::string_view mamba_type_name(MambaAttentionBackendEnum type) noexcept {
  for (const TypeName& entry : kTypeNames)
    if (entry.first == type) return entry.second;
  return "?";
}

std::optional<MambaAttentionBackendEnum> parse_mamba_type(std::string_view name) noexcept {
  for (const TypeName& entry : kTypeNames)
    if (entry.second == name) return entry.first;
  return std::nullopt;
}

std::string_view mamba_cache_mode_name(MambaCacheMode mode) noexcept {
  for (const ModeName& entry : kModeNames)
    if (entry.first == mode) return entry.second;
  return "?";
}

std::optional<MambaCacheMode> parse_mamba_cache_mode(std::string_view name) noexcept {
  for (const ModeName& entry : kModeNames)
    if (entry.second == name) return entry.first;
  return std::nullopt;
}

int64_t MambaSpec::state_content_size_bytes() const {
  if (shapes.size() != dtypes.size())
    throw make_error(ErrorCode::kInvalidConfig,
                     "a MambaSpec has {} state shapes and {} dtypes, expected one dtype a shape", shapes.size(),
                     dtypes.size());
  int64_t total = 0;
  for (size_t i = 0; i < shapes.size(); ++i) total = checked_add(total, dtype_bytes(dtypes[i], shapes[i].count()));
  return total;
}

int64_t MambaSpec::page_size_bytes() const { return padded_page_bytes(state_content_size_bytes(), page_size_padded); }

int64_t MambaSpec::max_num_blocks_per_req(int64_t max_model_len) const {
  require_lengths(max_model_len, block_size);
  switch (mamba_cache_mode) {
    case MambaCacheMode::kAll:
      return checked_add(ceil_div(max_model_len, block_size), num_speculative_blocks);
    case MambaCacheMode::kAlign:
      // The state before the step (source of the copy) and the running one.
      return checked_add(2 + num_speculative_blocks, num_prefill_checkpoint_blocks);
    case MambaCacheMode::kNone:
    case MambaCacheMode::kAuto:
      break;
  }
  return checked_add(1, num_speculative_blocks);
}

int64_t MambaSpec::max_memory_usage_bytes(int64_t max_model_len) const {
  return checked_mul(max_num_blocks_per_req(max_model_len), page_size_bytes());
}

int64_t MambaSpec::block_table_cols(int64_t max_model_len) const {
  if (mamba_cache_mode != MambaCacheMode::kAlign) return max_num_blocks_per_req(max_model_len);
  require_lengths(max_model_len, block_size);
  return checked_add(ceil_div(max_model_len, block_size), num_speculative_blocks);
}

int64_t FullAttentionSpec::page_size_bytes() const {
  if (block_size < 1 || num_kv_heads < 1 || head_size < 1)
    throw make_error(ErrorCode::kInvalidConfig,
                     "attention page: block_size {}, num_kv_heads {} and head_size {}, expected all to be at least 1",
                     block_size, num_kv_heads, head_size);
  if (row_scales && dtype_bits(dtype) != 8)
    throw make_error(ErrorCode::kInvalidConfig, "attention page: rows of {} have scales, expected elements of a byte",
                     dtype_name(dtype));
  const int64_t elements = checked_mul(checked_mul(checked_mul(planes, block_size), num_kv_heads), stored_head_size());
  return padded_page_bytes(dtype_bytes(dtype, elements), page_size_padded);
}

int64_t FullAttentionSpec::max_num_blocks_per_req(int64_t max_model_len) const {
  require_lengths(max_model_len, block_size);
  return ceil_div(max_model_len, block_size);
}

int64_t FullAttentionSpec::max_memory_usage_bytes(int64_t max_model_len) const {
  return checked_mul(max_num_blocks_per_req(max_model_len), page_size_bytes());
}

}  // namespace coluber
