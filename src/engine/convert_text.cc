// SPDX-License-Identifier: Apache-2.0
// Tokenizers, chat templates and what else lies beside the weights, on their way into the other format.
#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/mapped_file.h"
#include "engine/conversion.h"
#include "engine/model_text.h"
#include "formats/generation_config.h"
#include "formats/gguf.h"
#include "text/tokenizer/vocabulary_export.h"

namespace coluber {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCompanions[] = {"generation_config.json",
                                            "tokenizer.json",
                                            "tokenizer_config.json",
                                            "special_tokens_map.json",
                                            "added_tokens.json",
                                            "vocab.json",
                                            "vocab.txt",
                                            "merges.txt",
                                            "tokenizer.model",
                                            "tiktoken.model",
                                            "chat_template.jinja",
                                            "chat_template.json",
                                            "preprocessor_config.json"};

bool is_companion(std::string_view name) {
  return std::find(std::begin(kCompanions), std::end(kCompanions), name) != std::end(kCompanions) ||
         (name.starts_with("rwkv_vocab_v") && name.ends_with(".txt")) || name.ends_with(".py") ||
         name.starts_with("LICENSE") || name.starts_with("NOTICE");
}

std::vector<CompanionFile> files_beside(const std::string& folder) {
  std::vector<CompanionFile> files;
  std::error_code error;
  for (fs::directory_iterator item(folder, error), end; !error && item != end; item.increment(error)) {
    const std::string name = item->path().filename().string();
    if (is_companion(name) && item->is_regular_file(error)) files.push_back({name, item->path().string(), {}});
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return files;
}

bool has(const std::vector<CompanionFile>& files, std::string_view name) {
  return std::any_of(files.begin(), files.end(), [&](const CompanionFile& file) { return file.name == name; });
}

// The ids that end and begin a text, as the config made from a GGUF file has them.
std::string generation_config_of(const std::string& config_json, const std::string& path) {
  const Json config = value_or_throw(parse_json(config_json, path));
  Json out{Json::Object{}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (const Json* found = config.find(key); found != nullptr && !found->is_null()) out.set(key, *found);
  return out.dump(2) + "\n";
}

// The first is the default one, or they go by their names.
Json templates_json(const ChatTemplates& templates) {
  if (templates.named.size() == 1) return Json(templates.named.front().second.source());
  Json::Array list;
  for (const auto& [name, one] : templates.named)
    list.emplace_back(Json::Object{{"name", Json(name)}, {"template", Json(one.source())}});
  return Json(std::move(list));
}

void add_text_of_gguf(const Conversion& conversion, std::vector<CompanionFile>& files) {
  const GgufFile file(conversion.source.weights_path);
  const std::string& config = conversion.model.config_json;
  if (!has(files, "generation_config.json"))
    files.push_back({"generation_config.json", {}, generation_config_of(config, conversion.model.path)});
  std::optional<ChatTemplates> templates;
  try {
    templates = find_chat_template(conversion.source);
  } catch (const Error& error) {
    conversion.report.notes.push_back(fmt::format("the chat template did not come along: {}", error.what()));
  }
  const bool beside = !is_gguf_file(conversion.source.tokenizer_path) && file_exists(conversion.source.tokenizer_path);
  if (beside || !has_stored_tokenizer(file)) {
    if (templates && !has(files, "tokenizer_config.json") && !has(files, "chat_template.jinja"))
      files.push_back({"chat_template.jinja", {}, templates->named.front().second.source()});
    return;
  }
  try {
    TokenizerFiles text = tokenizer_files(stored_vocabulary(file), file.path());
    if (templates) text.config.set("chat_template", templates_json(*templates));
    files.push_back({text.name, {}, std::move(text.content)});
    files.push_back({"tokenizer_config.json", {}, text.config.dump(2) + "\n"});
  } catch (const Error& error) {
    conversion.report.notes.push_back(fmt::format("the tokenizer did not come along: {}", error.what()));
  }
}

template <typename T, typename From>
std::vector<T> narrowed(const std::vector<From>& values) {
  return std::vector<T>(values.begin(), values.end());
}

void put_vocabulary(const ExportedVocabulary& v, GgufMetadata& out) {
  out.emplace_back("tokenizer.ggml.model", v.model);
  if (!v.split.empty()) out.emplace_back("tokenizer.ggml.pre", v.split);
  out.emplace_back("tokenizer.ggml.tokens", v.tokens);
  if (!v.scores.empty()) out.emplace_back("tokenizer.ggml.scores", narrowed<float>(v.scores));
  out.emplace_back("tokenizer.ggml.token_type", narrowed<int32_t>(v.types));
  if (!v.merges.empty()) out.emplace_back("tokenizer.ggml.merges", v.merges);
  const auto put_flag = [&](const char* key, const std::optional<bool>& value) {
    if (value) out.emplace_back(std::string("tokenizer.ggml.") + key, *value);
  };
  put_flag("add_bos_token", v.add_bos);
  put_flag("add_eos_token", v.add_eos);
  put_flag("add_space_prefix", v.add_space_prefix);
  put_flag("remove_extra_whitespaces", v.remove_extra_spaces);
}

// By the tokenizer's names first, then by the ids of the configs; of several ends the one that is not the text's ends a
// turn.
void put_special_ids(const Conversion& conversion, const ExportedVocabulary& v, GgufMetadata& out) {
  const GenerationConfig generation = read_generation_config(conversion.source.generation_config_path);
  const Json config = conversion.model.config_json.empty()
                          ? Json(Json::Object{})
                          : value_or_throw(parse_json(conversion.model.config_json, conversion.model.path,
                                                      {.allow_python_constants = true}));
  std::vector<int64_t> ends = generation.eos_token_id;
  const auto id_of = [&](const char* key) -> std::optional<int64_t> {
    const Json* found = config.find(key);
    if (found != nullptr && found->is_int()) return found->as_int();
    if (found != nullptr && found->is_array() && !found->as_array().empty() && found->as_array()[0].is_int())
      return found->as_array()[0].as_int();
    return std::nullopt;
  };
  const auto put = [&](const char* key, const std::optional<int64_t>& named, const std::optional<int64_t>& other) {
    const std::optional<int64_t> id = named ? named : other;
    const auto size = static_cast<int64_t>(v.tokens.size());
    if (id && *id >= 0 && (v.tokens.empty() || *id < size))
      out.emplace_back(fmt::format("tokenizer.ggml.{}_token_id", key), static_cast<uint32_t>(*id));
    return id;
  };
  put("bos", v.bos_id, generation.bos_token_id ? generation.bos_token_id : id_of("bos_token_id"));
  const std::optional<int64_t> end =
      put("eos", v.eos_id, ends.empty() ? id_of("eos_token_id") : std::optional(ends.front()));
  put("unknown", v.unk_id, std::nullopt);
  put("padding", v.pad_id, generation.pad_token_id ? generation.pad_token_id : id_of("pad_token_id"));
  const auto other = std::find_if(ends.begin(), ends.end(), [&](int64_t id) { return end && id != *end; });
  if (other != ends.end()) put("eot", *other, std::nullopt);
}

void put_templates(const Conversion& conversion, GgufMetadata& out) {
  std::optional<ChatTemplates> templates;
  try {
    templates = find_chat_template(conversion.source);
  } catch (const Error& error) {
    conversion.report.notes.push_back(fmt::format("the chat template did not come along: {}", error.what()));
  }
  if (!templates) return;
  std::vector<std::string> names;
  for (const auto& [name, one] : templates->named) {
    const bool is_default = name == "default" || templates->named.size() == 1;
    out.emplace_back(is_default ? "tokenizer.chat_template" : "tokenizer.chat_template." + name, one.source());
    if (!is_default) names.push_back(name);
  }
  if (!names.empty()) out.emplace_back("tokenizer.chat_templates", std::move(names));
}

// What generation_config.json asks for, under the keys that llama.cpp reads.
void put_sampling(const Conversion& conversion, GgufMetadata& out) {
  const GenerationConfig g = read_generation_config(conversion.source.generation_config_path);
  const auto put = [&](const char* key, const std::optional<double>& value) {
    if (value) out.emplace_back(std::string("general.sampling.") + key, static_cast<float>(*value));
  };
  put("temp", g.temperature);
  put("top_p", g.top_p);
  put("min_p", g.min_p);
  put("penalty_repeat", g.repetition_penalty);
  if (g.top_k) out.emplace_back("general.sampling.top_k", static_cast<int32_t>(*g.top_k));
}

}  // namespace

std::vector<CompanionFile> companion_files(const Conversion& conversion) {
  std::vector<CompanionFile> files = files_beside(conversion.source.folder);
  if (is_gguf_file(conversion.source.weights_path)) add_text_of_gguf(conversion, files);
  return files;
}

GgufMetadata text_metadata(const Conversion& conversion) {
  GgufMetadata out;
  const int64_t vocab_size = conversion.model.model->info().vocab_size;
  ExportedVocabulary vocabulary;
  if (file_exists(conversion.source.tokenizer_path)) {
    try {
      vocabulary = export_vocabulary(conversion.source.tokenizer_path, vocab_size);
      put_vocabulary(vocabulary, out);
    } catch (const Error& error) {
      vocabulary = {};
      conversion.report.notes.push_back(fmt::format("the tokenizer did not come along: {}", error.what()));
    }
  } else {
    conversion.report.notes.push_back("the model has no tokenizer, and so has the file");
  }
  if (vocabulary.tokens.empty()) out.emplace_back("tokenizer.ggml.model", std::string("none"));
  put_special_ids(conversion, vocabulary, out);
  put_templates(conversion, out);
  put_sampling(conversion, out);
  return out;
}

}  // namespace coluber
