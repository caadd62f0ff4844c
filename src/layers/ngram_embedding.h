// SPDX-License-Identifier: Apache-2.0
//
// Per-layer embedding of the last few tokens (Qwen4's PLE): the last n tokens up to each position are hashed into rows
// of one table, for each n up to ngram_size and each head; the rows make one value and, for each residual stream, a key
// whose likeness to the stream gates the value; a dilated causal convolution over the gated values adds what came
// before. With H the streams [T, S, D] and e the rows of a token, one after the other:
//
//   r_s = norm_key(K e)_s . norm_query(H)_s / sqrt(D)           u_s = sigmoid(sign(r_s) sqrt(max(|r_s|, 1e-6))) V e
//   H += u + silu(conv(norm_conv(u)))                           a tap every ngram_size tokens
//
// (The norms run over each stream by itself.) An n-gram that would reach over an end-of-text token takes that token for
// whatever lies behind it, as at the start of a text. States: the convolution's inputs, and the last ngram_size - 1
// token ids. Owns its weights, never its pages; one forward at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "kernels/state_slots.h"
#include "layers/linear.h"
#include "layers/streams_norm.h"
#include "layers/weight_loader.h"

namespace coluber {

struct NgramEmbeddingConfig {
  int64_t hidden_size = 0;
  int64_t streams = 0;
  int64_t embed_dim = 0;  // of all heads together
  int64_t ngram_size = 0;
  int64_t heads_per_ngram = 0;
  int64_t conv_kernel = 0;
  int64_t num_shards = 0;  // that the table is stored in
  int32_t end_of_text = 0;
  double norm_eps = 1e-6;
  // What the states are called, in their order.
  std::vector<std::string> state_names = {"conv", "tokens"};

  int64_t num_heads() const { return (ngram_size - 1) * heads_per_ngram; }
  int64_t width() const { return streams * hidden_size; }
  int64_t conv_inputs() const { return (conv_kernel - 1) * ngram_size; }  // that the convolution looks back on
};

class NgramEmbedding : public MambaBase {
 public:
  // `loader` is scoped to the layer ("model.layers.0.ple", which becomes its name); registers the layer in the loader's
  // configuration. Throws Error(kInvalidConfig) naming each size that makes no sense, and Error(kInvalidData) where the
  // checkpoint's hash leads out of its table.
  NgramEmbedding(const NgramEmbeddingConfig& config, WeightLoader loader);

  std::vector<Shape> get_state_shape() const override;
  std::vector<DType> get_state_dtype() const override;
  std::vector<std::string> get_state_names() const override { return config_.state_names; }
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kShortConv; }
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return 1; }
  bool is_kv_cache_tp_replicated() const noexcept override { return true; }

  // Adds to the streams [T, S, D].
  void forward(const ForwardBatch& batch, float* streams);

 private:
  void take_table(WeightLoader& loader);
  void read_row(int64_t row, float* out) const;
  // Rows of one kind in a step: `count` of them from token `first` on.
  struct Rows {
    int64_t first = 0;
    int64_t count = 0;
    const int32_t* query_start_loc = nullptr;  // from `first`; null: one token a row
    StateSlots conv, tokens;
    StateExports exports;

    int64_t begin(int64_t row) const { return first + (query_start_loc == nullptr ? row : query_start_loc[row]); }
  };
  Rows decode_rows(const ForwardBatch& batch) const;
  Rows prefill_rows(const ForwardBatch& batch) const;
  // out [T, embed_dim]; rows without a slot are left alone. Leaves the tokens' state behind.
  void embed(const ForwardBatch& batch, const Rows& rows, float* out) const;
  // The embedding [embed_dim] of the token `*newest` after those before it in memory.
  void look_up(const int32_t* newest, float* out) const;
  void gate(const ForwardBatch& batch, const float* embedded, const float* streams, float* gated) const;
  void convolve(const ForwardBatch& batch, const Rows& rows, const float* in, float* out) const;

  NgramEmbeddingConfig config_;
  EngineConfig& engine_config_;
  Linear key_proj_, value_proj_;
  StreamsNorm norm_key_, norm_query_, norm_conv_;
  std::vector<float> conv_weight_;  // [conv_inputs + 1, S * D], zeros between the taps
  std::vector<int64_t> multipliers_, head_rows_, head_offsets_;
  struct Shard {
    std::unique_ptr<std::byte[]> rows;
    int64_t end = 0;  // first row of the next
    DType dtype = DType::kFloat32;
  };
  std::vector<Shard> table_;
};

}  // namespace coluber
