// SPDX-License-Identifier: Apache-2.0
#include "models/family.h"

#include "base/error.h"

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

[[noreturn]] void refuse(const Json& config, const std::string& path, const std::string& architectures) {
  const std::string known = joined(ModelRegistry::instance().names());
  const Json* type = config.find("model_type");
  if (type == nullptr && architectures.empty() && config.find("ssm_cfg") != nullptr) {
    throw make_error(
        ErrorCode::kUnsupported,
        "{}: this is a checkpoint of the mamba_ssm package (it has ssm_cfg), whose layout is not read; use the "
        "Hugging Face conversion of it, which says model_type (known: {})",
        path, known);
  }
  const std::string named = type == nullptr     ? "is missing"
                            : type->is_string() ? shown(type->as_string()) + " is not known"
                                                : fmt::format("should be a string and is {}", type->type_name());
  throw make_error(ErrorCode::kUnsupported,
                   "{}: model_type {}, and of the architectures ({}) none is known; known model types: {}", path, named,
                   architectures.empty() ? "none named" : architectures, known);
}

}  // namespace

const ModelFamily& find_family(const Json& config, const std::string& path) {
  if (!config.is_object())
    throw make_error(ErrorCode::kInvalidConfig, "{}: expected a JSON object, found {}", path, config.type_name());
  const ModelRegistry& registry = ModelRegistry::instance();
  const Json* type = config.find("model_type");
  if (type != nullptr && type->is_string())
    if (const ModelFamily* family = registry.find(type->as_string())) return *family;
  std::string architectures;
  if (const Json* list = config.find("architectures"); list != nullptr && list->is_array()) {
    for (const Json& name : list->as_array()) {
      if (!name.is_string()) continue;
      if (const ModelFamily* family = registry.find_architecture(name.as_string())) return *family;
      if (architectures.size() < kMostShown)
        architectures += (architectures.empty() ? "" : ", ") + shown(name.as_string());
    }
  }
  refuse(config, path, architectures);
}

void check_not_quantized(const Json& config, const std::string& path) {
  const Json* quantization = config.find("quantization_config");
  if (quantization == nullptr || quantization->is_null()) return;
  const Json* method = quantization->find("quant_method");
  throw make_error(
      ErrorCode::kUnsupported,
      "{}: the weights are quantised (quantization_config, quant_method {}), which is not read yet; use the model's "
      "float32, bfloat16 or float16 weights",
      path, method != nullptr && method->is_string() ? shown(method->as_string()) : "not named");
}

}  // namespace coluber
