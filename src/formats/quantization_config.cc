// SPDX-License-Identifier: Apache-2.0
#include "formats/quantization_config.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/ascii.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/hf_config.h"

namespace coluber {
namespace {

constexpr size_t kMostShown = 200;
constexpr std::string_view kRead =
    "read are gptq, awq (gemm), fp8, compressed-tensors, modelopt (FP8, NVFP4) and bitsandbytes";
constexpr std::string_view kInstead =
    "use the model's float weights, a GGUF file of it, or dequantise it in transformers and save that";

std::string shown(const std::string& text) {
  return Json(text.size() > kMostShown ? text.substr(0, kMostShown) + "..." : text).dump();
}

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw make_error(ErrorCode::kUnsupported, "{}: weights quantised with {} are not read; {}; {}", path, what, kRead,
                   kInstead);
}

// The first of the keys that holds text; empty where none does.
std::string text_of(const Json& json, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    const Json* value = json.find(key);
    if (value != nullptr && value->is_string()) return value->as_string();
  }
  return {};
}

bool is_true(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value != nullptr && value->is_bool() && value->as_bool();
}

bool has_content(const Json* value) {
  return value != nullptr &&
         ((value->is_object() && !value->as_object().empty()) || (value->is_array() && !value->as_array().empty()));
}

struct Section {
  const Json& json;
  std::string path;  // of the file
  ConfigFields fields;
  QuantizationConfig& config;
};

void keep(const std::optional<int64_t>& value, std::vector<int64_t>& values) {
  if (value && std::find(values.begin(), values.end(), *value) == values.end()) values.push_back(*value);
}

FieldCheck group_size() {
  FieldCheck check = at_least(-1);
  check.expected = "of -1 (a whole row) or above 0";
  check.number = [](double value) { return value == -1 || value >= 1; };
  return check;
}

void read_gptq(Section& s) {
  const std::string format = ascii::lower(text_of(s.json, {"checkpoint_format", "format"}));
  if (!format.empty() && format != "gptq" && format != "gptq_v2") refuse(s.path, "gptq in the format " + shown(format));
  s.config.zeros_less_one = format != "gptq_v2";
  std::optional<int64_t> bits, group;
  std::string word;
  s.fields.optional("bits", &bits, one_of_numbers({2, 3, 4, 8}))
      .optional("group_size", &group, group_size())
      .optional("pack_dtype", &word, "int32", one_of({"int32"}));
  // Rules for single modules: then nothing is stated for all of them.
  if (has_content(s.json.find("dynamic"))) return;
  s.config.act_order = is_true(s.json, "desc_act");
  keep(bits, s.config.bits);
  keep(group, s.config.group_sizes);
}

void read_awq(Section& s) {
  const std::string version = ascii::lower(text_of(s.json, {"version", "checkpoint_format", "format"}));
  if (!version.empty() && version != "gemm") refuse(s.path, "awq in the version " + shown(version));
  std::optional<int64_t> bits, group;
  s.fields.alias("bits", {"w_bit"}).alias("group_size", {"q_group_size"});
  s.fields.optional("bits", &bits, one_of_numbers({4, 8})).optional("group_size", &group, group_size());
  if (has_content(s.json.find("dynamic"))) return;
  keep(bits, s.config.bits);
  keep(group, s.config.group_sizes);
}

void read_fp8(Section& s) {
  s.fields.list_or_one("weight_block_size", &s.config.block_size, positive());
  s.fields.check(s.config.block_size.empty() || s.config.block_size.size() == 2,
                 "weight_block_size: expected two numbers, rows and columns");
}

// One of config_groups: how some modules' weights are stored.
void read_group(ConfigFields weights, const Json& json, QuantizationConfig& config) {
  std::optional<int64_t> bits, group;
  std::vector<int64_t> block;
  weights.optional("num_bits", &bits, between(1, 16)).optional("group_size", &group, group_size());
  if (const Json* shape = json.find("block_structure"); shape != nullptr && shape->is_array())
    weights.list_or_one("block_structure", &block, positive());
  keep(bits, config.bits);
  keep(group, config.group_sizes);
  if (block.size() == 2) config.block_size = block;
}

void read_groups(Section& s) {
  const Json* groups = s.json.find("config_groups");
  if (groups == nullptr || !groups->is_object()) return;
  ConfigFields all = s.fields.nested("config_groups");
  size_t ordered = 0;
  for (const auto& [name, group] : groups->as_object()) {
    const Json* weights = group.find("weights");
    if (weights == nullptr || !weights->is_object()) continue;
    read_group(all.nested(name).nested("weights"), *weights, s.config);
    if (is_true(*weights, "actorder") || text_of(*weights, {"actorder"}) == "group") ++ordered;
  }
  s.config.act_order = ordered > 0 && ordered == groups->as_object().size();
}

void read_compressed_tensors(Section& s) {
  constexpr std::array<std::string_view, 8> kFormats = {
      "pack-quantized",  "int-quantized",        "float-quantized",      "naive-quantized",
      "mixed-precision", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "dense"};
  const std::string format = text_of(s.json, {"format"});
  if (!format.empty() && std::find(kFormats.begin(), kFormats.end(), format) == kFormats.end())
    refuse(s.path, "compressed-tensors in the format " + shown(format));
  if (const Json* sparsity = s.json.find("sparsity_config"); has_content(sparsity)) {
    const std::string kind = text_of(*sparsity, {"format"});
    if (!kind.empty() && kind != "dense") refuse(s.path, "compressed-tensors and sparse as " + shown(kind));
  }
  // Rotations of activations at run time; without them the weights are other numbers.
  if (const Json* transforms = s.json.find("transform_config"); has_content(transforms)) {
    if (has_content(transforms->find("config_groups")))
      refuse(s.path, "compressed-tensors and transforms of activations (transform_config)");
  }
  read_groups(s);
}

void read_modelopt(Section& s) {
  constexpr std::array<std::string_view, 6> kAlgorithms = {
      "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MIXED_PRECISION"};
  const std::string algorithm = text_of(s.json, {"quant_algo"});
  if (!algorithm.empty() && std::find(kAlgorithms.begin(), kAlgorithms.end(), algorithm) == kAlgorithms.end())
    refuse(s.path, "modelopt's " + shown(algorithm));
}

void read_section(Section& s, const std::string& method) {
  using Method = QuantizationMethod;
  struct Reader {
    std::string_view name;
    Method method;
    void (*read)(Section&);
  };
  constexpr Reader kReaders[] = {
      {"gptq", Method::kGptq, read_gptq},
      {"awq", Method::kAwq, read_awq},
      {"fp8", Method::kFp8, read_fp8},
      {"fbgemm_fp8", Method::kFp8, read_fp8},
      {"compressed-tensors", Method::kCompressedTensors, read_compressed_tensors},
      {"modelopt", Method::kModelOpt, read_modelopt},
      {"modelopt_fp4", Method::kModelOpt, read_modelopt},
      {"bitsandbytes", Method::kBitsAndBytes, [](Section&) {}},
  };
  for (const Reader& reader : kReaders) {
    if (reader.name != method) continue;
    s.config.method = reader.method;
    reader.read(s);
    return s.fields.finish();
  }
  refuse(s.path, method.empty() ? "a method that quantization_config does not name (quant_method)" : shown(method));
}

// bitsandbytes did not always name itself.
std::string method_of(const Json& section) {
  const std::string named = ascii::lower(text_of(section, {"quant_method"}));
  if (!named.empty()) return named;
  if (is_true(section, "load_in_4bit") || is_true(section, "load_in_8bit")) return "bitsandbytes";
  return section.find("quant_algo") != nullptr ? "modelopt" : named;
}

QuantizationConfig read(const Json& section, const std::string& path, const std::string& method) {
  if (!section.is_object())
    throw make_error(ErrorCode::kInvalidConfig, "{}: quantization_config: expected an object, found {}", path,
                     section.type_name());
  QuantizationConfig config;
  config.path = path;
  Section s{section, path, ConfigFields(section, path), config};
  read_section(s, method);
  return config;
}

// Files that packages wrote before config.json had a section for it, and the method that each stands for.
struct Beside {
  std::string_view name, method;
};
constexpr Beside kBeside[] = {
    {"hf_quant_config.json", "modelopt"}, {"quantize_config.json", "gptq"}, {"quant_config.json", "awq"}};

}  // namespace

std::optional<QuantizationConfig> read_quantization_config(const Json& config, const std::string& config_path,
                                                           const std::string& folder) {
  const Json* text = config.find("text_config");
  for (const Json* owner : {&config, text}) {
    if (owner == nullptr) continue;
    for (const std::string_view key : {"quantization_config", "compression_config"}) {
      const Json* section = owner->find(key);
      if (section != nullptr && !section->is_null()) return read(*section, config_path, method_of(*section));
    }
  }
  if (folder.empty()) return std::nullopt;
  for (const Beside& beside : kBeside) {
    const std::string path = folder + "/" + std::string(beside.name);
    if (!file_exists(path)) continue;
    const Json json = read_config_file(path);
    const Json* inner = json.find("quantization");
    const Json& section = inner != nullptr ? *inner : json;
    const std::string named = method_of(section);
    return read(section, path, named.empty() ? std::string(beside.method) : named);
  }
  return std::nullopt;
}

}  // namespace coluber
