// SPDX-License-Identifier: Apache-2.0
//
// Zamba and Zamba2 (Zyphra, 2024): every layer is a Mamba mixer (Mamba with heads; Mamba-2), and some ("hybrid") first
// run a transformer block whose weights several of them share, over the stream beside the embeddings:
//
//   t = linear(block(x | embedded))        block(c) = mlp(pre_ff_layernorm(attention(input_layernorm(c))))
//   x = x + mixer(input_layernorm(x + t))                                              t only in hybrid layers
//
// Zamba2 has num_mem_blocks such blocks in turn, and each use of one adds low-rank adapters of its own.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "kernels/elementwise/scale.h"
#include "kernels/moe/activation.h"
#include "layers/linear.h"
#include "layers/mamba_mixer.h"
#include "layers/mamba_mixer2.h"
#include "layers/norm.h"
#include "layers/projected_attention.h"
#include "layers/recurrent_layer.h"
#include "models/activation_field.h"
#include "models/decoder.h"
#include "models/hybrid_fields.h"
#include "models/rope_parameters.h"
#include "models/sizes.h"
#include "tensor/cuda_step.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

constexpr double kZamba2NormEps = 1e-5;  // of the mixer's gated norm, whatever rms_norm_eps says

struct ZambaConfig {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, max_position_embeddings = 0, intermediate_size = 0;
  int64_t attention_hidden_size = 0, num_mem_blocks = 1, adapter_rank = 0, chunk_size = 0;
  double rms_norm_eps = 0;
  bool tie_word_embeddings = true, mlp_bias = false, attention_adapters = false, mlp_adapters = false;
  Activation activation = Activation::kGelu;
  std::vector<std::string> layer_kinds;
  SoftmaxAttentionConfig attention;
  std::optional<MambaMixerConfig> mamba;    // Zamba
  std::optional<MambaMixer2Config> mamba2;  // Zamba2
  std::string block_name;                   // below a hybrid layer

  int64_t q_width() const { return attention.num_heads * attention.head_dim; }
  int64_t kv_width() const { return attention.num_kv_heads * attention.head_dim; }
  bool is_hybrid(int64_t layer) const { return layer_kinds[static_cast<size_t>(layer)] == "hybrid"; }
  // Hybrid layers before this one.
  int64_t hybrid_index(int64_t layer) const {
    return std::count(layer_kinds.begin(), layer_kinds.begin() + layer, "hybrid");
  }
  int64_t layer_of_hybrid(int64_t index) const {
    for (int64_t i = 0;; ++i)
      if (is_hybrid(i) && index-- == 0) return i;
  }
};

void read_common(ConfigFields& fields, ZambaConfig& c) {
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .optional("intermediate_size", &c.intermediate_size, 4 * c.hidden_size, width_bound())
      .optional("max_position_embeddings", &c.max_position_embeddings, 4096, positive())
      .optional("rms_norm_eps", &c.rms_norm_eps, 1e-5, positive_finite())
      .optional("tie_word_embeddings", &c.tie_word_embeddings, true)
      .required("num_attention_heads", &c.attention.num_heads, heads_bound());
  c.activation = read_activation(fields, "hidden_act", "gelu");
  fields.alias("attention_head_dim", {"head_dim"});
  fields.optional("num_key_value_heads", &c.attention.num_kv_heads, c.attention.num_heads, heads_bound())
      .optional("attention_hidden_size", &c.attention_hidden_size, 2 * c.hidden_size, width_bound())
      .optional("attention_head_dim", &c.attention.head_dim,
                std::max<int64_t>(2 * c.hidden_size / c.attention.num_heads, 1), head_dim_bound())
      .check([&] { return c.attention_hidden_size == 2 * c.hidden_size; },
             "attention_hidden_size must be 2 * hidden_size: the stream and the embeddings side by side")
      .check([&] { return c.attention.num_heads % c.attention.num_kv_heads == 0; },
             "num_key_value_heads must divide num_attention_heads")
      .check([&] { return c.q_width() <= kMostWidth; },
             fmt::format("num_attention_heads * attention_head_dim must be at most {}", kMostWidth))
      .check([&] { return c.intermediate_size <= kMostWidth / 2; },
             fmt::format("intermediate_size must be at most {}", kMostWidth / 2));
  c.attention.scale = 1.0 / std::sqrt(static_cast<double>(c.attention.head_dim) / 2);
  c.layer_kinds = read_layer_kinds(fields, {"layers_block_type", "layer_types"}, {"linear_attention", "hybrid"});
}

void check_layer_kinds(ConfigFields& fields, const ZambaConfig& c) {
  fields.check([&] { return static_cast<int64_t>(c.layer_kinds.size()) == c.num_hidden_layers; },
               "layers_block_type must name num_hidden_layers layers");
}

// Without a list: two layers without the block, one with it, then one in every attn_layer_period.
void read_zamba_layers(ConfigFields& fields, ZambaConfig& c) {
  int64_t period = 0, offset = 0;
  fields.optional("attn_layer_period", &period, 6, positive())
      .optional("attn_layer_offset", &offset, 4, at_least(0))
      .check([&] { return !c.layer_kinds.empty() || c.num_hidden_layers >= 3; },
             "num_hidden_layers must be at least 3 where there is no layers_block_type");
  if (fields.ok() && c.layer_kinds.empty()) {
    c.layer_kinds = {"linear_attention", "linear_attention", "hybrid"};
    for (int64_t i = 0; i < c.num_hidden_layers - 3; ++i)
      c.layer_kinds.push_back(i % period == offset ? "hybrid" : "linear_attention");
  }
  check_layer_kinds(fields, c);
}

ZambaConfig read_zamba(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  ZambaConfig c;
  c.block_name = "shared_transf";
  read_common(fields, c);
  read_zamba_layers(fields, c);
  MambaMixerConfig mixer;
  int64_t expand = 0;
  std::string act;
  fields.optional("mamba_d_state", &mixer.state_size, 16, width_bound())
      .optional("mamba_d_conv", &mixer.conv_kernel, 4, between(2, 8))
      .optional("mamba_expand", &expand, 2, between(1, 1 << 10))
      .optional("mamba_conv_bias", &mixer.use_conv_bias, true)
      .optional("mamba_proj_bias", &mixer.use_bias, false)
      .optional("n_mamba_heads", &mixer.num_heads, 2, heads_bound())
      .optional("hidden_mamba_act", &act, "silu", one_of({"silu", "swish"}));
  mixer.time_step_rank = read_int_or_auto(fields, "mamba_dt_rank", (c.hidden_size + 15) / 16, width_bound());
  mixer.hidden_size = c.hidden_size;
  mixer.intermediate_size = expand * c.hidden_size;
  fields
      .check([&] { return mixer.intermediate_size <= kMostWidth; },
             fmt::format("mamba_expand * hidden_size must be at most {}", kMostWidth))
      .check([&] { return mixer.intermediate_size % mixer.num_heads == 0; },
             "n_mamba_heads must divide mamba_expand * hidden_size")
      .finish();
  c.mamba = mixer;
  return c;
}

void read_zamba2_layers(ConfigFields& fields, ZambaConfig& c) {
  std::vector<int64_t> hybrid;
  fields.optional("hybrid_layer_ids", &hybrid, {}, between(0, static_cast<double>(c.num_hidden_layers - 1)))
      .check([&] { return !c.layer_kinds.empty() || fields.has("hybrid_layer_ids"); },
             "expected layers_block_type or hybrid_layer_ids, which say where the shared blocks run; found neither");
  if (fields.ok() && c.layer_kinds.empty()) {
    c.layer_kinds.assign(static_cast<size_t>(c.num_hidden_layers), "linear_attention");
    for (int64_t i : hybrid) c.layer_kinds[static_cast<size_t>(i)] = "hybrid";
  }
  check_layer_kinds(fields, c);
}

MambaMixer2Config read_zamba2_mixer(ConfigFields& fields, ZambaConfig& c) {
  MambaMixer2Config mixer;
  int64_t expand = 0;
  fields.alias("n_mamba_heads", {"mamba_n_heads"});
  fields.optional("mamba_d_state", &mixer.state_size, 64, between(1, 1 << 16))
      .optional("mamba_d_conv", &mixer.conv_kernel, 4, between(2, 8))
      .optional("mamba_expand", &expand, 2, between(1, 1 << 10))
      .optional("mamba_ngroups", &mixer.n_groups, 1, heads_bound())
      .optional("n_mamba_heads", &mixer.num_heads, 8, heads_bound())
      .optional("time_step_min", &mixer.time_step_min, 0.001, at_least(0))
      .optional("chunk_size", &c.chunk_size, 256, positive());
  const int64_t inner = expand * c.hidden_size;
  fields.optional("mamba_headdim", &mixer.head_dim, std::max<int64_t>(inner / mixer.num_heads, 1), head_dim_bound())
      .check([&] { return mixer.num_heads * mixer.head_dim == inner; },
             "n_mamba_heads * mamba_headdim must be mamba_expand * hidden_size")
      .check([&] { return inner <= kMostWidth && mixer.n_groups * mixer.state_size <= kMostWidth; },
             fmt::format("mamba_expand * hidden_size and mamba_ngroups * mamba_d_state must be at most {}", kMostWidth))
      .check([&] { return mixer.num_heads % mixer.n_groups == 0; }, "mamba_ngroups must divide n_mamba_heads");
  mixer.hidden_size = c.hidden_size;
  mixer.use_bias = mixer.use_out_bias = c.mlp_bias;
  mixer.norm_groups = mixer.n_groups;
  mixer.norm_eps = kZamba2NormEps;
  return mixer;
}

ZambaConfig read_zamba2(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  ZambaConfig c;
  c.block_name = "shared_transformer";
  c.mlp_adapters = true;
  bool use_mem_rope = false;
  read_common(fields, c);
  read_zamba2_layers(fields, c);
  fields.optional("num_mem_blocks", &c.num_mem_blocks, 1, layers_bound())
      .optional("add_bias_linear", &c.mlp_bias, false)
      .optional("use_shared_attention_adapter", &c.attention_adapters, false)
      .optional("adapter_rank", &c.adapter_rank, 128, width_bound())
      .optional("use_mem_rope", &use_mem_rope, false);
  if (use_mem_rope) c.attention.rope = read_rope_parameters(fields, 10000.0, c.attention.head_dim);
  c.mamba2 = read_zamba2_mixer(fields, c);
  fields.finish();
  return c;
}

// The weights of one transformer block, held once for all layers that run it.
struct SharedBlock {
  RmsNorm input_layernorm, pre_ff_layernorm;
  Linear q_proj, k_proj, v_proj, o_proj;
  std::vector<Linear> gate_up;  // gate and up, or one weight of both
  Linear down_proj;
  DType dtype;

  SharedBlock(WeightLoader loader, const ZambaConfig& c)
      : input_layernorm(loader, "input_layernorm", c.attention_hidden_size, c.rms_norm_eps),
        pre_ff_layernorm(loader, "pre_ff_layernorm", c.hidden_size, c.rms_norm_eps),
        q_proj(loader, "self_attn.q_proj", c.attention_hidden_size, c.q_width(), false),
        k_proj(loader, "self_attn.k_proj", c.attention_hidden_size, c.kv_width(), false),
        v_proj(loader, "self_attn.v_proj", c.attention_hidden_size, c.kv_width(), false),
        o_proj(loader, "self_attn.o_proj", c.q_width(), c.hidden_size, false),
        down_proj(loader, "feed_forward.down_proj", c.intermediate_size, c.hidden_size, c.mlp_bias),
        dtype(loader.take("self_attn.q_proj.weight", Shape{c.q_width(), c.attention_hidden_size}).dtype) {
    if (c.mlp_adapters) {
      gate_up.emplace_back(loader, "feed_forward.gate_up_proj", c.hidden_size, 2 * c.intermediate_size, c.mlp_bias);
    } else {
      for (const char* name : {"feed_forward.gate_proj", "feed_forward.up_proj"})
        gate_up.emplace_back(loader, name, c.hidden_size, c.intermediate_size, c.mlp_bias);
    }
  }

  int64_t parameters() const {
    int64_t sum = 0;
    for (const Linear* linear : {&q_proj, &k_proj, &v_proj, &o_proj, &down_proj})
      sum += linear->in_features() * linear->out_features();
    for (const Linear& linear : gate_up) sum += linear.in_features() * linear.out_features();
    return sum;
  }
};

// y += up(down(x)), of low rank.
struct Adapter {
  Linear down, up;

  Adapter(WeightLoader loader, int64_t in, int64_t rank, int64_t out)
      : down(loader, "0", in, rank, false), up(loader, "1", rank, out, false) {}

  void add(const ForwardBatch& batch, const float* x, float* y) const {
    WorkspaceScope scope(*batch.workspace);
    float* inner = batch.workspace->take<float>(batch.num_tokens() * down.out_features());
    down.forward(batch, x, batch.num_tokens(), inner);
    up.forward(batch, inner, batch.num_tokens(), y, /*accumulate=*/true);
  }
};

// One layer's use of a block: its own cache and adapters.
class SharedBlockUse {
 public:
  // `home`: scoped to the block's weights, this layer's or those of the layer that shares them.
  SharedBlockUse(std::shared_ptr<const SharedBlock> block, std::shared_ptr<const ZambaConfig> config,
                 const BlockContext& context, const WeightLoader& home)
      : config_(std::move(config)),
        block_(std::move(block)),
        attention_(config_->attention, context.layer.scoped(config_->block_name + ".self_attn")),
        linear_(context.layer, "linear", config_->hidden_size, config_->hidden_size, false),
        mlp_name_(context.layer.full_name(config_->block_name + ".feed_forward")) {
    const ZambaConfig& c = *config_;
    const int64_t use = c.hybrid_index(context.index);
    const auto adapter = [&](const std::string& name, int64_t in, int64_t out) {
      return std::make_unique<Adapter>(home.scoped(fmt::format("{}_adapter_list.{}", name, use)), in, c.adapter_rank,
                                       out);
    };
    if (c.attention_adapters) {
      q_adapter_ = adapter("self_attn.linear_q", c.attention_hidden_size, c.q_width());
      k_adapter_ = adapter("self_attn.linear_k", c.attention_hidden_size, c.kv_width());
      v_adapter_ = adapter("self_attn.linear_v", c.attention_hidden_size, c.kv_width());
    }
    if (c.mlp_adapters) gate_up_adapter_ = adapter("feed_forward.gate_up_proj", c.hidden_size, 2 * c.intermediate_size);
  }

  void describe(std::vector<LayerInfo>& layers) const {
    layers.push_back({attention_.layer_name(), "full_attention", &attention_});
    layers.push_back({mlp_name_, "mlp", nullptr});
  }

  // y [T, D] += linear(block(x | embedded))
  void add(const ForwardBatch& batch, const DecoderStream& stream, float* y) const {
    const int64_t tokens = batch.num_tokens(), d = config_->hidden_size;
    WorkspaceScope scope(*batch.workspace);
    float* hidden = batch.workspace->take<float>(tokens * d);
    attend(batch, stream, hidden);
    block_->pre_ff_layernorm.forward(batch, hidden, tokens, hidden);
    float* transformed = batch.workspace->take<float>(tokens * d);
    run_mlp(batch, hidden, transformed);
    linear_.forward(batch, transformed, tokens, y, /*accumulate=*/true);
  }

 private:
  float* project(const ForwardBatch& batch, const float* x, const Linear& linear, const Adapter* adapter) const {
    float* y = batch.workspace->take<float>(batch.num_tokens() * linear.out_features());
    linear.forward(batch, x, batch.num_tokens(), y);
    if (adapter != nullptr) adapter->add(batch, x, y);
    return y;
  }

  void attend(const ForwardBatch& batch, const DecoderStream& stream, float* y) const {
    const int64_t tokens = batch.num_tokens(), d = config_->hidden_size;
    WorkspaceScope scope(*batch.workspace);
    float* both = batch.workspace->take<float>(tokens * 2 * d);
    const float* halves[] = {stream.x, stream.embedded};
    for (int64_t half = 0; half < 2; ++half)
      scale()(ScaleArgs{halves[half], d, both + half * d, 2 * d, tokens, d}, batch);
    block_->input_layernorm.forward(batch, both, tokens, both);
    float* q = project(batch, both, block_->q_proj, q_adapter_.get());
    float* k = project(batch, both, block_->k_proj, k_adapter_.get());
    float* v = project(batch, both, block_->v_proj, v_adapter_.get());
    float* out = batch.workspace->take<float>(tokens * config_->q_width());
    attention_.forward(batch, q, k, v, out);
    block_->o_proj.forward(batch, out, tokens, y);
  }

  void run_mlp(const ForwardBatch& batch, const float* x, float* y) const {
    const int64_t tokens = batch.num_tokens(), width = config_->intermediate_size, d = config_->hidden_size;
    WorkspaceScope scope(*batch.workspace);
    float* gate_up = batch.workspace->take<float>(tokens * 2 * width);
    int64_t first = 0;
    for (const Linear& part : block_->gate_up) {
      part.forward(batch, x, d, tokens, gate_up + first, 2 * width);
      first += part.out_features();
    }
    if (gate_up_adapter_) gate_up_adapter_->add(batch, x, gate_up);
    ActivateArgs args;
    args.activation = config_->activation;
    args.gate = args.out = gate_up;
    args.up = gate_up + width;
    args.gate_stride = args.up_stride = args.out_stride = 2 * width;
    args.rows = tokens;
    args.cols = width;
    activate()(args, batch);
    block_->down_proj.forward(batch, gate_up, 2 * width, tokens, y, d);
  }

  std::shared_ptr<const ZambaConfig> config_;
  std::shared_ptr<const SharedBlock> block_;
  ProjectedAttention attention_;
  Linear linear_;
  std::string mlp_name_;
  std::unique_ptr<Adapter> q_adapter_, k_adapter_, v_adapter_, gate_up_adapter_;
};

class ZambaBlock final : public DecoderBlock {
 public:
  ZambaBlock(std::unique_ptr<SharedBlockUse> use, std::shared_ptr<const ZambaConfig> config,
             const BlockContext& context)
      : hidden_size_(config->hidden_size),
        input_layernorm_(mamba_loader(use != nullptr, context), "input_layernorm", hidden_size_, config->rms_norm_eps) {
    const WeightLoader loader = mamba_loader(use != nullptr, context).scoped("mamba");
    use_ = std::move(use);
    if (config->mamba) mamba_ = std::make_unique<MambaMixer>(*config->mamba, loader);
    if (config->mamba2) mamba2_ = std::make_unique<MambaMixer2>(*config->mamba2, loader);
  }

  void forward(const ForwardBatch& batch, const DecoderStream& stream) override {
    const int64_t tokens = batch.num_tokens();
    WorkspaceScope scope(*batch.workspace);
    float* in = batch.workspace->take<float>(tokens * hidden_size_);  // [T, D]
    copy_floats(batch, stream.x, in, tokens * hidden_size_);
    if (use_) use_->add(batch, stream, in);
    input_layernorm_.forward(batch, in, tokens, in);
    if (mamba_)
      mamba_->forward(batch, in, stream.x, /*accumulate=*/true);
    else
      mamba2_->forward(batch, in, stream.x, /*accumulate=*/true);
  }

  void describe(std::vector<LayerInfo>& layers) const override {
    if (use_) use_->describe(layers);
    if (mamba_)
      layers.push_back({mamba_->layer_name(), "mamba1", mamba_.get()});
    else
      layers.push_back({mamba2_->layer_name(), "mamba2", mamba2_.get()});
  }

 private:
  static WeightLoader mamba_loader(bool hybrid, const BlockContext& context) {
    return hybrid ? context.layer.scoped("mamba_decoder") : context.layer;
  }

  int64_t hidden_size_;
  std::unique_ptr<SharedBlockUse> use_;  // hybrid layers
  RmsNorm input_layernorm_;
  std::unique_ptr<MambaMixer> mamba_;  // one of the two
  std::unique_ptr<MambaMixer2> mamba2_;
};

// A layer runs the weights that the checkpoint has for it, else those of the first layers with a block, in turn.
std::unique_ptr<SharedBlockUse> use_block(const std::shared_ptr<const ZambaConfig>& config, const BlockContext& context,
                                          std::map<int64_t, std::shared_ptr<const SharedBlock>>& blocks) {
  const ZambaConfig& c = *config;
  const int64_t use = c.hybrid_index(context.index);
  const bool own = use < c.num_mem_blocks || context.layer.has(c.block_name + ".input_layernorm.weight");
  const int64_t layer = own ? context.index : c.layer_of_hybrid(use % c.num_mem_blocks);
  WeightLoader home = context.base.scoped(fmt::format("layers.{}.{}", layer, c.block_name));
  std::shared_ptr<const SharedBlock>& block = blocks[layer];
  if (block == nullptr) {
    block = std::make_shared<SharedBlock>(home, c);
  } else {
    home.count_matmul(block->parameters(), dtype_bytes(block->dtype, block->parameters()));
  }
  return std::make_unique<SharedBlockUse>(block, config, context, home);
}

std::unique_ptr<Model> load(ModelLoadContext& context, const std::string& model_type, ZambaConfig read) {
  const auto config = std::make_shared<const ZambaConfig>(std::move(read));
  const ZambaConfig& c = *config;
  if (c.mamba2) context.config.mamba_chunk_size = c.chunk_size;
  DecoderConfig decoder = decoder_config(model_type, c, c.rms_norm_eps);
  decoder.norm = "final_layernorm";
  decoder.keep_embedded = true;
  std::map<int64_t, std::shared_ptr<const SharedBlock>> blocks;  // by the layer that has the weights
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) {
    std::unique_ptr<SharedBlockUse> use;
    if (c.is_hybrid(block.index)) use = use_block(config, block, blocks);
    return std::make_unique<ZambaBlock>(std::move(use), config, block);
  });
}

std::unique_ptr<Model> load_zamba(ModelLoadContext& context) {
  return load(context, "zamba", read_zamba(context.config_json, context.config_path));
}
const RegisterModel kZamba({"zamba", {"ZambaForCausalLM"}, load_zamba, {}, /*runs_on_cuda=*/true});

std::unique_ptr<Model> load_zamba2(ModelLoadContext& context) {
  return load(context, "zamba2", read_zamba2(context.config_json, context.config_path));
}
const RegisterModel kZamba2({"zamba2", {"Zamba2ForCausalLM"}, load_zamba2, {}, /*runs_on_cuda=*/true});

}  // namespace
}  // namespace coluber
