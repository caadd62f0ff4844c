// SPDX-License-Identifier: Apache-2.0
//
// A tiny checkpoint of tests/data in a folder of its own, where its config, tensors and files can be changed before it
// is loaded.
#pragma once

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "families.h"
#include "formats/safetensors.h"
#include "formats/temporary_folder_test.h"
#include "formats/weight_source.h"

namespace coluber {

struct StoredTensor {
  DType dtype = DType::kFloat32;
  Shape shape;
  std::vector<std::byte> bytes;

  TensorView view() const { return TensorView::contiguous(bytes.data(), dtype, shape); }
};

class ModelCopy : public TemporaryFolder {
 public:
  explicit ModelCopy(const std::string& family) : source_(families::options_for(family).model) {
    has_config_ = std::filesystem::exists(source_ + "/config.json");
    if (has_config_) config_ = read_json_file(source_ + "/config.json", {.allow_python_constants = true});
    const std::unique_ptr<WeightSource> weights = open_weights(source_);
    for (const std::string& name : weights->names()) {
      const TensorView view = weights->get(name);
      StoredTensor tensor{view.dtype, view.shape, std::vector<std::byte>(static_cast<size_t>(view.size_bytes()))};
      std::memcpy(tensor.bytes.data(), view.data, tensor.bytes.size());
      tensors_.emplace(name, std::move(tensor));
    }
  }

  Json& config() { return config_; }  // an empty object where the checkpoint has none
  void remove_key(const std::string& key) {
    std::erase_if(config_.as_object(), [&](const Json::Member& member) { return member.first == key; });
  }
  // Moves a value to another spelling.
  void rename_key(const std::string& from, const std::string& to) {
    Json value = config_.at(from);
    remove_key(from);
    config_.set(to, std::move(value));
  }

  // Indices of the layers that `layer_types` calls so, as older configs list them.
  Json layers_of_kind(const std::string& kind) const {
    Json layers{Json::Array{}};
    int64_t index = 0;
    for (const Json& type : config_.at("layer_types").as_array()) {
      if (type.as_string() == kind) layers.push_back(index);
      ++index;
    }
    return layers;
  }

  std::map<std::string, StoredTensor>& tensors() { return tensors_; }
  void rename_tensor(const std::string& from, const std::string& to) {
    auto node = tensors_.extract(from);
    node.key() = to;
    tensors_.insert(std::move(node));
  }
  // Tables of integers stay: no type of floats holds them.
  void convert_all(DType dtype) {
    for (auto& [name, tensor] : tensors_) {
      if (!is_floating(tensor.dtype)) continue;
      std::vector<float> values(static_cast<size_t>(tensor.shape.count()));
      convert_to_float(tensor.bytes.data(), tensor.dtype, tensor.shape.count(), values.data());
      tensor.bytes.resize(static_cast<size_t>(dtype_bytes(dtype, tensor.shape.count())));
      convert_from_float(values.data(), tensor.shape.count(), dtype, tensor.bytes.data());
      tensor.dtype = dtype;
    }
  }

  void write_config() const {
    if (has_config_ || !config_.as_object().empty()) write("config.json", config_.dump());
  }
  void write_weights(const std::string& name = "model.safetensors") const { write_weights(name, 0, 1); }
  // Every `of`-th tensor from `first` on; returns their names.
  std::vector<std::string> write_weights(const std::string& name, size_t first, size_t of) const {
    std::vector<SafetensorsOutput> outputs;
    std::vector<std::string> names;
    size_t index = 0;
    for (const auto& [tensor, stored] : tensors_) {
      if (index++ % of != first) continue;
      outputs.push_back(SafetensorsOutput::from_view(tensor, stored.view()));
      names.push_back(tensor);
    }
    write_safetensors(at(name), outputs);
    return names;
  }
  // `count` shards and their index.
  void write_shards(size_t count) const {
    Json map{Json::Object{}};
    for (size_t shard = 0; shard < count; ++shard) {
      const std::string name = "model-" + std::to_string(shard + 1) + "-of-" + std::to_string(count) + ".safetensors";
      for (const std::string& tensor : write_weights(name, shard, count)) map.set(tensor, name);
    }
    Json index{Json::Object{}};
    index.set("metadata", Json::Object{});
    index.set("weight_map", std::move(map));
    write("model.safetensors.index.json", index.dump());
  }
  void write_all() const {
    write_config();
    write_weights();
  }
  void copy_file(const std::string& from, const std::string& name) const {
    std::filesystem::copy_file(from, at(name), std::filesystem::copy_options::overwrite_existing);
  }

  EngineOptions options() const {
    EngineOptions options;
    options.model = folder();
    options.num_threads = 1;
    options.seed = 1;
    return options;
  }
  const std::string& source() const { return source_; }

 private:
  std::string source_;
  bool has_config_ = false;
  Json config_{Json::Object{}};
  std::map<std::string, StoredTensor> tensors_;
};

}  // namespace coluber
