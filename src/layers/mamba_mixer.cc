// SPDX-License-Identifier: Apache-2.0
#include "layers/mamba_mixer.h"

#include <algorithm>

#include "base/error.h"
#include "cache/state_shape.h"
#include "kernels/conv/causal_conv1d.h"
#include "kernels/norm/norm.h"
#include "kernels/scan/selective_scan.h"
#include "layers/recurrent_layer.h"
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
  checks.finish("mamba", loader);
  return config;
}

}  // namespace

MambaMixer::MambaMixer(const MambaMixerConfig& config, WeightLoader loader)
    : MambaBase(layer_name_of(loader)),
      config_(checked(config, loader)),
      engine_config_(loader.config()),
      in_proj_(loader, "in_proj", config_.hidden_size, 2 * config_.intermediate_size, config_.use_bias),
      x_proj_(loader, "x_proj", config_.intermediate_size, config_.time_step_rank + 2 * config_.state_size, false),
      dt_proj_(loader, "dt_proj", config_.time_step_rank, config_.intermediate_size, true),
      out_proj_(loader, "out_proj", config_.intermediate_size, config_.hidden_size, config_.use_bias),
      conv_weight_(take_conv_weight(loader, "conv1d.weight", config_.intermediate_size, config_.conv_kernel)),
      d_(loader.take_float("D", Shape{config_.intermediate_size})) {
  if (config_.use_conv_bias) conv_bias_ = loader.take_float("conv1d.bias", Shape{config_.intermediate_size});
  const std::vector<float> a_log = loader.take_float("A_log", Shape{config_.intermediate_size, config_.state_size});
  a_.resize(a_log.size());
  prepare_selective_scan_a(a_log.data(), config_.intermediate_size, config_.state_size, a_.data());
  loader.config().register_layer(*this);
}

std::vector<Shape> MambaMixer::get_state_shape() const {
  return mamba1_state_shape(engine_config_.parallel.tensor_parallel_size, config_.intermediate_size, config_.state_size,
                            config_.conv_kernel);
}

std::vector<DType> MambaMixer::get_state_dtype() const {
  return {conv_state_dtype(engine_config_), recurrent_state_dtype(engine_config_)};
}

std::vector<StateLaneOrder> MambaMixer::get_state_lane_order() const {
  return {StateLaneOrder::kContract, StateLaneOrder::kChannelBlock16};
}

void MambaMixer::convolve(const ForwardBatch& batch, const float* in, float* out) const {
  const auto& metadata = batch.metadata<Mamba1AttentionMetadata>(*this);
  const int64_t channels = config_.intermediate_size, decodes = metadata.num_decodes;
  CausalConv1dArgs args;
  args.x = in;
  args.x_stride = 2 * channels;
  args.weight = conv_weight_.data();
  args.bias = conv_bias_.empty() ? nullptr : conv_bias_.data();
  args.silu = true;
  args.y = out;
  args.y_stride = channels;
  args.channels = channels;
  args.width = config_.conv_kernel;
  if (decodes > 0) {
    args.state = decode_slots(metadata, kv_cache()[0]);
    args.rows = decodes;
    causal_conv1d_update()(args, *batch.thread_pool);
  }
  if (metadata.num_prefills > 0) {
    args.x += decodes * args.x_stride;
    args.y += decodes * args.y_stride;
    args.state = prefill_slots(metadata, kv_cache()[0]);
    args.rows = metadata.num_prefills;
    args.query_start_loc = metadata.query_start_loc_p.data();
    causal_conv1d()(args, *batch.thread_pool);
  }
}

void MambaMixer::scan(const ForwardBatch& batch, const float* z, const float* delta, const float* bc, float* x) const {
  const auto& metadata = batch.metadata<Mamba1AttentionMetadata>(*this);
  const int64_t channels = config_.intermediate_size, decodes = metadata.num_decodes;
  SelectiveScanArgs args;
  args.x = args.y = x;
  args.x_stride = args.y_stride = args.delta_stride = channels;
  args.delta = delta;
  args.a = a_.data();
  args.b = bc;
  args.c = bc + config_.state_size;
  args.b_stride = args.c_stride = x_proj_.out_features();
  args.d = d_.data();
  args.z = z;
  args.z_stride = 2 * channels;
  args.channels = channels;
  args.state_size = config_.state_size;
  if (decodes > 0) {
    args.state = decode_slots(metadata, kv_cache()[1]);
    args.rows = decodes;
    selective_state_update()(args, *batch.thread_pool);
  }
  if (metadata.num_prefills > 0) {
    args.x += decodes * args.x_stride;
    args.y += decodes * args.y_stride;
    args.delta += decodes * args.delta_stride;
    args.b += decodes * args.b_stride;
    args.c += decodes * args.c_stride;
    args.z += decodes * args.z_stride;
    args.state = prefill_slots(metadata, kv_cache()[1]);
    args.rows = metadata.num_prefills;
    args.query_start_loc = metadata.query_start_loc_p.data();
    selective_scan()(args, *batch.thread_pool);
  }
}

void MambaMixer::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  const int64_t tokens = batch.num_tokens(), channels = config_.intermediate_size, rank = config_.time_step_rank;
  const auto& metadata = batch.metadata<Mamba1AttentionMetadata>(*this);
  check_step(*this, {(config_.conv_kernel - 1) * channels, channels * config_.state_size}, metadata, tokens);
  WorkspaceScope scope(*batch.workspace);
  float* xz = batch.workspace->take<float>(tokens * 2 * channels);
  float* inner = batch.workspace->take<float>(tokens * channels);
  const int64_t width = x_proj_.out_features();
  float* dt_b_c = batch.workspace->take<float>(tokens * width);
  float* delta = batch.workspace->take<float>(tokens * channels);
  in_proj_.forward(batch, x, tokens, xz);
  // Tokens that pad the batch have no row: nothing else writes theirs.
  const int64_t computed = metadata.num_decode_tokens + metadata.num_prefill_tokens;
  std::fill(inner + computed * channels, inner + tokens * channels, 0.0f);
  convolve(batch, xz, inner);
  x_proj_.forward(batch, inner, tokens, dt_b_c);
  if (config_.mixer_rms_eps) {
    const auto norm = [&](int64_t first, int64_t size) {
      RmsNormArgs args;
      args.x = args.y = dt_b_c + first;
      args.x_stride = args.y_stride = width;
      args.rows = tokens;
      args.cols = size;
      args.eps = static_cast<float>(*config_.mixer_rms_eps);
      rms_norm()(args, *batch.thread_pool);
    };
    norm(0, rank);
    norm(rank, config_.state_size);
    norm(rank + config_.state_size, config_.state_size);
  }
  dt_proj_.forward(batch, dt_b_c, width, tokens, delta, channels);
  scan(batch, xz + channels, delta, dt_b_c + rank, inner);
  out_proj_.forward(batch, inner, tokens, y, accumulate);
}

}  // namespace coluber
