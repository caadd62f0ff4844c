// SPDX-License-Identifier: Apache-2.0
#include "models/decoder.h"

#include <cmath>

#include "kernels/elementwise/scale.h"
#include "tensor/cuda_step.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

void scale_in_place(const ForwardBatch& batch, float* values, int64_t rows, int64_t cols, double factor) {
  if (factor != 1.0) scale()(ScaleArgs{values, cols, values, cols, rows, cols, static_cast<float>(factor)}, batch);
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
  if (!config_.input_bias.empty()) input_bias_ = base_.take_array(config_.input_bias, width);
  if (!config_.input_scale.empty()) input_scale_ = base_.take_array(config_.input_scale, width);
  if (config_.logits_softcap != 0) root_.keep_on_host("a cap on logits is computed by the CPU");
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
  scale_in_place(batch, x, tokens, width, config_.embedding_multiplier);
  ScaleArgs args{x, width, x, width, tokens, width};
  args.column_bias = input_bias_.data();
  if (!input_bias_.empty()) scale()(args, batch);
  args.column_bias = nullptr;
  args.column_factor = input_scale_.data();
  if (!input_scale_.empty()) scale()(args, batch);
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
    copy_floats(batch, stream.x, embedded, size);
    stream.embedded = embedded;
  }
  if (config_.carry_width > 0) {
    stream.carry = batch.workspace->take<float>(tokens * config_.carry_width);
    fill_zeros(batch, stream.carry, tokens * config_.carry_width);
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
  const auto rows = static_cast<int64_t>(batch.logits_rows.size());
  scale_in_place(batch, batch.logits, rows, lm_head_.logits_size(), config_.logits_scale);
  if (config_.logits_softcap == 0) return;
  const int64_t count = rows * lm_head_.logits_size();
  const auto cap = static_cast<float>(config_.logits_softcap);
  for (int64_t i = 0; i < count; ++i) batch.logits[i] = cap * std::tanh(batch.logits[i] / cap);
}

}  // namespace coluber
