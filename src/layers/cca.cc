// SPDX-License-Identifier: Apache-2.0
#include "layers/cca.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "base/error.h"
#include "cache/state_shape.h"
#include "kernels/conv/causal_conv1d.h"
#include "layers/recurrent_layer.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

// Under the root of the mean square: only a vector of zeros notices.
constexpr double kLengthEps = 1e-20;

CcaConfig checked(const CcaConfig& config, const WeightLoader& loader) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_positive("head dim", config.head_dim);
  checks.expect(config.num_kv_heads > 0 && config.num_heads > 0 &&
                    config.num_heads % std::max<int64_t>(config.num_kv_heads, 1) == 0,
                fmt::format("attention heads: expected a positive multiple of the key-value heads, found {} and {}",
                            config.num_heads, config.num_kv_heads));
  checks.expect(config.kv_width() % 2 == 0,
                fmt::format("key-value heads times head dim: expected an even number, found {}", config.kv_width()));
  checks.expect_between("width of the channels' convolution", config.channel_kernel, 2, kMaxConvWidth);
  checks.expect_between("width of the heads' convolution", config.head_kernel, 1, kMaxConvWidth);
  checks.finish("compressed convolutional attention", loader);
  return config;
}

Linear take_delayed(WeightLoader& loader, const CcaConfig& config, std::vector<float>& bias) {
  const int64_t half = config.kv_width() / 2;
  const TensorView weight = loader.take("v_proj_delayed.weight", Shape{half, config.hidden_size});
  if (config.bias) bias = loader.take_float("v_proj_delayed.bias", Shape{half});
  return Linear(loader, weight, bias);
}

// Stored [C, D, W1], of each head [D, D, W1]: one product [D, D] a tap and head.
std::vector<Linear> take_head_taps(WeightLoader& loader, const CcaConfig& config) {
  const int64_t dim = config.head_dim, heads = config.num_heads + config.num_kv_heads, taps = config.head_kernel;
  const TensorView stored = loader.take("conv_qk_grouped.weight", Shape{config.channels(), dim, taps});
  const std::vector<float> bias = loader.take_float("conv_qk_grouped.bias", Shape{config.channels()});
  const auto element = static_cast<size_t>(dtype_size(stored.dtype));
  std::vector<std::byte> tap_weight(static_cast<size_t>(dim * dim) * element);
  std::vector<Linear> result;
  for (int64_t tap = 0; tap < taps; ++tap) {
    for (int64_t h = 0; h < heads; ++h) {
      const std::byte* from = stored.data + static_cast<size_t>(h * dim * dim * taps + tap) * element;
      for (int64_t i = 0; i < dim * dim; ++i)
        std::copy_n(from + static_cast<size_t>(i * taps) * element, element,
                    tap_weight.data() + static_cast<size_t>(i) * element);
      const auto first = bias.begin() + h * dim;
      result.emplace_back(loader, TensorView::contiguous(tap_weight.data(), stored.dtype, Shape{dim, dim}),
                          tap + 1 == taps ? std::vector<float>(first, first + dim) : std::vector<float>{});
    }
  }
  return result;
}

// Calls row(index, slots, its number among the slots, first token, tokens) for every row of the step: the decodes, then
// the prefills.
template <typename Row>
void for_rows(const Execution& on, const BaseMambaAttentionMetadata& metadata, const TensorView& state, Row&& row) {
  const StateSlots decodes = decode_slots(on, metadata, state), prefills = prefill_slots(on, metadata, state);
  for (int64_t r = 0; r < metadata.num_decodes; ++r) row(r, decodes, r, r, int64_t{1});
  for (int64_t r = 0; r < metadata.num_prefills; ++r) {
    const int64_t begin = metadata.query_start_loc_p[static_cast<size_t>(r)];
    row(metadata.num_decodes + r, prefills, r, metadata.num_decodes + begin,
        metadata.query_start_loc_p[static_cast<size_t>(r) + 1] - begin);
  }
}

}  // namespace

CcaProjection::CcaProjection(const CcaConfig& config, WeightLoader loader)
    : MambaBase(layer_name_of(loader)),
      config_(checked(config, loader)),
      engine_config_(loader.config()),
      q_proj_(loader, "q_proj", config_.hidden_size, config_.q_width(), config_.bias),
      k_proj_(loader, "k_proj", config_.hidden_size, config_.kv_width(), config_.bias),
      v_current_(loader, "v_proj_current", config_.hidden_size, config_.kv_width() / 2, config_.bias),
      v_delayed_(take_delayed(loader, config_, delayed_bias_)),
      channel_weight_(take_conv_weight(loader, "conv_qk_depthwise.weight", config_.channels(), config_.channel_kernel)),
      channel_bias_(loader.take_float("conv_qk_depthwise.bias", Shape{config_.channels()})),
      head_taps_(take_head_taps(loader, config_)) {
  delayed_bias_.resize(static_cast<size_t>(config_.kv_width() / 2), 0.0f);
  loader.config().register_layer(*this);
}

std::vector<Shape> CcaProjection::get_state_shape() const {
  const int64_t ranks = engine_config_.parallel.tensor_parallel_size;
  expect_even_shares(*this, "key-value heads", config_.num_kv_heads, ranks);
  std::vector<Shape> shapes = short_conv_state_shape(ranks, config_.channels(), config_.memory() + 1,
                                                     engine_config_.speculative.num_speculative_tokens);
  shapes.push_back(Shape{config_.kv_width() / 2 / ranks});
  return shapes;
}

std::vector<StateSplit> CcaProjection::get_state_split(const std::vector<Shape>& whole) const {
  const int64_t heads = config_.num_kv_heads;
  return {StateSplit{1, {{config_.q_width(), heads}, {config_.kv_width(), heads}}},
          StateSplit{0, {{whole[1][0], heads}}}};
}

std::vector<DType> CcaProjection::get_state_dtype() const {
  return {conv_state_dtype(engine_config_), conv_state_dtype(engine_config_)};
}

CcaProjection::LongRows CcaProjection::remember(const ForwardBatch& batch, const float* qk) const {
  const auto& metadata = batch.metadata<ShortConvAttentionMetadata>(*this);
  const int64_t channels = config_.channels(), memory = config_.memory();
  LongRows out;
  out.rows = metadata.num_decodes + metadata.num_prefills;
  out.tokens = metadata.num_decode_tokens + metadata.num_prefill_tokens + out.rows * memory;
  out.values = batch.workspace->take<float>(out.tokens * channels);
  out.starts = batch.workspace->take<int32_t>(out.rows + 1);
  out.starts[0] = 0;
  export_windows(batch, metadata, kv_cache()[0], qk, channels, memory);
  for_rows(batch, metadata, kv_cache()[0],
           [&](int64_t r, const StateSlots& slots, int64_t slot, int64_t first, int64_t tokens) {
             out.starts[r + 1] = out.starts[r] + static_cast<int32_t>(memory + tokens);
             float* row = out.values + out.starts[r] * channels;
             std::copy_n(qk + first * channels, tokens * channels, row + memory * channels);
             const bool null = slots.is_null(slot);
             const void* source = null ? nullptr : slots.source(slot);
             if (source == nullptr)
               std::fill_n(row, memory * channels, 0.0f);
             else
               convert_to_float(static_cast<const std::byte*>(source), slots.dtype, memory * channels, row);
             if (!null)
               convert_from_float(row + tokens * channels, memory * channels, slots.dtype,
                                  static_cast<std::byte*>(slots.target(slot)));
           });
  return out;
}

// The kernel wants states: each row gets one of its own that nobody keeps.
void CcaProjection::convolve_channels(const ForwardBatch& batch, const LongRows& in, float* out) const {
  WorkspaceScope scope(*batch.workspace);
  const int64_t channels = config_.channels(), state = (config_.channel_kernel - 1) * channels;
  float* states = batch.workspace->take<float>((in.rows + 1) * state);
  int32_t* slots = batch.workspace->take<int32_t>(in.rows);
  uint8_t* initial = batch.workspace->take<uint8_t>(in.rows);
  for (int64_t r = 0; r < in.rows; ++r) slots[r] = static_cast<int32_t>(r) + 1;
  std::fill_n(initial, in.rows, uint8_t{0});
  CausalConv1dArgs args;
  args.x = in.values;
  args.y = out;
  args.weight = channel_weight_.data();
  args.bias = channel_bias_.data();
  args.x_stride = args.y_stride = args.channels = channels;
  args.width = config_.channel_kernel;
  args.state.base = states;
  args.state.slot_stride_bytes = state * static_cast<int64_t>(sizeof(float));
  args.state.src = args.state.dst = slots;
  args.state.has_initial_state = initial;
  args.query_start_loc = in.starts;
  args.rows = in.rows;
  causal_conv1d()(args, batch);
}

// Row i of the output stands for row i + head_kernel - 1 of the input; what lies across two sequences is never read.
void CcaProjection::convolve_heads(const ForwardBatch& batch, const float* in, int64_t rows, float* out) const {
  const int64_t channels = config_.channels(), heads = config_.num_heads + config_.num_kv_heads;
  for (int64_t tap = 0; tap < config_.head_kernel; ++tap) {
    for (int64_t h = 0; h < heads; ++h) {
      const float* from = in + tap * channels + h * config_.head_dim;
      head_taps_[static_cast<size_t>(tap * heads + h)].forward(batch, from, channels, rows, out + h * config_.head_dim,
                                                               channels, /*accumulate=*/tap > 0);
    }
  }
}

void CcaProjection::mix(const LongRows& rows, const float* convolved, const float* qk, float* q, float* k) const {
  const int64_t dim = config_.head_dim, group = config_.num_heads / config_.num_kv_heads;
  const int64_t channels = config_.channels(), q_width = config_.q_width(), kv_width = config_.kv_width();
  const int64_t lag = config_.head_kernel - 1;
  int64_t token = 0;
  for (int64_t r = 0; r < rows.rows; ++r) {
    for (int64_t i = rows.starts[r] + config_.memory(); i < rows.starts[r + 1]; ++i, ++token) {
      const float *c = convolved + (i - lag) * channels, *q0 = qk + token * channels, *k0 = q0 + q_width;
      float *q_row = q + token * q_width, *k_row = k + token * kv_width;
      for (int64_t g = 0; g < config_.num_kv_heads; ++g) {
        float* key = k_row + g * dim;
        std::fill_n(key, dim, 0.0f);
        for (int64_t h = g * group; h < (g + 1) * group; ++h) {
          for (int64_t d = 0; d < dim; ++d) {
            const float beside = 0.5f * (q0[h * dim + d] + k0[g * dim + d]);
            q_row[h * dim + d] = c[h * dim + d] + beside;
            key[d] += beside;
          }
        }
        for (int64_t d = 0; d < dim; ++d) key[d] = c[q_width + g * dim + d] + key[d] / static_cast<float>(group);
      }
    }
  }
}

void CcaProjection::delay_values(const ForwardBatch& batch, const float* x, float* v) const {
  WorkspaceScope scope(*batch.workspace);
  const auto& metadata = batch.metadata<ShortConvAttentionMetadata>(*this);
  const int64_t tokens = batch.num_tokens(), half = config_.kv_width() / 2;
  float* delayed = batch.workspace->take<float>(tokens * half);
  v_current_.forward(batch, x, config_.hidden_size, tokens, v, 2 * half);
  v_delayed_.forward(batch, x, tokens, delayed);
  export_windows(batch, metadata, kv_cache()[1], delayed, half, 1);
  for_rows(batch, metadata, kv_cache()[1],
           [&](int64_t, const StateSlots& slots, int64_t slot, int64_t first, int64_t count) {
             if (count == 0) return;
             const bool null = slots.is_null(slot);
             const void* source = null ? nullptr : slots.source(slot);
             float* row = v + first * 2 * half + half;
             if (source == nullptr)
               std::copy_n(delayed_bias_.data(), half, row);
             else
               convert_to_float(static_cast<const std::byte*>(source), slots.dtype, half, row);
             for (int64_t t = 1; t < count; ++t)
               std::copy_n(delayed + (first + t - 1) * half, half, row + t * 2 * half);
             if (!null)
               convert_from_float(delayed + (first + count - 1) * half, half, slots.dtype,
                                  static_cast<std::byte*>(slots.target(slot)));
           });
}

void CcaProjection::forward(const ForwardBatch& batch, const float* x, float* q, float* k, float* v) const {
  const auto& metadata = batch.metadata<ShortConvAttentionMetadata>(*this);
  const int64_t tokens = batch.num_tokens(), channels = config_.channels();
  check_step(*this, {config_.memory() * channels, config_.kv_width() / 2}, metadata, tokens);
  WorkspaceScope scope(*batch.workspace);
  float* qk = batch.workspace->take<float>(tokens * channels);
  q_proj_.forward(batch, x, config_.hidden_size, tokens, qk, channels);
  k_proj_.forward(batch, x, config_.hidden_size, tokens, qk + config_.q_width(), channels);
  // Tokens that pad the batch have no row: nothing else writes theirs.
  const int64_t computed = metadata.num_decode_tokens + metadata.num_prefill_tokens;
  std::fill(q + computed * config_.q_width(), q + tokens * config_.q_width(), 0.0f);
  std::fill(k + computed * config_.kv_width(), k + tokens * config_.kv_width(), 0.0f);
  std::fill(v + computed * config_.kv_width(), v + tokens * config_.kv_width(), 0.0f);
  delay_values(batch, x, v);
  if (computed == 0) return;
  const LongRows rows = remember(batch, qk);
  float* by_channel = batch.workspace->take<float>(rows.tokens * channels);
  float* by_head = batch.workspace->take<float>(rows.tokens * channels);
  convolve_channels(batch, rows, by_channel);
  convolve_heads(batch, by_channel, rows.tokens - (config_.head_kernel - 1), by_head);
  mix(rows, by_head, qk, q, k);
}

CcaAttention::CcaAttention(const CcaConfig& config, WeightLoader loader)
    : SoftmaxAttention(
          {config.num_heads, config.num_kv_heads, config.head_dim, config.rope, std::nullopt, config.sliding_window},
          loader),
      config_(config),
      projection_(config, loader.scoped("qkv_proj")),
      length_(config.head_dim, kLengthEps),
      key_scale_(loader.take_float("qk_norm.temp", Shape{config.num_kv_heads})),
      out_proj_(loader, "o_proj", config.q_width(), config.hidden_size, config.bias) {}

void CcaAttention::forward(const ForwardBatch& batch, const float* x, float* y) {
  WorkspaceScope scope(*batch.workspace);
  const int64_t tokens = batch.num_tokens(), dim = config_.head_dim;
  float* q = batch.workspace->take<float>(tokens * q_width());
  float* k = batch.workspace->take<float>(tokens * kv_width());
  float* v = batch.workspace->take<float>(tokens * kv_width());
  float* out = batch.workspace->take<float>(tokens * q_width());
  projection_.forward(batch, x, q, k, v);
  length_.forward(batch, q, tokens * num_heads(), q);
  length_.forward(batch, k, tokens * num_kv_heads(), k);
  for (int64_t i = 0; i < tokens * num_kv_heads(); ++i) {
    const float factor = key_scale_[static_cast<size_t>(i % num_kv_heads())];
    for (int64_t d = i * dim; d < (i + 1) * dim; ++d) k[d] *= factor;
  }
  rotate(batch, q, k);
  attend(batch, q, k, v, out);
  out_proj_.forward(batch, out, tokens, y);
}

}  // namespace coluber
