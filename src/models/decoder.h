// SPDX-License-Identifier: Apache-2.0
//
// What decoders share: token embedding, a stack of blocks over one residual stream, a final norm, an output head. A
// family's file says how its config reads, what a block is, and hands both over; it writes no loop of its own. Not for
// models whose stream is not [T, D] (several streams side by side): those implement Model. Owns blocks and weights;
// one forward at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "coluber/model.h"
#include "coluber/registry.h"
#include "layers/embedding.h"
#include "layers/lm_head.h"
#include "layers/norm.h"
#include "layers/weight_loader.h"

namespace coluber {

// Tensors of the checkpoint that the model does without; `why` goes to the notes that `inspect` shows.
struct IgnoredWeights {
  std::string prefix;  // from the checkpoint's root
  std::string why;
};

struct DecoderConfig {
  std::string architecture;  // Hugging Face model_type
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t max_position_embeddings = 0;  // 0: no limit of its own
  double norm_eps = 0;
  float norm_weight_offset = 0;  // 1 where the final norm's weight is centred on zero
  bool layer_norm = false;       // the norms here are layer norms, not RMS norms
  bool layer_norm_bias = true;
  std::string embed_norm;  // a norm behind the embedding: its name below `base`; empty: none
  // Names below `base` of what is added to the embedding and then multiplies it, both [D]; empty: neither.
  std::string input_bias, input_scale;
  bool lm_head_bias = false;
  int64_t logits_size = 0;  // where the last tokens of the vocabulary are padding (not tied); 0: vocab_size
  bool tied = false;        // the head is the embedding's weight
  double embedding_multiplier = 1;
  double logits_scale = 1;
  double logits_softcap = 0;         // logits = cap * tanh(logits / cap); 0: none
  bool keep_embedded = false;        // DecoderStream::embedded is wanted
  int64_t carry_width = 0;           // of DecoderStream::carry; 0: none
  bool hidden_has_embedding = true;  // hidden.i is what enters block i; false: what leaves it
  std::vector<IgnoredWeights> ignored;
  // Names of tensors: <base>.<embed_tokens>.weight, <base>.<layers>.<i>, <base>.<norm>.weight, <lm_head>.weight.
  std::string base = "model";
  std::string embed_tokens = "embed_tokens";
  std::string layers = "layers";
  std::string norm = "norm";
  std::string lm_head = "lm_head";
};

// From a family's config that names these sizes as Hugging Face does; the family says the rest.
template <typename Config>
DecoderConfig decoder_config(std::string architecture, const Config& c, double norm_eps) {
  DecoderConfig decoder;
  decoder.architecture = std::move(architecture);
  decoder.vocab_size = c.vocab_size;
  decoder.hidden_size = c.hidden_size;
  decoder.num_layers = c.num_hidden_layers;
  decoder.max_position_embeddings = c.max_position_embeddings;
  decoder.norm_eps = norm_eps;
  decoder.tied = c.tie_word_embeddings;
  return decoder;
}

// Where the text part of a model that also sees lies: it keeps the container's names if it was saved without its
// towers, and has its own if it was published alone.
std::string text_part_base(const WeightSource& weights);

// What flows through the stack in one step.
struct DecoderStream {
  float* x = nullptr;               // [T, D] the residual stream: a block adds to it in place
  const float* embedded = nullptr;  // [T, D] as it entered the first block, where the config keeps it
  float* carry = nullptr;           // [T, carry_width] zeros at first: what a block hands to later ones beside x
};

class DecoderBlock {
 public:
  virtual ~DecoderBlock() = default;
  // Takes its scratch from the batch's workspace.
  virtual void forward(const ForwardBatch& batch, const DecoderStream& stream) = 0;
  // Appends the block's layers, in order.
  virtual void describe(std::vector<LayerInfo>& layers) const = 0;
};

struct BlockContext {
  WeightLoader root;   // the whole checkpoint
  WeightLoader base;   // scoped to the decoder
  WeightLoader layer;  // scoped to this block
  int64_t index;
};

class Decoder : public Model {
 public:
  using MakeBlock = std::function<std::unique_ptr<DecoderBlock>(const BlockContext& context)>;

  // Makes the blocks in order. Throws Error(kInvalidData) naming every tensor that is missing or of another shape.
  Decoder(ModelLoadContext& context, DecoderConfig config, const MakeBlock& make_block);

  const ModelInfo& info() const noexcept override { return info_; }
  void forward(const ForwardBatch& batch) override;

 private:
  using Norm = std::variant<RmsNorm, LayerNorm>;
  Norm make_norm(const std::string& name) const;
  void normalize(const ForwardBatch& batch, const Norm& norm, const float* x, float* y) const;
  void embed(const ForwardBatch& batch, float* x) const;
  void finish_logits(const ForwardBatch& batch) const;

  DecoderConfig config_;
  WeightLoader root_, base_;
  Embedding embed_tokens_;
  std::optional<Norm> embed_norm_;
  FloatArray input_bias_, input_scale_;  // [D] or empty
  Norm norm_;
  LmHead lm_head_;
  std::vector<std::unique_ptr<DecoderBlock>> blocks_;
  ModelInfo info_;
};

}  // namespace coluber
