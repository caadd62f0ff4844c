// SPDX-License-Identifier: Apache-2.0
#include "formats/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/weight_source.h"

namespace coluber {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTokenizers[] = {"tokenizer.json", "tokenizer.model", "tiktoken.model"};
constexpr std::string_view kWorldBegin = "rwkv_vocab_v", kWorldEnd = ".txt";

bool is_world_vocabulary(std::string_view name) { return name.starts_with(kWorldBegin) && name.ends_with(kWorldEnd); }

// The newest RWKV World vocabulary of a folder; their names end in a date.
std::string world_vocabulary_in(const std::string& prefix) {
  std::string newest;
  std::error_code error;
  for (fs::directory_iterator item(prefix, error), end; !error && item != end; item.increment(error)) {
    const std::string name = item->path().filename().string();
    if (is_world_vocabulary(name)) newest = std::max(newest, name);
  }
  return newest;
}

std::string tokenizer_in(const std::string& prefix) {
  if (file_exists(prefix + std::string(kTokenizers[0]))) return prefix + std::string(kTokenizers[0]);
  if (const std::string world = world_vocabulary_in(prefix); !world.empty()) return prefix + world;
  for (const std::string_view name : kTokenizers) {
    if (std::string path = prefix + std::string(name); file_exists(path)) return path;
  }
  return prefix + std::string(kTokenizers[0]);
}

bool is_tokenizer_file(std::string_view name) {
  return name.ends_with(".json") || name.ends_with(".model") || is_world_vocabulary(name);
}

ModelFolder files_of(const std::string& folder) {
  const std::string prefix = folder.ends_with('/') ? folder : folder + "/";
  return {folder, prefix + "config.json", prefix + "generation_config.json", folder, tokenizer_in(prefix)};
}

// A checkpoint of a family that is known by its tensors needs no config.json.
void check_config(ModelFolder& model, const std::string& path) {
  if (file_exists(model.config_path)) return;
  if (model.weights_path != model.folder || find_weights(model.folder)) {
    model.config_path.clear();
    return;
  }
  const std::string what =
      path == model.folder ? fmt::format("the folder '{}'", path) : fmt::format("the folder of '{}'", path);
  throw make_error(
      ErrorCode::kNotFound,
      "{} has no config.json, so it is no Hugging Face model; it holds {}. Name a folder with config.json and weights "
      "({}), or the one .pth file or .gguf file of a model that needs no config.json",
      what, describe_folder(model.folder), kWeightsFiles);
}

void check_tokenizer(const ModelFolder& model, const std::string& path) {
  if (file_exists(model.tokenizer_path) || file_exists(model.config_path)) return;
  throw make_error(
      ErrorCode::kNotFound,
      "'{}' has neither tokenizer.json (or rwkv_vocab_v*.txt, tokenizer.model, tiktoken.model), a .gguf file "
      "nor config.json; it holds {}",
      path, describe_folder(model.folder));
}

[[noreturn]] void refuse_file(const std::string& path, ModelNeeds needs) {
  if (needs == ModelNeeds::kTokenizer) {
    throw make_error(ErrorCode::kUnsupported,
                     "'{}' is not a file that a tokenizer can be read from; expected a folder, a tokenizer.json, "
                     "rwkv_vocab_v*.txt, tokenizer.model, tiktoken.model or a .gguf file",
                     path);
  }
  throw make_error(ErrorCode::kUnsupported,
                   "'{}' is not a file that a model can be read from; expected a folder, a file of weights ({}), the "
                   "index of its shards, or a config.json",
                   path, kWeightsFiles);
}

}  // namespace

std::string describe_folder(const std::string& folder, int limit) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator item(folder, error), end; !error && item != end; item.increment(error)) {
    names.push_back(item->path().filename().string());
  }
  if (error) return "nothing that can be read (" + error.message() + ")";
  if (names.empty()) return "nothing";
  std::sort(names.begin(), names.end());
  const size_t shown = std::min(names.size(), static_cast<size_t>(std::max(limit, 1)));
  std::string text;
  for (size_t i = 0; i < shown; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

ModelFolder resolve_model(const std::string& path, ModelNeeds needs) {
  if (path.empty()) throw make_error(ErrorCode::kInvalidArgument, "the model's path is empty; name a folder or a file");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    const std::string reason =
        error && error != std::errc::no_such_file_or_directory ? " (" + error.message() + ")" : "";
    throw make_error(ErrorCode::kNotFound,
                     "there is no model at '{}'{}: expected a folder with config.json, a file in one, or a .gguf file",
                     path, reason);
  }
  ModelFolder model;
  if (fs::is_directory(status)) {
    model = files_of(path);
  } else {
    const fs::path parent = fs::path(path).parent_path();
    model = files_of(parent.empty() ? "." : parent.string());
    const std::string name = fs::path(path).filename().string();
    if (is_weights_file(name)) {
      model.weights_path = path;
    } else if (name != "config.json" && is_tokenizer_file(name) && needs == ModelNeeds::kTokenizer) {
      model.tokenizer_path = path;
    } else if (name != "config.json" && name != "tokenizer.json") {
      refuse_file(path, needs);
    }
  }
  // A GGUF file holds what a config.json says.
  if (std::string gguf = gguf_file_of(model.weights_path); !gguf.empty()) {
    model.weights_path = std::move(gguf);
    model.config_path.clear();
    if (!file_exists(model.tokenizer_path)) model.tokenizer_path = model.weights_path;
    return model;
  }
  if (needs == ModelNeeds::kConfig) {
    check_config(model, path);
  } else {
    check_tokenizer(model, path);
  }
  return model;
}

}  // namespace coluber
