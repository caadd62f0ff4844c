// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <filesystem>
#include <optional>

#include "apps/cli/arguments.h"
#include "apps/cli/cli.h"
#include "apps/cli/output.h"
#include "apps/cli/progress.h"
#include "base/dtype.h"
#include "base/error.h"
#include "engine/convert.h"
#include "engine/limits.h"

namespace coluber::cli {
namespace {

namespace fs = std::filesystem;

struct ConvertFlags {
  std::string model, to, type, out;
  std::string max_shard_size = "5GB";
  bool force = false;
  int64_t threads = 0;
};

std::string types_of(CheckpointFormat format) {
  std::string text;
  for (const CheckpointType& type : checkpoint_types(format))
    text += fmt::format("{}{} ({})", text.empty() ? "" : "; ", type.name, type.summary);
  return text;
}

void declare(Arguments& arguments, ConvertFlags& flags) {
  arguments.positional("MODEL", &flags.model, "folder or file of the model, in any format that is read");
  arguments.section("What to write");
  arguments.choice("--to", &flags.to, {"safetensors", "gguf"},
                   "the format; without it the name of --out tells: .gguf, or a folder of safetensors");
  arguments.text("--type", &flags.type, "TYPE", "the type of the weights (required); see below");
  arguments.text("--out", &flags.out, "PATH",
                 "the folder, or the .gguf file; without it the model's name and the type, here");
  arguments.flag("--force", &flags.force, "replace what is there under that name");
  arguments.text("--max-shard-size", &flags.max_shard_size, "SIZE",
                 "safetensors are cut into files of at most this size: 500MB, 5GB");
  arguments.integer("--threads", &flags.threads, {0, kMostThreads}, "threads; 0: all cores that may be used");
  arguments.example("coluber convert path/to/model --to gguf --type q4_k_m", "a quarter of the memory, for every day");
  arguments.example("coluber convert model.gguf --to safetensors --type bfloat16 --out model-hf",
                    "a folder for transformers, tokenizer and all");
  arguments.example("coluber convert model-f16.gguf --to gguf --type q8_0 --out model-q8.gguf",
                    "other types for a GGUF file");
  arguments.example("coluber convert RWKV-x070.pth --to safetensors --type float16", "weights out of a pickle");
  arguments.footnote("Types of safetensors: " + types_of(CheckpointFormat::kSafetensors) + ".");
  arguments.footnote("Types of gguf: " + types_of(CheckpointFormat::kGguf) + ".");
  arguments.footnote(
      "Needs memory for the largest tensor, not for the model. What is written appears under its name when it is "
      "complete and has been read back; Ctrl-C and a full disk leave nothing. Errors in the summary are those of the "
      "weights: the root of the mean square of the difference, against that of the weights themselves.");
}

int64_t parse_size(const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}};
  const size_t end = text.find_first_not_of("0123456789.");
  const std::string unit = end == std::string::npos ? "B" : text.substr(end);
  for (const auto& [name, factor] : kUnits) {
    if (name != unit || end == 0) continue;
    try {
      const double bytes = std::stod(text.substr(0, end)) * factor;
      if (bytes >= 1 && bytes < 1e18) return static_cast<int64_t>(bytes);
    } catch (const std::exception&) {
    }
  }
  throw make_error(ErrorCode::kInvalidArgument,
                   "convert: --max-shard-size is '{}'; expected a number and KB, MB or GB, such as 5GB", text);
}

CheckpointFormat format_of(const ConvertFlags& flags) {
  if (flags.to == "gguf") return CheckpointFormat::kGguf;
  if (flags.to == "safetensors") return CheckpointFormat::kSafetensors;
  if (flags.out.ends_with(".gguf")) return CheckpointFormat::kGguf;
  if (!flags.out.empty()) return CheckpointFormat::kSafetensors;
  throw Error(ErrorCode::kInvalidArgument,
              "convert: --to is missing; give --to safetensors or --to gguf ('coluber convert --help' explains)");
}

// "asp-7m-q4_k_m.gguf" of models/asp-7m or of asp-7m.gguf, in the current folder.
std::string default_output(const std::string& model, CheckpointFormat format, const std::string& type) {
  fs::path path(model);
  if (!path.has_filename()) path = path.parent_path();
  std::error_code error;
  std::string name = path.filename().string();
  if (name.empty() || name == "." || name == "..") name = fs::weakly_canonical(path, error).filename().string();
  if (!fs::is_directory(path, error)) name = fs::path(name).stem().string();
  return name + "-" + type + (format == CheckpointFormat::kGguf ? ".gguf" : "");
}

std::string amount(int64_t bytes) {
  return bytes < 10'000'000 ? fmt::format("{:.2f} MB", static_cast<double>(bytes) / 1e6)
                            : fmt::format("{:.0f} MB", static_cast<double>(bytes) / 1e6);
}

void print_report(const ConvertReport& report) {
  output().print("wrote {} ({}, {} file{} of weights)\n", report.output, amount(report.bytes), report.files,
                 report.files == 1 ? "" : "s");
  output().print("{:<12}{:>9}{:>16}{:>12}{:>12}\n", "type", "tensors", "weights", "size", "error");
  for (const EncodedType& type : report.types) {
    const double error = type.relative_error();
    output().print("{:<12}{:>9}{:>16}{:>12}{:>12}\n", dtype_name(type.dtype), type.tensors, type.elements,
                   amount(type.bytes), error == 0 ? std::string("none") : fmt::format("{:.3g}", error));
  }
}

}  // namespace

int convert_command(const std::vector<std::string>& args) {
  Arguments arguments("convert",
                      "Writes a model in another format or with weights of another type: a folder of safetensors for "
                      "other programs, or a GGUF file, quantised or not.");
  ConvertFlags flags;
  declare(arguments, flags);
  if (!arguments.parse(args)) return 0;
  ConvertOptions options;
  options.format = format_of(flags);
  if (flags.type.empty())
    throw make_error(ErrorCode::kInvalidArgument, "convert: --type is missing; expected one of {}",
                     types_of(options.format));
  options.model = find_model(flags.model);
  options.type = checkpoint_type(options.format, flags.type);
  options.output = flags.out.empty() ? default_output(options.model, options.format, options.type) : flags.out;
  options.replace = flags.force;
  options.max_shard_bytes = parse_size(flags.max_shard_size);
  options.num_threads = static_cast<int>(flags.threads);
  ProgressBar bar("converting", "B");
  options.progress = [&bar](std::string_view, int64_t done, int64_t total) {
    check_interrupt();
    bar.update(done, total);
  };
  const ConvertReport report = convert_model(options);
  bar.finish();
  for (const std::string& note : report.notes) notice(note);
  print_report(report);
  return 0;
}

}  // namespace coluber::cli
