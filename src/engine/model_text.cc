// SPDX-License-Identifier: Apache-2.0
#include "engine/model_text.h"

#include "base/mapped_file.h"
#include "formats/gguf.h"

namespace coluber {
namespace {

constexpr std::string_view kTemplate = "tokenizer.chat_template";

// As a special token is called in GGUF's keys and in templates.
constexpr std::string_view kSpecialTokens[] = {"bos", "eos", "unk", "pad"};

std::optional<int64_t> special_id(const GgufFile& file, std::string_view name) {
  const std::string_view key = name == "unk" ? "unknown" : name == "pad" ? "padding" : name;
  return file.integer(fmt::format("tokenizer.ggml.{}_token_id", key));
}

template <typename T>
std::span<const T> span_of(const std::vector<T>* list) {
  return list == nullptr ? std::span<const T>() : std::span<const T>(*list);
}

std::unique_ptr<Tokenizer> tokenizer_in(const GgufFile& file) {
  return Tokenizer::from_vocabulary(stored_vocabulary(file), file.path());
}

Json special_tokens_in(const GgufFile& file) {
  Json tokens{Json::Object{}};
  const auto* texts = file.texts("tokenizer.ggml.tokens");
  for (const std::string_view name : kSpecialTokens) {
    const std::optional<int64_t> id = special_id(file, name);
    if (texts != nullptr && id && *id >= 0 && *id < static_cast<int64_t>(texts->size()))
      tokens.set(std::string(name) + "_token", Json((*texts)[static_cast<size_t>(*id)]));
  }
  return tokens;
}

// "tokenizer.chat_template", and those that "tokenizer.chat_templates" names behind it.
std::optional<ChatTemplates> templates_in(const GgufFile& file) {
  ChatTemplates templates;
  const auto add = [&](std::string_view name, const std::string& key) {
    const std::optional<std::string_view> source = file.text(key);
    if (!source) return;
    auto parsed = ChatTemplate::parse(*source, fmt::format("{} ({})", file.path(), key));
    if (!parsed) throw Error(ErrorCode::kInvalidData, parsed.error().message);
    templates.named.emplace_back(name, std::move(*parsed));
  };
  add("default", std::string(kTemplate));
  for (const std::string_view name : span_of(file.texts("tokenizer.chat_templates"))) {
    if (name != "default") add(name, fmt::format("{}.{}", kTemplate, name));
  }
  if (templates.named.empty()) return std::nullopt;
  templates.special_tokens = special_tokens_in(file);
  return templates;
}

}  // namespace

bool has_stored_tokenizer(const GgufFile& file) {
  return file.has("tokenizer.ggml.model") && file.text("tokenizer.ggml.model") != "none";
}

StoredVocabulary stored_vocabulary(const GgufFile& file) {
  StoredVocabulary v;
  v.model = file.text("tokenizer.ggml.model").value_or("");
  v.split = file.text("tokenizer.ggml.pre").value_or("");
  v.tokens = span_of(file.texts("tokenizer.ggml.tokens"));
  v.merges = span_of(file.texts("tokenizer.ggml.merges"));
  v.scores = span_of(file.reals("tokenizer.ggml.scores"));
  v.types = span_of(file.integers("tokenizer.ggml.token_type"));
  v.bos_id = special_id(file, "bos");
  v.eos_id = special_id(file, "eos");
  v.unk_id = special_id(file, "unk");
  v.pad_id = special_id(file, "pad");
  v.add_bos = file.boolean("tokenizer.ggml.add_bos_token");
  v.add_eos = file.boolean("tokenizer.ggml.add_eos_token");
  v.add_space_prefix = file.boolean("tokenizer.ggml.add_space_prefix").value_or(v.add_space_prefix);
  v.remove_extra_spaces = file.boolean("tokenizer.ggml.remove_extra_whitespaces").value_or(v.remove_extra_spaces);
  v.charsmap = span_of(file.integers("tokenizer.ggml.precompiled_charsmap"));
  return v;
}

std::unique_ptr<Tokenizer> find_tokenizer(const ModelFolder& model) {
  if (!file_exists(model.tokenizer_path)) return nullptr;
  if (!is_gguf_file(model.tokenizer_path)) return Tokenizer::load(model.tokenizer_path);
  const GgufFile file(model.tokenizer_path);
  return has_stored_tokenizer(file) ? tokenizer_in(file) : nullptr;
}

std::unique_ptr<Tokenizer> load_tokenizer(const ModelFolder& model) {
  if (auto tokenizer = find_tokenizer(model)) return tokenizer;
  if (!is_gguf_file(model.tokenizer_path)) return Tokenizer::load(model.tokenizer_path);  // says what it looked for
  throw make_error(ErrorCode::kNotFound,
                   "{} holds no tokenizer (tokenizer.ggml.model), and there is no tokenizer.json beside it",
                   model.tokenizer_path);
}

std::optional<ChatTemplates> find_chat_template(const ModelFolder& model) {
  if (auto templates = load_chat_template(model.folder)) return templates;
  return is_gguf_file(model.weights_path) ? templates_in(GgufFile(model.weights_path)) : std::nullopt;
}

Json find_special_tokens(const ModelFolder& model) {
  Json tokens = load_special_tokens(model.folder);
  if (!tokens.as_object().empty() || !is_gguf_file(model.weights_path)) return tokens;
  return special_tokens_in(GgufFile(model.weights_path));
}

}  // namespace coluber
