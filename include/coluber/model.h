// SPDX-License-Identifier: Apache-2.0
//
// The seam between the engine and an architecture. A model owns its layers and weights, enters its caching layers in
// the EngineConfig, and computes `forward` over a packed batch of tokens. The engine owns pages, metadata and sampling.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coluber/attention_metadata.h"
#include "coluber/config.h"
#include "coluber/execution.h"
#include "coluber/mamba_base.h"
#include "coluber/tensor_view.h"

namespace coluber {

// Named tensors of a checkpoint. Views stay valid as long as the source.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual bool contains(std::string_view name) const = 0;
  // Throws Error(kNotFound) naming the file and the tensor.
  virtual TensorView get(std::string_view name) const = 0;
  // The same for who wants to know the type and the shape: reads no value, and `data` may lie at any address.
  virtual TensorView peek(std::string_view name) const { return get(name); }
  // The tensor's values are not needed soon: memory that `get` can fill anew from a file may be given back.
  virtual void release(const TensorView&) const noexcept {}
  // The tensors as they lie in files, where this source makes others of them; `peek` of it has all the data.
  virtual const WeightSource& stored() const noexcept { return *this; }
  virtual std::vector<std::string> names() const = 0;
  virtual std::string describe() const = 0;  // file or folder, for messages
};

// One step's tokens, packed back to back, decodes first, and where they are computed: spans are the host's, `logits`
// and all values between layers are of the memory that the workspace gives.
struct ForwardBatch : Execution {
  std::span<const int32_t> token_ids;        // [T]
  std::span<const int64_t> positions;        // [T] position in its sequence
  std::span<const int32_t> query_start_loc;  // [R+1]
  std::span<const int32_t> seq_lens;         // [R]
  std::span<const uint8_t> long_rope;        // [R] 1: beyond EngineConfig::long_rope_beyond; empty: none is
  std::span<const int32_t> logits_rows;      // rows of [T] whose logits are wanted, ascending
  std::span<const AttentionMetadata* const> layer_metadata;  // by AttentionLayerBase::layer_index()
  float* logits = nullptr;                                   // out: [logits_rows.size(), V]
  // Set to look inside: called with the index of golden-style `hidden.i` and [T, D] values.
  const std::function<void(int index, const float* values, int64_t rows, int64_t cols)>* hidden_sink = nullptr;

  bool deterministic = false;  // EngineConfig::deterministic
  int64_t num_tokens() const noexcept { return static_cast<int64_t>(token_ids.size()); }
  int64_t num_reqs() const noexcept { return static_cast<int64_t>(query_start_loc.size()) - 1; }
  template <typename Metadata>
  const Metadata& metadata(const AttentionLayerBase& layer) const {
    return static_cast<const Metadata&>(*layer_metadata[static_cast<size_t>(layer.layer_index())]);
  }
  void record_hidden(int index, const float* values, int64_t cols) const {
    if (hidden_sink != nullptr) (*hidden_sink)(index, values, num_tokens(), cols);
  }
};

// A layer as `inspect` draws it.
struct LayerInfo {
  std::string name;  // "backbone.layers.0.mixer"
  std::string kind;  // "mamba2", "short_conv", "linear_attention", "full_attention", "mlp", "moe"
  const AttentionLayerBase* cache = nullptr;  // null where the layer keeps nothing
};

struct ModelInfo {
  std::string architecture;  // Hugging Face model_type
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t max_position_embeddings = 0;  // 0: no limit of its own
  int64_t parameters = 0;
  int64_t weight_bytes = 0;  // as stored in the checkpoint
  std::vector<std::pair<DType, int64_t>> parameters_by_dtype;
  int64_t matmul_parameters = 0;  // weights that a token is multiplied with (experts: those of one token)
  int64_t streamed_bytes = 0;     // weight bytes that one decode step reads
  std::vector<LayerInfo> layers;
  std::vector<std::string> notes;  // e.g. tensors that were left out
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelInfo& info() const noexcept = 0;
  virtual void forward(const ForwardBatch& batch) = 0;
};

}  // namespace coluber
