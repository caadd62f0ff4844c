// SPDX-License-Identifier: Apache-2.0
#include "coluber/registry.h"

#include <algorithm>

#include "base/error.h"

namespace coluber {

ModelRegistry& ModelRegistry::instance() {
  // Made on first use: families enter themselves from constructors whose order across files is not defined.
  static ModelRegistry registry;
  return registry;
}

void ModelRegistry::add(ModelFamily family) {
  if (family.model_type.empty() || !family.load)
    throw make_error(ErrorCode::kInvalidArgument,
                     "a model family needs a model_type and a load function; '{}' lacks one", family.model_type);
  if (find(family.model_type) != nullptr)
    throw make_error(ErrorCode::kInvalidArgument,
                     "model_type '{}' is registered already; give the other family its own name", family.model_type);
  for (const std::string& architecture : family.architectures) {
    if (const ModelFamily* other = find_architecture(architecture))
      throw make_error(ErrorCode::kInvalidArgument, "architecture '{}' of '{}' is registered by '{}' already",
                       architecture, family.model_type, other->model_type);
  }
  families_.push_back(std::move(family));
}

const ModelFamily* ModelRegistry::find(std::string_view model_type) const noexcept {
  for (const ModelFamily& family : families_)
    if (family.model_type == model_type) return &family;
  return nullptr;
}

const ModelFamily* ModelRegistry::find_architecture(std::string_view architecture) const noexcept {
  for (const ModelFamily& family : families_)
    if (std::find(family.architectures.begin(), family.architectures.end(), architecture) != family.architectures.end())
      return &family;
  return nullptr;
}

const ModelFamily* ModelRegistry::find_recognized(const std::string& config_json, const WeightSource& weights) const {
  // By name, not by the order in which files entered themselves: that is the linker's.
  for (const std::string& name : names()) {
    const ModelFamily* family = find(name);
    if (family->recognizes && family->recognizes(config_json, weights)) return family;
  }
  return nullptr;
}

std::vector<std::string> ModelRegistry::names() const {
  std::vector<std::string> result;
  for (const ModelFamily& family : families_) result.push_back(family.model_type);
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace coluber
