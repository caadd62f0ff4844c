// SPDX-License-Identifier: Apache-2.0
#include "layers/residual_convs.h"

#include <algorithm>

#include "base/error.h"
#include "cache/state_shape.h"
#include "kernels/conv/causal_conv1d.h"
#include "layers/recurrent_layer.h"

namespace coluber {

ResidualConvs::ResidualConvs(const std::vector<ResidualConvConfig>& convs, int64_t conv_kernel, const std::string& name,
                             WeightLoader loader)
    : MambaBase(loader.full_name(name)), engine_config_(loader.config()), conv_kernel_(conv_kernel) {
  SizeChecks checks;
  checks.expect_between("convolution width", conv_kernel, 2, kMaxConvWidth);
  for (const ResidualConvConfig& conv : convs) checks.expect_positive(conv.weight.c_str(), conv.channels);
  checks.finish("residual convolution", loader);
  for (const ResidualConvConfig& conv : convs) {
    convs_.push_back({conv.channels, read_conv_weight(loader, conv.weight, conv.channels, conv_kernel)});
    state_elements_.push_back((conv_kernel - 1) * conv.channels);
    float* last = convs_.back().weight.data() + (conv_kernel - 1) * conv.channels;
    for (int64_t c = 0; c < conv.channels; ++c) last[c] += 1.0f;
  }
  loader.config().register_layer(*this);
}

std::vector<Shape> ResidualConvs::get_state_shape() const {
  std::vector<Shape> shapes;
  for (const Conv& conv : convs_) {
    shapes.push_back(short_conv_state_shape(engine_config_.parallel.tensor_parallel_size, conv.channels, conv_kernel_,
                                            engine_config_.speculative.num_speculative_tokens)[0]);
  }
  return shapes;
}

std::vector<DType> ResidualConvs::get_state_dtype() const {
  return std::vector<DType>(convs_.size(), conv_state_dtype(engine_config_));
}

std::vector<std::string> ResidualConvs::get_state_names() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < convs_.size(); ++i) names.push_back("conv." + std::to_string(i));
  return names;
}

void ResidualConvs::forward(const ForwardBatch& batch, size_t index, const float* x, float* y) const {
  const auto& metadata = batch.metadata<ShortConvAttentionMetadata>(*this);
  const Conv& conv = convs_[index];
  const int64_t tokens = batch.num_tokens();
  check_step(*this, state_elements_, metadata, tokens);
  CausalConv1dArgs args;
  args.x = x;
  args.weight = conv.weight.data();
  args.y = y;
  args.x_stride = args.y_stride = args.channels = conv.channels;
  args.width = conv_kernel_;
  convolve_rows(args, metadata, kv_cache()[index], batch);
  // Tokens that pad the batch have no row: nothing else writes theirs.
  const int64_t computed = metadata.num_decode_tokens + metadata.num_prefill_tokens;
  std::fill(y + computed * conv.channels, y + tokens * conv.channels, 0.0f);
}

}  // namespace coluber
