// SPDX-License-Identifier: Apache-2.0
#include "models/decoder.h"

#include <algorithm>
#include <cmath>

#include "tensor/workspace.h"

namespace coluber {
namespace {

void scale(float* values, int64_t count, double factor) {
  if (factor == 1.0) return;
  const auto f = static_cast<float>(factor);
  for (int64_t i = 0; i < count; ++i) values[i] *= f;
}

}  // namespace

std::string text_part_base(const WeightSource& weights) {
  return weights.contains("model.language_model.embed_tokens.weight") ? "model.language_model" : "model";
}

Decoder::Decoder(ModelLoadContext& context, DecoderConfig config, const MakeBlock& make_block)
    : config_(std::move(config)),
      root_(context),
      base_(config_.base.empty() ? root_ : root_.scoped(config_.base)),
      embed_tokens_(base_, config_.embed_tokens, config_.vocab_size, config_.hidden_size, config_.tied),
      norm_(make_norm(config_.norm)),
      lm_head_(root_, config_.lm_head, embed_tokens_, config_.tied, {config_.lm_head_bias, config_.logits_size}) {
  if (!config_.embed_norm.empty()) embed_norm_ = make_norm(config_.embed_norm);
  const Shape width{config_.hidden_size};
  if (!config_.input_bias.empty()) input_bias_ = base_.take_float(config_.input_bias, width);
  if (!config_.input_scale.empty()) input_scale_ = base_.take_float(config_.input_scale, width);
  for (const IgnoredWeights& weights : config_.ignored) root_.ignore(weights.prefix, weights.why);
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    blocks_.push_back(make_block({root_, base_, base_.scoped(config_.layers + "." + std::to_string(i)), i}));
    blocks_.back()->describe(info_.layers);
  }
  info_.architecture = config_.architecture;
  info_.vocab_size = lm_head_.logits_size();
  info_.hidden_size = config_.hidden_size;
  info_.num_layers = config_.num_layers;
  info_.max_position_embeddings = config_.max_position_embeddings;
  root_.finish(info_);
}

void Decoder::embed(const ForwardBatch& batch, float* x) const {
  const int64_t tokens = batch.num_tokens(), width = config_.hidden_size;
  embed_tokens_.forward(batch, x);
  scale(x, tokens * width, config_.embedding_multiplier);
  for (int64_t t = 0; t < tokens; ++t, x += width) {
    for (size_t d = 0; d < input_bias_.size(); ++d) x[d] += input_bias_[d];
    for (size_t d = 0; d < input_scale_.size(); ++d) x[d] *= input_scale_[d];
  }
}

void Decoder::forward(const ForwardBatch& batch) {
  const int64_t tokens = batch.num_tokens();
  const int64_t size = tokens * config_.hidden_size;
  WorkspaceScope scope(*batch.workspace);
  DecoderStream stream;
  stream.x = batch.workspace->take<float>(size);
  embed(batch, stream.x);
  if (embed_norm_) normalize(batch, *embed_norm_, stream.x, stream.x);
  if (config_.keep_embedded) {
    float* embedded = batch.workspace->take<float>(size);
    std::copy_n(stream.x, size, embedded);
    stream.embedded = embedded;
  }
  if (config_.carry_width > 0) {
    stream.carry = batch.workspace->take<float>(tokens * config_.carry_width);
    std::fill_n(stream.carry, tokens * config_.carry_width, 0.0f);
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (config_.hidden_has_embedding) batch.record_hidden(static_cast<int>(i), stream.x, config_.hidden_size);
    blocks_[i]->forward(batch, stream);
    if (!config_.hidden_has_embedding) batch.record_hidden(static_cast<int>(i), stream.x, config_.hidden_size);
  }
  float* normed = batch.workspace->take<float>(size);
  normalize(batch, norm_, stream.x, normed);
  batch.record_hidden(static_cast<int>(blocks_.size()), normed, config_.hidden_size);
  lm_head_.forward(batch, normed);
  finish_logits(batch);
}

Decoder::Norm Decoder::make_norm(const std::string& name) const {
  if (config_.layer_norm)
    return LayerNorm(base_, name, config_.hidden_size, config_.norm_eps, config_.layer_norm_bias,
                     config_.norm_weight_offset);
  return RmsNorm(base_, name, config_.hidden_size, config_.norm_eps, config_.norm_weight_offset);
}

void Decoder::normalize(const ForwardBatch& batch, const Norm& norm, const float* x, float* y) const {
  std::visit([&](const auto& n) { n.forward(batch, x, batch.num_tokens(), y); }, norm);
}

void Decoder::finish_logits(const ForwardBatch& batch) const {
  const int64_t count = static_cast<int64_t>(batch.logits_rows.size()) * lm_head_.logits_size();
  scale(batch.logits, count, config_.logits_scale);
  if (config_.logits_softcap == 0) return;
  const auto cap = static_cast<float>(config_.logits_softcap);
  for (int64_t i = 0; i < count; ++i) batch.logits[i] = cap * std::tanh(batch.logits[i] / cap);
}

}  // namespace coluber
