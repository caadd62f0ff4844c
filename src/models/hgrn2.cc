// SPDX-License-Identifier: Apache-2.0
//
// HGRN2 (Qin et al., 2024) as flash-linear-attention publishes it: a forget gate a key channel, bounded from below by a
// floor that rises with the layers; what is not forgotten is learnt.
#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/gated_linear_attention.h"
#include "models/fla_decoder.h"
#include "models/sizes.h"

namespace coluber {
namespace {

struct Hgrn2Config {
  FlaConfig fla;
  bool use_lower_bound = true;
  GatedLinearAttentionConfig mixer;
};

Hgrn2Config read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  Hgrn2Config c;
  c.fla = read_fla_fields(fields, 4, false);
  GatedLinearAttentionConfig& mixer = c.mixer;
  const int64_t hidden = c.fla.hidden_size;
  // expand_ratio goes before num_heads where both are there.
  std::optional<int64_t> num_heads, expand_ratio;
  fields.optional("num_heads", &num_heads, heads_bound())
      .optional("expand_ratio", &expand_ratio, between(1, kMaxLinearKeyDim))
      .optional("use_lower_bound", &c.use_lower_bound, true);
  if (!expand_ratio) expand_ratio = num_heads ? std::max<int64_t>(hidden / *num_heads, 1) : 128;
  fields
      .check([&] { return hidden % *expand_ratio == 0; },
             "expand_ratio (or, where it is null, hidden_size / num_heads) must divide hidden_size")
      .check([&] { return *expand_ratio <= kMaxLinearKeyDim; },
             fmt::format("hidden_size / num_heads must be at most {}", kMaxLinearKeyDim))
      .finish();
  mixer.hidden_size = hidden;
  mixer.num_heads = mixer.num_kv_heads = hidden / *expand_ratio;
  mixer.head_k_dim = mixer.head_v_dim = *expand_ratio;
  mixer.decay = LinearDecay::kBounded;
  mixer.conv_size = c.fla.use_short_conv ? c.fla.conv_size : 0;
  mixer.conv_silu = false;
  mixer.q_silu = true;
  mixer.output_gate = false;
  mixer.norm_all_heads = true;
  mixer.norm_weight = c.fla.elementwise_affine;
  mixer.norm_eps = 1e-5;  // whatever norm_eps says
  mixer.k = "f";
  mixer.v = "i";
  return c;
}

// What a layer's gates do not fall below: the softmax over layers, summed from the second layer up to it.
class LowerBounds {
 public:
  LowerBounds() = default;
  LowerBounds(WeightLoader loader, int64_t layers, int64_t channels)
      : channels_(channels), bounds_(loader.read_float("lower_bounds", Shape{layers, channels})) {
    if (static_cast<int64_t>(bounds_.size()) != layers * channels) return;
    for (int64_t c = 0; c < channels; ++c) {
      double largest = at(0, c), total = 0.0, sum = 0.0;
      for (int64_t i = 1; i < layers; ++i) largest = std::max<double>(largest, at(i, c));
      for (int64_t i = 0; i < layers; ++i) total += std::exp(at(i, c) - largest);
      for (int64_t i = 0; i < layers; ++i) {
        if (i > 0) sum += std::exp(at(i, c) - largest) / total;
        at(i, c) = static_cast<float>(sum);
      }
    }
  }
  std::vector<float> of_layer(int64_t layer) const {
    if (bounds_.empty() || layer == 0) return {};
    return {bounds_.begin() + layer * channels_, bounds_.begin() + (layer + 1) * channels_};
  }

 private:
  float& at(int64_t layer, int64_t channel) { return bounds_[static_cast<size_t>(layer * channels_ + channel)]; }

  int64_t channels_ = 0;
  std::vector<float> bounds_;  // [L, C]
};

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const Hgrn2Config c = read_config(context.config_json, context.config_path);
  std::optional<LowerBounds> bounds;
  const auto add_mixer = [&](ResidualBlock& block, const BlockContext& place, const WeightLoader& attn) {
    if (!bounds)
      bounds = c.use_lower_bound ? LowerBounds(place.base, c.fla.num_hidden_layers, c.fla.hidden_size) : LowerBounds();
    GatedLinearAttentionConfig mixer = c.mixer;
    mixer.lower_bound = bounds->of_layer(place.index);
    block.add("linear_attention", std::make_unique<GatedLinearAttention>(mixer, attn));
  };
  return make_fla_decoder(context, "hgrn2", c.fla, 0, add_mixer);
}

const RegisterModel kHgrn2({"hgrn2", {"HGRN2ForCausalLM"}, load, {}, /*runs_on_cuda=*/true});

}  // namespace
}  // namespace coluber
