// SPDX-License-Identifier: Apache-2.0
//
// What the RWKV families share: the block x = x + att(att_norm(x)); x = x + ffn(ffn_norm(x)) with layer norms, the two
// ways in which published checkpoints name tensors, and sizes that are read from tensors where no config says them.
// Pure functions but for the block, which owns its layers; one forward at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layers/norm.h"
#include "layers/rwkv_mixer.h"
#include "models/decoder.h"

namespace coluber {

struct RwkvBlockConfig {
  int64_t hidden_size = 0;
  double norm_eps = 1e-5;
  bool norm_bias = true;
  std::string pre_norm;  // of x before all else; empty: none
  std::string att_norm = "ln1", ffn_norm = "ln2";
  std::string att_kind;     // what `inspect` shows: "wkv6"
  double branch_scale = 1;  // x = x + branch_scale * att(...)
  double output_scale = 1;  // of x, at the end
};

class RwkvBlock final : public DecoderBlock {
 public:
  RwkvBlock(const RwkvBlockConfig& config, WeightLoader loader, std::unique_ptr<RwkvMixer> att,
            std::unique_ptr<RwkvMixer> ffn);

  void forward(const ForwardBatch& batch, const DecoderStream& stream) override;
  void describe(std::vector<LayerInfo>& layers) const override;

 private:
  void add(const ForwardBatch& batch, const LayerNorm& norm, RwkvMixer& mixer, const DecoderStream& stream) const;

  RwkvBlockConfig config_;
  std::unique_ptr<LayerNorm> pre_norm_;
  LayerNorm att_norm_, ffn_norm_;
  std::unique_ptr<RwkvMixer> att_, ffn_;
};

// Names of tensors below <base>.blocks.<i>; the head is <root>.head.
struct RwkvNames {
  std::string base, embeddings, att, ffn, pre_norm;
  std::string block(int64_t layer) const;                              // "rwkv.blocks.0"
  std::string att_tensor(int64_t layer, std::string_view name) const;  // "rwkv.blocks.0.attention.key.weight"
};

// BlinkDL's ("emb", "blocks.0.att") or Hugging Face's ("rwkv.embeddings", "rwkv.blocks.0.attention").
const RwkvNames& rwkv_names(const WeightSource& weights);

struct RwkvSizes {
  int64_t vocab_size = 0, hidden_size = 0, num_layers = 0, num_heads = 0, intermediate_size = 0, attention_size = 0;
};

// `heads_tensor` of the first layer's time mix has the heads as its first dimension, whatever follows; empty: there are
// no heads. Throws Error(kInvalidData) naming what is missing or of another rank.
RwkvSizes read_rwkv_sizes(const WeightSource& weights, const RwkvNames& names, std::string_view heads_tensor);

// The decoder around blocks of these sizes.
DecoderConfig rwkv_decoder(std::string architecture, const RwkvNames& names, const RwkvSizes& sizes, double norm_eps);

// What a config.json beside such tensors says about them, and more than repeats them where it says how norms are
// computed. Throws Error(kInvalidConfig) where it says other sizes than the tensors have.
struct RwkvConfigExtras {
  double layer_norm_epsilon = 1e-5;
};
RwkvConfigExtras check_rwkv_config(const ModelLoadContext& context, const RwkvSizes& sizes);

}  // namespace coluber
