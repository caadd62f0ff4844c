// SPDX-License-Identifier: Apache-2.0
//
// tokenizer.json and tokenizer_config.json into the parts of a Tokenizer.
#include <algorithm>
#include <map>

#include "base/log.h"
#include "base/mapped_file.h"
#include "text/tokenizer/tokenizer_impl.h"

namespace coluber {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 29;
constexpr size_t kMaxAddedTokens = 1 << 20;

// Classes whose fast tokenizers rebuild the special tokens around a text from add_bos_token and add_eos_token.
constexpr std::string_view kBosEosClasses[] = {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer",
                                               "CohereTokenizer"};

AddedToken read_added(const Component& entry) {
  AddedToken token;
  token.content = entry.text("content");
  token.special = entry.boolean("special", false);
  token.single_word = entry.boolean("single_word", false);
  token.lstrip = entry.boolean("lstrip", false);
  token.rstrip = entry.boolean("rstrip", false);
  token.normalized = entry.boolean("normalized", !token.special);
  return token;
}

Json read_config(std::string_view text, const std::string& source) {
  return value_or_throw(parse_json(text, source + ": tokenizer_config.json", {.allow_python_constants = true}));
}

// "<s>", or {"content": "<s>", ...} as older files have it.
std::string read_token_name(const Component& config, std::string_view key) {
  if (!config.has(key)) return {};
  const Json& value = *config.json().find(key);
  return value.is_object() ? config.child(key).text("content") : config.text(key);
}

// {"2": {"content": "</s>", ...}, ...}, by id.
std::map<int64_t, AddedToken> read_added_decoder(const Component& config) {
  std::map<int64_t, AddedToken> by_id;
  if (!config.has("added_tokens_decoder")) return by_id;
  const Component decoder = config.child("added_tokens_decoder");
  for (const auto& [id, value] : decoder.json().as_object()) {
    int64_t number = 0;
    const bool is_number = !id.empty() && id.size() < 10 &&
                           std::all_of(
                               id.begin(), id.end(),
                               [&](char c) {
                                 number = number * 10 + (c - '0');
                                 return c >= '0' && c <= '9';
                               });
    if (!is_number) decoder.refuse("\"" + id + "\" is no token id");
    by_id[number] = read_added(Component(value, decoder.place() + "." + id));
  }
  return by_id;
}

}  // namespace

void Tokenizer::Impl::load_added(const Component& root) {
  if (!root.has("added_tokens")) return;
  const std::vector<Component> entries = root.children("added_tokens");
  if (entries.size() > kMaxAddedTokens) {
    root.refuse(fmt::format("there are {} added tokens, the limit is {}", entries.size(), kMaxAddedTokens));
  }
  for (const Component& entry : entries) {
    const int64_t expected = entry.integer("id", 0, INT32_MAX - 1);
    AddedToken token = read_added(entry);
    const std::string content = token.content;
    const int32_t id = added.add(std::move(token), model->vocab());
    if (id != Vocab::kNone && id != expected) {
      log_warn("{}: the token \"{}\" should have the id {}, but its place in the vocabulary gives it {}", entry.place(),
               content, expected, id);
    }
  }
}

void Tokenizer::Impl::load_names(const Component& config) {
  const auto read = [&](std::string_view key, std::string& name) {
    if (std::string found = read_token_name(config, key); !found.empty()) name = std::move(found);
  };
  read("bos_token", bos_token);
  read("eos_token", eos_token);
  read("unk_token", unk_token);
  read("pad_token", pad_token);
}

void Tokenizer::Impl::load_config(const Component& config) {
  load_names(config);
  for (auto& [id, token] : read_added_decoder(config)) added.add(std::move(token), model->vocab());
  for (const std::string* name : {&bos_token, &eos_token, &unk_token, &pad_token}) {
    if (name->empty() || added.id_of(*name) != Vocab::kNone) continue;
    AddedToken token;
    token.content = *name;
    token.special = true;
    token.normalized = false;
    added.add(std::move(token), model->vocab());
  }
  apply_bos_eos(config, false);
  // In a byte-pair vocabulary spaces before punctuation are text, and Hugging Face leaves them alone too.
  if (config.boolean("clean_up_tokenization_spaces", false) && model->kind() != "BPE") decoder.add_cleanup();
}

// The tokens of a format that says their ids itself. What tokenizer_config.json says of one counts first.
void Tokenizer::Impl::load_foreign_added(std::vector<std::pair<int32_t, AddedToken>> tokens, const Json* config) {
  if (config != nullptr) {
    const Component place(*config, source + ": tokenizer_config.json");
    for (auto& [id, token] : read_added_decoder(place)) {
      token.normalized = false;  // the formats' normalizers are for texts
      const std::string content = token.content;
      const bool may_rename = id == hidden_special;
      if (!added.add_at(static_cast<int32_t>(id), std::move(token), model->vocab(), may_rename))
        log_warn("{}: added_tokens_decoder gives \"{}\" the id {}, which is another token's; it is left out",
                 place.place(), content, id);
    }
  }
  for (auto& [id, token] : tokens) {
    if (added.id_of(token.content) == Vocab::kNone) added.add_at(id, std::move(token), model->vocab());
  }
  for (const std::string* name : {&bos_token, &eos_token, &unk_token, &pad_token}) {
    const int32_t id = added.id_of(*name) == Vocab::kNone ? model->vocab().find(*name) : Vocab::kNone;
    if (name->empty() || id == Vocab::kNone || id == hidden_special) continue;
    AddedToken token;
    token.content = *name;
    token.special = true;
    token.normalized = false;
    added.add_at(id, std::move(token), model->vocab());
  }
}

// `by_default`: also where the file does not say what is to be added.
void Tokenizer::Impl::apply_bos_eos(const Component& config, bool by_default) {
  if (!by_default && !config.has("add_bos_token") && !config.has("add_eos_token")) return;
  std::string_view name;
  if (config.has("tokenizer_class")) name = config.text("tokenizer_class");
  if (name.ends_with("Fast")) name.remove_suffix(4);
  if (std::find(std::begin(kBosEosClasses), std::end(kBosEosClasses), name) == std::end(kBosEosClasses)) return;
  const auto ids_of = [&](std::string_view key, bool fallback, const std::string& token, std::string_view token_key) {
    std::vector<int32_t> ids;
    if (!config.boolean(key, fallback)) return ids;
    const int32_t id = added.id_of(token);
    if (id == Vocab::kNone) config.refuse(fmt::format("\"{}\" is true, but no \"{}\" is given", key, token_key));
    ids.push_back(id);
    return ids;
  };
  post_processor.set_bos_eos(ids_of("add_bos_token", true, bos_token, "bos_token"),
                             ids_of("add_eos_token", false, eos_token, "eos_token"));
}

void Tokenizer::Impl::index_tokens() {
  const Vocab& vocab = model->vocab();
  int32_t end = vocab.end_id();
  for (const auto& [id, token] : added.by_id()) end = std::max(end, id + 1);
  tokens.resize(static_cast<size_t>(end));
  for (int32_t id = 0; id < vocab.end_id(); ++id) {
    if (!vocab.contains(id)) continue;
    const bool special = added.is_special(std::string(vocab.token(id)));
    tokens[static_cast<size_t>(id)] = {vocab.token(id), true, special, special};
  }
  for (const auto& [id, token] : added.by_id()) {
    const std::string& text = added.decoded_text(id);
    tokens[static_cast<size_t>(id)] = {text, true, added.is_special(token.content), added.is_special(text)};
  }
  if (hidden_special >= 0) {
    TokenInfo& token = tokens[static_cast<size_t>(hidden_special)];
    token.special = token.skipped = true;
  }
  vocab_size = std::count_if(tokens.begin(), tokens.end(), [](const TokenInfo& token) { return token.known; });
}

void Tokenizer::Impl::load(const Json& tokenizer, const Json* config) {
  const Component root(tokenizer, source);
  if (root.has("version") && root.text("version") != "1.0") {
    root.refuse("\"version\" should be \"1.0\", found \"" + root.text("version") + "\"");
  }
  model = load_model(root.child("model"));
  if (root.has("normalizer")) normalizer = load_normalizer(root.child("normalizer"));
  load_components(root);
  load_added(root);
  if (config != nullptr) load_config(Component(*config, source + ": tokenizer_config.json"));
  byte_level = pre_tokenizer != nullptr && pre_tokenizer->ends_in_byte_letters();
  finish();
}

void Tokenizer::Impl::load(ForeignTokenizer parts, const Json* config) {
  model = std::move(parts.model);
  normalizer = std::move(parts.normalizer);
  bos_token = std::move(parts.bos_token);
  eos_token = std::move(parts.eos_token);
  unk_token = std::move(parts.unk_token);
  hidden_special = parts.hidden_special;
  byte_level = parts.byte_level;
  load_components(Component(parts.components, source));
  if (config != nullptr) load_names(Component(*config, source + ": tokenizer_config.json"));
  load_foreign_added(std::move(parts.added), config);
  if (config != nullptr) apply_bos_eos(Component(*config, source + ": tokenizer_config.json"), true);
  finish();
}

void Tokenizer::Impl::load_components(const Component& root) {
  if (root.has("pre_tokenizer")) pre_tokenizer = load_pre_tokenizer(root.child("pre_tokenizer"));
  if (root.has("post_processor")) post_processor.load(root.child("post_processor"));
  if (root.has("decoder")) decoder.load(root.child("decoder"));
}

void Tokenizer::Impl::finish() {
  added.finish(normalizer.get());
  if (pre_tokenizer != nullptr && model->can_encode_bytes()) byte_scanner = pre_tokenizer->byte_level_scanner();
  index_tokens();
}

namespace {

constexpr std::string_view kWorldBegin = "rwkv_vocab_v";

// Files that are no tokenizer.json, by their names and, where two kinds share one, by what they hold.
ForeignTokenizer read_foreign(std::string_view bytes, const Json* config, const std::string& source) {
  const std::string name = source.substr(source.find_last_of('/') + 1);
  if (name.starts_with(kWorldBegin)) return read_world_vocabulary(bytes, source);
  if (looks_like_tiktoken(bytes)) return read_tiktoken(bytes, config, source);
  return read_sentencepiece(bytes, config, source);
}

bool is_foreign(const std::string& path) { return path.ends_with(".model") || path.ends_with(".txt"); }

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::load(const std::string& path) {
  const bool is_file = path.ends_with(".json") || is_foreign(path);
  const std::string folder = is_file ? path.substr(0, path.find_last_of('/') + 1) : path + "/";
  const std::string file = is_file ? path : folder + "tokenizer.json";
  if (!file_exists(file)) {
    throw make_error(
        ErrorCode::kNotFound,
        "{} is not there; a tokenizer is read from a tokenizer.json or from the folder that holds one, from "
        "a rwkv_vocab_v*.txt, a tokenizer.model or a tiktoken.model",
        file);
  }
  const std::string config_file = folder + "tokenizer_config.json";
  const std::string config = file_exists(config_file) ? read_text_file(config_file, kMaxFileBytes) : std::string();
  const std::string text = read_text_file(file, kMaxFileBytes);
  return is_foreign(file) ? from_file_bytes(text, config, file) : from_json(text, config, file);
}

std::unique_ptr<Tokenizer> Tokenizer::from_file_bytes(std::string_view bytes, std::string_view config_json,
                                                      const std::string& source) {
  const Json config = config_json.empty() ? Json() : read_config(config_json, source);
  const Json* read = config_json.empty() ? nullptr : &config;
  auto impl = std::make_unique<Impl>();
  impl->source = source;
  impl->load(read_foreign(bytes, read, source), read);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

std::unique_ptr<Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json, std::string_view config_json,
                                                const std::string& source) {
  const Json tokenizer = value_or_throw(parse_json(tokenizer_json, source));
  const Json config = config_json.empty() ? Json() : read_config(config_json, source);
  auto impl = std::make_unique<Impl>();
  impl->source = source;
  impl->load(tokenizer, config_json.empty() ? nullptr : &config);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

}  // namespace coluber
