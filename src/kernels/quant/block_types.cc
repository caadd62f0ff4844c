// SPDX-License-Identifier: Apache-2.0
#include "kernels/quant/block_types.h"

#include "base/block_type.h"
#include "kernels/quant/block_decoders.h"
#include "kernels/quant/panel_form.h"

namespace coluber {
namespace {

constexpr BlockType kTypes[] = {
    {"Q4_0", 32, 18, decode_q4_0},
    {"Q4_1", 32, 20, decode_q4_1},
    {"Q5_0", 32, 22, decode_q5_0},
    {"Q5_1", 32, 24, decode_q5_1},
    {"Q8_0", 32, 34, decode_q8_0},
    {"Q2_K", kSuperBlock, 84, decode_q2_k},
    {"Q3_K", kSuperBlock, 110, decode_q3_k},
    {"Q4_K", kSuperBlock, 144, decode_q4_k},
    {"Q5_K", kSuperBlock, 176, decode_q5_k},
    {"Q6_K", kSuperBlock, 210, decode_q6_k},
    {"IQ1_S", kSuperBlock, 50, decode_iq1_s},
    {"IQ1_M", kSuperBlock, 56, decode_iq1_m},
    {"IQ2_XXS", kSuperBlock, 66, decode_iq2_xxs},
    {"IQ2_XS", kSuperBlock, 74, decode_iq2_xs},
    {"IQ2_S", kSuperBlock, 82, decode_iq2_s},
    {"IQ3_XXS", kSuperBlock, 98, decode_iq3_xxs},
    {"IQ3_S", kSuperBlock, 110, decode_iq3_s},
    {"IQ4_NL", 32, 18, decode_iq4_nl},
    {"IQ4_XS", kSuperBlock, 136, decode_iq4_xs},
    {"TQ1_0", kSuperBlock, 54, decode_tq1_0},
    {"TQ2_0", kSuperBlock, 66, decode_tq2_0},
    {"MXFP4", 32, 17, decode_mxfp4},
    {"NVFP4", 64, 36, decode_nvfp4},
};

}  // namespace

std::optional<DType> quantized_dtype(std::string_view ggml_name) {
  [[maybe_unused]] static const bool registered = [] {
    for (BlockType type : kTypes) {
      type.panel = ggml_panel_form(type.name);
      register_block_type(type);
    }
    return true;
  }();
  for (const BlockType& type : kTypes) {
    if (type.name == ggml_name) return parse_block_type(ggml_name);
  }
  return std::nullopt;
}

}  // namespace coluber
