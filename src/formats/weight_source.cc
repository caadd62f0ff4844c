// SPDX-License-Identifier: Apache-2.0
#include "formats/weight_source.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "base/error.h"
#include "base/json.h"
#include "formats/gguf.h"
#include "formats/model_folder.h"
#include "formats/safetensors.h"
#include "formats/torch_archive.h"

namespace coluber {
namespace {

// In a folder, the first of these that is there.
constexpr std::string_view kNames[] = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                       "pytorch_model.bin.index.json"};
constexpr std::string_view kExpected =
    "model.safetensors or pytorch_model.bin, the index of shards of either, or a single .pth or .gguf file";
constexpr std::string_view kIndexEnd = ".index.json";
constexpr std::string_view kTorchEnds[] = {".bin", ".pth", ".pt"};

bool is_torch_file(std::string_view name) noexcept {
  return std::any_of(std::begin(kTorchEnds), std::end(kTorchEnds), [&](auto end) { return name.ends_with(end); });
}

std::unique_ptr<TensorFile> open_file(const std::string& path) {
  if (is_torch_file(path)) return std::make_unique<TorchArchive>(path);
  return std::make_unique<SafetensorsFile>(path);
}

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

FileWeights::FileWeights(const std::string& path) : path_(path) {
  std::error_code error;
  std::string file = path;
  if (std::filesystem::is_directory(path, error)) {
    const std::optional<std::string> found = find_weights(path);
    if (!found) {
      throw make_error(
          ErrorCode::kNotFound,
          "the folder '{}' has no weights that are read: expected {}; it holds {}. Weights in other formats "
          "must be converted to safetensors first; of several files, name one",
          path, kExpected, describe_folder(path));
    }
    file = *found;
  }
  if (file.ends_with(kIndexEnd)) {
    open_sharded(file);
    return;
  }
  files_.push_back(open_file(file));
  for (std::string& name : files_.front()->names()) by_name_.emplace(std::move(name), files_.front().get());
}

void FileWeights::open_sharded(const std::string& index_path) {
  const std::map<std::string, std::string> shards = read_weight_map(index_path);
  const std::string folder = std::filesystem::path(index_path).parent_path().string();
  std::map<std::string, const TensorFile*> opened;
  Listing missing_files;
  for (const auto& [name, file] : shards) {
    const auto [place, is_new] = opened.emplace(file, nullptr);
    if (!is_new) continue;
    const std::string shard = beside(folder, file);
    if (!file_exists(shard)) {
      missing_files.add(quoted(file));
      continue;
    }
    files_.push_back(open_file(shard));
    place->second = files_.back().get();
  }
  if (!missing_files.empty()) {
    throw make_error(ErrorCode::kNotFound, "{}: shards that it names are not there: {} (an incomplete download?)",
                     index_path, missing_files.text());
  }
  Listing missing_tensors;
  for (const auto& [name, file] : shards) {
    const TensorFile* shard = opened[file];
    if (!shard->contains(name)) missing_tensors.add(fmt::format("{} in {}", quoted(name), file));
    by_name_.emplace(name, shard);
  }
  if (!missing_tensors.empty()) {
    throw make_error(ErrorCode::kInvalidData,
                     "{}: tensors are not in the shards that it names: {} (files of two downloads?)", index_path,
                     missing_tensors.text());
  }
}

bool FileWeights::contains(std::string_view name) const { return by_name_.contains(std::string(name)); }

const TensorFile& FileWeights::file_of(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) {
    throw make_error(ErrorCode::kNotFound, "{}: there is no tensor {} among its {}", describe(),
                     quoted(std::string(name)), by_name_.size());
  }
  return *found->second;
}

TensorView FileWeights::get(std::string_view name) const { return file_of(name).get(name); }
TensorView FileWeights::peek(std::string_view name) const { return file_of(name).peek(name); }

std::vector<std::string> FileWeights::names() const {
  std::vector<std::string> names;
  names.reserve(by_name_.size());
  for (const auto& [name, file] : by_name_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string FileWeights::describe() const { return files_.size() == 1 ? files_.front()->path() : path_; }

void FileWeights::release(const TensorView& view) const noexcept {
  for (const auto& file : files_) file->release(view);
}

bool is_weights_file(std::string_view name) noexcept {
  return name.ends_with(".safetensors") || is_gguf_file(name) || is_torch_file(name) ||
         name.ends_with(".safetensors.index.json") || name.ends_with(".bin.index.json");
}

std::optional<std::string> find_weights(const std::string& folder) {
  for (const std::string_view name : kNames) {
    if (std::string path = beside(folder, name); file_exists(path)) return path;
  }
  std::optional<std::string> single;
  std::error_code error;
  for (std::filesystem::directory_iterator item(folder, error), end; !error && item != end; item.increment(error)) {
    const std::string name = item->path().filename().string();
    if (!name.ends_with(".pth") && !name.ends_with(".pt") && !is_first_gguf_file(name)) continue;
    if (single) return std::nullopt;
    single = beside(folder, name);
  }
  return single;
}

std::string gguf_file_of(const std::string& path) {
  if (is_gguf_file(path)) return path;
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return {};
  std::optional<std::string> found = find_weights(path);
  return found && is_gguf_file(*found) ? *found : std::string();
}

std::unique_ptr<WeightSource> open_weights(const std::string& path) {
  if (const std::string file = gguf_file_of(path); !file.empty()) return std::make_unique<GgufWeights>(file);
  return std::make_unique<FileWeights>(path);
}

}  // namespace coluber
