// SPDX-License-Identifier: Apache-2.0
// The four recurrent mixers against the values of published architectures: one block of a golden checkpoint each, its
// output and its final states, with the metadata that the layer's own backend builds, over pages filled with NaN.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "base/error.h"
#include "coluber/backend.h"
#include "formats/weight_source.h"
#include "layers/linear_attention.h"
#include "layers/mamba_mixer.h"
#include "layers/mamba_mixer2.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "layers/norm.h"
#include "layers/short_conv.h"
#include "tensor/device.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

constexpr int64_t kTokens = 17, kHidden = 48, kSlots = 8;

std::vector<float> copy_of(const TensorView& view) { return {view.as<float>(), view.as<float>() + view.shape.count()}; }

struct Golden {
  FileWeights weights, expected;
  std::string config_json = "{}";
  EngineConfig config;
  ThreadPool pool{2};
  ModelLoadContext context{config_json, "config.json", weights, config, pool, {}};
  WeightLoader loader{context};
  Workspace workspace;
  std::vector<std::byte> memory;

  explicit Golden(const std::string& name)
      : weights(std::string(COLUBER_SOURCE_DIR) + "/tests/data/" + name + "/model.safetensors"),
        expected(std::string(COLUBER_SOURCE_DIR) + "/tests/data/" + name + "/golden.safetensors") {
    config.cache.mamba_block_size = config.max_model_len;
  }
  std::vector<float> hidden(int i) const { return copy_of(expected.get("hidden." + std::to_string(i))); }
  // Pages of NaN, with a gap between them.
  void bind(MambaBase& layer) {
    const int64_t bytes = std::get<MambaSpec>(layer.get_kv_cache_spec(config)).page_size_bytes();
    memory.assign(static_cast<size_t>(kSlots * (bytes + 64)), std::byte{0xff});
    TensorView page = TensorView::contiguous(memory.data(), DType::kInt8, Shape{kSlots, 1, 1, bytes});
    page.strides = Shape{bytes + 64, bytes, bytes, 1};
    layer.bind_kv_cache(page);
  }
};

// Steps of one layer, as the runner makes them: decodes first.
class Stepper {
 public:
  struct Row {
    int32_t slot;
    int64_t computed, tokens;
  };
  Stepper(Golden& golden, const MambaBase& layer)
      : golden_(golden),
        builder_(layer.get_attn_backend().get_builder_cls()(layer.get_kv_cache_spec(golden.config),
                                                            {layer.layer_name()}, golden.config, cpu_device())) {}

  void step(const std::vector<Row>& rows, const std::function<void(const ForwardBatch&)>& run) {
    std::vector<int32_t> starts = {0}, lengths, slots;
    CommonAttentionMetadata common;
    for (const Row& row : rows) {
      starts.push_back(starts.back() + static_cast<int32_t>(row.tokens));
      lengths.push_back(static_cast<int32_t>(row.computed + row.tokens));
      slots.push_back(row.slot);
      common.max_query_len = std::max(common.max_query_len, row.tokens);
      common.max_seq_len = std::max<int64_t>(common.max_seq_len, lengths.back());
    }
    common.query_start_loc = starts;
    common.seq_lens = lengths;
    common.num_reqs = static_cast<int64_t>(rows.size());
    common.num_actual_tokens = starts.back();
    common.block_table = {slots.data(), common.num_reqs, 1, 1};
    const AttentionMetadata* of_layer[] = {&builder_->build(0, common)};
    const std::vector<int32_t> ids(static_cast<size_t>(starts.back()));
    ForwardBatch batch;
    batch.token_ids = ids;
    batch.query_start_loc = starts;
    batch.seq_lens = lengths;
    batch.layer_metadata = of_layer;
    batch.thread_pool = &golden_.pool;
    batch.workspace = &golden_.workspace;
    run(batch);
  }

 private:
  Golden& golden_;
  std::unique_ptr<AttentionMetadataBuilder> builder_;
};

void expect_near(const std::vector<float>& got, const std::vector<float>& want, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double square = 0, worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    square += static_cast<double>(want[i]) * want[i];
    worst = std::max(worst, std::isfinite(got[i]) ? std::fabs(static_cast<double>(got[i]) - want[i]) : INFINITY);
  }
  EXPECT_LE(worst, tolerance * std::sqrt(square / static_cast<double>(want.size()))) << what;
}

std::vector<float> state_of(const MambaBase& layer, size_t i, int32_t slot) {
  const TensorView& view = layer.kv_cache()[i];
  TensorView block;
  block.dtype = view.dtype;
  block.data = view.data + slot * view.strides[0] * dtype_size(view.dtype);
  block.shape = Shape(std::span<const int64_t>(view.shape.begin() + 1, view.shape.end()));
  block.strides = contiguous_strides(block.shape);
  std::vector<float> values(static_cast<size_t>(block.shape.count()));
  unpack_state(block, layer.get_state_lane_order()[i], values.data());
  return values;
}

// A golden conv state [1, C, W] as the contract keeps it: the last W-1 columns, [W-1, C].
std::vector<float> conv_window(const TensorView& golden) {
  const int64_t channels = golden.shape[1], width = golden.shape[2];
  std::vector<float> window;
  for (int64_t s = 1; s < width; ++s) {
    for (int64_t c = 0; c < channels; ++c) window.push_back(golden.as<float>()[c * width + s]);
  }
  return window;
}

// One layer's block: adds to or replaces the rows of x.
using Block = std::function<void(const ForwardBatch& batch, float* rows)>;

// `input` through the block in chunks of every size; the last rows must be `output`, the states the golden ones.
void expect_golden(Golden& golden, MambaBase& layer, const Block& block, const std::string& index,
                   const std::vector<float>& input, const std::vector<float>& output) {
  for (int64_t chunk : {17, 7, 3, 1}) {
    SCOPED_TRACE("chunk " + std::to_string(chunk));
    golden.bind(layer);
    Stepper stepper(golden, layer);
    std::vector<float> x = input;
    for (int64_t begin = 0; begin < kTokens; begin += chunk) {
      stepper.step({{3, begin, std::min(chunk, kTokens - begin)}},
                   [&](const ForwardBatch& batch) { block(batch, x.data() + begin * kHidden); });
    }
    expect_near(x, output, 2e-5, "output");
    size_t state = 0;
    if (golden.expected.contains("state." + index + ".conv")) {
      expect_near(state_of(layer, state++, 3), conv_window(golden.expected.get("state." + index + ".conv")), 2e-5,
                  "conv state");
    }
    if (golden.expected.contains("state." + index + ".recurrent")) {
      expect_near(state_of(layer, state, 3), copy_of(golden.expected.get("state." + index + ".recurrent")), 2e-5,
                  "recurrent state");
    }
  }
}

// A decode, a prefill on a filled slot, a fresh prefill and a row without a slot in one batch give the bits of each
// alone, and the row without a slot gives `of_nothing`.
void expect_rows_apart(Golden& golden, MambaBase& layer, const Block& block, const std::vector<float>& input) {
  const auto rows_of = [&](int64_t begin, int64_t end) {
    return std::vector<float>(input.begin() + begin * kHidden, input.begin() + end * kHidden);
  };
  const auto run = [&](Stepper& stepper, std::vector<Stepper::Row> rows, std::vector<float> x) {
    stepper.step(rows, [&](const ForwardBatch& batch) { block(batch, x.data()); });
    return x;
  };
  std::vector<float> alone;
  std::vector<float> states[3];
  golden.bind(layer);
  {
    Stepper stepper(golden, layer);
    run(stepper, {{1, 0, 4}}, rows_of(0, 4));
    run(stepper, {{2, 0, 5}}, rows_of(5, 10));
    for (const auto& part : {run(stepper, {{1, 4, 1}}, rows_of(4, 5)), run(stepper, {{2, 5, 3}}, rows_of(10, 13)),
                             run(stepper, {{4, 0, 9}}, rows_of(8, 17))}) {
      alone.insert(alone.end(), part.begin(), part.end());
    }
    for (int32_t i : {0, 1, 2}) states[i] = state_of(layer, 0, i == 0 ? 1 : i == 1 ? 2 : 4);
  }
  golden.bind(layer);
  Stepper stepper(golden, layer);
  run(stepper, {{5, 0, 4}}, rows_of(0, 4));
  run(stepper, {{6, 0, 5}}, rows_of(5, 10));
  std::vector<float> mixed = rows_of(4, 5);
  for (const auto& part : {rows_of(10, 13), rows_of(8, 17), rows_of(0, 2)}) {
    mixed.insert(mixed.end(), part.begin(), part.end());
  }
  mixed = run(stepper, {{5, 4, 1}, {6, 5, 3}, {7, 0, 9}, {0, 0, 2}}, mixed);
  for (float value : mixed) ASSERT_TRUE(std::isfinite(value));
  mixed.resize(alone.size());
  EXPECT_EQ(mixed, alone);
  for (int32_t i : {0, 1, 2}) EXPECT_EQ(state_of(layer, 0, 5 + i), states[i]);
  for (float value : state_of(layer, 0, 0)) EXPECT_TRUE(std::isnan(value)) << "the null block was written";
}

MambaMixerConfig mamba_config() {
  MambaMixerConfig config;
  config.hidden_size = kHidden;
  config.intermediate_size = 96;
  config.state_size = 16;
  config.conv_kernel = 4;
  config.time_step_rank = 3;
  return config;
}

MambaMixer2Config mamba2_config() {
  MambaMixer2Config config;
  config.hidden_size = kHidden;
  config.num_heads = 6;
  config.head_dim = 16;
  config.state_size = 16;
  config.n_groups = 2;
  config.conv_kernel = 4;
  return config;
}

// x + mixer(norm(x)): the blocks of the three Mambas.
template <typename Mixer>
Block residual_block(const RmsNorm& norm, Mixer& mixer) {
  return [&norm, &mixer](const ForwardBatch& batch, float* rows) {
    std::vector<float> normed(static_cast<size_t>(batch.num_tokens() * kHidden));
    norm.forward(batch, rows, batch.num_tokens(), normed.data());
    mixer.forward(batch, normed.data(), rows, true);
  };
}

TEST(MambaMixer, MatchesTransformersInAnyChunks) {
  for (const char* name : {"mamba", "falcon_mamba"}) {
    SCOPED_TRACE(name);
    Golden golden(name);
    WeightLoader layer = golden.loader.scoped("backbone.layers.1");
    MambaMixerConfig config = mamba_config();
    if (std::string(name) == "falcon_mamba") config.use_conv_bias = true, config.mixer_rms_eps = 1e-6;
    MambaMixer mixer(config, layer.scoped("mixer"));
    EXPECT_EQ(mixer.layer_name(), "backbone.layers.1.mixer");
    RmsNorm norm(layer, "norm", kHidden, 1e-5);
    const Block block = residual_block(norm, mixer);
    expect_golden(golden, mixer, block, "1", golden.hidden(0), golden.hidden(1));
    expect_rows_apart(golden, mixer, block, golden.hidden(0));
  }
}

TEST(MambaMixer2, MatchesTransformersInAnyChunks) {
  Golden golden("mamba2");
  WeightLoader layer = golden.loader.scoped("backbone.layers.1");
  MambaMixer2 mixer(mamba2_config(), layer.scoped("mixer"));
  RmsNorm norm(layer, "norm", kHidden, 1e-5);
  const Block block = residual_block(norm, mixer);
  expect_golden(golden, mixer, block, "1", golden.hidden(0), golden.hidden(1));
  expect_rows_apart(golden, mixer, block, golden.hidden(0));
  EXPECT_EQ(mixer.get_prefill_checkpoint_alignment(), 1);
}

// A weight source over another one, with some tensors of its own.
class Patched final : public WeightSource {
 public:
  explicit Patched(const WeightSource& base) : base_(base) {}
  void set(const std::string& name, const Shape& shape, std::vector<float> values) {
    values_[name] = std::move(values);
    views_[name] = TensorView::contiguous(values_[name].data(), DType::kFloat32, shape);
  }
  bool contains(std::string_view name) const override { return views_.contains(name) || base_.contains(name); }
  TensorView get(std::string_view name) const override {
    const auto found = views_.find(name);
    return found != views_.end() ? found->second : base_.get(name);
  }
  std::vector<std::string> names() const override { return base_.names(); }
  std::string describe() const override { return "patched"; }

 private:
  const WeightSource& base_;
  std::map<std::string, std::vector<float>, std::less<>> values_;
  std::map<std::string, TensorView, std::less<>> views_;
};

// What a mixer makes of golden inputs in one prefill, its tensors as `patch` leaves them.
std::vector<float> run_patched(const MambaMixer2Config& config, const std::function<void(Patched&)>& patch) {
  Golden golden("mamba2");
  Patched weights(golden.weights);
  patch(weights);
  ModelLoadContext context{golden.config_json, "config.json", weights, golden.config, golden.pool, {}};
  MambaMixer2 mixer(config, WeightLoader(context).scoped("backbone.layers.1.mixer"));
  golden.bind(mixer);
  Stepper stepper(golden, mixer);
  const std::vector<float> x = golden.hidden(0);
  std::vector<float> y(x.size());
  stepper.step({{2, 0, kTokens}}, [&](const ForwardBatch& batch) { mixer.forward(batch, x.data(), y.data()); });
  return y;
}

TEST(MambaMixer2, MultipliersActAsIfTheyWereInTheWeights) {
  const std::string prefix = "backbone.layers.1.mixer.in_proj.";
  MambaMixer2Config config = mamba2_config();
  config.use_bias = true;
  const int64_t width = config.projected_width(), inner = config.intermediate_size(), state = 2 * 16;
  std::vector<float> bias(static_cast<size_t>(width));
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = 0.1f * static_cast<float>(i % 7) - 0.3f;
  const double in = 0.75, parts[] = {1.25, 0.5, 1.5, 0.75, 2.0};
  const int64_t ends[] = {inner, 2 * inner, 2 * inner + state, 2 * inner + 2 * state, width};
  const std::vector<float> folded = run_patched(config, [&](Patched& weights) {
    std::vector<float> w = copy_of(weights.get(prefix + "weight")), b = bias;
    for (int64_t row = 0, part = 0; row < width; ++row) {
      if (row == ends[part]) ++part;
      b[static_cast<size_t>(row)] *= static_cast<float>(parts[part]);
      for (int64_t k = 0; k < kHidden; ++k)
        w[static_cast<size_t>(row * kHidden + k)] *= static_cast<float>(in * parts[part]);
    }
    weights.set(prefix + "weight", Shape{width, kHidden}, w);
    weights.set(prefix + "bias", Shape{width}, b);
  });
  config.in_multiplier = in;
  config.multipliers = {parts[0], parts[1], parts[2], parts[3], parts[4]};
  const std::vector<float> applied =
      run_patched(config, [&](Patched& weights) { weights.set(prefix + "bias", Shape{width}, bias); });
  expect_near(applied, folded, 1e-5, "output");
  config.multipliers = {};
  const std::vector<float> without =
      run_patched(config, [&](Patched& weights) { weights.set(prefix + "bias", Shape{width}, bias); });
  EXPECT_NE(without, applied);
}

// With an identity as out_proj, and z the same for all columns and tokens, what a gate gives follows from the others.
TEST(MambaMixer2, GatesBeforeOrBehindTheNormOrWithoutOne) {
  const std::string prefix = "backbone.layers.1.mixer.";
  MambaMixer2Config config = mamba2_config();
  config.num_heads = 3;  // half of the inner width: that of the stream
  config.n_groups = config.norm_groups = 3;
  config.use_bias = true;
  config.norm_eps = 1e-5;
  constexpr float kZ = 0.8f;
  const int64_t width = config.projected_width(), channels = config.conv_channels();
  const auto run = [&](MixerGate gate) {
    config.gate = gate;
    return run_patched(config, [&](Patched& weights) {
      std::vector<float> w = copy_of(weights.get(prefix + "in_proj.weight")), bias(static_cast<size_t>(width));
      w.resize(static_cast<size_t>(width * kHidden));
      std::fill_n(w.begin(), kHidden * kHidden, 0.0f);
      std::fill_n(bias.begin(), kHidden, kZ);
      std::vector<float> identity(kHidden * kHidden), norm(kHidden);
      for (size_t i = 0; i < kHidden; ++i) {
        identity[i * kHidden + i] = 1.0f;
        norm[i] = 0.5f + 0.02f * static_cast<float>(i);
      }
      const auto cut = [&](const char* name, const Shape& shape) {
        std::vector<float> values = copy_of(weights.get(prefix + name));
        values.resize(static_cast<size_t>(shape.count()));
        weights.set(prefix + name, shape, values);
      };
      weights.set(prefix + "in_proj.weight", Shape{width, kHidden}, w);
      weights.set(prefix + "in_proj.bias", Shape{width}, bias);
      weights.set(prefix + "out_proj.weight", Shape{kHidden, kHidden}, identity);
      weights.set(prefix + "norm.weight", Shape{kHidden}, norm);
      cut("conv1d.weight", Shape{channels, 1, 4});
      cut("conv1d.bias", Shape{channels});
      for (const char* name : {"A_log", "D", "dt_bias"}) cut(name, Shape{3});
    });
  };
  const std::vector<float> gated = run(MixerGate::kGateOnly);
  const float silu = kZ / (1.0f + std::exp(-kZ));
  std::vector<float> before(gated.size()), behind(gated.size());
  for (size_t group = 0; group < gated.size(); group += 16) {
    double of_gated = 0, of_plain = 0;
    for (size_t i = group; i < group + 16; ++i) {
      of_gated += static_cast<double>(gated[i]) * gated[i];
      of_plain += static_cast<double>(gated[i] / silu) * (gated[i] / silu);
    }
    for (size_t i = group; i < group + 16; ++i) {
      const double weight = 0.5 + 0.02 * static_cast<double>(i % kHidden);
      before[i] = static_cast<float>(gated[i] / std::sqrt(of_gated / 16 + 1e-5) * weight);
      behind[i] = static_cast<float>(gated[i] / silu / std::sqrt(of_plain / 16 + 1e-5) * weight * silu);
    }
  }
  expect_near(run(MixerGate::kGateThenNorm), before, 1e-5, "gate, then norm");
  expect_near(run(MixerGate::kNormThenGate), behind, 1e-5, "norm, then gate");
}

TEST(ShortConv, MatchesTransformersInAnyChunks) {
  Golden golden("lfm2");
  WeightLoader layer = golden.loader.scoped("model.layers.0"), mlp = layer.scoped("feed_forward");
  ShortConv conv({.hidden_size = kHidden, .conv_kernel = 3}, layer.scoped("conv"));
  Mlp feed_forward({.hidden_size = kHidden, .intermediate_size = 96, .gate = "w1", .up = "w3", .down = "w2"}, mlp);
  RmsNorm operator_norm(layer, "operator_norm", kHidden, 1e-5), ffn_norm(layer, "ffn_norm", kHidden, 1e-5);
  const Block block = [&](const ForwardBatch& batch, float* rows) {
    std::vector<float> normed(static_cast<size_t>(batch.num_tokens() * kHidden));
    operator_norm.forward(batch, rows, batch.num_tokens(), normed.data());
    conv.forward(batch, normed.data(), rows, true);
    ffn_norm.forward(batch, rows, batch.num_tokens(), normed.data());
    feed_forward.forward(batch, normed.data(), rows, true);
  };
  expect_golden(golden, conv, block, "0", golden.hidden(0), golden.hidden(1));
  expect_rows_apart(golden, conv, block, golden.hidden(0));
}

TEST(LinearAttention, MatchesTransformersInAnyChunks) {
  Golden golden("minimax");
  WeightLoader layer = golden.loader.scoped("model.layers.1"), moe = layer.scoped("block_sparse_moe");
  LinearAttention attention(
      {.hidden_size = kHidden, .num_heads = 4, .head_dim = 16, .layer = 1, .num_layers = 4, .norm_eps = 1e-6},
      layer.scoped("self_attn"));
  MoeBlock experts({.hidden_size = kHidden, .intermediate_size = 28, .num_experts = 4, .top_k = 2}, moe);
  RmsNorm input_norm(layer, "input_layernorm", kHidden, 1e-5),
      post_norm(layer, "post_attention_layernorm", kHidden, 1e-5);
  const Block block = [&](const ForwardBatch& batch, float* rows) {
    const int64_t tokens = batch.num_tokens();
    std::vector<float> normed(static_cast<size_t>(tokens * kHidden)), y(normed.size());
    const auto mix = [&](float alpha, float beta) {
      for (size_t i = 0; i < y.size(); ++i) rows[i] = alpha * normed[i] + beta * y[i];
    };
    input_norm.forward(batch, rows, tokens, normed.data());
    attention.forward(batch, normed.data(), y.data());
    mix(1.3f, 0.8f);
    post_norm.forward(batch, rows, tokens, normed.data());
    experts.forward(batch, normed.data(), y.data());
    mix(1.1f, 0.7f);
  };
  expect_golden(golden, attention, block, "1", golden.hidden(1), golden.hidden(2));
  expect_rows_apart(golden, attention, block, golden.hidden(1));
}

// The checkpoint holds transformers' own slopes.
TEST(LinearAttention, SlopesAreThoseOfTheCheckpoint) {
  Golden golden("minimax");
  for (int64_t layer : {0, 1, 3}) {
    const TensorView stored = golden.weights.get("model.layers." + std::to_string(layer) + ".self_attn.slope_rate");
    expect_near(lightning_slopes(4, layer, 4), copy_of(stored), 1e-6, "slopes of layer " + std::to_string(layer));
  }
}

TEST(RecurrentLayers, SixteenBitStatesStayClose) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    Golden golden("mamba2");
    golden.config.cache.mamba_cache_dtype = golden.config.cache.mamba_ssm_cache_dtype = dtype;
    WeightLoader layer = golden.loader.scoped("backbone.layers.1");
    MambaMixer2 mixer(mamba2_config(), layer.scoped("mixer"));
    RmsNorm norm(layer, "norm", kHidden, 1e-5);
    const Block block = residual_block(norm, mixer);
    golden.bind(mixer);
    EXPECT_EQ(mixer.kv_cache()[1].dtype, dtype);
    Stepper stepper(golden, mixer);
    std::vector<float> x = golden.hidden(0);
    for (int64_t t = 0; t < kTokens; ++t) {
      stepper.step({{2, t, 1}}, [&](const ForwardBatch& batch) { block(batch, x.data() + t * kHidden); });
    }
    expect_near(x, golden.hidden(1), dtype == DType::kBFloat16 ? 0.05 : 0.01, "output");
  }
}

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

TEST(RecurrentLayers, SizesThatDoNotFitAreRefusedByName) {
  Golden golden("mamba2");
  const WeightLoader scope = golden.loader.scoped("backbone.layers.0.mixer");
  MambaMixerConfig mamba = mamba_config();
  mamba.state_size = 1000;
  mamba.conv_kernel = 1;
  expect_words(message_of([&] { MambaMixer layer(mamba, scope); }),
               {"backbone.layers.0.mixer", "state size", "1000", "convolution width"});
  MambaMixer2Config mamba2 = mamba2_config();
  mamba2.n_groups = 4;
  mamba2.norm_groups = 7;
  mamba2.time_step_min = 2.0;
  mamba2.time_step_max = 1.0;
  expect_words(message_of([&] { MambaMixer2 layer(mamba2, scope); }), {"groups", "norm groups", "time step limit"});
  expect_words(message_of([&] { ShortConv layer({.hidden_size = 0, .conv_kernel = 3}, scope); }), {"hidden size"});
  expect_words(message_of([&] {
                 LinearAttention layer({.hidden_size = 48, .num_heads = 4, .head_dim = 0, .layer = 4, .num_layers = 4},
                                       scope);
               }),
               {"head dim", "layer"});
  EXPECT_TRUE(golden.config.layers.empty());
}

TEST(RecurrentLayers, AStepWithoutCacheOrOnARankIsRefused) {
  Golden golden("mamba2");
  WeightLoader layer = golden.loader.scoped("backbone.layers.1");
  MambaMixer2 mixer(mamba2_config(), layer.scoped("mixer"));
  Stepper stepper(golden, mixer);
  std::vector<float> x = golden.hidden(0), y(x.size());
  const auto step = [&] {
    return message_of([&] {
      stepper.step({{1, 0, kTokens}}, [&](const ForwardBatch& batch) { mixer.forward(batch, x.data(), y.data()); });
    });
  };
  expect_words(step(), {"bind_kv_cache", "backbone.layers.1.mixer"});
  golden.config.parallel.tensor_parallel_size = 2;
  golden.bind(mixer);
  expect_words(step(), {"one rank"});
}

}  // namespace
}  // namespace coluber
