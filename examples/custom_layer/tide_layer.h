// SPDX-License-Identifier: Apache-2.0
//
// A recurrent layer outside the engine's tree. Per channel d and token t, with the token's vector x_t and id i_t:
//   g_t = sigmoid(w_d x_t + b_d)                   gate
//   m_t = decay_d m_{t-1} + (1 - decay_d) g_t x_t  running average, float32 state [D]
//   y_t = m_t + table[hash(i_{t-W+1} .. i_t)]_d    memory of the last W tokens, int32 state [W-1]
// Every token is computed on its own from the state before it, so a prompt in chunks gives the very bits that one pass
// or one token at a time gives. The layer declares two states of different dtypes and owns no memory; its metadata is
// its own.
#pragma once

#include <cstdint>
#include <vector>

#include "coluber/mamba_base.h"
#include "coluber/model.h"

namespace tide {

// What the layer reads of a step: where each row's tokens and state lie.
struct TideMetadata : coluber::AttentionMetadata {
  struct Row {
    int64_t first_token = 0;
    int64_t num_tokens = 0;
    int64_t slot = 0;        // physical block
    bool has_state = false;  // else the row starts from nothing, whatever its slot holds
  };
  std::vector<Row> rows;
};

class TideMetadataBuilder : public coluber::AttentionMetadataBuilder {
 public:
  const TideMetadata& build(int64_t common_prefix_len, const coluber::CommonAttentionMetadata& common,
                            bool fast_build = false) override;

 private:
  TideMetadata metadata_;
};

class TideBackend : public coluber::AttentionBackend {
 public:
  std::string_view name() const noexcept override { return "TideBackend"; }
  coluber::BuilderFactory get_builder_cls() const override;
};

struct TideWeights {
  std::vector<float> gate_weight;  // [D]
  std::vector<float> gate_bias;    // [D]
  std::vector<float> decay;        // [D], between 0 and 1
  std::vector<float> table;        // [kTableRows, D]
};

class TideLayer : public coluber::MambaBase {
 public:
  static constexpr int64_t kWindow = 3;  // W
  static constexpr int64_t kTableRows = 32;

  TideLayer(std::string name, int64_t hidden_size, TideWeights weights);

  std::vector<coluber::Shape> get_state_shape() const override;
  std::vector<coluber::DType> get_state_dtype() const override;
  coluber::MambaAttentionBackendEnum mamba_type() const override { return coluber::MambaAttentionBackendEnum::kCustom; }
  std::string_view custom_backend() const noexcept override { return "tide"; }

  void forward(const coluber::ForwardBatch& batch, const float* x, float* y) const;  // [T, D] both

 private:
  void forward_row(const TideMetadata::Row& row, const int32_t* ids, const float* x, float* y) const;

  int64_t hidden_size_;
  TideWeights weights_;
};

}  // namespace tide
