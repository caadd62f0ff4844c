// SPDX-License-Identifier: Apache-2.0
#include "layers/mamba_mixer2.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/elementwise/scale.h"
#include "kernels/moe/activation.h"
#include "kernels/norm/norm.h"
#include "kernels/scan/ssd.h"
#include "layers/recurrent_layer.h"
#include "layers/staged_state.h"
#include "tensor/cuda_step.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

MambaMixer2Config checked(const MambaMixer2Config& config, const WeightLoader& loader) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_positive("heads", config.num_heads);
  checks.expect_positive("head dim", config.head_dim);
  checks.expect_between("state size", config.state_size, 1, kMaxSsdState);
  checks.expect_between("convolution width", config.conv_kernel, 2, kMaxConvWidth);
  checks.expect(config.n_groups > 0 && config.num_heads % std::max<int64_t>(config.n_groups, 1) == 0,
                fmt::format("groups: expected a divisor of the {} heads, found {}", config.num_heads, config.n_groups));
  checks.expect(config.norm_groups > 0 && config.intermediate_size() % std::max<int64_t>(config.norm_groups, 1) == 0,
                fmt::format("norm groups: expected a divisor of the inner width {}, found {}",
                            config.intermediate_size(), config.norm_groups));
  checks.expect(config.time_step_min >= 0.0 && config.time_step_min <= config.time_step_max,
                fmt::format("time step limit: expected 0 <= low <= high, found {} and {}", config.time_step_min,
                            config.time_step_max));
  const MixerMultipliers& m = config.multipliers;
  for (const double multiplier : {config.in_multiplier, m.z, m.x, m.b, m.c, m.dt})
    checks.expect(std::isfinite(multiplier), fmt::format("multipliers: expected finite numbers, found {}", multiplier));
  checks.expect(config.norm_eps > 0.0, fmt::format("norm epsilon: expected above 0, found {}", config.norm_eps));
  checks.finish("mamba2", loader);
  return config;
}

FloatArray take_a(WeightLoader& loader, int64_t num_heads) {
  std::vector<float> values = loader.read_float("A_log", Shape{num_heads});
  for (float& a : values) a = static_cast<float>(-std::exp(static_cast<double>(a)));
  return loader.place(std::move(values));
}

}  // namespace

MambaMixer2::MambaMixer2(const MambaMixer2Config& config, WeightLoader loader)
    : MambaBase(layer_name_of(loader)),
      config_(checked(config, loader)),
      engine_config_(loader.config()),
      in_proj_(take_in_proj(loader)),
      out_proj_(loader, "out_proj", config_.intermediate_size(), config_.hidden_size, config_.use_out_bias),
      conv_weight_(take_conv_weight(loader, "conv1d.weight", config_.conv_channels(), config_.conv_kernel)),
      a_(take_a(loader, config_.num_heads)),
      d_(loader.take_array("D", Shape{config_.num_heads})),
      dt_bias_(loader.take_array("dt_bias", Shape{config_.num_heads})) {
  if (config_.gate != MixerGate::kGateOnly)
    norm_weight_ = loader.take_array("norm.weight", Shape{config_.intermediate_size()});
  if (config_.use_conv_bias) conv_bias_ = loader.take_array("conv1d.bias", Shape{config_.conv_channels()});
  loader.config().register_layer(*this);
}

// With multipliers the bias comes after the product: it is scaled by its part's multiplier alone.
Linear MambaMixer2::take_in_proj(WeightLoader& loader) {
  const int64_t width = config_.projected_width(), inner = config_.intermediate_size();
  const int64_t group_width = config_.n_groups * config_.state_size;
  const MixerMultipliers& m = config_.multipliers;
  const std::pair<int64_t, double> parts[] = {
      {inner, m.z}, {inner, m.x}, {group_width, m.b}, {group_width, m.c}, {config_.num_heads, m.dt}};
  const bool plain = config_.in_multiplier == 1 &&
                     std::all_of(std::begin(parts), std::end(parts), [](const auto& part) { return part.second == 1; });
  if (plain) return Linear(loader, "in_proj", config_.hidden_size, width, config_.use_bias);
  std::vector<float> scales, bias(static_cast<size_t>(width));
  if (config_.use_bias) bias = loader.read_float("in_proj.bias", Shape{width});
  for (const auto& [columns, multiplier] : parts) {
    for (int64_t i = 0; i < columns; ++i) {
      bias[scales.size()] *= static_cast<float>(multiplier);
      scales.push_back(static_cast<float>(multiplier * config_.in_multiplier));
    }
  }
  column_scale_ = loader.place(std::move(scales));
  column_bias_ = loader.place(std::move(bias));
  return Linear(loader, "in_proj", config_.hidden_size, width, false);
}

Mamba2StateSizes MambaMixer2::state_sizes() const {
  Mamba2StateSizes sizes;
  sizes.intermediate_size = config_.intermediate_size();
  sizes.n_groups = config_.n_groups;
  sizes.num_heads = config_.num_heads;
  sizes.head_dim = config_.head_dim;
  sizes.state_size = config_.state_size;
  sizes.conv_kernel = config_.conv_kernel;
  return sizes;
}

std::vector<Shape> MambaMixer2::get_state_shape() const {
  const int64_t ranks = engine_config_.parallel.tensor_parallel_size;
  expect_even_shares(*this, "groups", config_.n_groups, ranks, /*may_repeat=*/true);
  return with_state_scales(mamba2_state_shape(ranks, state_sizes(), engine_config_.speculative.num_speculative_tokens),
                           get_state_dtype());
}

std::vector<Shape> MambaMixer2::get_replayssm_shape() const {
  if (!engine_config_.cache.use_replayssm) return {};
  return mamba2_replayssm_shape(engine_config_.parallel.tensor_parallel_size, state_sizes(),
                                engine_config_.cache.replayssm_buffer_len);
}

std::vector<DType> MambaMixer2::get_state_dtype() const {
  return with_state_scales({conv_state_dtype(engine_config_), recurrent_state_dtype(engine_config_)});
}

void MambaMixer2::project_in(const ForwardBatch& batch, const float* x, float* projected) const {
  const int64_t tokens = batch.num_tokens(), width = config_.projected_width();
  in_proj_.forward(batch, x, tokens, projected);
  if (column_scale_.empty()) return;
  ScaleArgs args{projected, width, projected, width, tokens, width};
  args.column_factor = column_scale_.data();
  args.column_bias = column_bias_.data();
  scale()(args, batch);
}

void MambaMixer2::convolve(const ForwardBatch& batch, const float* in, float* out) const {
  const auto& metadata = batch.metadata<Mamba2AttentionMetadata>(*this);
  CausalConv1dArgs args;
  args.x = in;
  args.x_stride = in_proj_.out_features();
  args.weight = conv_weight_.data();
  args.bias = conv_bias_.data();
  args.silu = true;
  args.y = out;
  args.channels = args.y_stride = config_.conv_channels();
  args.width = config_.conv_kernel;
  convolve_rows(args, metadata, kv_cache()[0], batch);
}

SsdRing MambaMixer2::ring() const {
  const std::vector<TensorView>& views = replayssm_cache();
  SsdRing ring;
  ring.x = reinterpret_cast<float*>(views[0].data);
  ring.dt = reinterpret_cast<float*>(views[1].data);
  ring.b = reinterpret_cast<float*>(views[2].data);
  ring.slot_stride_bytes = views[0].strides[0] * dtype_size(views[0].dtype);
  ring.length = views[0].shape[2];
  return ring;
}

void MambaMixer2::replay(const ForwardBatch& batch, const SsdArgs& args) const {
  const auto& metadata = batch.metadata<Mamba2AttentionMetadata>(*this);
  COLUBER_CHECK(std::ssize(metadata.write_pos_d) >= args.rows && std::ssize(metadata.is_flush_d) >= args.rows,
                "layer '{}': {} decode rows, and places in the ring for {}", layer_name(), args.rows,
                metadata.write_pos_d.size());
  SsdReplayArgs replay;
  replay.ssd = args;
  replay.ring = ring();
  replay.counts = device_array(batch, metadata.write_pos_d);
  replay.flush = device_array(batch, metadata.is_flush_d);
  ssd_replay_step()(replay, batch);
}

void MambaMixer2::fold_rings(const ForwardBatch& batch, SsdArgs args) const {
  const auto& metadata = batch.metadata<Mamba2AttentionMetadata>(*this);
  COLUBER_CHECK(std::ssize(metadata.ring_counts_p) >= args.rows, "layer '{}': {} prefill rows, rings of {} counted",
                layer_name(), args.rows, metadata.ring_counts_p.size());
  SsdReplayArgs fold;
  fold.ssd = args;
  fold.ring = ring();
  fold.counts = device_array(batch, metadata.ring_counts_p);
  ssd_replay_fold()(fold, batch);
}

void MambaMixer2::fold_replayssm(int32_t slot, int32_t count, ThreadPool& pool) {
  check_bound(*this,
              {(config_.conv_kernel - 1) * config_.conv_channels(), config_.intermediate_size() * config_.state_size});
  SsdReplayArgs fold;
  fold.ssd = ssd_sizes();
  fold.ssd.state = slots_in(kv_cache()[1], &slot, nullptr);
  fold.ssd.rows = 1;
  fold.ring = ring();
  fold.counts = &count;
  ssd_replay_fold()(fold, pool);
}

SsdArgs MambaMixer2::ssd_sizes() const {
  SsdArgs args;
  args.a = a_.data();
  args.num_heads = config_.num_heads;
  args.head_dim = config_.head_dim;
  args.num_groups = config_.n_groups;
  args.state_size = config_.state_size;
  return args;
}

void MambaMixer2::scan(const ForwardBatch& batch, const float* xbc, const float* dt, float* y) const {
  const auto& metadata = batch.metadata<Mamba2AttentionMetadata>(*this);
  const int64_t decodes = metadata.num_decodes;
  const bool replays = !replayssm_cache().empty();
  SsdArgs args = ssd_sizes();
  args.x = xbc;
  args.b = xbc + config_.intermediate_size();
  args.c = args.b + config_.n_groups * config_.state_size;
  args.x_stride = args.b_stride = args.c_stride = config_.conv_channels();
  args.dt = dt;
  args.dt_stride = in_proj_.out_features();
  args.dt_bias = dt_bias_.data();
  args.dt_min = static_cast<float>(config_.time_step_min);
  args.dt_max = static_cast<float>(config_.time_step_max);
  args.d = d_.data();
  args.y = y;
  args.y_stride = config_.intermediate_size();
  if (decodes > 0) {
    const StagedState state(*this, batch, 1, decode_slots(batch, metadata, kv_cache()[1]), decodes);
    args.state = state.slots();
    args.rows = decodes;
    replays ? replay(batch, args) : ssd_state_update()(args, batch);
    state.write_back();
  }
  if (metadata.num_prefills > 0) {
    args.x += decodes * args.x_stride;
    args.b += decodes * args.b_stride;
    args.c += decodes * args.c_stride;
    args.dt += decodes * args.dt_stride;
    args.y += decodes * args.y_stride;
    const StagedState state(*this, batch, 1, prefill_slots(batch, metadata, kv_cache()[1]), metadata.num_prefills,
                            prefill_exports(batch, metadata.exports));
    args.state = state.slots();
    args.rows = metadata.num_prefills;
    args.tokens = metadata.num_prefill_tokens;
    args.allow_bf16 = in_proj_.allows_bf16();
    args.query_start_loc = device_array(batch, metadata.query_start_loc_p);
    args.exports = state.exports();
    if (replays) fold_rings(batch, args);
    ssd_chunk_scan()(args, batch);
    state.write_back();
  }
}

void MambaMixer2::gate(const ForwardBatch& batch, const float* z, float* y) const {
  const int64_t inner_size = config_.intermediate_size(), width = config_.projected_width();
  if (config_.gate == MixerGate::kGateOnly) {
    ActivateArgs args;
    args.activation = Activation::kSilu;
    args.gate = z;
    args.gate_stride = width;
    args.up = args.out = y;
    args.up_stride = args.out_stride = args.cols = inner_size;
    args.rows = batch.num_tokens();
    activate()(args, batch);
    return;
  }
  GatedRmsNormArgs args;
  args.norm.x = args.norm.y = y;
  args.norm.x_stride = args.norm.y_stride = args.norm.cols = inner_size;
  args.norm.rows = batch.num_tokens();
  args.norm.weight = norm_weight_.data();
  args.norm.eps = static_cast<float>(config_.norm_eps);
  args.z = z;
  args.z_stride = width;
  args.groups = config_.norm_groups;
  args.gate = Gate::kSilu;
  const bool gate_first = config_.gate == MixerGate::kGateThenNorm;
  (gate_first ? gate_then_rms_norm() : rms_norm_then_gate())(args, batch);
}

void MambaMixer2::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  const int64_t tokens = batch.num_tokens(), inner_size = config_.intermediate_size();
  const auto& metadata = batch.metadata<Mamba2AttentionMetadata>(*this);
  check_step(*this, {(config_.conv_kernel - 1) * config_.conv_channels(), inner_size * config_.state_size}, metadata,
             tokens);
  COLUBER_CHECK(!metadata.checkpoint.any,
                "layer '{}': a checkpoint inside a prefill was asked for; end the chunk there", layer_name());
  WorkspaceScope scope(*batch.workspace);
  const int64_t width = in_proj_.out_features(), channels = config_.conv_channels();
  float* projected = batch.workspace->take<float>(tokens * width);
  float* xbc = batch.workspace->take<float>(tokens * channels);
  float* inner = batch.workspace->take<float>(tokens * inner_size);
  project_in(batch, x, projected);
  convolve(batch, projected + inner_size, xbc);
  scan(batch, xbc, projected + inner_size + channels, inner);
  // Tokens that pad the batch have no row: nothing else writes theirs.
  const int64_t computed = metadata.num_decode_tokens + metadata.num_prefill_tokens;
  zero_padding(batch, computed, inner, inner_size);
  gate(batch, projected, inner);
  out_proj_.forward(batch, inner, tokens, y, accumulate);
}

}  // namespace coluber
