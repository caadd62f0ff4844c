// SPDX-License-Identifier: Apache-2.0
//
// Qwen4-Exp (Qwen, 2026), the text part: several residual streams that each half of a block reads by gates it makes
// from them, Gated DeltaNet, and attention to the blocks of keys that an indexer chooses; experts with a gated shared
// expert behind each; in some layers an embedding of the last few tokens is added to the streams first. With H the
// streams [S, D] of a token and n = norm(H), each stream by itself, for the mixer and for the experts:
//
//   w = sigmoid(up(silu(down(n) / S)))        y = layer(mean_s w_s * n_s)        H_s += 2 sigmoid(inject(n) / S)_s y
//
// Norms are centred on zero. With text alone the three rotations of the multimodal container are one.
#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "kernels/linear/silu.h"
#include "kernels/rope/rope.h"
#include "layers/attention.h"
#include "layers/gated_delta_net.h"
#include "layers/moe.h"
#include "layers/ngram_embedding.h"
#include "layers/recurrent_layer.h"
#include "layers/streams_norm.h"
#include "models/activation_field.h"
#include "models/delta_fields.h"
#include "models/hybrid_fields.h"
#include "models/rope_parameters.h"
#include "models/sizes.h"
#include "models/streams_decoder.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

struct Qwen4Config {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, max_position_embeddings = 0;
  int64_t hc_count = 0, hc_lowrank = 0;
  int64_t indexer_n_heads = 0, indexer_head_dim = 0, indexer_budget = 0, indexer_compress_ratio = 0;
  double rms_norm_eps = 0;
  bool tie_word_embeddings = false;
  std::vector<std::string> layer_types;
  std::vector<int64_t> ple_layer_ids;  // from 1 on
  AttentionConfig attention;
  GatedDeltaNetConfig delta;
  NgramEmbeddingConfig ngrams;
  MoeConfig moe;

  bool is_linear(int64_t layer) const { return layer_types[static_cast<size_t>(layer)] == "linear_attention"; }
  bool has_ngrams(int64_t layer) const {
    return std::find(ple_layer_ids.begin(), ple_layer_ids.end(), layer + 1) != ple_layer_ids.end();
  }
};

void read_layer_types(ConfigFields& fields, Qwen4Config& c) {
  int64_t interval = 0;
  c.layer_types =
      read_layer_kinds(fields, {"layer_types"}, {"linear_attention", "full_attention", "indexed_attention"});
  fields.optional("full_attention_interval", &interval, 4, positive());
  for (int64_t i = 0; i < c.num_hidden_layers && fields.ok() && !fields.has("layer_types"); ++i)
    c.layer_types.push_back((i + 1) % interval != 0 ? "linear_attention" : "indexed_attention");
  fields.check([&] { return static_cast<int64_t>(c.layer_types.size()) == c.num_hidden_layers; },
               "layer_types must name num_hidden_layers layers");
}

void read_indexer(ConfigFields& fields, Qwen4Config& c) {
  int64_t kv_heads = 0;
  fields.required("indexer_n_heads", &c.indexer_n_heads, heads_bound())
      .required("indexer_head_dim", &c.indexer_head_dim, head_dim_bound())
      .required("indexer_budget", &c.indexer_budget, positive())
      .required("indexer_compress_ratio", &c.indexer_compress_ratio, between(1, 1 << 12))
      .optional("indexer_kv_heads", &kv_heads, 1, between(1, 1))
      .check([&] { return c.indexer_budget % c.indexer_compress_ratio == 0; },
             "indexer_compress_ratio must divide indexer_budget")
      .check([&] { return c.attention.rope->rotary_dim <= c.indexer_head_dim; },
             "the rotated part of a head must fit into indexer_head_dim")
      .check([&] { return (c.indexer_n_heads + 1) * c.indexer_head_dim <= kMostWidth; },
             fmt::format("indexer_n_heads * indexer_head_dim must be at most {}", kMostWidth));
}

void read_ngrams(ConfigFields& fields, Qwen4Config& c) {
  NgramEmbeddingConfig& ngrams = c.ngrams;
  std::vector<int64_t> ends;
  fields.optional("ple_layer_ids", &c.ple_layer_ids, {}, between(1, 1 << 16)).list_or_one("eos_token_id", &ends);
  if (c.ple_layer_ids.empty()) return;
  fields.optional("ple_embed_dim", &ngrams.embed_dim, c.hidden_size, width_bound())
      .optional("ple_conv_kernel_size", &ngrams.conv_kernel, 4, between(2, 16))
      .optional("ngram_size", &ngrams.ngram_size, 3, between(2, 16))
      .optional("heads_per_ngram", &ngrams.heads_per_ngram, 8, heads_bound())
      .optional("split_ngram_parts", &ngrams.num_shards, 512, between(1, 1 << 16))
      .check([&] { return !ends.empty(); }, "eos_token_id must be there: n-grams end at it")
      .check([&] { return ngrams.embed_dim % ngrams.num_heads() == 0; },
             "(ngram_size - 1) * heads_per_ngram must divide ple_embed_dim")
      .check([&] { return ngrams.conv_inputs() < 16; }, "(ple_conv_kernel_size - 1) * ngram_size must be at most 15")
      .check([&] { return c.vocab_size <= 1 << 24; },
             "vocab_size must be at most 2^24 where n-grams are embedded: a state holds token ids as float32")
      .check(
          [&] {
            return std::all_of(c.ple_layer_ids.begin(), c.ple_layer_ids.end(),
                               [&](int64_t id) { return id <= c.num_hidden_layers && c.is_linear(id - 1); });
          },
          "ple_layer_ids must name layers of linear attention, counted from 1");
  ngrams.hidden_size = c.hidden_size;
  ngrams.streams = c.hc_count;
  ngrams.norm_eps = c.rms_norm_eps;
  ngrams.state_names = {"conv.1", "conv.2"};
  if (!ends.empty()) ngrams.end_of_text = static_cast<int32_t>(ends.front());
}

void read_experts(ConfigFields& fields, Qwen4Config& c) {
  MoeConfig& moe = c.moe;
  moe.shared.emplace();
  fields.optional("moe_intermediate_size", &moe.intermediate_size, 512, width_bound())
      .optional("shared_expert_intermediate_size", &moe.shared->intermediate_size, 512, width_bound())
      .optional("num_experts", &moe.num_experts, 512, experts_bound())
      .optional("num_experts_per_tok", &moe.top_k, 10, experts_bound())
      .optional("norm_topk_prob", &moe.renormalize, true)
      .check([&] { return moe.top_k <= moe.num_experts; }, "num_experts_per_tok must be at most num_experts");
  moe.hidden_size = moe.shared->hidden_size = c.hidden_size;
  moe.w1 = "gate_proj";
  moe.w3 = "up_proj";
  moe.w2 = "down_proj";
  moe.stacked_w1_w3 = "experts.gate_up_proj";
  moe.stacked_w2 = "experts.down_proj";
  moe.shared_prefix = "shared_expert";
  moe.shared_gate = "shared_expert_gate";
}

void read_mixers(ConfigFields& fields, Qwen4Config& c) {
  AttentionConfig& attention = c.attention;
  attention = read_attention_fields(fields, c.hidden_size, 0);
  attention.rope = read_rope_parameters(fields, 10000.0, attention.head_dim, 0.25);
  attention.qk_norm_eps = c.rms_norm_eps;
  attention.qk_norm_weight_offset = 1;
  attention.gate = OutputGate::kInQuery;
  GatedDeltaNetConfig defaults;
  defaults.num_k_heads = 16;
  defaults.num_v_heads = 32;
  defaults.head_k_dim = defaults.head_v_dim = 128;
  defaults.conv_kernel = 4;
  c.delta = read_delta_fields(fields, defaults);
  c.delta.hidden_size = c.hidden_size;
  c.delta.projections = DeltaProjections::kTogether;
  c.delta.norm_eps = c.rms_norm_eps;
  c.delta.norm = "norm";
  c.delta.out_proj = "out_proj";
  c.delta.state_names = {"conv.0", "recurrent.0"};
  std::string gate;
  fields.optional("output_gate_type", &gate, "silu", one_of({"sigmoid", "silu"}));
  c.delta.output_gate_function = gate == "sigmoid" ? Gate::kSigmoid : Gate::kSilu;
}

void read_text(ConfigFields& fields, Qwen4Config& c) {
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .optional("max_position_embeddings", &c.max_position_embeddings, 32768, positive())
      .optional("rms_norm_eps", &c.rms_norm_eps, 1e-6, positive_finite())
      .optional("hc_count", &c.hc_count, 4, between(2, 64))
      .optional("hc_lowrank", &c.hc_lowrank, 320, width_bound())
      .optional("tie_word_embeddings", &c.tie_word_embeddings, c.tie_word_embeddings);
  const Activation act = read_activation(fields, "hidden_act", "silu");
  fields.check([&] { return act == Activation::kSilu; }, "hidden_act must be silu")
      .check([&] { return c.hc_count * c.hidden_size <= kMostWidth; },
             fmt::format("hc_count * hidden_size must be at most {}", kMostWidth));
  read_layer_types(fields, c);
  read_mixers(fields, c);
  read_indexer(fields, c);
  read_ngrams(fields, c);
  read_experts(fields, c);
}

Qwen4Config read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  Qwen4Config c;
  if (fields.has("text_config")) {
    fields.optional("tie_word_embeddings", &c.tie_word_embeddings, false);
    ConfigFields nested = fields.nested("text_config");
    read_text(nested, c);
  } else {
    read_text(fields, c);
  }
  fields.finish();
  return c;
}

// The indexer: a token notes its key, a block's key is their mean, normed and turned to the block's first position.
class MeanIndexer final : public KeySelector {
 public:
  MeanIndexer(const Qwen4Config& c, const WeightLoader& loader)
      : KeySelector(selector_config(c)),
        rotary_dim_(c.attention.rope->rotary_dim),
        rope_(rope_frequencies(*c.attention.rope, c.attention.head_dim)),
        query_(loader, "index_qk_proj", c.hidden_size, (c.indexer_n_heads + 1) * c.indexer_head_dim, false),
        query_norm_(loader, "q_layernorm", c.indexer_head_dim, c.rms_norm_eps, 1),
        key_norm_(loader, "k_layernorm", c.indexer_head_dim, c.rms_norm_eps, 1) {}

 protected:
  void make_notes(const ForwardBatch& batch, const float* x, float* note) override {
    project(batch, x, [&](int64_t t, const float* row) {
      std::copy_n(row + config().num_heads * config().key_dim, config().key_dim, note + t * config().note_dim);
    });
  }

  bool make_queries(const ForwardBatch& batch, const float* x, const float*, float* q, float*) override {
    const int64_t tokens = batch.num_tokens(), width = config().num_heads * config().key_dim;
    project(batch, x, [&](int64_t t, const float* row) { std::copy_n(row, width, q + t * width); });
    query_norm_.forward(batch, q, tokens * config().num_heads, q);
    RopeArgs args;
    args.q = q;
    args.q_stride = width;
    args.num_q_heads = config().num_heads;
    args.head_dim = config().key_dim;
    args.rotary_dim = rotary_dim_;
    args.frequencies = rope_.frequencies.data();
    args.attention_factor = rope_.attention_factor;
    args.positions = batch.positions.data();
    args.num_tokens = tokens;
    rope()(args, batch);
    return false;
  }

  void pool(const float* notes, int64_t first_position, float* key) const override {
    const int64_t dim = config().key_dim;
    double squares = 0;
    for (int64_t d = 0; d < dim; ++d) {
      double sum = 0;
      for (int64_t j = 0; j < config().block_size; ++j) sum += notes[j * config().note_dim + d];
      key[d] = static_cast<float>(sum / static_cast<double>(config().block_size));
      squares += static_cast<double>(key[d]) * key[d];
    }
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(dim) + key_norm_.eps());
    for (int64_t d = 0; d < dim; ++d) key[d] = static_cast<float>(key[d] * scale * (1.0 + key_norm_.weight()[d]));
    for (int64_t i = 0; i < rotary_dim_ / 2; ++i) {
      const double angle = static_cast<double>(first_position) * rope_.frequencies[static_cast<size_t>(i)];
      const double cosine = std::cos(angle) * rope_.attention_factor, sine = std::sin(angle) * rope_.attention_factor;
      const double a = key[i], b = key[i + rotary_dim_ / 2];
      key[i] = static_cast<float>(a * cosine - b * sine);
      key[i + rotary_dim_ / 2] = static_cast<float>(b * cosine + a * sine);
    }
  }

 private:
  static KeySelectorConfig selector_config(const Qwen4Config& c) {
    KeySelectorConfig config;
    config.num_heads = c.indexer_n_heads;
    config.key_dim = config.note_dim = c.indexer_head_dim;
    config.block_size = c.indexer_compress_ratio;
    config.budget = c.indexer_budget / c.indexer_compress_ratio;
    config.scale = 1.0f / std::sqrt(static_cast<float>(c.indexer_head_dim));
    return config;
  }

  template <typename Use>
  void project(const ForwardBatch& batch, const float* x, Use&& use) const {
    WorkspaceScope scope(*batch.workspace);
    const int64_t tokens = batch.num_tokens(), width = query_.out_features();
    float* rows = batch.workspace->take<float>(tokens * width);
    query_.forward(batch, x, tokens, rows);
    for (int64_t t = 0; t < tokens; ++t) use(t, rows + t * width);
  }

  int64_t rotary_dim_;
  RopeFrequencies rope_;
  Linear query_;  // queries of all heads, then the key
  RmsNorm query_norm_, key_norm_;
};

// What one half of a block, or the head, reads of the streams; a half writes back what `inject` weighs.
class StreamsMixer {
 public:
  StreamsMixer(const Qwen4Config& c, const WeightLoader& loader, bool writes)
      : streams_(c.hc_count),
        hidden_size_(c.hidden_size),
        norm_(loader, "hc_norm", c.hc_count, c.hidden_size, c.rms_norm_eps, 1),
        down_(loader, "input_mix_weight_down", c.hc_count * c.hidden_size, c.hc_lowrank, false),
        up_(loader, "input_mix_weight_up", c.hc_lowrank, c.hc_count * c.hidden_size, false) {
    if (writes) inject_.emplace(loader, "block_inject_weight", c.hc_count * c.hidden_size, c.hc_count, false);
  }

  // x [T, S, D] to `mixed` [T, D] and, where the half writes, `injection` [T, S].
  void read(const ForwardBatch& batch, const float* x, float* injection, float* mixed) const {
    const int64_t tokens = batch.num_tokens(), width = streams_ * hidden_size_, rank = down_.out_features();
    WorkspaceScope scope(*batch.workspace);
    float* normed = batch.workspace->take<float>(tokens * width);
    float* low = batch.workspace->take<float>(tokens * rank);
    float* gate = batch.workspace->take<float>(tokens * width);
    const float part = 1.0f / static_cast<float>(streams_);
    norm_.forward(batch, x, tokens, normed);
    down_.forward(batch, normed, tokens, low);
    for (int64_t i = 0; i < tokens * rank; ++i) low[i] *= part;
    silu()(SiluArgs{low, low, tokens * rank}, batch);
    up_.forward(batch, low, tokens, gate);
    batch.thread_pool->parallel_for(tokens, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t d = 0; d < hidden_size_; ++d) {
          float sum = 0;
          for (int64_t s = 0; s < streams_; ++s) {
            const int64_t i = (t * streams_ + s) * hidden_size_ + d;
            sum += normed[i] / (1.0f + std::exp(-gate[i]));
          }
          mixed[t * hidden_size_ + d] = sum * part;
        }
      }
    });
    if (!inject_) return;
    inject_->forward(batch, normed, tokens, injection);
    for (int64_t i = 0; i < tokens * streams_; ++i) injection[i] = 2.0f / (1.0f + std::exp(-injection[i] * part));
  }

  void write(const ForwardBatch& batch, const float* injection, const float* y, float* x) const {
    for (int64_t i = 0; i < batch.num_tokens() * streams_; ++i) {
      const float* from = y + i / streams_ * hidden_size_;
      for (int64_t d = 0; d < hidden_size_; ++d) x[i * hidden_size_ + d] += injection[i] * from[d];
    }
  }

  int64_t streams() const { return streams_; }

 private:
  int64_t streams_, hidden_size_;
  StreamsNorm norm_;
  Linear down_, up_;
  std::optional<Linear> inject_;
};

class Qwen4Block final : public DecoderBlock {
 public:
  Qwen4Block(const Qwen4Config& c, const BlockContext& context)
      : hidden_size_(c.hidden_size),
        mixer_streams_(c, context.layer.scoped("attn_hyper_connection"), true),
        mlp_streams_(c, context.layer.scoped("mlp_hyper_connection"), true),
        mlp_loader_(context.layer.scoped("mlp")),
        experts_(c.moe, mlp_loader_) {
    if (c.has_ngrams(context.index)) ngrams_ = std::make_unique<NgramEmbedding>(c.ngrams, context.layer.scoped("ple"));
    if (c.is_linear(context.index)) {
      delta_ = std::make_unique<GatedDeltaNet>(c.delta, context.layer.scoped("linear_attn"));
    } else {
      const WeightLoader self_attn = context.layer.scoped("self_attn");
      attention_ = std::make_unique<Attention>(c.attention, self_attn,
                                               std::make_unique<MeanIndexer>(c, self_attn.scoped("indexer")));
    }
  }

  void forward(const ForwardBatch& batch, const DecoderStream& stream) override {
    const int64_t tokens = batch.num_tokens();
    WorkspaceScope scope(*batch.workspace);
    float* injection = batch.workspace->take<float>(tokens * mixer_streams_.streams());
    float* in = batch.workspace->take<float>(tokens * hidden_size_);
    float* out = batch.workspace->take<float>(tokens * hidden_size_);
    if (ngrams_) ngrams_->forward(batch, stream.x);
    mixer_streams_.read(batch, stream.x, injection, in);
    if (delta_)
      delta_->forward(batch, in, out);
    else
      attention_->forward(batch, in, out);
    mixer_streams_.write(batch, injection, out, stream.x);
    mlp_streams_.read(batch, stream.x, injection, in);
    experts_.forward(batch, in, out);
    mlp_streams_.write(batch, injection, out, stream.x);
  }

  void describe(std::vector<LayerInfo>& layers) const override {
    if (ngrams_) layers.push_back({ngrams_->layer_name(), "ngram_embedding", ngrams_.get()});
    if (delta_)
      layers.push_back({delta_->layer_name(), "gdn", delta_.get()});
    else
      layers.push_back({attention_->layer_name(), "sparse_attention", attention_.get()});
    layers.push_back({layer_name_of(mlp_loader_), "moe", nullptr});
  }

 private:
  int64_t hidden_size_;
  StreamsMixer mixer_streams_, mlp_streams_;
  WeightLoader mlp_loader_;
  MoeBlock experts_;
  std::unique_ptr<NgramEmbedding> ngrams_;
  std::unique_ptr<GatedDeltaNet> delta_;  // one of the two
  std::unique_ptr<Attention> attention_;
};

class MixerExit final : public StreamsExit {
 public:
  MixerExit(const Qwen4Config& c, const WeightLoader& loader)
      : mixer_(c, loader.scoped("hyper_connection_mixer"), false) {}
  void forward(const ForwardBatch& batch, const float* streams, float* out) const override {
    mixer_.read(batch, streams, nullptr, out);
  }

 private:
  StreamsMixer mixer_;
};

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const Qwen4Config c = read_config(context.config_json, context.config_path);
  DecoderConfig decoder = decoder_config("qwen4_exp", c, c.rms_norm_eps);
  decoder.base = text_part_base(context.weights);
  decoder.ignored = {{"mtp", "heads that predict several tokens are not run"},
                     {"model.visual", "the vision tower is not run"}};
  return std::make_unique<StreamsDecoder>(
      context, decoder, c.hc_count, [&](const BlockContext& block) { return std::make_unique<Qwen4Block>(c, block); },
      [&](const BlockContext& exit) { return std::make_unique<MixerExit>(c, exit.base); });
}

const RegisterModel kQwen4({"qwen4_exp", {"Qwen4ExpForConditionalGeneration"}, load});
const RegisterModel kQwen4Text({"qwen4_exp_text", {"Qwen4ExpForCausalLM"}, load});

}  // namespace
}  // namespace coluber
