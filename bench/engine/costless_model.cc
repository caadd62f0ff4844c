// SPDX-License-Identifier: Apache-2.0
#include "costless_model.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"
#include "coluber/error.h"
#include "coluber/registry.h"
#include "layers/idle_layers.h"

namespace coluber {
namespace {

constexpr int64_t kVocabSize = 64;

class CostlessModel : public Model {
 public:
  explicit CostlessModel(ModelLoadContext& context) {
    const Json config = value_or_throw(parse_json(context.config_json, "the costless model"));
    if (const int64_t bytes = config.at("state_bytes").as_int(); bytes > 0)
      layers_.push_back(std::make_unique<IdleStates>(bytes, DType::kFloat32));
    if (const int64_t bytes = config.at("kv_bytes").as_int(); bytes > 0)
      layers_.push_back(std::make_unique<IdleAttention>(bytes, DType::kFloat32));
    for (const auto& layer : layers_) {
      context.config.register_layer(*layer);
      info_.layers.push_back({layer->layer_name(), layer->layer_name(), layer.get()});
    }
    info_.architecture = "costless";
    info_.vocab_size = kVocabSize;
    info_.num_layers = static_cast<int64_t>(layers_.size());
  }
  const ModelInfo& info() const noexcept override { return info_; }
  void forward(const ForwardBatch& batch) override {
    std::fill_n(batch.logits, batch.logits_rows.size() * static_cast<size_t>(kVocabSize), 0.0f);
  }

 private:
  std::vector<std::unique_ptr<AttentionLayerBase>> layers_;
  ModelInfo info_;
};

const RegisterModel kRegister({"costless", {"CostlessForCausalLM"}, [](ModelLoadContext& context) {
                                 return std::unique_ptr<Model>(new CostlessModel(context));
                               }});

class NoWeights : public WeightSource {
 public:
  bool contains(std::string_view) const override { return false; }
  TensorView get(std::string_view name) const override {
    throw Error(ErrorCode::kNotFound, "a costless model has no tensor '" + std::string(name) + "'");
  }
  std::vector<std::string> names() const override { return {}; }
  std::string describe() const override { return "a costless model"; }
};

}  // namespace

std::unique_ptr<Engine> make_costless_engine(const EngineOptions& options, int64_t state_bytes,
                                             int64_t kv_bytes_per_token) {
  const std::string config = fmt::format("{{\"model_type\":\"costless\",\"state_bytes\":{},\"kv_bytes\":{}}}",
                                         state_bytes, kv_bytes_per_token);
  return Engine::from_weights(options, config, std::make_unique<NoWeights>());
}

}  // namespace coluber
