// SPDX-License-Identifier: Apache-2.0
#include "models/rwkv_block.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "formats/hf_config.h"
#include "models/sizes.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

constexpr int64_t kMostLayers = 1 << 16;

void scale_add(ThreadPool& pool, float* x, const float* y, int64_t count, double x_scale, double y_scale) {
  const auto a = static_cast<float>(x_scale), b = static_cast<float>(y_scale);
  pool.parallel_for(count, 16384, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; ++i) x[i] = a * x[i] + (y == nullptr ? 0.0f : b * y[i]);
  });
}

// The number behind `prefix`, as in "blocks.12.ln1.weight"; -1 where there is none.
int64_t number_behind(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return -1;
  name.remove_prefix(prefix.size());
  int64_t number = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool whole = error == std::errc() && end != name.data() + name.size() && *end == '.';
  return whole ? number : -1;
}

int64_t count_layers(const WeightSource& weights, const RwkvNames& names) {
  const std::string prefix = names.base.empty() ? "blocks." : names.base + ".blocks.";
  int64_t layers = 0;
  for (const std::string& name : weights.names()) layers = std::max(layers, number_behind(name, prefix) + 1);
  return layers;
}

class Shapes {
 public:
  explicit Shapes(const WeightSource& weights) : weights_(weights) {}
  // The shape of a tensor of two dimensions; of 1 by 1, and a problem, where there is none such.
  Shape matrix(const std::string& name) {
    return shape_of(name, "two dimensions", [](const Shape& shape) { return shape.rank() == 2; });
  }
  int64_t first_dimension(const std::string& name) {
    return shape_of(name, "a dimension or more", [](const Shape& shape) { return shape.rank() > 0; })[0];
  }
  void expect(bool fine, const std::string& problem) {
    if (!fine) problems_ += "\n  " + problem;
  }
  void finish() const {
    if (!problems_.empty())
      throw make_error(ErrorCode::kInvalidData, "{}: the sizes of this RWKV model cannot be read from its tensors:{}",
                       weights_.describe(), problems_);
  }

 private:
  template <typename IsRight>
  Shape shape_of(const std::string& name, const char* expected, const IsRight& is_right) {
    if (!weights_.contains(name)) {
      problems_ += fmt::format("\n  tensor '{}' is missing", name);
      return Shape{1, 1};
    }
    const Shape shape = weights_.peek(name).shape;
    if (is_right(shape) && shape.count() > 0) return shape;
    problems_ += fmt::format("\n  tensor '{}' has the shape {}; expected {}", name, shape.to_string(), expected);
    return Shape{1, 1};
  }

  const WeightSource& weights_;
  std::string problems_;
};

}  // namespace

RwkvBlock::RwkvBlock(const RwkvBlockConfig& config, WeightLoader loader, std::unique_ptr<RwkvMixer> att,
                     std::unique_ptr<RwkvMixer> ffn)
    : config_(config),
      att_norm_(loader, config.att_norm, config.hidden_size, config.norm_eps, config.norm_bias),
      ffn_norm_(loader, config.ffn_norm, config.hidden_size, config.norm_eps, config.norm_bias),
      att_(std::move(att)),
      ffn_(std::move(ffn)) {
  if (!config.pre_norm.empty())
    pre_norm_ =
        std::make_unique<LayerNorm>(loader, config.pre_norm, config.hidden_size, config.norm_eps, config.norm_bias);
}

void RwkvBlock::add(const ForwardBatch& batch, const LayerNorm& norm, RwkvMixer& mixer,
                    const DecoderStream& stream) const {
  const int64_t tokens = batch.num_tokens(), size = tokens * config_.hidden_size;
  WorkspaceScope scope(*batch.workspace);
  float* normed = batch.workspace->take<float>(size);
  float* mixed = batch.workspace->take<float>(size);
  norm.forward(batch, stream.x, tokens, normed);
  mixer.forward(batch, normed, mixed, stream.carry);
  scale_add(*batch.thread_pool, stream.x, mixed, size, 1.0, config_.branch_scale);
}

void RwkvBlock::forward(const ForwardBatch& batch, const DecoderStream& stream) {
  const int64_t tokens = batch.num_tokens();
  if (pre_norm_) pre_norm_->forward(batch, stream.x, tokens, stream.x);
  add(batch, att_norm_, *att_, stream);
  add(batch, ffn_norm_, *ffn_, stream);
  if (config_.output_scale != 1.0)
    scale_add(*batch.thread_pool, stream.x, nullptr, tokens * config_.hidden_size, config_.output_scale, 0.0);
}

void RwkvBlock::describe(std::vector<LayerInfo>& layers) const {
  layers.push_back({att_->layer_name(), config_.att_kind, att_.get()});
  layers.push_back({ffn_->layer_name(), "channel_mix", ffn_.get()});
}

std::string RwkvNames::block(int64_t layer) const {
  return (base.empty() ? "blocks." : base + ".blocks.") + std::to_string(layer);
}

std::string RwkvNames::att_tensor(int64_t layer, std::string_view name) const {
  return block(layer) + "." + att + "." + std::string(name);
}

const RwkvNames& rwkv_names(const WeightSource& weights) {
  static const RwkvNames kBlinkDl{"", "emb", "att", "ffn", "ln0"};
  static const RwkvNames kHuggingFace{"rwkv", "embeddings", "attention", "feed_forward", "pre_ln"};
  return weights.contains("emb.weight") ? kBlinkDl : kHuggingFace;
}

RwkvSizes read_rwkv_sizes(const WeightSource& weights, const RwkvNames& names, std::string_view heads_tensor) {
  Shapes shapes(weights);
  RwkvSizes sizes;
  const std::string scope = names.base.empty() ? "" : names.base + ".";
  const Shape embeddings = shapes.matrix(scope + names.embeddings + ".weight");
  sizes.vocab_size = embeddings[0];
  sizes.hidden_size = embeddings[1];
  sizes.attention_size = shapes.matrix(names.att_tensor(0, "key.weight"))[0];
  sizes.intermediate_size = shapes.matrix(names.block(0) + "." + names.ffn + ".key.weight")[0];
  sizes.num_layers = count_layers(weights, names);
  shapes.expect(sizes.num_layers <= kMostLayers,
                fmt::format("there is a layer {}; expected at most {} layers", sizes.num_layers - 1, kMostLayers));
  shapes.expect(
      std::max({sizes.vocab_size / 4, sizes.hidden_size, sizes.intermediate_size, sizes.attention_size}) <= kMostWidth,
      fmt::format("expected at most {} channels and {} tokens of the vocabulary", kMostWidth, 4 * kMostWidth));
  if (!heads_tensor.empty()) {
    sizes.num_heads = shapes.first_dimension(names.att_tensor(0, heads_tensor));
    shapes.expect(sizes.hidden_size % sizes.num_heads == 0,
                  fmt::format("'{}' has {} heads; expected a divisor of the {} channels of the embedding",
                              names.att_tensor(0, heads_tensor), sizes.num_heads, sizes.hidden_size));
  }
  shapes.finish();
  return sizes;
}

DecoderConfig rwkv_decoder(std::string architecture, const RwkvNames& names, const RwkvSizes& sizes, double norm_eps) {
  DecoderConfig decoder;
  decoder.architecture = std::move(architecture);
  decoder.vocab_size = sizes.vocab_size;
  decoder.hidden_size = sizes.hidden_size;
  decoder.num_layers = sizes.num_layers;
  decoder.norm_eps = norm_eps;
  decoder.layer_norm = true;
  decoder.base = names.base;
  decoder.embed_tokens = names.embeddings;
  decoder.layers = "blocks";
  decoder.norm = "ln_out";
  decoder.lm_head = "head";
  return decoder;
}

RwkvConfigExtras check_rwkv_config(const ModelLoadContext& context, const RwkvSizes& sizes) {
  RwkvConfigExtras extras;
  if (context.config_json.empty()) return extras;
  const Json json = parse_config(context.config_json, context.config_path);
  ConfigFields fields(json, context.config_path);
  int64_t vocab_size = 0, hidden_size = 0, layers = 0, head_size = 0, intermediate_size = 0;
  fields.alias("head_size", {"head_dim"}).alias("num_hidden_layers", {"n_layer"}).alias("hidden_size", {"n_embd"});
  const int64_t stored_head = sizes.num_heads > 0 ? sizes.hidden_size / sizes.num_heads : 0;
  fields.optional("vocab_size", &vocab_size, sizes.vocab_size, vocab_bound())
      .optional("hidden_size", &hidden_size, sizes.hidden_size, hidden_bound())
      .optional("num_hidden_layers", &layers, sizes.num_layers, layers_bound())
      .optional("head_size", &head_size, stored_head, head_dim_bound())
      .optional("intermediate_size", &intermediate_size, sizes.intermediate_size, width_bound())
      .optional("layer_norm_epsilon", &extras.layer_norm_epsilon, 1e-5, positive_finite())
      .check([&] { return vocab_size == sizes.vocab_size; },
             fmt::format("vocab_size must be that of the tensors, {}", sizes.vocab_size))
      .check([&] { return hidden_size == sizes.hidden_size; },
             fmt::format("hidden_size must be that of the tensors, {}", sizes.hidden_size))
      .check([&] { return layers == sizes.num_layers; },
             fmt::format("num_hidden_layers must be that of the tensors, {}", sizes.num_layers))
      .check([&] { return head_size == stored_head; },
             fmt::format("head_size must be that of the tensors, {}", stored_head))
      .check([&] { return intermediate_size == sizes.intermediate_size; },
             fmt::format("intermediate_size must be that of the tensors, {}", sizes.intermediate_size))
      .finish();
  return extras;
}

}  // namespace coluber
