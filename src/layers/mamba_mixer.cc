// SPDX-License-Identifier: Apache-2.0
#include "layers/mamba_mixer.h"

#include <algorithm>

#include "base/dtype.h"
#include "base/error.h"
#include "cache/state_shape.h"
#include "kernels/norm/norm.h"
#include "kernels/scan/selective_scan.h"
#include "layers/recurrent_layer.h"
#include "layers/staged_state.h"
#include "tensor/cuda_step.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

MambaMixerConfig checked(const MambaMixerConfig& config, const WeightLoader& loader) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_positive("intermediate size", config.intermediate_size);
  checks.expect_positive("time step rank", config.time_step_rank);
  checks.expect_between("state size", config.state_size, 1, kMaxSelectiveScanState);
  checks.expect_between("convolution width", config.conv_kernel, 2, kMaxConvWidth);
  checks.expect(config.num_heads >= 0 && config.intermediate_size % std::max<int64_t>(config.num_heads, 1) == 0,
                fmt::format("heads: expected a divisor of the intermediate size {}, found {}", config.intermediate_size,
                            config.num_heads));
  checks.finish("mamba", loader);
  return config;
}

}  // namespace

MambaMixer::MambaMixer(const MambaMixerConfig& config, WeightLoader loader)
    : MambaBase(layer_name_of(loader)),
      config_(checked(config, loader)),
      engine_config_(loader.config()),
      out_proj_(loader, "out_proj", config_.intermediate_size, config_.hidden_size, config_.use_bias),
      conv_weight_(take_conv_weight(loader, "conv1d.weight", config_.intermediate_size, config_.conv_kernel)) {
  if (config_.use_conv_bias) conv_bias_ = loader.take_array("conv1d.bias", Shape{config_.intermediate_size});
  if (config_.num_heads == 0)
    take_projections(loader);
  else
    take_head_projections(loader);
  const int64_t heads = config_.head_count(), channels = config_.head_channels(), states = config_.state_size;
  const bool plain = config_.num_heads == 0;
  d_ = loader.take_array("D", plain ? Shape{channels} : Shape{heads, channels});
  const std::vector<float> a_log =
      loader.read_float("A_log", plain ? Shape{channels, states} : Shape{heads, channels, states});
  std::vector<float> a(a_log.size());
  for (int64_t first = 0; first < heads * channels * states; first += channels * states)
    prepare_selective_scan_a(a_log.data() + first, channels, states, a.data() + first);
  a_ = loader.place(std::move(a));
  if (config_.mixer_norm_weights) {
    dt_norm_ = loader.take_array("dt_layernorm.weight", Shape{config_.time_step_rank});
    b_norm_ = loader.take_array("b_layernorm.weight", Shape{states});
    c_norm_ = loader.take_array("c_layernorm.weight", Shape{states});
  }
  loader.config().register_layer(*this);
}

void MambaMixer::take_projections(WeightLoader& loader) {
  const int64_t channels = config_.intermediate_size, rank = config_.time_step_rank;
  in_proj_.emplace_back(loader, "in_proj", config_.hidden_size, 2 * channels, config_.use_bias);
  x_proj_.emplace_back(loader, "x_proj", channels, config_.x_proj_width(), false);
  dt_proj_.emplace_back(loader, "dt_proj", rank, channels, true);
}

void MambaMixer::take_head_projections(WeightLoader& loader) {
  const int64_t heads = config_.num_heads, channels = config_.head_channels(), width = config_.x_proj_width();
  const int64_t all = config_.intermediate_size, rank = config_.time_step_rank;
  const TensorView in = loader.take("in_proj.weight", Shape{2 * all, config_.hidden_size});
  std::vector<float> in_bias;
  if (config_.use_bias) in_bias = loader.read_float("in_proj.bias", Shape{2 * all});
  for (int64_t part = 0; part < 2; ++part) {
    std::vector<float> bias;
    for (size_t i = static_cast<size_t>(part); i < in_bias.size(); i += 2) bias.push_back(in_bias[i]);
    in_proj_.emplace_back(loader, weight_rows(in, part, all, 2), std::move(bias));
  }
  const TensorView x = loader.take("x_proj_weight", Shape{heads, width, channels});
  const TensorView dt = loader.take("dt_proj_weight", Shape{heads, channels, rank});
  const std::vector<float> dt_bias = loader.read_float("dt_proj_bias", Shape{heads, channels});
  for (int64_t h = 0; h < heads; ++h) {
    const auto bias = dt_bias.begin() + h * channels;
    x_proj_.emplace_back(loader, weight_rows(x, h * width, width), std::vector<float>{});
    dt_proj_.emplace_back(loader, weight_rows(dt, h * channels, channels), std::vector<float>(bias, bias + channels));
  }
}

std::vector<Shape> MambaMixer::get_state_shape() const {
  const int64_t ranks = engine_config_.parallel.tensor_parallel_size;
  std::vector<Shape> shapes =
      mamba1_state_shape(ranks, config_.intermediate_size, config_.state_size, config_.conv_kernel);
  if (config_.num_heads == 0) return with_state_scales(std::move(shapes), get_state_dtype());
  expect_even_shares(*this, "mamba heads", config_.num_heads, ranks);
  shapes[1] = Shape{config_.num_heads / ranks, config_.head_channels(), config_.state_size};
  return with_state_scales(std::move(shapes), get_state_dtype());
}

std::vector<DType> MambaMixer::get_state_dtype() const {
  return with_state_scales({conv_state_dtype(engine_config_), recurrent_state_dtype(engine_config_)});
}

std::vector<StateLaneOrder> MambaMixer::get_state_lane_order() const {
  return {StateLaneOrder::kContract,
          config_.num_heads == 0 ? StateLaneOrder::kChannelBlock16 : StateLaneOrder::kHeadBlock16};
}

void MambaMixer::project_in(const ForwardBatch& batch, const float* x, float* xz) const {
  int64_t first = 0;
  for (const Linear& part : in_proj_) {
    part.forward(batch, x, config_.hidden_size, batch.num_tokens(), xz + first, 2 * config_.intermediate_size);
    first += part.out_features();
  }
}

void MambaMixer::convolve(const ForwardBatch& batch, const float* in, float* out) const {
  const auto& metadata = batch.metadata<Mamba1AttentionMetadata>(*this);
  const int64_t channels = config_.intermediate_size;
  CausalConv1dArgs args;
  args.x = in;
  args.x_stride = 2 * channels;
  args.weight = conv_weight_.data();
  args.bias = conv_bias_.data();
  args.silu = true;
  args.y = out;
  args.y_stride = channels;
  args.channels = channels;
  args.width = config_.conv_kernel;
  convolve_rows(args, metadata, kv_cache()[0], batch);
}

void MambaMixer::norm_dt_b_c(const ForwardBatch& batch, float* dt_b_c) const {
  const int64_t rank = config_.time_step_rank, states = config_.state_size;
  const auto norm = [&](int64_t first, int64_t size, const FloatArray& weight) {
    RmsNormArgs args;
    args.x = args.y = dt_b_c + first;
    args.x_stride = args.y_stride = config_.x_proj_width();
    args.rows = batch.num_tokens() * config_.head_count();
    args.cols = size;
    args.weight = weight.data();
    args.eps = static_cast<float>(*config_.mixer_rms_eps);
    rms_norm()(args, batch);
  };
  norm(0, rank, dt_norm_);
  norm(rank, states, b_norm_);
  norm(rank + states, states, c_norm_);
}

namespace {

StateSlots slots_of_head(StateSlots slots, int64_t first_element) {
  slots.base = static_cast<std::byte*>(slots.base) + dtype_bytes(slots.dtype, first_element);
  return slots;
}

}  // namespace

void MambaMixer::scan_head(const ForwardBatch& batch, int64_t head, const float* z, const float* delta,
                           const float* dt_b_c, float* x, const StagedState& decoded,
                           const StagedState& prefilled) const {
  const auto& metadata = batch.metadata<Mamba1AttentionMetadata>(*this);
  const int64_t channels = config_.head_channels(), states = config_.state_size, decodes = metadata.num_decodes;
  SelectiveScanArgs args;
  args.x = args.y = x + head * channels;
  args.x_stride = args.y_stride = args.delta_stride = config_.intermediate_size;
  args.delta = delta + head * channels;
  args.a = a_.data() + head * channels * states;
  args.b = dt_b_c + head * config_.x_proj_width() + config_.time_step_rank;
  args.c = args.b + states;
  args.b_stride = args.c_stride = config_.head_count() * config_.x_proj_width();
  args.d = d_.data() + head * channels;
  args.z = z + head * channels;
  args.z_stride = 2 * config_.intermediate_size;
  args.channels = channels;
  args.state_size = states;
  if (decodes > 0) {
    args.state = slots_of_head(decoded.slots(), head * channels * states);
    args.rows = decodes;
    selective_state_update()(args, batch);
  }
  if (metadata.num_prefills > 0) {
    args.x += decodes * args.x_stride;
    args.y += decodes * args.y_stride;
    args.delta += decodes * args.delta_stride;
    args.b += decodes * args.b_stride;
    args.c += decodes * args.c_stride;
    args.z += decodes * args.z_stride;
    args.state = slots_of_head(prefilled.slots(), head * channels * states);
    args.rows = metadata.num_prefills;
    args.query_start_loc = device_array(batch, metadata.query_start_loc_p);
    args.exports = prefilled.exports();
    selective_scan()(args, batch);
  }
}

void MambaMixer::scan(const ForwardBatch& batch, const float* z, const float* delta, const float* dt_b_c,
                      float* x) const {
  const auto& metadata = batch.metadata<Mamba1AttentionMetadata>(*this);
  const int64_t decodes = metadata.num_decodes, prefills = metadata.num_prefills;
  const StagedState decoded(*this, batch, 1, decodes > 0 ? decode_slots(batch, metadata, kv_cache()[1]) : StateSlots{},
                            decodes);
  const StagedState prefilled(*this, batch, 1,
                              prefills > 0 ? prefill_slots(batch, metadata, kv_cache()[1]) : StateSlots{}, prefills,
                              prefills > 0 ? prefill_exports(batch, metadata.exports) : StateExports{});
  for (int64_t h = 0; h < config_.head_count(); ++h) scan_head(batch, h, z, delta, dt_b_c, x, decoded, prefilled);
  decoded.write_back();
  prefilled.write_back();
}

void MambaMixer::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  const int64_t tokens = batch.num_tokens(), channels = config_.intermediate_size;
  const auto& metadata = batch.metadata<Mamba1AttentionMetadata>(*this);
  check_step(*this, {(config_.conv_kernel - 1) * channels, channels * config_.state_size}, metadata, tokens);
  WorkspaceScope scope(*batch.workspace);
  const int64_t heads = config_.head_count(), head = config_.head_channels(), width = config_.x_proj_width();
  float* xz = batch.workspace->take<float>(tokens * 2 * channels);
  float* inner = batch.workspace->take<float>(tokens * channels);
  float* dt_b_c = batch.workspace->take<float>(tokens * heads * width);
  float* delta = batch.workspace->take<float>(tokens * channels);
  project_in(batch, x, xz);
  // Tokens that pad the batch have no row: nothing else writes theirs.
  const int64_t computed = metadata.num_decode_tokens + metadata.num_prefill_tokens;
  zero_padding(batch, computed, inner, channels);
  convolve(batch, xz, inner);
  for (int64_t h = 0; h < heads; ++h)
    x_proj_[static_cast<size_t>(h)].forward(batch, inner + h * head, channels, tokens, dt_b_c + h * width,
                                            heads * width);
  if (config_.mixer_rms_eps) norm_dt_b_c(batch, dt_b_c);
  for (int64_t h = 0; h < heads; ++h)
    dt_proj_[static_cast<size_t>(h)].forward(batch, dt_b_c + h * width, heads * width, tokens, delta + h * head,
                                             channels);
  scan(batch, xz + channels, delta, dt_b_c, inner);
  out_proj_.forward(batch, inner, tokens, y, accumulate);
}

}  // namespace coluber
