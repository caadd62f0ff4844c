// SPDX-License-Identifier: Apache-2.0
#include "models/expert_fields.h"

#include <algorithm>

#include "base/error.h"
#include "models/sizes.h"

namespace coluber {

void check_expert_groups(ConfigFields& fields, const ExpertGroups& g) {
  fields
      .check([&] { return g.num_experts % g.num_groups == 0; },
             fmt::format("{} must divide {}", g.groups_name, g.experts_name))
      .check([&] { return g.topk_groups <= g.num_groups; }, fmt::format("topk_group must be at most {}", g.groups_name))
      .check([&] { return g.top_k <= g.num_experts / g.num_groups * g.topk_groups; },
             fmt::format("{} must be at most the experts of topk_group groups", g.top_k_name));
}

LatentAttentionConfig read_latent_fields(ConfigFields& fields, const LatentAttentionConfig& defaults,
                                         int64_t most_rotated) {
  LatentAttentionConfig c = defaults;
  int64_t kv_heads = 0;
  std::optional<int64_t> q_rank;
  fields.required("num_attention_heads", &c.num_heads, heads_bound())
      .optional("num_key_value_heads", &kv_heads, c.num_heads, heads_bound())
      .optional("q_lora_rank", &q_rank, width_bound())
      .optional("kv_lora_rank", &c.kv_lora_rank, defaults.kv_lora_rank, width_bound())
      .optional("qk_nope_head_dim", &c.qk_nope_head_dim, defaults.qk_nope_head_dim, head_dim_bound())
      .optional("qk_rope_head_dim", &c.qk_rope_head_dim, defaults.qk_rope_head_dim,
                between(0, static_cast<double>(most_rotated)))
      .optional("v_head_dim", &c.v_head_dim, defaults.v_head_dim, head_dim_bound())
      .optional("attention_bias", &c.bias, false)
      .check([&] { return kv_heads == c.num_heads; }, "num_key_value_heads must be num_attention_heads")
      .check(
          [&] {
            const int64_t widest = std::max({c.qk_nope_head_dim + c.qk_rope_head_dim, c.qk_nope_head_dim + c.v_head_dim,
                                             c.kv_lora_rank + c.qk_rope_head_dim});
            return c.num_heads * widest <= kMostWidth;
          },
          fmt::format("num_attention_heads times the parts of a head must be at most {}", kMostWidth));
  if (q_rank) c.q_lora_rank = q_rank;
  return c;
}

}  // namespace coluber
