// SPDX-License-Identifier: Apache-2.0
#include "golden_folder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/source_folder_test.h"
#include "formats/model_folder.h"
#include "formats/weight_source.h"
#include "models/family.h"

namespace coluber::golden {

namespace {

// As the engine does: by the config, else by the tensors. What cannot be opened counts as supported, so that its tests
// fail with the reason.
std::string family_of(const std::string& path) {
  std::unique_ptr<WeightSource> weights;
  std::string config;
  try {
    const ModelFolder model = resolve_model(path);
    if (!model.config_path.empty()) config = read_text_file(model.config_path);
    weights = open_weights(model.weights_path);
  } catch (const Error& error) {
    return std::string("unreadable: ") + error.what();
  }
  try {
    return find_family(config, path, *weights).model_type;
  } catch (const Error&) {
    return {};
  }
}

// The first position whose query sees fewer keys than there are, in configs whose few indexing heads let scores tie.
int64_t decided_positions(const std::filesystem::path& config_path) {
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  if (!std::filesystem::exists(config_path)) return kAll;
  const Json config = read_json_file(config_path, JsonParseOptions{.allow_python_constants = true});
  const Json* text = config.find("text_config");
  if (text == nullptr || !text->is_object()) text = &config;
  constexpr int64_t kFewHeads = 8;  // with more, a score of 0 is one block's in hundreds
  struct Names {
    const char *budget, *block, *heads;
  };
  for (const Names& names : {Names{"index_topk", "index_kpool", "index_n_heads"},
                             Names{"indexer_budget", "indexer_compress_ratio", "indexer_n_heads"}}) {
    const Json *keys = text->find(names.budget), *size = text->find(names.block), *heads = text->find(names.heads);
    if (keys == nullptr || size == nullptr || heads == nullptr || heads->as_int() > kFewHeads) continue;
    return keys->as_int() + size->as_int() - 1;
  }
  return kAll;
}

Folder read_folder(const std::filesystem::path& path) {
  Folder folder;
  folder.path = path.string();
  folder.name = path.filename().string();
  const JsonParseOptions python{.allow_python_constants = true};
  folder.family = family_of(folder.path);
  const Json golden = read_json_file(path / "golden.json", python);
  folder.relative_tolerance = std::max(1e-4, 3.0 * golden.at("hf_float32_vs_reference_rel").as_double());
  folder.tolerance = folder.relative_tolerance * golden.at("logits_std").as_double();
  for (const Json& length : golden.at("prompt_lengths").as_array()) folder.prompt_lengths.push_back(length.as_int());
  if (const Json* prompt = golden.find("hidden_and_states_prompt"); prompt != nullptr && prompt->is_int())
    folder.states_prompt = prompt->as_int();
  folder.decided_positions = decided_positions(path / "config.json");
  return folder;
}

}  // namespace

std::vector<Folder> find_folders() {
  std::map<std::string, Folder> found;
  const std::filesystem::path root(source_folder());
  for (const std::filesystem::path& place : {root / ".." / "shared" / "golden", root / "tests" / "data"}) {
    if (!std::filesystem::is_directory(place)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(place)) {
      const std::filesystem::path& path = entry.path();
      if (!std::filesystem::exists(path / "golden.json")) continue;
      Folder folder = read_folder(path);
      if (found.contains(folder.name)) folder.name += "_of_this_repository";
      found.emplace(folder.name, std::move(folder));
    }
  }
  std::vector<Folder> folders;
  for (auto& [name, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

std::string container_of(const std::string& family) {
  constexpr std::string_view kText = "_text";
  return family.ends_with(kText) ? family.substr(0, family.size() - kText.size()) : std::string();
}

Tensors::Tensors(const std::string& folder)
    : file_(std::make_unique<SafetensorsFile>(folder + "/golden.safetensors")) {}

// transformers keeps RWKV-4's states of all layers in five tensors, "state.all.<k>" [1, H, layers].
struct Tensors::Stacked {
  TensorView all;
  int64_t layer;
};

std::optional<Tensors::Stacked> Tensors::find_stacked(const std::string& name) const {
  static const std::array<std::string, 5> kWords = {"ffn_shift", "att_shift", "numerator", "denominator", "maximum"};
  const size_t dot = name.find('.', 6);
  if (!name.starts_with("state.") || dot == std::string::npos || file_->find("state.all.0") == nullptr)
    return std::nullopt;
  const auto word = std::find(kWords.begin(), kWords.end(), name.substr(dot + 1));
  if (word == kWords.end()) return std::nullopt;
  const TensorView all = file_->get("state.all." + std::to_string(word - kWords.begin()));
  const int64_t layer = std::stoll(name.substr(6, dot - 6));
  if (layer >= all.shape[2]) return std::nullopt;
  return Stacked{all, layer};
}

// FLA keeps the windows of q, k and v apart, "state.i.conv.q" ..., where one convolution over all three does.
std::vector<std::string> Tensors::find_parts(const std::string& name) const {
  std::vector<std::string> parts;
  if (!name.ends_with(".conv") || file_->find(name) != nullptr) return parts;
  for (const char* part : {".q", ".k", ".v"}) {
    if (file_->find(name + part) == nullptr) return {};
    parts.push_back(name + part);
  }
  return parts;
}

bool Tensors::contains_prefix(const std::string& prefix) const {
  const std::vector<std::string> names = file_->names();
  return find_stacked(prefix + "att_shift") ||
         std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); });
}

bool Tensors::contains(const std::string& name) const {
  return file_->find(name) != nullptr || find_stacked(name) || !find_parts(name).empty();
}

std::vector<float> Tensors::floats(const std::string& name) const {
  if (const std::optional<Stacked> stacked = find_stacked(name)) {
    const int64_t layers = stacked->all.shape[2];
    std::vector<float> values(static_cast<size_t>(stacked->all.shape[1]));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = stacked->all.as<float>()[static_cast<int64_t>(i) * layers + stacked->layer];
    return values;
  }
  if (const std::vector<std::string> parts = find_parts(name); !parts.empty()) {
    std::vector<float> values;
    for (const std::string& part : parts) {
      const std::vector<float> one = floats(part);
      values.insert(values.end(), one.begin(), one.end());
    }
    return values;
  }
  const TensorView view = file_->get(name);
  if (view.dtype == DType::kInt64) return {view.as<int64_t>(), view.as<int64_t>() + view.shape.count()};
  COLUBER_CHECK(view.dtype == DType::kFloat32, "{} is neither float32 nor int64", name);
  return {view.as<float>(), view.as<float>() + view.shape.count()};
}

std::vector<int32_t> Tensors::ids(const std::string& name) const {
  const TensorView view = file_->get(name);
  COLUBER_CHECK(view.dtype == DType::kInt64, "{} is not int64", name);
  return {view.as<int64_t>(), view.as<int64_t>() + view.shape.count()};
}

std::vector<int64_t> Tensors::shape(const std::string& name) const {
  if (const std::optional<Stacked> stacked = find_stacked(name)) return {1, stacked->all.shape[1]};
  if (const std::vector<std::string> parts = find_parts(name); !parts.empty()) {
    std::vector<int64_t> whole = shape(parts[0]);
    for (size_t i = 1; i < parts.size(); ++i) whole[1] += shape(parts[i])[1];
    return whole;
  }
  const TensorView view = file_->get(name);
  return {view.shape.begin(), view.shape.end()};
}

double max_abs_difference(const float* a, const float* b, int64_t count, int64_t* worst) {
  double most = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (difference > most || std::isnan(difference)) {
      most = std::isnan(difference) ? INFINITY : difference;
      if (worst != nullptr) *worst = i;
    }
  }
  return most;
}

double standard_deviation(const std::vector<float>& values) {
  double mean = 0.0;
  for (float v : values) mean += v;
  mean /= static_cast<double>(values.size());
  double sum = 0.0;
  for (float v : values) sum += (v - mean) * (v - mean);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

}  // namespace coluber::golden
