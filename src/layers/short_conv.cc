// SPDX-License-Identifier: Apache-2.0
#include "layers/short_conv.h"

#include <algorithm>

#include "base/error.h"
#include "cache/state_shape.h"
#include "kernels/conv/short_conv.h"
#include "layers/recurrent_layer.h"
#include "tensor/cuda_step.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

ShortConvConfig checked(const ShortConvConfig& config, const WeightLoader& loader) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_between("convolution width", config.conv_kernel, 2, kMaxConvWidth);
  checks.finish("short convolution", loader);
  return config;
}

}  // namespace

ShortConv::ShortConv(const ShortConvConfig& config, WeightLoader loader)
    : MambaBase(layer_name_of(loader)),
      config_(checked(config, loader)),
      engine_config_(loader.config()),
      in_proj_(loader, "in_proj", config_.hidden_size, 3 * config_.hidden_size, config_.use_bias),
      out_proj_(loader, "out_proj", config_.hidden_size, config_.hidden_size, config_.use_bias),
      conv_weight_(take_conv_weight(loader, "conv.weight", config_.hidden_size, config_.conv_kernel)) {
  if (config_.use_bias) conv_bias_ = loader.take_array("conv.bias", Shape{config_.hidden_size});
  loader.config().register_layer(*this);
}

std::vector<Shape> ShortConv::get_state_shape() const {
  return short_conv_state_shape(engine_config_.parallel.tensor_parallel_size, config_.hidden_size, config_.conv_kernel,
                                engine_config_.speculative.num_speculative_tokens);
}

std::vector<DType> ShortConv::get_state_dtype() const { return {conv_state_dtype(engine_config_)}; }

void ShortConv::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  const int64_t tokens = batch.num_tokens(), channels = config_.hidden_size;
  const auto& metadata = batch.metadata<ShortConvAttentionMetadata>(*this);
  check_step(*this, {(config_.conv_kernel - 1) * channels}, metadata, tokens);
  WorkspaceScope scope(*batch.workspace);
  float* bcx = batch.workspace->take<float>(tokens * 3 * channels);
  float* gated = batch.workspace->take<float>(tokens * channels);
  in_proj_.forward(batch, x, tokens, bcx);
  // Tokens that pad the batch have no row: nothing else writes theirs.
  const int64_t computed = metadata.num_decode_tokens + metadata.num_prefill_tokens;
  zero_padding(batch, computed, gated, channels);
  ShortConvArgs args;
  args.b = bcx;
  args.c_gate = bcx + channels;
  args.x = bcx + 2 * channels;
  args.in_stride = 3 * channels;
  args.weight = conv_weight_.data();
  args.bias = conv_bias_.data();
  args.y = gated;
  args.channels = args.y_stride = channels;
  args.width = config_.conv_kernel;
  ConvWindowsArgs windows;
  windows.x = args.x;
  windows.factor = args.b;
  windows.x_stride = args.in_stride;
  windows.channels = channels;
  windows.taps = config_.conv_kernel - 1;
  export_windows(batch, windows, step_rows(batch, metadata, kv_cache()[0]), prefill_exports(batch, metadata.exports));
  if (metadata.num_decodes > 0) {
    args.state = decode_slots(batch, metadata, kv_cache()[0]);
    args.rows = metadata.num_decodes;
    short_conv_update()(args, batch);
  }
  if (metadata.num_prefills > 0) {
    args.b += metadata.num_decodes * args.in_stride;
    args.c_gate += metadata.num_decodes * args.in_stride;
    args.x += metadata.num_decodes * args.in_stride;
    args.y += metadata.num_decodes * args.y_stride;
    args.state = prefill_slots(batch, metadata, kv_cache()[0]);
    args.rows = metadata.num_prefills;
    args.query_start_loc = device_array(batch, metadata.query_start_loc_p);
    short_conv()(args, batch);
  }
  out_proj_.forward(batch, gated, tokens, y, accumulate);
}

}  // namespace coluber
