// SPDX-License-Identifier: Apache-2.0
#include "formats/weight_source.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "base/error.h"
#include "base/json.h"
#include "formats/model_folder.h"

namespace coluber {
namespace {

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

std::string beside(const std::string& folder, std::string_view name) {
  return folder.empty()          ? std::string(name)
         : folder.ends_with('/') ? folder + std::string(name)
                                 : folder + "/" + std::string(name);
}

// The index may only name files of its own folder: it is somebody else's text.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

std::string quoted(const std::string& text) { return Json(text).dump(); }

// The index: tensor name -> shard file name.
std::map<std::string, std::string> read_weight_map(const std::string& path) {
  const Json index = read_json_file(path);
  const Json* map = index.find("weight_map");
  if (map == nullptr || !map->is_object() || map->as_object().empty()) {
    throw make_error(ErrorCode::kInvalidData,
                     "{}: expected an object weight_map from tensor names to shard files, found {}", path,
                     map == nullptr     ? "none"
                     : map->is_object() ? "an empty one"
                                        : map->type_name());
  }
  std::map<std::string, std::string> shards;
  for (const auto& [name, file] : map->as_object()) {
    if (!file.is_string() || !is_plain_file_name(file.as_string())) {
      throw make_error(ErrorCode::kInvalidData,
                       "{}: tensor {}: expected the name of a file in the same folder, found {}", path, quoted(name),
                       file.dump());
    }
    shards.emplace(name, file.as_string());
  }
  return shards;
}

// Lists the first few of many.
class Listing {
 public:
  void add(const std::string& item) {
    if (count_++ < 5) text_ += (text_.empty() ? "" : ", ") + item;
  }
  bool empty() const noexcept { return count_ == 0; }
  std::string text() const { return count_ > 5 ? fmt::format("{} and {} more", text_, count_ - 5) : text_; }

 private:
  std::string text_;
  int count_ = 0;
};

}  // namespace

SafetensorsSource::SafetensorsSource(const std::string& path) : path_(path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    if (path.ends_with(".index.json")) {
      open_sharded(path);
      return;
    }
    files_.push_back(std::make_unique<SafetensorsFile>(path));
  } else if (const std::string single = beside(path, kSingle); file_exists(single)) {
    files_.push_back(std::make_unique<SafetensorsFile>(single));
  } else if (const std::string index = beside(path, kIndex); file_exists(index)) {
    open_sharded(index);
    return;
  } else {
    throw make_error(
        ErrorCode::kNotFound,
        "the folder '{}' has neither {} nor {}; it holds {}. Weights in other formats must be converted to "
        "safetensors first",
        path, kSingle, kIndex, describe_folder(path));
  }
  for (const SafetensorsEntry& entry : files_.front()->entries()) by_name_.emplace(entry.name, files_.front().get());
}

void SafetensorsSource::open_sharded(const std::string& index_path) {
  const std::map<std::string, std::string> shards = read_weight_map(index_path);
  const std::string folder = std::filesystem::path(index_path).parent_path().string();
  std::map<std::string, const SafetensorsFile*> opened;
  Listing missing_files;
  for (const auto& [name, file] : shards) {
    const auto [place, is_new] = opened.emplace(file, nullptr);
    if (!is_new) continue;
    const std::string shard = beside(folder, file);
    if (!file_exists(shard)) {
      missing_files.add(quoted(file));
      continue;
    }
    files_.push_back(std::make_unique<SafetensorsFile>(shard));
    place->second = files_.back().get();
  }
  if (!missing_files.empty()) {
    throw make_error(ErrorCode::kNotFound, "{}: shards that it names are not there: {} (an incomplete download?)",
                     index_path, missing_files.text());
  }
  Listing missing_tensors;
  for (const auto& [name, file] : shards) {
    const SafetensorsFile* shard = opened[file];
    if (shard->find(name) == nullptr) missing_tensors.add(fmt::format("{} in {}", quoted(name), file));
    by_name_.emplace(name, shard);
  }
  if (!missing_tensors.empty()) {
    throw make_error(ErrorCode::kInvalidData,
                     "{}: tensors are not in the shards that it names: {} (files of two downloads?)", index_path,
                     missing_tensors.text());
  }
}

bool SafetensorsSource::contains(std::string_view name) const { return by_name_.contains(std::string(name)); }

const SafetensorsFile& SafetensorsSource::file_of(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) {
    throw make_error(ErrorCode::kNotFound, "{}: there is no tensor {} among its {}", describe(),
                     quoted(std::string(name)), by_name_.size());
  }
  return *found->second;
}

TensorView SafetensorsSource::get(std::string_view name) const { return file_of(name).get(name); }
TensorView SafetensorsSource::peek(std::string_view name) const { return file_of(name).peek(name); }

std::vector<std::string> SafetensorsSource::names() const {
  std::vector<std::string> names;
  names.reserve(by_name_.size());
  for (const auto& [name, file] : by_name_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string SafetensorsSource::describe() const { return files_.size() == 1 ? files_.front()->path() : path_; }

void SafetensorsSource::release(const TensorView& view) const noexcept {
  for (const auto& file : files_) file->release(view);
}

std::unique_ptr<WeightSource> open_weights(const std::string& path) {
  return std::make_unique<SafetensorsSource>(path);
}

}  // namespace coluber
