// SPDX-License-Identifier: Apache-2.0
#include "models/family.h"

#include "base/error.h"
#include "formats/hf_config.h"

namespace coluber {
namespace {

constexpr size_t kMostShown = 200;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// Escaped and cut: the file is somebody else's.
std::string shown(const std::string& name) {
  return Json(name.size() > kMostShown ? name.substr(0, kMostShown) + "..." : name).dump();
}

std::string shown_architectures(const Json& config) {
  const Json* list = config.find("architectures");
  std::string text;
  if (list == nullptr || !list->is_array()) return text;
  for (const Json& name : list->as_array()) {
    if (name.is_string() && text.size() < kMostShown) text += (text.empty() ? "" : ", ") + shown(name.as_string());
  }
  return text;
}

[[noreturn]] void refuse(const Json& config, const std::string& path) {
  const std::string known = joined(ModelRegistry::instance().names());
  const std::string architectures = shown_architectures(config);
  const Json* type = config.find("model_type");
  if (type == nullptr && architectures.empty() && config.find("ssm_cfg") != nullptr) {
    throw make_error(
        ErrorCode::kUnsupported,
        "{}: this is a checkpoint of the mamba_ssm package (it has ssm_cfg), but its tensors are not named as that "
        "package names them (backbone.embedding.weight); use the Hugging Face conversion of it, which says model_type "
        "(known: {})",
        path, known);
  }
  const std::string named = type == nullptr     ? "is missing"
                            : type->is_string() ? shown(type->as_string()) + " is not known"
                                                : fmt::format("should be a string and is {}", type->type_name());
  throw make_error(ErrorCode::kUnsupported,
                   "{}: model_type {}, and of the architectures ({}) none is known; known model types: {}", path, named,
                   architectures.empty() ? "none named" : architectures, known);
}

[[noreturn]] void refuse_without_config(const std::string& path, const WeightSource& weights) {
  std::vector<std::string> known;
  const ModelRegistry& registry = ModelRegistry::instance();
  for (const std::string& name : registry.names()) {
    if (registry.find(name)->recognizes) known.push_back(name);
  }
  std::string tensors;
  for (const std::string& name : weights.names()) {
    if (tensors.size() < kMostShown) tensors += (tensors.empty() ? "" : ", ") + shown(name);
  }
  throw make_error(ErrorCode::kNotFound,
                   "{}: no config.json lies beside it, and its tensors ({} ...) are of no family that is known without "
                   "one ({}); put the model's config.json beside the weights and name the folder",
                   path, tensors, known.empty() ? "none" : joined(known));
}

}  // namespace

const ModelFamily* find_named_family(const Json& config) noexcept {
  if (!config.is_object()) return nullptr;
  const ModelRegistry& registry = ModelRegistry::instance();
  const Json* type = config.find("model_type");
  if (type != nullptr && type->is_string())
    if (const ModelFamily* family = registry.find(type->as_string())) return family;
  const Json* list = config.find("architectures");
  if (list == nullptr || !list->is_array()) return nullptr;
  for (const Json& name : list->as_array()) {
    if (!name.is_string()) continue;
    if (const ModelFamily* family = registry.find_architecture(name.as_string())) return family;
  }
  return nullptr;
}

const ModelFamily& find_family(const Json& config, const std::string& path) {
  if (!config.is_object())
    throw make_error(ErrorCode::kInvalidConfig, "{}: expected a JSON object, found {}", path, config.type_name());
  if (const ModelFamily* family = find_named_family(config)) return *family;
  refuse(config, path);
}

const ModelFamily& find_family(const std::string& config_json, const std::string& path, const WeightSource& weights) {
  const Json config = config_json.empty() ? Json(Json::Object{}) : parse_config(config_json, path);
  if (const ModelFamily* family = find_named_family(config)) return *family;
  if (const ModelFamily* family = ModelRegistry::instance().find_recognized(config_json, weights)) return *family;
  if (config_json.empty()) refuse_without_config(path, weights);
  return find_family(config, path);
}

}  // namespace coluber
