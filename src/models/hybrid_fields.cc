// SPDX-License-Identifier: Apache-2.0
#include "models/hybrid_fields.h"

#include <algorithm>

#include "base/error.h"
#include "formats/norm_groups.h"
#include "models/sizes.h"

namespace coluber {

int64_t read_int_or_auto(ConfigFields& fields, std::string_view key, int64_t fallback, const FieldCheck& check) {
  const Json* value = fields.find(key);
  if (value == nullptr || (value->is_string() && value->as_string() == "auto")) return fallback;
  int64_t number = 0;
  fields.required(key, &number, check);
  return number;
}

AttentionConfig read_attention_fields(ConfigFields& fields, int64_t hidden_size, int64_t default_kv_heads,
                                      int64_t default_head_dim) {
  AttentionConfig c;
  const bool as_many_kv_heads = default_kv_heads == 0 || fields.is_null("num_key_value_heads");
  c.hidden_size = hidden_size;
  fields.required("num_attention_heads", &c.num_heads, heads_bound());
  fields
      .optional("num_key_value_heads", &c.num_kv_heads, as_many_kv_heads ? c.num_heads : default_kv_heads,
                heads_bound())
      .optional("head_dim", &c.head_dim,
                default_head_dim > 0 ? default_head_dim : std::max<int64_t>(hidden_size / c.num_heads, 1),
                head_dim_bound())
      .optional("attention_bias", &c.qkv_bias, false);
  c.out_bias = c.qkv_bias;
  fields
      .check([&] { return fields.has("head_dim") || default_head_dim > 0 || hidden_size % c.num_heads == 0; },
             "num_attention_heads must divide hidden_size where there is no head_dim")
      .check([&] { return c.num_heads % c.num_kv_heads == 0; }, "num_key_value_heads must divide num_attention_heads")
      .check([&] { return c.num_heads * c.head_dim <= kMostWidth; },
             fmt::format("num_attention_heads * head_dim must be at most {}", kMostWidth));
  return c;
}

int64_t read_norm_groups(ConfigFields& fields, int64_t n_groups) {
  const Json* version = fields.find("transformers_version");
  const bool together = version != nullptr && version->is_string() && norms_groups_together(version->as_string());
  int64_t groups = 0;
  fields.optional("gated_norm_groups", &groups, together ? 1 : n_groups,
                  one_of_numbers(n_groups == 1 ? std::vector<int64_t>{1} : std::vector<int64_t>{1, n_groups}));
  return groups;
}

Mamba2Fields read_mamba2_fields(ConfigFields& fields, int64_t hidden_size, int64_t inner_size, bool used) {
  Mamba2Fields result;
  MambaMixer2Config& c = result.mixer;
  c.hidden_size = hidden_size;
  int64_t expand = 0;
  std::vector<double> limit;
  fields.optional("mamba_expand", &expand, 2, between(1, 1 << 10))
      .optional("mamba_n_heads", &c.num_heads, 128, heads_bound());
  const int64_t inner = inner_size == 0 ? expand * hidden_size : inner_size;
  c.head_dim = read_int_or_auto(fields, "mamba_d_head", std::max<int64_t>(inner / c.num_heads, 1), head_dim_bound());
  fields.optional("mamba_n_groups", &c.n_groups, 1, heads_bound())
      .optional("mamba_d_state", &c.state_size, 256, between(1, 1 << 16))
      .optional("mamba_d_conv", &c.conv_kernel, 4, between(2, 8))
      .optional("mamba_chunk_size", &result.chunk_size, 256, positive())
      .optional("mamba_conv_bias", &c.use_conv_bias, true)
      .optional("mamba_proj_bias", &c.use_bias, false)
      .optional("time_step_limit", &limit, {0.0, kInfinity}, at_least(0))
      .check([&] { return limit.size() == 2 && limit[0] <= limit[1]; },
             "time_step_limit must be two numbers, the lower first");
  c.use_out_bias = c.use_bias;
  c.norm_groups = read_norm_groups(fields, c.n_groups);
  if (limit.size() == 2) {
    c.time_step_min = limit[0];
    c.time_step_max = limit[1];
  }
  if (!used) return result;
  fields
      .check([&] { return c.num_heads * c.head_dim == inner; },
             fmt::format("mamba_n_heads * mamba_d_head must be the inner width {} ({})", inner,
                         inner_size == 0 ? "mamba_expand * hidden_size" : "mamba_d_ssm"))
      .check(
          [&] { return inner <= kMostWidth && c.n_groups * c.state_size <= kMostWidth; },
          fmt::format("mamba_n_heads * mamba_d_head and mamba_n_groups * mamba_d_state must be at most {}", kMostWidth))
      .check([&] { return c.num_heads % c.n_groups == 0; }, "mamba_n_groups must divide mamba_n_heads");
  return result;
}

namespace {

// Words for a layer's kind that transformers has replaced since.
struct OlderWord {
  std::string_view older, today;
};
constexpr OlderWord kOlderWords[] = {{"mamba", "linear_attention"},
                                     {"attention", "full_attention"},
                                     {"deepseek_sparse_attention", "indexed_attention"},
                                     {"qwen_sparse_attention", "indexed_attention"}};

}  // namespace

std::vector<std::string> read_layer_kinds(ConfigFields& fields, std::initializer_list<std::string_view> keys,
                                          const std::vector<std::string>& kinds) {
  std::vector<std::string> spellings = kinds, result;
  for (const std::string& kind : kinds)
    for (const OlderWord& word : kOlderWords)
      if (kind == word.today) spellings.emplace_back(word.older);
  for (std::string_view key : keys) {
    if (!fields.has(key)) continue;
    fields.optional(key, &result, {}, one_of(spellings));
    break;
  }
  for (std::string& kind : result)
    for (const OlderWord& word : kOlderWords)
      if (kind == word.older) kind = word.today;
  return result;
}

}  // namespace coluber
