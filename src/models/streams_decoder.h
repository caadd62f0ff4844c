// SPDX-License-Identifier: Apache-2.0
//
// Decoders whose residual is several streams side by side, [T, S, D], and whose blocks read and write all of them
// (hyper-connections): the embedding fills every stream, blocks follow, and what the family calls its way out makes one
// normed row a token for the head. For one stream there is Decoder. Owns blocks and weights; one forward at a time.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "models/decoder.h"

namespace coluber {

// From the streams [T, S, D] to the head's input [T, D].
class StreamsExit {
 public:
  virtual ~StreamsExit() = default;
  virtual void forward(const ForwardBatch& batch, const float* streams, float* out) const = 0;
};

class StreamsDecoder : public Model {
 public:
  // The context's layer is the decoder itself.
  using MakeExit = std::function<std::unique_ptr<StreamsExit>(const BlockContext& context)>;

  // Reads of `config` the names, sizes and what is ignored; a block's DecoderStream::x is [T, streams, D]. Throws
  // Error(kInvalidData) naming every tensor that is missing or of another shape.
  StreamsDecoder(ModelLoadContext& context, DecoderConfig config, int64_t streams, const Decoder::MakeBlock& make_block,
                 const MakeExit& make_exit);

  const ModelInfo& info() const noexcept override { return info_; }
  void forward(const ForwardBatch& batch) override;

 private:
  DecoderConfig config_;
  int64_t streams_;
  WeightLoader root_, base_;
  Embedding embed_tokens_;
  LmHead lm_head_;
  std::vector<std::unique_ptr<DecoderBlock>> blocks_;
  std::unique_ptr<StreamsExit> exit_;
  ModelInfo info_;
};

}  // namespace coluber
