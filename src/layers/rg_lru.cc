// SPDX-License-Identifier: Apache-2.0
#include "layers/rg_lru.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "cache/state_shape.h"
#include "kernels/rg_lru/rg_lru.h"
#include "layers/recurrent_step.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

const RegisterRecurrentBackend kBackend("rg_lru");

RgLruConfig checked(const RgLruConfig& config, const WeightLoader& loader) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_positive("lru width", config.lru_width);
  checks.expect(
      config.num_heads > 0 && config.lru_width % std::max<int64_t>(config.num_heads, 1) == 0,
      fmt::format("heads: expected a divisor of the lru width {}, found {}", config.lru_width, config.num_heads));
  checks.expect_between("convolution width", config.conv_kernel, 2, kMaxConvWidth);
  checks.finish("RG-LRU", loader);
  return config;
}

// Stored [heads, in, out]: products want [out, in] of each.
std::vector<Linear> take_gate(WeightLoader& loader, const std::string& name, int64_t heads, int64_t width) {
  const TensorView stored = loader.take(name + "_weight", Shape{heads, width, width});
  const std::vector<float> bias = loader.take_float(name + "_bias", Shape{heads, width});
  const auto element = static_cast<size_t>(dtype_size(stored.dtype));
  std::vector<std::byte> turned(static_cast<size_t>(width * width) * element);
  std::vector<Linear> gate;
  for (int64_t h = 0; h < heads; ++h) {
    const std::byte* from = stored.data + static_cast<size_t>(h * width * width) * element;
    for (int64_t i = 0; i < width; ++i) {
      for (int64_t o = 0; o < width; ++o)
        std::memcpy(turned.data() + static_cast<size_t>(o * width + i) * element,
                    from + static_cast<size_t>(i * width + o) * element, element);
    }
    const auto first = bias.begin() + h * width;
    gate.emplace_back(loader, TensorView::contiguous(turned.data(), stored.dtype, Shape{width, width}),
                      std::vector<float>(first, first + width));
  }
  return gate;
}

void run_gate(const ForwardBatch& batch, const std::vector<Linear>& gate, const float* x, float* out) {
  const int64_t width = gate[0].in_features(), stride = width * static_cast<int64_t>(gate.size());
  for (size_t h = 0; h < gate.size(); ++h) {
    const int64_t first = static_cast<int64_t>(h) * width;
    gate[h].forward(batch, x + first, stride, batch.num_tokens(), out + first, stride);
  }
}

}  // namespace

RgLru::RgLru(const RgLruConfig& config, WeightLoader loader)
    : MambaBase(layer_name_of(loader)),
      config_(checked(config, loader)),
      engine_config_(loader.config()),
      linear_y_(loader, "linear_y", config_.hidden_size, config_.lru_width, true),
      linear_x_(loader, "linear_x", config_.hidden_size, config_.lru_width, true),
      linear_out_(loader, "linear_out", config_.lru_width, config_.hidden_size, true),
      conv_weight_(take_conv_weight(loader, "conv_1d.weight", config_.lru_width, config_.conv_kernel)),
      conv_bias_(loader.take_float("conv_1d.bias", Shape{config_.lru_width})) {
  WeightLoader unit = loader.scoped("rg_lru");
  const int64_t heads = config_.num_heads, width = config_.lru_width / heads;
  input_gate_ = take_gate(unit, "input_gate", heads, width);
  recurrent_gate_ = take_gate(unit, "recurrent_gate", heads, width);
  log_decay_ = unit.take_float("recurrent_param", Shape{config_.lru_width});
  prepare_rg_lru_decay(log_decay_.data(), config_.lru_width, log_decay_.data());
  loader.config().register_layer(*this);
}

std::vector<Shape> RgLru::get_state_shape() const {
  const int64_t ranks = engine_config_.parallel.tensor_parallel_size;
  expect_even_shares(*this, "RG-LRU heads", config_.num_heads, ranks);
  const int64_t channels = config_.lru_width / ranks;
  std::vector<Shape> shapes =
      short_conv_state_shape(1, channels, config_.conv_kernel, engine_config_.speculative.num_speculative_tokens);
  shapes.push_back(Shape{channels});
  return with_state_scales(std::move(shapes), get_state_dtype(), config_.num_heads / ranks);
}

std::vector<StateSplit> RgLru::get_state_split(const std::vector<Shape>& whole) const {
  const StateSplit::Part channels{whole[1][0], config_.num_heads};
  return {StateSplit{1, {channels}}, StateSplit{0, {channels}}};
}

std::vector<DType> RgLru::get_state_dtype() const {
  return with_state_scales({conv_state_dtype(engine_config_), recurrent_state_dtype(engine_config_)});
}

void RgLru::convolve(const ForwardBatch& batch, const float* in, float* out) const {
  CausalConv1dArgs args;
  args.x = in;
  args.weight = conv_weight_.data();
  args.bias = conv_bias_.data();
  args.y = out;
  args.x_stride = args.y_stride = args.channels = config_.lru_width;
  args.width = config_.conv_kernel;
  convolve_rows(args, batch.metadata<RecurrentAttentionMetadata>(*this), kv_cache()[0], batch);
}

void RgLru::recur(const ForwardBatch& batch, const RecurrentStep& step, const float* input_gate,
                  const float* recurrent_gate, float* x) const {
  const int64_t width = config_.lru_width;
  step.each([&](const RecurrentRows& rows) {
    const int64_t skipped = rows.first_token * width;
    RgLruArgs args;
    args.x = args.y = x + skipped;
    args.input_gate = input_gate + skipped;
    args.recurrent_gate = recurrent_gate + skipped;
    args.log_decay = log_decay_.data();
    args.x_stride = args.y_stride = args.gate_stride = args.channels = width;
    const StagedState state = step.stage(rows, 1);
    args.state = state.slots();
    args.exports = state.exports();
    args.query_start_loc = rows.query_start_loc;
    args.rows = rows.rows;
    (rows.query_start_loc == nullptr ? rg_lru_update() : rg_lru())(args, batch);
    state.write_back();
  });
}

void RgLru::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  const int64_t tokens = batch.num_tokens(), width = config_.lru_width, size = tokens * width;
  const RecurrentStep step(*this, batch, {(config_.conv_kernel - 1) * width, width});
  WorkspaceScope scope(*batch.workspace);
  float* branch = batch.workspace->take<float>(size);
  float* unit = batch.workspace->take<float>(size);
  float* input_gate = batch.workspace->take<float>(size);
  float* recurrent_gate = batch.workspace->take<float>(size);
  linear_x_.forward(batch, x, tokens, branch);
  convolve(batch, branch, unit);
  step.zero_padding(unit, width);
  run_gate(batch, input_gate_, unit, input_gate);
  run_gate(batch, recurrent_gate_, unit, recurrent_gate);
  recur(batch, step, input_gate, recurrent_gate, unit);
  linear_y_.forward(batch, x, tokens, branch);
  activate()(ActivateArgs{config_.activation, branch, width, unit, width, branch, width, tokens, width}, batch);
  linear_out_.forward(batch, branch, tokens, y, accumulate);
}

}  // namespace coluber
