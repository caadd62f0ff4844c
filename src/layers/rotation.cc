// SPDX-License-Identifier: Apache-2.0
#include "layers/rotation.h"

#include <utility>

#include "base/error.h"
#include "tensor/cuda_step.h"

namespace coluber {

Rotation::Rotation(const std::optional<RopeConfig>& rope, int64_t head_dim, const WeightLoader& loader) : rope_(rope) {
  if (!rope_) return;
  if (rope_->rotary_dim == 0) rope_->rotary_dim = head_dim;
  RopeFrequencies turns = rope_frequencies(*rope_, head_dim);
  frequencies_ = loader.place(std::move(turns.frequencies));
  long_frequencies_ = loader.place(std::move(turns.long_frequencies));
  attention_factor_ = turns.attention_factor;
  if (long_frequencies_.empty()) return;
  EngineConfig& config = loader.config();
  const int64_t beyond = rope_->original_max_position_embeddings;
  if (config.long_rope_beyond != 0 && config.long_rope_beyond != beyond)
    throw make_error(ErrorCode::kInvalidConfig,
                     "original_max_position_embeddings: expected one length for all layers, found {} and {}",
                     config.long_rope_beyond, beyond);
  config.long_rope_beyond = beyond;
}

void Rotation::forward(const ForwardBatch& batch, const Heads& q, const Heads& k, int64_t head_stride) const {
  if (!rope_) return;
  RopeArgs args;
  args.q_stride = q.stride;
  args.num_q_heads = q.count;
  args.k_stride = k.stride;
  args.num_k_heads = k.count;
  args.head_dim = head_stride;
  args.rotary_dim = rope_->rotary_dim;
  args.interleaved = rope_->interleaved;
  args.attention_factor = attention_factor_;
  auto turn = [&](int64_t begin, int64_t end, bool is_long) {
    args.q = q.values + begin * q.stride;
    args.k = k.values + begin * k.stride;
    args.frequencies = (is_long ? long_frequencies_ : frequencies_).data();
    args.positions =
        device_array(batch, batch.positions.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    args.num_tokens = end - begin;
    rope()(args, batch);
  };
  if (long_frequencies_.empty() || batch.long_rope.empty()) return turn(0, batch.num_tokens(), false);
  const auto rows = static_cast<size_t>(batch.num_reqs());
  for (size_t begin = 0, end = 0; begin < rows; begin = end) {
    while (end < rows && batch.long_rope[end] == batch.long_rope[begin]) ++end;
    turn(batch.query_start_loc[begin], batch.query_start_loc[end], batch.long_rope[begin] != 0);
  }
}

}  // namespace coluber
