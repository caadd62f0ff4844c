// SPDX-License-Identifier: Apache-2.0
#include "models/streams_decoder.h"

#include <algorithm>

#include "tensor/workspace.h"

namespace coluber {

StreamsDecoder::StreamsDecoder(ModelLoadContext& context, DecoderConfig config, int64_t streams,
                               const Decoder::MakeBlock& make_block, const MakeExit& make_exit)
    : config_(std::move(config)),
      streams_(streams),
      root_(context),
      base_(config_.base.empty() ? root_ : root_.scoped(config_.base)),
      embed_tokens_(base_, config_.embed_tokens, config_.vocab_size, config_.hidden_size, config_.tied),
      lm_head_(root_, config_.lm_head, embed_tokens_, config_.tied) {
  for (const IgnoredWeights& weights : config_.ignored) root_.ignore(weights.prefix, weights.why);
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    blocks_.push_back(make_block({root_, base_, base_.scoped(config_.layers + "." + std::to_string(i)), i}));
    blocks_.back()->describe(info_.layers);
  }
  exit_ = make_exit({root_, base_, base_, config_.num_layers});
  info_.architecture = config_.architecture;
  info_.vocab_size = config_.vocab_size;
  info_.hidden_size = config_.hidden_size;
  info_.num_layers = config_.num_layers;
  info_.max_position_embeddings = config_.max_position_embeddings;
  root_.finish(info_);
}

void StreamsDecoder::forward(const ForwardBatch& batch) {
  const int64_t tokens = batch.num_tokens(), d = config_.hidden_size, width = streams_ * d;
  WorkspaceScope scope(*batch.workspace);
  DecoderStream stream;
  stream.x = batch.workspace->take<float>(tokens * width);
  float* row = batch.workspace->take<float>(tokens * d);
  embed_tokens_.forward(batch, row);
  for (int64_t i = 0; i < tokens * streams_; ++i) std::copy_n(row + i / streams_ * d, d, stream.x + i * d);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    batch.record_hidden(static_cast<int>(i), stream.x, width);
    blocks_[i]->forward(batch, stream);
  }
  exit_->forward(batch, stream.x, row);
  batch.record_hidden(static_cast<int>(blocks_.size()), row, d);
  lm_head_.forward(batch, row);
}

}  // namespace coluber
