// SPDX-License-Identifier: Apache-2.0
//
// Input: a config.json of any family, perhaps behind a byte from 0x80 on that chooses the family. Loading it over a
// handful of tiny tensors, or over the family's checkpoint in tests/data, ends in a model or in an Error: never a
// crash, never more memory or time than the tensors deserve. Where it ends in a model, the layers must tell what they
// keep.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "coluber/mamba_base.h"
#include "formats/hf_config.h"
#include "formats/quantization_config.h"
#include "formats/weight_source.h"
#include "models/family.h"

namespace {

using coluber::Shape;

struct Tensor {
  std::string_view family;
  std::string_view name;
  Shape shape;
};

// One or two layers of each family, of the sizes that the corpus's tiny_* files name.
const std::vector<Tensor> kTensors = {
    {"mamba", "backbone.embeddings.weight", {6, 4}},
    {"mamba", "backbone.norm_f.weight", {4}},
    {"mamba", "backbone.layers.0.norm.weight", {4}},
    {"mamba", "backbone.layers.0.mixer.in_proj.weight", {16, 4}},
    {"mamba", "backbone.layers.0.mixer.x_proj.weight", {5, 8}},
    {"mamba", "backbone.layers.0.mixer.dt_proj.weight", {8, 1}},
    {"mamba", "backbone.layers.0.mixer.dt_proj.bias", {8}},
    {"mamba", "backbone.layers.0.mixer.out_proj.weight", {4, 8}},
    {"mamba", "backbone.layers.0.mixer.conv1d.weight", {8, 1, 4}},
    {"mamba", "backbone.layers.0.mixer.conv1d.bias", {8}},
    {"mamba", "backbone.layers.0.mixer.A_log", {8, 2}},
    {"mamba", "backbone.layers.0.mixer.D", {8}},
    {"mamba2", "backbone.embeddings.weight", {6, 4}},
    {"mamba2", "backbone.norm_f.weight", {4}},
    {"mamba2", "backbone.layers.0.norm.weight", {4}},
    {"mamba2", "lm_head.weight", {6, 4}},
    {"mamba2", "backbone.layers.0.mixer.in_proj.weight", {22, 4}},
    {"mamba2", "backbone.layers.0.mixer.conv1d.weight", {12, 1, 4}},
    {"mamba2", "backbone.layers.0.mixer.conv1d.bias", {12}},
    {"mamba2", "backbone.layers.0.mixer.A_log", {2}},
    {"mamba2", "backbone.layers.0.mixer.D", {2}},
    {"mamba2", "backbone.layers.0.mixer.dt_bias", {2}},
    {"mamba2", "backbone.layers.0.mixer.norm.weight", {8}},
    {"mamba2", "backbone.layers.0.mixer.out_proj.weight", {4, 8}},
    {"lfm2", "model.embed_tokens.weight", {6, 4}},
    {"lfm2", "model.embedding_norm.weight", {4}},
    {"lfm2", "model.layers.0.operator_norm.weight", {4}},
    {"lfm2", "model.layers.0.ffn_norm.weight", {4}},
    {"lfm2", "model.layers.0.feed_forward.w1.weight", {8, 4}},
    {"lfm2", "model.layers.0.feed_forward.w3.weight", {8, 4}},
    {"lfm2", "model.layers.0.feed_forward.w2.weight", {4, 8}},
    {"lfm2", "model.layers.1.operator_norm.weight", {4}},
    {"lfm2", "model.layers.1.ffn_norm.weight", {4}},
    {"lfm2", "model.layers.1.feed_forward.w1.weight", {8, 4}},
    {"lfm2", "model.layers.1.feed_forward.w3.weight", {8, 4}},
    {"lfm2", "model.layers.1.feed_forward.w2.weight", {4, 8}},
    {"lfm2", "model.layers.0.conv.in_proj.weight", {12, 4}},
    {"lfm2", "model.layers.0.conv.out_proj.weight", {4, 4}},
    {"lfm2", "model.layers.0.conv.conv.weight", {4, 1, 3}},
    {"lfm2", "model.layers.1.self_attn.q_proj.weight", {4, 4}},
    {"lfm2", "model.layers.1.self_attn.k_proj.weight", {2, 4}},
    {"lfm2", "model.layers.1.self_attn.v_proj.weight", {2, 4}},
    {"lfm2", "model.layers.1.self_attn.out_proj.weight", {4, 4}},
    {"lfm2", "model.layers.1.self_attn.q_layernorm.weight", {2}},
    {"lfm2", "model.layers.1.self_attn.k_layernorm.weight", {2}},
    {"minimax", "model.embed_tokens.weight", {6, 4}},
    {"minimax", "model.norm.weight", {4}},
    {"minimax", "lm_head.weight", {6, 4}},
    {"minimax", "model.layers.0.input_layernorm.weight", {4}},
    {"minimax", "model.layers.0.post_attention_layernorm.weight", {4}},
    {"minimax", "model.layers.0.block_sparse_moe.gate.weight", {2, 4}},
    {"minimax", "model.layers.0.block_sparse_moe.experts.0.w1.weight", {3, 4}},
    {"minimax", "model.layers.0.block_sparse_moe.experts.0.w2.weight", {4, 3}},
    {"minimax", "model.layers.0.block_sparse_moe.experts.0.w3.weight", {3, 4}},
    {"minimax", "model.layers.0.block_sparse_moe.experts.1.w1.weight", {3, 4}},
    {"minimax", "model.layers.0.block_sparse_moe.experts.1.w2.weight", {4, 3}},
    {"minimax", "model.layers.0.block_sparse_moe.experts.1.w3.weight", {3, 4}},
    {"minimax", "model.layers.1.input_layernorm.weight", {4}},
    {"minimax", "model.layers.1.post_attention_layernorm.weight", {4}},
    {"minimax", "model.layers.1.block_sparse_moe.gate.weight", {2, 4}},
    {"minimax", "model.layers.1.block_sparse_moe.experts.0.w1.weight", {3, 4}},
    {"minimax", "model.layers.1.block_sparse_moe.experts.0.w2.weight", {4, 3}},
    {"minimax", "model.layers.1.block_sparse_moe.experts.0.w3.weight", {3, 4}},
    {"minimax", "model.layers.1.block_sparse_moe.experts.1.w1.weight", {3, 4}},
    {"minimax", "model.layers.1.block_sparse_moe.experts.1.w2.weight", {4, 3}},
    {"minimax", "model.layers.1.block_sparse_moe.experts.1.w3.weight", {3, 4}},
    {"minimax", "model.layers.0.self_attn.qkv_proj.weight", {12, 4}},
    {"minimax", "model.layers.0.self_attn.output_gate.weight", {4, 4}},
    {"minimax", "model.layers.0.self_attn.out_proj.weight", {4, 4}},
    {"minimax", "model.layers.0.self_attn.norm.weight", {4}},
    {"minimax", "model.layers.1.self_attn.q_proj.weight", {4, 4}},
    {"minimax", "model.layers.1.self_attn.k_proj.weight", {2, 4}},
    {"minimax", "model.layers.1.self_attn.v_proj.weight", {2, 4}},
    {"minimax", "model.layers.1.self_attn.o_proj.weight", {4, 4}},
};

class TinyWeights final : public coluber::WeightSource {
 public:
  explicit TinyWeights(std::string_view family) {
    for (const Tensor& tensor : kTensors)
      if (tensor.family == family)
        by_name_[tensor.name] = coluber::TensorView::contiguous(zeros_.data(), coluber::DType::kFloat32, tensor.shape);
  }
  bool contains(std::string_view name) const override { return by_name_.contains(name); }
  coluber::TensorView get(std::string_view name) const override { return by_name_.at(name); }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, view] : by_name_) names.emplace_back(name);
    return names;
  }
  std::string describe() const override { return "fuzz"; }

 private:
  std::array<float, 1024> zeros_{};
  std::map<std::string_view, coluber::TensorView> by_name_;
};

// The checkpoints of tests/data by family, the first of each.
const std::map<std::string, std::unique_ptr<coluber::WeightSource>>& checkpoints() {
  static const auto kCheckpoints = [] {
    std::map<std::string, std::unique_ptr<coluber::WeightSource>> by_family;
    std::set<std::filesystem::path> folders;
    for (const auto& entry : std::filesystem::directory_iterator(std::string(COLUBER_SOURCE_DIR) + "/tests/data"))
      if (std::filesystem::exists(entry.path() / "golden.json")) folders.insert(entry.path());
    for (const std::filesystem::path& folder : folders) {
      const std::string config = folder / "config.json";
      const std::string text = std::filesystem::exists(config) ? coluber::read_text_file(config) : std::string();
      auto weights = coluber::open_weights(folder);
      const std::string family = coluber::find_family(text, config, *weights).model_type;
      by_family.try_emplace(family, std::move(weights));
    }
    return by_family;
  }();
  return kCheckpoints;
}

const coluber::WeightSource& weights_of(const coluber::ModelFamily& family) {
  static const TinyWeights mamba("mamba"), mamba2("mamba2"), lfm2("lfm2"), minimax("minimax");
  if (family.model_type == "mamba2") return mamba2;
  if (family.model_type == "lfm2") return lfm2;
  if (family.model_type == "minimax") return minimax;
  const auto found = checkpoints().find(family.model_type);
  const bool has_tiny = family.model_type == "mamba" || family.model_type == "falcon_mamba";  // the same tensors
  if (has_tiny || found == checkpoints().end()) return mamba;
  return *found->second;
}

// The family that the config names, or one that knows it over its own checkpoint.
const coluber::ModelFamily& family_of(const std::string& text) {
  const coluber::Json json = coluber::parse_config(text, "fuzz");
  if (coluber::find_named_family(json) == nullptr) {
    for (const auto& [name, weights] : checkpoints()) {
      const coluber::ModelFamily* family = coluber::ModelRegistry::instance().find_recognized(text, *weights);
      if (family != nullptr && family->model_type == name) return *family;
    }
  }
  return coluber::find_family(json, "fuzz");
}

// A first byte that no text begins with chooses the family, whatever the config that follows names.
constexpr uint8_t kFamilies = 0x80;

const coluber::ModelFamily& chosen_family(uint8_t byte) {
  const std::vector<std::string> names = coluber::ModelRegistry::instance().names();
  return *coluber::ModelRegistry::instance().find(names[(byte - kFamilies) % names.size()]);
}

void load(const std::string& text, const coluber::ModelFamily* chosen, bool describe_only) {
  static coluber::ThreadPool pool(1);
  const coluber::Json json = coluber::parse_config(text, "fuzz");
  const coluber::ModelFamily& family = chosen != nullptr ? *chosen : family_of(text);
  coluber::read_quantization_config(json, "fuzz", {});
  coluber::EngineConfig config;
  config.cache.mamba_block_size = config.max_model_len;
  coluber::ModelLoadContext context{text, "fuzz", weights_of(family), config, pool, {}, describe_only};
  const auto model = family.load(context);
  if (model->info().vocab_size < 1 || model->info().layers.empty()) std::abort();
  for (const coluber::AttentionLayerBase* layer : config.layers)
    if (std::visit([](const auto& spec) { return spec.page_size_bytes(); }, layer->get_kv_cache_spec(config)) < 1)
      std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const bool chooses = size > 0 && data[0] >= kFamilies;
  const std::string text(reinterpret_cast<const char*>(data) + (chooses ? 1 : 0), size - (chooses ? 1 : 0));
  try {
    const coluber::ModelFamily* chosen = chooses ? &chosen_family(data[0]) : nullptr;
    load(text, chosen, true);
    load(text, chosen, false);
  } catch (const coluber::Error& error) {
    if (error.code() == coluber::ErrorCode::kInternal) std::abort();
  }
  return 0;
}
