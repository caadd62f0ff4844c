// SPDX-License-Identifier: Apache-2.0
//
// The one table that ties together the words of a kind of layer: the member of MambaAttentionBackendEnum, the backend's
// short name, its class name, and the word that case files and JSON use. Constant data.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "coluber/kv_cache_spec.h"

namespace coluber {

struct BackendNames {
  std::optional<MambaAttentionBackendEnum> type;  // none: softmax attention
  std::string_view backend;
  std::string_view class_name;
  std::string_view kind;
};

// The first row of an enum member is the one that the member alone selects; Kimi Delta Attention shares GDN's builder.
inline constexpr std::array<BackendNames, 7> kBackendNames = {{
    {MambaAttentionBackendEnum::kMamba1, "mamba1", "Mamba1AttentionBackend", "mamba1"},
    {MambaAttentionBackendEnum::kMamba2, "mamba2", "Mamba2AttentionBackend", "mamba2"},
    {MambaAttentionBackendEnum::kShortConv, "short_conv", "ShortConvAttentionBackend", "short_conv"},
    {MambaAttentionBackendEnum::kLinear, "linear_attn", "LinearAttentionBackend", "linear_attention"},
    {MambaAttentionBackendEnum::kGdnAttn, "gdn_attn", "GDNAttentionBackend", "gdn"},
    {MambaAttentionBackendEnum::kGdnAttn, "kda", "GDNAttentionBackend", "kda"},
    {std::nullopt, "full_attn", "FullAttentionBackend", "full_attention"},
}};

// Null where no row has the member (CUSTOM), or the class name.
constexpr const BackendNames* find_backend_names(MambaAttentionBackendEnum type) noexcept {
  for (const BackendNames& row : kBackendNames)
    if (row.type == type) return &row;
  return nullptr;
}
constexpr const BackendNames* find_backend_names(std::string_view class_name) noexcept {
  for (const BackendNames& row : kBackendNames)
    if (row.class_name == class_name) return &row;
  return nullptr;
}

}  // namespace coluber
