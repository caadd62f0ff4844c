// SPDX-License-Identifier: Apache-2.0
//
// What the families with experts or latent attention say alike: a router's groups must leave it a choice, and the
// fields of DeepSeek's latent attention. Each family reads its own fields beside them. Pure functions; problems go to
// the fields.
#pragma once

#include <cstdint>
#include <string>

#include "formats/hf_config.h"
#include "layers/latent_attention.h"

namespace coluber {

struct ExpertGroups {
  int64_t num_experts = 1, top_k = 1, num_groups = 1, topk_groups = 1;
  std::string experts_name = "n_routed_experts", top_k_name = "num_experts_per_tok", groups_name = "n_group";
};
void check_expert_groups(ConfigFields& fields, const ExpertGroups& groups);

// num_attention_heads, q_lora_rank, ..., with `defaults` where they are absent (no query rank: queries are projected at
// once); the rotated part may have up to `most_rotated` elements.
LatentAttentionConfig read_latent_fields(ConfigFields& fields, const LatentAttentionConfig& defaults,
                                         int64_t most_rotated);

}  // namespace coluber
