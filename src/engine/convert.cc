// SPDX-License-Identifier: Apache-2.0
#include "engine/convert.h"

#include <system_error>

#include "base/ascii.h"
#include "base/error.h"
#include "engine/conversion.h"
#include "engine/host_memory.h"
#include "formats/gguf.h"
#include "formats/gguf_file.h"
#include "formats/gguf_mix.h"
#include "formats/weight_source.h"

namespace coluber {
namespace {

namespace fs = std::filesystem;

struct Spelling {
  std::string_view short_name, long_name;
};
constexpr Spelling kSpellings[] = {{"f32", "float32"}, {"f16", "float16"}, {"bf16", "bfloat16"}};

bool is_same(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error);
}

// Whether `inner` is `folder` or lies below it, links resolved.
bool lies_in(const fs::path& inner, const fs::path& folder) {
  std::error_code error;
  const fs::path below = fs::weakly_canonical(inner, error), above = fs::weakly_canonical(folder, error);
  return std::mismatch(above.begin(), above.end(), below.begin(), below.end()).first == above.end();
}

// A folder that this program may have written: it holds a config and weights, or nothing.
bool is_checkpoint_folder(const fs::path& folder) {
  std::error_code error;
  return fs::is_empty(folder, error) || find_weights(folder.string()).has_value();
}

// The name of a folder in it; empty where there is none. What is written has none, so such a folder is someone's.
std::string folder_in(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator item(folder, error), end; !error && item != end; item.increment(error))
    if (item->is_directory(error)) return item->path().filename().string();
  return {};
}

[[noreturn]] void refuse(const std::string& output, const std::string& why) {
  throw make_error(ErrorCode::kInvalidArgument, "cannot write '{}': {}", output, why);
}

void check_folder_output(const ConvertOptions& options, const ModelFolder& source) {
  const fs::path output(options.output);
  std::error_code error;
  if (lies_in(source.weights_path, output) || lies_in(source.folder, output))
    refuse(options.output, "it is the folder of the model, or holds it; name another one");
  if (!fs::exists(output, error) || (fs::is_directory(output, error) && fs::is_empty(output, error))) return;
  if (!fs::is_directory(output, error)) refuse(options.output, "it is a file; safetensors go into a folder");
  if (!options.replace) refuse(options.output, "it is there already; --force replaces it");
  if (!is_checkpoint_folder(output))
    refuse(options.output, "it is there and holds no model; --force replaces models only");
  if (const std::string inner = folder_in(output); !inner.empty())
    refuse(options.output,
           fmt::format("it holds the folder '{}', which --force would remove; name another one", inner));
}

void check_file_output(const ConvertOptions& options, const ModelFolder& source) {
  const fs::path output(options.output);
  std::error_code error;
  if (fs::is_directory(output, error)) refuse(options.output, "it is a folder; name the .gguf file");
  if (!is_gguf_file(options.output)) refuse(options.output, "a GGUF file's name must end in .gguf");
  if (!fs::exists(output, error)) return;
  if (!fs::is_regular_file(output, error)) refuse(options.output, "it is a pipe or a device; name a file");
  if (is_same(output, source.weights_path)) refuse(options.output, "it is the model itself; name another file");
  for (const std::string& part : gguf_parts(source.weights_path))
    if (is_same(output, part)) refuse(options.output, "it is a file of the model; name another one");
  for (fs::directory_iterator item(source.folder, error), end; !error && item != end; item.increment(error))
    if (is_weights_file(item->path().filename().string()) && is_same(output, item->path()) &&
        source.weights_path == source.folder)
      refuse(options.output, "it is a file of the model; name another one");
  if (!options.replace) refuse(options.output, "it is there already; --force replaces it");
}

fs::path folder_of(const std::string& output) {
  fs::path parent = fs::path(output.ends_with('/') ? output.substr(0, output.size() - 1) : output).parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

}  // namespace

const std::vector<CheckpointType>& checkpoint_types(CheckpointFormat format) {
  static const std::vector<CheckpointType> kSafetensors = {
      {"float32", "exact"},
      {"bfloat16", "half the size: exact where the source is bfloat16"},
      {"float16", "half the size, more digits and a smaller range than bfloat16"},
  };
  static const std::vector<CheckpointType> kGguf = [] {
    std::vector<CheckpointType> types;
    for (const GgufMix& mix : gguf_mixes()) types.push_back({mix.name, mix.summary});
    return types;
  }();
  return format == CheckpointFormat::kGguf ? kGguf : kSafetensors;
}

std::string checkpoint_type(CheckpointFormat format, std::string_view name) {
  std::string wanted = ascii::lower(name), known;
  for (const Spelling& spelling : kSpellings) {
    if (wanted != spelling.short_name && wanted != spelling.long_name) continue;
    wanted = format == CheckpointFormat::kGguf ? spelling.short_name : spelling.long_name;
  }
  for (const CheckpointType& type : checkpoint_types(format)) {
    if (type.name == wanted) return wanted;
    known += (known.empty() ? "" : ", ") + std::string(type.name);
  }
  throw make_error(ErrorCode::kInvalidArgument, "there is no type '{}' for {}; the types are {}", name,
                   format == CheckpointFormat::kGguf ? "gguf" : "safetensors", known);
}

void check_conversion_output(const ConvertOptions& options, const ModelFolder& source) {
  if (options.output.empty()) throw make_error(ErrorCode::kInvalidArgument, "no name was given for what is written");
  if (options.format == CheckpointFormat::kGguf) {
    check_file_output(options, source);
  } else {
    check_folder_output(options, source);
  }
  std::error_code error;
  if (!fs::is_directory(folder_of(options.output), error))
    refuse(options.output, fmt::format("there is no folder '{}'", folder_of(options.output).string()));
}

void check_free_space(const std::string& output, int64_t bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(folder_of(output), error);
  if (!error && space.available < static_cast<uintmax_t>(bytes))
    throw make_error(ErrorCode::kIo, "'{}' needs {}, and {} are free there; make room or name another place with --out",
                     output, format_bytes(bytes), format_bytes(static_cast<int64_t>(space.available)));
}

void ConversionProgress::begin(std::string_view phase, int64_t total_bytes) {
  phase_ = phase;
  done_ = 0;
  total_ = total_bytes;
  add(0);
}

void ConversionProgress::add(int64_t bytes) {
  done_ += bytes;
  if (options_.progress) options_.progress(phase_, done_, total_);
}

ConvertReport convert_model(const ConvertOptions& options) {
  const ModelFolder source = resolve_model(options.model);
  check_conversion_output(options, source);
  ConvertReport report;
  report.output = options.output;
  ConversionProgress progress(options);
  if (options.format == CheckpointFormat::kGguf && is_gguf_file(source.weights_path)) {
    ThreadPool pool(options.num_threads > 0 ? options.num_threads : usable_cores());
    requantize_gguf(options, source.weights_path, pool, progress, report);
    return report;
  }
  EngineOptions engine;
  engine.model = options.model;
  engine.num_threads = options.num_threads;
  ModelDescription model = describe_model(engine);
  Conversion conversion{options, source, model, *model.pool, progress, report};
  if (options.format == CheckpointFormat::kGguf) {
    convert_to_gguf(conversion);
  } else {
    convert_to_safetensors(conversion);
  }
  return report;
}

}  // namespace coluber
