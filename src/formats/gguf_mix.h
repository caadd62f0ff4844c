// SPDX-License-Identifier: Apache-2.0
//
// Which type each tensor of a GGUF file gets when a model is written as "q4_k_m" and the like: llama.cpp's rules, so
// that files of both writers have the same sizes and the same weak spots. Looks at names and shapes alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coluber/tensor_view.h"

namespace coluber {

struct GgufMix {
  std::string_view name;     // "q4_k_m"
  std::string_view type;     // of most matrices, as dtype_name spells it: "Q4_K"
  uint32_t file_type;        // general.file_type
  std::string_view summary;  // for help
};

const std::vector<GgufMix>& gguf_mixes();
const GgufMix* find_gguf_mix(std::string_view name) noexcept;

struct GgufMixTensor {
  std::string_view name;  // "blk.3.ffn_down.weight"
  Shape shape;
};

// One type a tensor. The tensors come in the order of their layers: the rules count along them. `num_layers` as the
// metadata will say, `num_experts` 0 or 1 where there are none.
std::vector<DType> choose_gguf_types(const GgufMix& mix, const std::vector<GgufMixTensor>& tensors, int64_t num_layers,
                                     int64_t num_experts);

// What a user should know of the choice: which types stand in where rows are no whole blocks of the mix's own; empty
// where there is nothing to say.
std::string describe_short_rows(const GgufMix& mix, const std::vector<GgufMixTensor>& tensors,
                                const std::vector<DType>& types);

}  // namespace coluber
