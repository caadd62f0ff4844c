// SPDX-License-Identifier: Apache-2.0
//
// What the families of flash-linear-attention share: the fields of their configs, the block x = x + attn(attn_norm(x));
// x = x + mlp(mlp_norm(x)), softmax attention in the layers that `attn` lists, and the names of their tensors. A family
// reads the fields of its own mixer and says how a block gets one. Pure functions; problems go to the fields.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/attention.h"
#include "models/decoder.h"
#include "models/residual_block.h"

namespace coluber {

struct FlaConfig {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, max_position_embeddings = 0;
  int64_t intermediate_size = 0;
  double norm_eps = 0;
  bool tie_word_embeddings = false;
  bool elementwise_affine = true;  // the mixer's norm has a weight
  bool use_short_conv = false;
  int64_t conv_size = 0;
  std::optional<AttentionConfig> attention;  // of `attention_layers`
  std::vector<int64_t> attention_layers;

  bool is_attention(int64_t layer) const;
};

// `default_ratio` and `default_short_conv` are the family's defaults of hidden_ratio and use_short_conv.
FlaConfig read_fla_fields(ConfigFields& fields, int64_t default_ratio, bool default_short_conv);

// Round of hidden_size * `key` (a factor; `fallback` where it is absent). What is no whole number from 1 to kMostWidth
// is a problem.
int64_t read_expanded_width(ConfigFields& fields, int64_t hidden_size, std::string_view key, double fallback);

// Adds the mixer of a layer that is no softmax attention; the loader is scoped to it.
using AddFlaMixer = std::function<void(ResidualBlock& block, const BlockContext& context, const WeightLoader& attn)>;

// `positions` is where sequences end; 0: no limit of the model's own.
std::unique_ptr<Model> make_fla_decoder(ModelLoadContext& context, const std::string& architecture,
                                        const FlaConfig& config, int64_t positions, const AddFlaMixer& add_mixer);

}  // namespace coluber
