// SPDX-License-Identifier: Apache-2.0
//
// The shapes and dtypes of every kind's states, local to one tensor-parallel rank, in the order (conv, recurrent). Conv
// states lie as (window, channels). What does not divide by the tensor-parallel size is refused with the names of both
// numbers. Layers answer `get_state_shape` with these functions; a layer whose state is replicated passes a tp_size of
// 1
// (`state_tp_size`). Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coluber/config.h"
#include "coluber/dtype.h"
#include "coluber/tensor_view.h"

namespace coluber {

// The size that a layer's state is divided by: 1 where every rank keeps the whole state.
inline int64_t state_tp_size(int64_t tp_size, bool is_kv_cache_tp_replicated) {
  return is_kv_cache_tp_replicated ? 1 : tp_size;
}

// Groups after each rank got one of its own: n_groups where it divides, tp_size else (a single group is replicated).
int64_t extended_num_groups(int64_t tp_size, int64_t n_groups);

std::vector<Shape> mamba1_state_shape(int64_t tp_size, int64_t intermediate_size, int64_t state_size,
                                      int64_t conv_kernel);

struct Mamba2StateSizes {
  int64_t intermediate_size = 0;
  int64_t n_groups = 1;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t state_size = 0;
  int64_t conv_kernel = 0;
};
std::vector<Shape> mamba2_state_shape(int64_t tp_size, const Mamba2StateSizes& sizes,
                                      int64_t num_speculative_tokens = 0);
// The ring of replay: x (heads, buffer_len, head_dim), dt (heads, buffer_len), B (groups, buffer_len, state_size).
// Groups are not extended: a rank that has no whole one is refused.
std::vector<Shape> mamba2_replayssm_shape(int64_t tp_size, const Mamba2StateSizes& sizes, int64_t buffer_len);

// Heads are divided rounding down, as the contract has it; a rank without a head is refused.
std::vector<Shape> linear_attention_state_shape(int64_t tp_size, int64_t num_heads, int64_t head_dim);
// Keys and values of different sizes: (heads, key_dim, value_dim).
std::vector<Shape> linear_attention_state_shape(int64_t tp_size, int64_t num_heads, int64_t key_dim, int64_t value_dim);

std::vector<Shape> short_conv_state_shape(int64_t tp_size, int64_t intermediate_size, int64_t conv_kernel,
                                          int64_t num_speculative_tokens = 0);
// The short convolution of per-layer embeddings: replicated on every rank.
std::vector<Shape> ple_short_conv_state_shape(int64_t intermediate_size, int64_t conv_kernel,
                                              int64_t num_speculative_tokens = 0);

struct GatedDeltaNetStateSizes {
  int64_t num_k_heads = 0;
  int64_t num_v_heads = 0;
  int64_t head_k_dim = 0;
  int64_t head_v_dim = 0;
  int64_t conv_kernel = 0;
};
// The recurrent state has the value dim before the key dim.
std::vector<Shape> gated_delta_net_state_shape(int64_t tp_size, const GatedDeltaNetStateSizes& sizes,
                                               int64_t num_speculative_tokens = 0);

struct KimiDeltaAttentionStateSizes {
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  std::optional<int64_t> num_k_heads;  // unset: num_heads
  std::optional<int64_t> head_k_dim;   // unset: head_dim
  int64_t conv_kernel = 0;
};
std::vector<Shape> kda_state_shape(int64_t tp_size, const KimiDeltaAttentionStateSizes& sizes,
                                   int64_t num_speculative_tokens = 0);

// States of whole numbers (int16, int8) have a float32 scale for each row along their last axis: one more state, behind
// all others, of the shape without that axis. A state of one axis is cut into `parts` rows. `dtypes` may have those of
// the scales already.
std::vector<Shape> with_state_scales(std::vector<Shape> shapes, const std::vector<DType>& dtypes, int64_t parts = 1);
std::vector<DType> with_state_scales(std::vector<DType> dtypes);

// The configured dtypes: float32, float16 and bfloat16, and for recurrent states int16 and int8 (state_scales). Throw
// Error(kInvalidConfig) else.
DType conv_state_dtype(const EngineConfig& config);              // mamba_cache_dtype, or the activations'
DType recurrent_state_dtype(const EngineConfig& config);         // mamba_ssm_cache_dtype, or float32
DType linear_attention_state_dtype(const EngineConfig& config);  // mamba_ssm_cache_dtype, mamba_cache_dtype, or float32
DType kda_recurrent_state_dtype(const EngineConfig& config);     // float32 unless whole numbers are asked for

}  // namespace coluber
