// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "layers/gated_linear_attention.h"
#include "layers/linear_attention.h"
#include "layers/memory_weights_test.h"

namespace coluber {
namespace {

template <typename Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "not refused";
}

void expect_words(const std::string& message, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
}

// Beyond the largest power of two, every second rate of twice as many heads.
TEST(LightningSlopes, FollowAlibiForAnyNumberOfHeads) {
  const std::vector<double> rates = {0.25, 0.0625, 1.0 / 64, 1.0 / 256, 0.5, 0.125};
  for (int64_t layer : {0, 2, 4}) {
    const double factor = 1.0 - static_cast<double>(layer) / 4.0 + 1e-5;
    const std::vector<float> slopes = lightning_slopes(6, layer, 5, LightningSlopes::kAlibi);
    ASSERT_EQ(slopes.size(), rates.size());
    for (size_t h = 0; h < rates.size(); ++h) EXPECT_NEAR(slopes[h], rates[h] * factor, 1e-8) << layer << ", " << h;
  }
  EXPECT_NEAR(lightning_slopes(1, 0, 1, LightningSlopes::kAlibi)[0], std::exp2(-8.0) * (1.0 + 1e-5), 1e-9);
}

TEST(LinearAttentionLayers, SizesThatDoNotFitAreRefusedByName) {
  MemoryWeights weights;
  LoadHarness harness(weights);
  const WeightLoader scope = WeightLoader(harness.context()).scoped("model.layers.3.attn");
  LinearAttentionConfig linear{.hidden_size = 48, .num_heads = 4, .head_dim = 12, .layer = 0, .num_layers = 2};
  linear.norm_groups = 7;
  linear.qk_norm = true;
  expect_words(message_of([&] { LinearAttention layer(linear, scope); }),
               {"model.layers.3.attn", "norm groups", "head by head"});
  GatedLinearAttentionConfig gated;
  gated.hidden_size = 0;
  gated.num_heads = 4;
  gated.num_kv_heads = 3;
  gated.head_k_dim = 5000;
  gated.conv_size = 40;
  gated.decay = LinearDecay::kBounded;
  gated.lower_bound = {0.5f};
  expect_words(message_of([&] { GatedLinearAttention layer(gated, scope); }),
               {"model.layers.3.attn", "hidden size", "key-value heads", "key head dim", "value head dim",
                "convolution width", "lower bound"});
  EXPECT_TRUE(harness.config().layers.empty());
}

TEST(GatedLinearAttentionLayer, DeclaresAWindowForEachConvolutionAndAStateOfKeysByValues) {
  MemoryWeights weights;
  LoadHarness harness(weights);
  const WeightLoader scope = WeightLoader(harness.context()).scoped("model.layers.0.attn");
  GatedLinearAttentionConfig config;
  config.hidden_size = 32;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_k_dim = 8;
  config.head_v_dim = 16;
  config.conv_size = 4;
  const GatedLinearAttention layer(config, scope);
  EXPECT_EQ(layer.get_state_names(), (std::vector<std::string>{"conv.q", "conv.k", "conv.v", "recurrent"}));
  EXPECT_EQ(layer.get_state_shape(), (std::vector<Shape>{Shape{3, 32}, Shape{3, 16}, Shape{3, 32}, Shape{4, 8, 16}}));
  EXPECT_EQ(layer.get_state_dtype().size(), 4u);
}

}  // namespace
}  // namespace coluber
