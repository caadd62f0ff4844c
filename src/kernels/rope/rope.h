// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding (Su et al., RoFormer, 2021), in place on the queries and keys of packed tokens. With R =
// rotary_dim and f[i] the frequencies, a token at position p turns each pair by the angle p * f[i]:
//
//   (x[a], x[b]) <- m * (x[a] cos - x[b] sin, x[b] cos + x[a] sin)
//   half-split ("NeoX"):  a = i, b = i + R/2        interleaved: a = 2i, b = 2i + 1        0 <= i < R/2
//
// Elements from R on stay as they are. m is the attention factor of the scaling (1 without). Angles, sine and cosine
// are double, so that long positions keep their precision; the turn itself is float32. A token's result depends on the
// token alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/tolerance.h"
#include "tensor/workspace.h"

namespace coluber {

inline constexpr Tolerance kRopeTolerance{.absolute = 1e-6, .relative = 1e-6, .of_rms = 1e-6};

enum class RopeType { kDefault, kLinear, kLlama3, kYarn, kLongRope, kProportional };
// "default", "linear", "llama3", "yarn", "longrope", "proportional"; nothing for any other word: the model then refuses
// its configuration.
std::optional<RopeType> parse_rope_type(std::string_view name) noexcept;

// Fields named as in Hugging Face's `rope_parameters`.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;  // rope_theta
  int64_t rotary_dim = 0;  // even, at most the head dim
  bool interleaved = false;
  double factor = 1.0;                           // all but default
  double low_freq_factor = 1.0;                  // llama3
  double high_freq_factor = 4.0;                 // llama3
  int64_t original_max_position_embeddings = 0;  // llama3, yarn, longrope
  double beta_fast = 32.0;                       // yarn
  double beta_slow = 1.0;                        // yarn
  // yarn; unset: m(mscale) / m(mscale_all_dim) where both are set, else m(1), with m(s) = 0.1 s ln(factor) + 1.
  // longrope; unset: sqrt(1 + ln(factor) / ln(original_max_position_embeddings)).
  std::optional<double> attention_factor = std::nullopt;
  double mscale = 0.0;                     // yarn; 0: unset
  double mscale_all_dim = 0.0;             // yarn; 0: unset
  bool truncate = true;                    // yarn: the ramp starts and ends at whole dimensions
  std::vector<double> divisors = {};       // longrope: [rotary_dim / 2], of each frequency
  std::vector<double> long_divisors = {};  // likewise, in sequences beyond original_max_position_embeddings
  double proportion = 1.0;                 // proportional: the part of the pairs that turns, the fastest ones
};

struct RopeFrequencies {
  std::vector<double> frequencies;       // [rotary_dim / 2], radians a token
  std::vector<double> long_frequencies;  // longrope: likewise, in long sequences; else empty
  double attention_factor = 1.0;
};

// Throws Error(kInvalidConfig) naming each field that makes no sense.
RopeFrequencies rope_frequencies(const RopeConfig& config, int64_t head_dim);

struct RopeArgs {
  float* q = nullptr;  // [T, Hq, D], token stride q_stride; may be null where num_q_heads is 0
  int64_t q_stride = 0;
  int64_t num_q_heads = 0;
  float* k = nullptr;  // [T, Hk, D], token stride k_stride
  int64_t k_stride = 0;
  int64_t num_k_heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  bool interleaved = false;
  const double* frequencies = nullptr;  // [rotary_dim / 2]
  double attention_factor = 1.0;
  const int64_t* positions = nullptr;  // [T]
  int64_t num_tokens = 0;
};

using RopeFunction = void (*)(const RopeArgs& args, ThreadPool& pool, Workspace& workspace);
const Operation<RopeFunction>& rope();

void rope_ref(const RopeArgs& args, ThreadPool& pool, Workspace& workspace);

}  // namespace coluber
