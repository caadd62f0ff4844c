// SPDX-License-Identifier: Apache-2.0
// A folder as Hugging Face publishes one, from whatever was read.
#include <algorithm>
#include <cmath>

#include "base/block_type.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "base/output_folder.h"
#include "coluber/registry.h"
#include "engine/conversion.h"
#include "formats/gguf.h"
#include "formats/hf_config.h"
#include "formats/safetensors.h"

namespace coluber {
namespace {

// What says how weights were stored, which they no longer are.
constexpr std::string_view kQuantizationKeys[] = {"quantization_config", "compression_config"};
constexpr std::string_view kDTypeKeys[] = {"dtype", "torch_dtype"};
constexpr std::string_view kInfinityMark = "\x01infinity", kMinusInfinityMark = "\x01-infinity", kNanMark = "\x01nan";

// Numbers that JSON lacks, as marks that become Python's bare words.
void mark_non_finite(Json& value) {
  if (value.is_object()) {
    for (auto& [key, member] : value.as_object()) mark_non_finite(member);
  } else if (value.is_array()) {
    for (Json& element : value.as_array()) mark_non_finite(element);
  } else if (value.is_number() && !value.is_int() && !std::isfinite(value.as_double())) {
    const double number = value.as_double();
    value = Json(std::isnan(number) ? kNanMark : number > 0 ? kInfinityMark : kMinusInfinityMark);
  }
}

std::string python_json(Json value) {
  mark_non_finite(value);
  std::string text = value.dump(2);
  for (const auto& [mark, word] :
       {std::pair(kInfinityMark, "Infinity"), std::pair(kMinusInfinityMark, "-Infinity"), std::pair(kNanMark, "NaN")}) {
    const std::string quoted = Json(mark).dump();
    for (size_t at = text.find(quoted); at != std::string::npos; at = text.find(quoted, at + 1))
      text.replace(at, quoted.size(), word);
  }
  return text + "\n";
}

void erase_key(Json& object, std::string_view key) {
  Json::Object& members = object.as_object();
  std::erase_if(members, [&](const auto& member) { return member.first == key; });
}

// The type under the names that are there, at the top and in a nested text_config.
void set_dtype(Json& config, const std::string& dtype) {
  bool named = false;
  for (const std::string_view key : kDTypeKeys) {
    if (config.find(key) == nullptr) continue;
    config.set(std::string(key), dtype);
    named = true;
  }
  if (!named) config.set("torch_dtype", dtype);
  for (auto& [key, member] : config.as_object()) {
    if (key == "text_config" && member.is_object()) set_dtype(member, dtype);
  }
}

std::string config_text(const Conversion& conversion) {
  Json config = parse_config(conversion.model.config_json, conversion.model.path);
  for (const std::string_view key : kQuantizationKeys) erase_key(config, key);
  set_dtype(config, conversion.options.type);
  const Json* type = config.find("model_type");
  if (config.find("architectures") == nullptr && type != nullptr && type->is_string()) {
    const ModelFamily* family = ModelRegistry::instance().find(type->as_string());
    if (family != nullptr && !family->architectures.empty())
      config.set("architectures", Json(Json::Array{Json(family->architectures.front())}));
  }
  return python_json(std::move(config));
}

std::vector<TensorOutput> outputs_of(const Conversion& conversion, TensorEncoder& encoder) {
  const WeightSource& weights = *conversion.model.weights;
  const DType target = *parse_dtype(conversion.options.type);
  std::vector<TensorOutput> outputs;
  for (const std::string& name : weights.names()) {
    const DType dtype = weights.peek(name).dtype;
    const bool is_number = is_floating(dtype) || find_block_type(dtype) != nullptr;
    outputs.push_back(is_number && dtype != target ? encoder.encode(name, target, values_of(weights, name))
                                                   : encoder.copy(name, weights, name));
  }
  return outputs;
}

int64_t bytes_of(const std::vector<TensorOutput>& outputs) {
  int64_t bytes = 0;
  for (const TensorOutput& output : outputs) bytes += dtype_bytes(output.dtype, output.shape.count());
  return bytes;
}

// In their order, each as full as it gets.
std::vector<std::vector<TensorOutput>> shards_of(std::vector<TensorOutput> outputs, int64_t max_bytes) {
  std::vector<std::vector<TensorOutput>> shards(1);
  int64_t filled = 0;
  for (TensorOutput& output : outputs) {
    const int64_t bytes = dtype_bytes(output.dtype, output.shape.count());
    if (!shards.back().empty() && filled + bytes > max_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    shards.back().push_back(std::move(output));
  }
  return shards;
}

void check_written(const std::string& written, const std::vector<TensorOutput>& outputs, const TensorEncoder& encoder) {
  const SafetensorsFile file(written);
  for (const TensorOutput& output : outputs) {
    const TensorView view = file.peek(output.name);
    if (view.dtype != output.dtype || !(view.shape == output.shape))
      throw make_error(ErrorCode::kIo, "'{}' does not hold what was written: tensor '{}' reads back as {} {}", written,
                       output.name, dtype_name(view.dtype), view.shape.to_string());
    encoder.check(output.name, {view.data, static_cast<size_t>(view.size_bytes())}, written);
    file.release(view);
  }
}

void write_text(const std::string& path, std::string_view text) {
  write_file_atomically(path, [&](FileWriter& out) { out.append(text); });
}

void write_shards(const Conversion& conversion, const std::string& folder, std::vector<TensorOutput> outputs,
                  const TensorEncoder& encoder) {
  const int64_t total = bytes_of(outputs);
  const auto shards = shards_of(std::move(outputs), conversion.options.max_shard_bytes);
  Json map{Json::Object{}};
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? std::string("model.safetensors")
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(folder + "/" + name, shards[i], {{"format", "pt"}},
                      [&](const std::string& written) { check_written(written, shards[i], encoder); });
    for (const TensorOutput& output : shards[i]) map.as_object().emplace_back(output.name, Json(name));
  }
  conversion.report.files = static_cast<int64_t>(shards.size());
  conversion.report.bytes = total;
  if (shards.size() == 1) return;
  Json index;
  index.set("metadata", Json(Json::Object{{"total_size", Json(total)}}));
  index.set("weight_map", std::move(map));
  write_text(folder + "/model.safetensors.index.json", index.dump(2) + "\n");
}

void copy_file(const std::string& from, const std::string& to) {
  const MappedFile file(from);
  write_file_atomically(to, [&](FileWriter& out) { out.append(file.bytes()); });
}

}  // namespace

void convert_to_safetensors(Conversion& conversion) {
  TensorEncoder encoder(conversion.pool, [&](int64_t bytes) { conversion.progress.add(bytes); });
  std::vector<TensorOutput> outputs = outputs_of(conversion, encoder);
  if (outputs.empty())
    throw make_error(ErrorCode::kInvalidData, "{} has no tensors", conversion.model.weights->describe());
  check_free_space(conversion.options.output, bytes_of(outputs));
  const std::vector<CompanionFile> companions = companion_files(conversion);
  conversion.progress.begin("writing", bytes_of(outputs));
  write_folder_atomically(conversion.options.output, conversion.options.replace, [&](const std::string& folder) {
    if (!conversion.model.config_json.empty()) write_text(folder + "/config.json", config_text(conversion));
    for (const CompanionFile& file : companions) {
      if (file.copied_from.empty()) {
        write_text(folder + "/" + file.name, file.text);
      } else {
        copy_file(file.copied_from, folder + "/" + file.name);
      }
    }
    write_shards(conversion, folder, std::move(outputs), encoder);
  });
  conversion.report.types = encoder.types();
}

}  // namespace coluber
