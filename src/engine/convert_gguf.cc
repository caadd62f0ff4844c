// SPDX-License-Identifier: Apache-2.0
// A GGUF file, from a checkpoint or from a GGUF file of other types.
#include <algorithm>
#include <charconv>

#include "base/block_type.h"
#include "base/error.h"
#include "engine/conversion.h"
#include "engine/load.h"
#include "formats/gguf.h"
#include "formats/gguf_export.h"
#include "formats/gguf_file.h"
#include "formats/gguf_mix.h"
#include "models/family.h"

namespace coluber {
namespace {

constexpr uint32_t kQuantizationVersion = 2;  // of the layout of blocks
constexpr std::string_view kFileType = "general.file_type", kVersion = "general.quantization_version";

int64_t bytes_of(const std::vector<TensorOutput>& outputs) {
  int64_t bytes = 0;
  for (const TensorOutput& output : outputs) bytes += dtype_bytes(output.dtype, output.shape.count());
  return bytes;
}

void check_written(const std::string& written, const std::vector<TensorOutput>& outputs, const TensorEncoder& encoder) {
  const GgufFile file(written);
  for (const TensorOutput& output : outputs) {
    const GgufTensor* tensor = file.find(output.name);
    if (tensor == nullptr || tensor->dtype != output.dtype || !(tensor->shape == output.shape))
      throw make_error(ErrorCode::kIo, "'{}' does not hold what was written: tensor '{}' reads back otherwise", written,
                       output.name);
    const std::span<const std::byte> bytes(file.data_of(*tensor), static_cast<size_t>(tensor->size_bytes));
    encoder.check(output.name, bytes, written);
    file.release(bytes);
  }
}

void write_checked(const ConvertOptions& options, const GgufMetadata& metadata,
                   const std::vector<TensorOutput>& outputs, const TensorEncoder& encoder, ConversionProgress& progress,
                   ConvertReport& report, const std::function<void(const std::string&)>& check_model = {}) {
  report.bytes = bytes_of(outputs);
  report.files = 1;
  check_free_space(options.output, report.bytes);
  progress.begin("writing", report.bytes);
  write_gguf(options.output, metadata, outputs, [&](const std::string& written) {
    check_written(written, outputs, encoder);
    if (check_model) check_model(written);
  });
  report.types = encoder.types();
}

ModelInfo read_back(const std::string& written, ThreadPool& pool) {
  try {
    const GgufWeights weights(written);
    const std::string config_json = weights.config_json();
    const std::unique_ptr<EngineConfig> config = make_engine_config(EngineOptions{});
    ModelLoadContext context{config_json, written, weights, *config, pool, {}, true};
    return find_family(config_json, written, weights).load(context)->info();
  } catch (const Error& error) {
    throw make_error(ErrorCode::kUnsupported,
                     "a GGUF file cannot hold this model; --to safetensors keeps everything. Read back it says: {}",
                     error.what());
  }
}

// What was read back must be the model that was converted: the same layers of the same sizes. A config or a tensor that
// the format lost on the way shows here.
void check_same_model(const std::string& written, const ModelInfo& expected, int64_t parameters, ThreadPool& pool) {
  const ModelInfo found = read_back(written, pool);
  const bool same_layers =
      std::equal(found.layers.begin(), found.layers.end(), expected.layers.begin(), expected.layers.end(),
                 [](const LayerInfo& a, const LayerInfo& b) { return a.kind == b.kind; });
  if (!same_layers || found.parameters != parameters || found.vocab_size != expected.vocab_size ||
      found.hidden_size != expected.hidden_size)
    throw make_error(ErrorCode::kUnsupported,
                     "a GGUF file cannot hold this model: read back it has {} layers and {} parameters, not {} and {}, "
                     "or layers of other kinds. --to safetensors keeps everything",
                     found.num_layers, found.parameters, expected.num_layers, parameters);
}

// -1: of no layer.
int64_t layer_of(std::string_view name) {
  int64_t layer = -1;
  if (name.starts_with("blk.")) std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return layer;
}

// A number, or one a layer.
int64_t largest_of(const GgufFile& file, std::string_view key) {
  const std::string full = std::string(file.text("general.architecture").value_or("")) + "." + std::string(key);
  if (file.is_list(full)) {
    const std::vector<int64_t>& values = *file.integers(full);
    return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
  }
  return file.integer(full).value_or(0);
}

TensorOutput requantized(TensorEncoder& encoder, const GgufFile& file, const GgufTensor& tensor, DType dtype) {
  const std::byte* data = file.data_of(tensor);
  const auto release = [&file, data, bytes = tensor.size_bytes] { file.release({data, static_cast<size_t>(bytes)}); };
  const bool is_number = is_floating(*tensor.dtype) || find_block_type(*tensor.dtype) != nullptr;
  if (!is_number || dtype == *tensor.dtype)
    return encoder.copy(tensor.name, *tensor.dtype, tensor.shape, [data, release] {
      return std::shared_ptr<const std::byte>(data, [release](const std::byte*) { release(); });
    });
  return encoder.encode(tensor.name, dtype, values_at(data, *tensor.dtype, tensor.shape, release));
}

GgufMetadata requantized_metadata(const GgufFile& file, const GgufMix& mix) {
  GgufMetadata metadata;
  for (const GgufStoredEntry& entry : file.entries()) {
    if (entry.key == kFileType || entry.key == kVersion || entry.key.starts_with("split.") ||
        entry.key == "general.alignment")
      continue;
    metadata.emplace_back(std::string(entry.key), entry.value);
  }
  metadata.emplace_back(std::string(kFileType), mix.file_type);
  metadata.emplace_back(std::string(kVersion), kQuantizationVersion);
  return metadata;
}

void note_short_rows(const GgufMix& mix, const std::vector<GgufMixTensor>& tensors, const std::vector<DType>& types,
                     ConvertReport& report) {
  if (std::string note = describe_short_rows(mix, tensors, types); !note.empty())
    report.notes.push_back(std::move(note));
}

}  // namespace

void requantize_gguf(const ConvertOptions& options, const std::string& path, ThreadPool& pool,
                     ConversionProgress& progress, ConvertReport& report) {
  const GgufFile file(path);
  const GgufMix& mix = *find_gguf_mix(options.type);
  std::vector<const GgufTensor*> tensors;
  for (const GgufTensor& tensor : file.tensors()) {
    if (!tensor.dtype)
      throw make_error(ErrorCode::kUnsupported, "{}: tensor '{}' has the ggml type {}, which is not read", path,
                       tensor.name, tensor.ggml_type);
    tensors.push_back(&tensor);
  }
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto* a, const auto* b) { return layer_of(a->name) < layer_of(b->name); });
  std::vector<GgufMixTensor> named;
  for (const GgufTensor* tensor : tensors) named.push_back({tensor->name, tensor->shape});
  const std::vector<DType> types =
      choose_gguf_types(mix, named, largest_of(file, "block_count"), largest_of(file, "expert_count"));
  note_short_rows(mix, named, types, report);
  TensorEncoder encoder(pool, [&](int64_t bytes) { progress.add(bytes); });
  std::vector<TensorOutput> outputs;
  int64_t again = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    outputs.push_back(requantized(encoder, file, *tensors[i], types[i]));
    again += find_block_type(*tensors[i]->dtype) != nullptr && find_block_type(outputs.back().dtype) != nullptr &&
                     outputs.back().dtype != *tensors[i]->dtype
                 ? 1
                 : 0;
  }
  if (again > 0)
    report.notes.push_back(
        fmt::format("{} tensors were quantised already and are quantised again: a file made from the original weights "
                    "is more exact; errors below are against this file",
                    again));
  write_checked(options, requantized_metadata(file, mix), outputs, encoder, progress, report);
}

void convert_to_gguf(Conversion& conversion) {
  const GgufMix& mix = *find_gguf_mix(conversion.options.type);
  GgufExport plan = plan_gguf_export({conversion.model.config_json, conversion.model.path,
                                      conversion.model.model->info().architecture, conversion.source.folder,
                                      *conversion.model.weights});
  for (std::string& note : plan.notes) conversion.report.notes.push_back(std::move(note));
  std::vector<GgufMixTensor> named;
  for (const GgufExportTensor& tensor : plan.tensors) named.push_back({tensor.name, tensor.values.shape});
  const std::vector<DType> types = choose_gguf_types(mix, named, plan.num_layers, plan.num_experts);
  note_short_rows(mix, named, types, conversion.report);
  TensorEncoder encoder(conversion.pool, [&](int64_t bytes) { conversion.progress.add(bytes); });
  std::vector<TensorOutput> outputs;
  for (size_t i = 0; i < types.size(); ++i)
    outputs.push_back(encoder.encode(plan.tensors[i].name, types[i], std::move(plan.tensors[i].values)));
  plan.metadata.emplace_back(std::string(kFileType), mix.file_type);
  plan.metadata.emplace_back(std::string(kVersion), kQuantizationVersion);
  for (auto& entry : text_metadata(conversion)) plan.metadata.push_back(std::move(entry));
  write_checked(conversion.options, plan.metadata, outputs, encoder, conversion.progress, conversion.report,
                [&](const std::string& written) {
                  const ModelInfo& info = conversion.model.model->info();
                  check_same_model(written, info, info.parameters + plan.added_parameters, conversion.pool);
                });
}

}  // namespace coluber
