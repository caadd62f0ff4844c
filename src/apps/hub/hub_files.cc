// SPDX-License-Identifier: Apache-2.0
#include "apps/hub/hub_files.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "base/ascii.h"
#include "base/error.h"
#include "base/json.h"
#include "base/printable.h"

namespace coluber::hub {
namespace {

constexpr std::string_view kBeside[] = {"config.json",         "generation_config.json",
                                        "tokenizer.json",      "tokenizer_config.json",
                                        "tokenizer.model",     "tiktoken.model",
                                        "added_tokens.json",   "special_tokens_map.json",
                                        "vocab.json",          "merges.txt",
                                        "vocab.txt",           "chat_template.jinja",
                                        "chat_template.json",  "quantize_config.json",
                                        "quant_config.json",   "hf_quant_config.json",
                                        "quant_strategy.json", "preprocessor_config.json"};
constexpr std::string_view kWhole[] = {"model.safetensors", "pytorch_model.bin"};
constexpr std::string_view kIndexEnd = ".index.json";
constexpr size_t kMostListed = 12;

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_beside(std::string_view name) {
  return std::find(std::begin(kBeside), std::end(kBeside), name) != std::end(kBeside) ||
         (name.starts_with("rwkv_vocab_v") && name.ends_with(".txt"));
}

// "x-00001-of-00003.gguf" without its number; a file that is no part stands for itself.
std::string without_part(const std::string& name) {
  constexpr std::string_view kPart = "-00001-of-00001.gguf";
  if (name.size() <= kPart.size()) return name;
  const std::string tail = name.substr(name.size() - kPart.size());
  for (size_t i = 0; i < kPart.size(); ++i) {
    const bool digit = kPart[i] == '0' || kPart[i] == '1';
    if (digit ? std::isdigit(static_cast<unsigned char>(tail[i])) == 0 : tail[i] != kPart[i]) return name;
  }
  return name.substr(0, name.size() - kPart.size()) + tail.substr(6);
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMostListed); ++i) text += (i == 0 ? "" : ", ") + printable(names[i]);
  return names.size() > kMostListed ? fmt::format("{} and {} more", text, names.size() - kMostListed) : text;
}

bool is_single(std::string_view name) {
  return name.ends_with(".gguf") || name.ends_with(".pth") || name.ends_with(".pt");
}

// Weights that are whole in a file of their own name (or in its parts): each set once, under its first file's name.
std::vector<std::string> sets_of(const std::vector<std::string>& names, bool everywhere) {
  std::vector<std::string> sets;
  std::set<std::string> seen;
  for (const std::string& name : names) {
    // A projector of images beside a model is no model.
    if (!is_single(name) || ascii::lower(name).find("mmproj") != std::string::npos) continue;
    if (!everywhere && name.find('/') != std::string::npos) continue;
    if (seen.insert(without_part(name)).second) sets.push_back(name);
  }
  return sets;
}

std::vector<std::string> parts_of(const std::string& first, const std::vector<std::string>& names) {
  std::vector<std::string> parts;
  for (const std::string& name : names) {
    if (without_part(name) == without_part(first)) parts.push_back(name);
  }
  std::sort(parts.begin(), parts.end());
  return parts;
}

WeightFiles wanted_file(const std::vector<std::string>& names, std::string_view wanted, std::string_view repository) {
  if (has(names, wanted)) return {"", parts_of(std::string(wanted), names)};
  std::vector<std::string> matches;
  const std::vector<std::string> sets = sets_of(names, true);
  for (const std::string& name : sets) {
    if (ascii::lower(name).find(ascii::lower(wanted)) != std::string::npos) matches.push_back(name);
  }
  if (matches.size() == 1) return {"", parts_of(matches.front(), names)};
  throw make_error(ErrorCode::kNotFound, "'{}' of {}: {}; name one of them after ':'", printable(wanted), repository,
                   matches.empty() ? sets.empty() ? "the repository has no such file, and no other that is named so"
                                                  : "there is no such file; there are " + listed(sets)
                                   : fmt::format("{} files match: {}", matches.size(), listed(matches)));
}

}  // namespace

std::vector<std::string> files_beside_weights(const std::vector<std::string>& names) {
  std::vector<std::string> files;
  std::copy_if(names.begin(), names.end(), std::back_inserter(files), is_beside);
  return files;
}

WeightFiles choose_weights(const std::vector<std::string>& names, std::string_view wanted,
                           std::string_view repository) {
  if (!wanted.empty()) return wanted_file(names, wanted, repository);
  for (const std::string_view whole : kWhole) {
    if (has(names, whole)) return {"", {std::string(whole)}};
    const std::string index = std::string(whole) + std::string(kIndexEnd);
    if (has(names, index)) return {index, {}};
  }
  const std::vector<std::string> sets = sets_of(names, false);
  if (sets.size() == 1) return {"", parts_of(sets.front(), names)};
  if (sets.empty()) {
    throw make_error(ErrorCode::kNotFound,
                     "{} has no weights that can be read: expected model.safetensors, pytorch_model.bin, the index of "
                     "shards of either, or a .gguf or .pth file; it has {}",
                     repository, names.empty() ? "no files" : listed(names));
  }
  throw make_error(ErrorCode::kNotFound, "{0} has {1} files of weights: {2}; name one, such as {0}:{3}", repository,
                   sets.size(), listed(sets), printable(sets.front()));
}

std::vector<std::string> files_of_index(std::string_view text, std::string_view index,
                                        const std::vector<std::string>& names) {
  const Json parsed = value_or_throw(parse_json(text, index));
  const Json* map = parsed.find("weight_map");
  if (map == nullptr || !map->is_object() || map->as_object().empty())
    throw make_error(ErrorCode::kInvalidData, "{}: expected an object weight_map from tensor names to files",
                     printable(index));
  std::set<std::string> files;
  for (const auto& [tensor, file] : map->as_object()) {
    if (!file.is_string() || !has(names, file.as_string()))
      throw make_error(ErrorCode::kInvalidData,
                       "{}: tensor '{}' is said to be in {}, which the repository does not have", printable(index),
                       printable(tensor), file.dump());
    files.insert(file.as_string());
  }
  return {files.begin(), files.end()};
}

}  // namespace coluber::hub
