// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/vocabulary_export.h"

#include <algorithm>
#include <bit>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/tokenizer/foreign_formats.h"
#include "text/tokenizer/pattern.h"
#include "text/tokenizer/tokenizer.h"

namespace coluber {
namespace {

using Type = StoredTokenType;

constexpr std::string_view kMetaspace = "\xE2\x96\x81";
// Letters of several alphabets, numbers, signs, white space, line ends, contractions, what is composed and what is not.
constexpr std::string_view kProbe =
    "Hello world, it's 3 33 333 3333 o'clock; I'LL go!\n\n\tdef f(x):\r\n    return x**2  # \xC3\xA9t\xC3\xA9 "
    "\xD0\xBF\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82 \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\xA6\x99\xF0\x9F\x9A\x80 "
    "a\xCC\x88 "
    "\xE3\x81\x93\xE3\x82\x93 3.14 -5% $x_1 <tag> \"quoted\"...   end ";

int64_t number(Type type) { return static_cast<int64_t>(type); }

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw make_error(ErrorCode::kUnsupported, "{}: {}", path, why);
}

bool is_type(const Json* component, std::string_view type) {
  const Json* found = component == nullptr ? nullptr : component->find("type");
  return found != nullptr && found->is_string() && found->as_string() == type;
}

// The component, or the members of a sequence.
std::vector<const Json*> stages_of(const Json* component, std::string_view list) {
  if (component == nullptr || component->is_null()) return {};
  const Json* members = is_type(component, "Sequence") ? component->find(list) : nullptr;
  if (members == nullptr || !members->is_array()) return {component};
  std::vector<const Json*> stages;
  for (const Json& member : members->as_array()) stages.push_back(&member);
  return stages;
}

bool flag_of(const Json& component, std::string_view key, bool fallback) {
  const Json* found = component.find(key);
  return found != nullptr && found->is_bool() ? found->as_bool() : fallback;
}

// The expressions that a byte-level tokenizer cuts texts with.
std::vector<std::string> patterns_of(const Json* pre_tokenizer, const std::string& path) {
  std::vector<std::string> patterns;
  for (const Json* stage : stages_of(pre_tokenizer, "pretokenizers")) {
    if (is_type(stage, "ByteLevel")) {
      if (flag_of(*stage, "add_prefix_space", true)) refuse(path, "it puts a space before a text");
      if (flag_of(*stage, "use_regex", true)) patterns.emplace_back(kGpt2Pattern);
    } else if (is_type(stage, "Split")) {
      const Json* pattern = stage->find("pattern");
      const Json* regex = pattern == nullptr ? nullptr : pattern->find("Regex");
      const bool isolates = flag_of(*stage, "invert", false)
                                ? stage->find("behavior") != nullptr && *stage->find("behavior") == Json("Removed")
                                : stage->find("behavior") != nullptr && *stage->find("behavior") == Json("Isolated");
      if (regex == nullptr || !regex->is_string() || !isolates) refuse(path, "it cuts texts in a way that has no name");
      patterns.push_back(regex->as_string());
    } else if (is_type(stage, "Punctuation")) {
      patterns.emplace_back(R"([\p{P}\$\+<=>\^~\|`]+)");
    } else if (is_type(stage, "Digits")) {
      // Runs of digits are cut out by the expressions beside it.
      if (flag_of(*stage, "individual_digits", false)) patterns.emplace_back(R"(\p{N})");
    } else {
      refuse(path, "it cuts texts in a way that has no name");
    }
  }
  return patterns;
}

bool looks_special(std::string_view token) {
  return token == "<pad>" || token == "<mask>" || token == "<2mass>" || token == "[@BOS@]" ||
         (token.starts_with("<|") && token.ends_with("|>")) ||
         (token.starts_with("<\xEF\xBD\x9C") && token.ends_with("\xEF\xBD\x9C>")) ||
         (token.starts_with("<unused") && token.ends_with(">"));
}

class Lists {
 public:
  Lists(int64_t size, const std::string& path) : path_(path) {
    out_.tokens.resize(static_cast<size_t>(size));
    out_.types.assign(static_cast<size_t>(size), number(Type::kUnused));
    for (int64_t i = 0; i < size; ++i) out_.tokens[static_cast<size_t>(i)] = fmt::format("[PAD{}]", i);
  }
  void set(int64_t id, std::string token, Type type) {
    if (id < 0 || id >= static_cast<int64_t>(out_.tokens.size()))
      throw make_error(ErrorCode::kInvalidData, "{}: token {} is beyond the model's {} tokens", path_, id,
                       out_.tokens.size());
    out_.tokens[static_cast<size_t>(id)] = std::move(token);
    out_.types[static_cast<size_t>(id)] = number(type);
  }
  ExportedVocabulary& out() noexcept { return out_; }

 private:
  const std::string& path_;
  ExportedVocabulary out_;
};

std::vector<std::string> merges_of(const Json& model, const std::string& path) {
  std::vector<std::string> merges;
  const Json* list = model.find("merges");
  if (list == nullptr || !list->is_array()) refuse(path, "it has no merges");
  for (const Json& merge : list->as_array()) {
    if (merge.is_string()) {
      merges.push_back(merge.as_string());
    } else if (merge.is_array() && merge.as_array().size() == 2) {
      merges.push_back(merge.as_array()[0].as_string() + " " + merge.as_array()[1].as_string());
    } else {
      refuse(path, "one of its merges is no pair");
    }
  }
  return merges;
}

// A piece's score is the better the earlier a merge makes it.
std::vector<double> scores_of(const ExportedVocabulary& lists) {
  std::map<std::string, double, std::less<>> by_piece;
  for (size_t i = 0; i < lists.merges.size(); ++i) {
    std::string joined = lists.merges[i];
    joined.erase(joined.find(' '), 1);
    by_piece.emplace(std::move(joined), -static_cast<double>(i));
  }
  std::vector<double> scores;
  for (const std::string& token : lists.tokens) {
    const auto found = by_piece.find(token);
    scores.push_back(found == by_piece.end() ? -static_cast<double>(lists.merges.size()) : found->second);
  }
  return scores;
}

void put_tokens(const Json& root, const Json& model, bool byte_level, Lists& lists) {
  const std::string unknown = [&] {
    const Json* found = model.find("unk_token");
    return found != nullptr && found->is_string() ? found->as_string() : std::string();
  }();
  for (const auto& [token, id] : model.at("vocab").as_object()) {
    const bool is_byte = !byte_level && token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
    lists.set(id.as_int(), token, is_byte ? Type::kByte : token == unknown ? Type::kUnknown : Type::kNormal);
  }
  const Json* added = root.find("added_tokens");
  if (added == nullptr || !added->is_array()) return;
  for (const Json& token : added->as_array()) {
    const std::string& content = token.at("content").as_string();
    if (!byte_level && content == unknown) continue;
    const bool special = flag_of(token, "special", false) || looks_special(content);
    lists.set(token.at("id").as_int(), content, special ? Type::kControl : Type::kUserDefined);
  }
}

bool composes(const Json* normalizer, const std::string& path) {
  const std::vector<const Json*> stages = stages_of(normalizer, "normalizers");
  if (stages.empty()) return false;
  if (stages.size() == 1 && is_type(stages[0], "NFC")) return true;
  refuse(path, "it changes texts before they are cut, which has no name");
}

// Whether a space stands before a text: a normalizer or a pre-tokenizer puts it there.
bool puts_space(const Json& root) {
  for (const Json* stage : stages_of(root.find("normalizer"), "normalizers"))
    if (is_type(stage, "Prepend")) return true;
  for (const Json* stage : stages_of(root.find("pre_tokenizer"), "pretokenizers")) {
    if (!is_type(stage, "Metaspace")) continue;
    const Json* scheme = stage->find("prepend_scheme");
    return scheme != nullptr && scheme->is_string() ? scheme->as_string() != "never"
                                                    : flag_of(*stage, "add_prefix_space", true);
  }
  return false;
}

ExportedVocabulary export_json(const std::string& path, int64_t vocab_size) {
  const Json root = read_json_file(path);
  const Json& model = root.at("model");
  if (!is_type(&model, "BPE")) refuse(path, "of the models of a tokenizer.json only BPE can be written");
  const bool byte_level = !flag_of(model, "byte_fallback", false);
  Lists lists(vocab_size, path);
  put_tokens(root, model, byte_level, lists);
  ExportedVocabulary& out = lists.out();
  out.merges = merges_of(model, path);
  if (!byte_level) {
    out.model = "llama";
    out.split = "default";
    out.scores = scores_of(out);
    out.merges.clear();
    out.add_space_prefix = puts_space(root);
    return std::move(out);
  }
  out.model = "gpt2";
  const std::vector<std::string> patterns = patterns_of(root.find("pre_tokenizer"), path);
  out.split =
      find_split_name(patterns, composes(root.find("normalizer"), path), flag_of(model, "ignore_merges", false));
  if (out.split.empty()) refuse(path, "its expressions that cut texts have no name in GGUF");
  return std::move(out);
}

// As Python writes bytes, without the quotes.
std::string escaped(std::string_view bytes) {
  constexpr std::string_view kHex = "0123456789abcdef";
  const bool double_quoted = bytes.find('\'') != std::string_view::npos && bytes.find('"') == std::string_view::npos;
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\\' || (c == '\'' && !double_quoted)) {
      out += '\\';
      out += c;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (byte < 0x20 || byte >= 0x7F) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 0xf];
    } else {
      out += c;
    }
  }
  return out;
}

ExportedVocabulary export_world(const Tokenizer& tokenizer, const std::string& path, int64_t vocab_size) {
  Lists lists(vocab_size, path);
  lists.set(0, "<s>", Type::kControl);
  for (int32_t id = 1; id <= tokenizer.max_id(); ++id)
    if (tokenizer.contains(id)) lists.set(id, escaped(tokenizer.token_bytes(id)), Type::kNormal);
  lists.out().model = "rwkv";
  lists.out().bos_id = lists.out().eos_id = 0;
  return std::move(lists.out());
}

ExportedVocabulary export_pieces(const std::string& path, int64_t vocab_size) {
  const SentencePieces pieces = read_sentencepieces(read_text_file(path), path);
  if (!pieces.is_bpe) refuse(path, "of the kinds of SentencePiece only BPE can be written");
  Lists lists(vocab_size, path);
  ExportedVocabulary& out = lists.out();
  out.scores.assign(static_cast<size_t>(vocab_size), -10000.0);
  for (size_t id = 0; id < pieces.texts.size(); ++id) {
    lists.set(static_cast<int64_t>(id), pieces.texts[id], static_cast<Type>(pieces.types[id]));
    out.scores[id] = pieces.scores[id];
  }
  out.model = "llama";
  out.split = "default";
  out.add_space_prefix = pieces.add_dummy_prefix;
  out.remove_extra_spaces = pieces.remove_extra_spaces;
  return std::move(out);
}

void put_special_tokens(const Tokenizer& tokenizer, ExportedVocabulary& out) {
  const auto put = [&](const std::string& token, std::optional<int64_t>& id) {
    if (const auto found = token.empty() ? std::nullopt : tokenizer.token_to_id(token); found && !id) id = *found;
  };
  put(tokenizer.bos_token(), out.bos_id);
  put(tokenizer.eos_token(), out.eos_id);
  put(tokenizer.unk_token(), out.unk_id);
  put(tokenizer.pad_token(), out.pad_id);
  const std::vector<int32_t> ids = value_or_throw(tokenizer.encode("a", true));
  const std::vector<int32_t> bare = value_or_throw(tokenizer.encode("a", false));
  const bool adds = ids.size() > bare.size();
  if (adds && !out.bos_id && ids.front() != bare.front()) out.bos_id = ids.front();
  out.add_bos = adds && out.bos_id && ids.front() == *out.bos_id;
  out.add_eos = adds && out.eos_id && ids.back() == *out.eos_id;
}

// The same ids for the same text, or the lists do not say what the tokenizer does.
void check_same(const Tokenizer& one, const Tokenizer& other, const std::string& path) {
  for (const bool special : {false, true}) {
    const auto expected = one.encode(kProbe, special), found = other.encode(kProbe, special);
    if (expected && found && *expected == *found) continue;
    refuse(path, special ? "it puts tokens around a text that the other format cannot name"
                         : "said in the other format it would cut texts in another way");
  }
}

// The lists as views, which live as long as this.
struct StoredView {
  explicit StoredView(const ExportedVocabulary& v)
      : tokens(v.tokens.begin(), v.tokens.end()), merges(v.merges.begin(), v.merges.end()) {
    stored.model = v.model;
    stored.split = v.split;
    stored.tokens = tokens;
    stored.merges = merges;
    stored.scores = v.scores;
    stored.types = v.types;
    stored.bos_id = v.bos_id;
    stored.eos_id = v.eos_id;
    stored.unk_id = v.unk_id;
    stored.pad_id = v.pad_id;
    stored.add_bos = v.add_bos;
    stored.add_eos = v.add_eos;
    stored.add_space_prefix = v.add_space_prefix.value_or(true);
    stored.remove_extra_spaces = v.remove_extra_spaces.value_or(false);
  }
  std::vector<std::string_view> tokens, merges;
  StoredVocabulary stored;
};

// --- back into files

// A SentencePiece model, as its protocol buffer.
class Protobuf {
 public:
  void text(int field, std::string_view value) {
    tag(field, 2);
    varint(value.size());
    bytes_ += value;
  }
  void integer(int field, uint64_t value) {
    tag(field, 0);
    varint(value);
  }
  void real(int field, float value) {
    tag(field, 5);
    const auto bits = std::bit_cast<uint32_t>(value);
    bytes_.append(reinterpret_cast<const char*>(&bits), sizeof bits);
  }
  const std::string& bytes() const noexcept { return bytes_; }

 private:
  void tag(int field, int kind) { varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(kind)); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

std::string sentencepiece_model(const StoredVocabulary& v) {
  Protobuf model, trainer, normalizer;
  bool bytes = false;
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    Protobuf piece;
    piece.text(1, v.tokens[i]);
    piece.real(2, static_cast<float>(v.scores[i]));
    piece.integer(3, static_cast<uint64_t>(v.type_of(i)));
    model.text(1, piece.bytes());
    bytes = bytes || v.type_of(i) == Type::kByte;
  }
  trainer.integer(3, 2);  // BPE
  trainer.integer(35, bytes ? 1 : 0);
  const auto put_piece = [&](int field, const std::optional<int64_t>& id) {
    if (id) trainer.text(field, v.tokens[static_cast<size_t>(*id)]);
  };
  put_piece(45, v.unk_id);
  put_piece(46, v.bos_id);
  put_piece(47, v.eos_id);
  model.text(2, trainer.bytes());
  normalizer.text(1, "identity");
  normalizer.integer(3, v.add_space_prefix ? 1 : 0);
  normalizer.integer(4, v.remove_extra_spaces ? 1 : 0);
  normalizer.integer(5, 1);
  model.text(3, normalizer.bytes());
  return model.bytes();
}

std::string world_vocabulary(const StoredVocabulary& v, const Tokenizer& tokenizer) {
  std::string out;
  for (size_t id = 1; id < v.tokens.size(); ++id) {
    if (v.type_of(id) != Type::kNormal) continue;
    const std::string bytes = tokenizer.token_bytes(static_cast<int32_t>(id));
    const std::string text = escaped(bytes);
    const bool double_quoted = bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos;
    const char quote = double_quoted ? '"' : '\'';
    out += fmt::format("{} b{}{}{} {}\n", id, quote, text, quote, bytes.size());
  }
  return out;
}

// Tokens before and behind a text, as a tokenizer.json says it.
Json post_processor_of(const StoredVocabulary& v, bool bos, bool eos) {
  Json::Array single;
  Json special{Json::Object{}};
  const auto add = [&](int64_t id) {
    const Json token(v.tokens[static_cast<size_t>(id)]);
    single.emplace_back(Json::Object{{"SpecialToken", Json(Json::Object{{"id", token}, {"type_id", Json(0)}})}});
    special.set(
        token.as_string(),
        Json(Json::Object{{"id", token}, {"ids", Json(Json::Array{Json(id)})}, {"tokens", Json(Json::Array{token})}}));
  };
  if (bos) add(*v.bos_id);
  single.emplace_back(Json::Object{{"Sequence", Json(Json::Object{{"id", Json("A")}, {"type_id", Json(0)}})}});
  if (eos) add(*v.eos_id);
  Json pair(single);
  for (Json piece : single) {
    if (const Json* sequence = piece.find("Sequence"); sequence != nullptr)
      piece.set("Sequence", Json(Json::Object{{"id", Json("B")}, {"type_id", Json(1)}}));
    else
      continue;
    pair.push_back(std::move(piece));
  }
  return Json(Json::Object{{"type", Json("TemplateProcessing")},
                           {"single", Json(std::move(single))},
                           {"pair", std::move(pair)},
                           {"special_tokens", std::move(special)}});
}

Json config_of(const StoredVocabulary& v) {
  Json config{Json::Object{}};
  const auto put = [&](const char* name, const std::optional<int64_t>& id) {
    if (id && v.type_of(static_cast<size_t>(*id)) != Type::kUnused)
      config.set(name, Json(v.tokens[static_cast<size_t>(*id)]));
  };
  put("bos_token", v.bos_id);
  put("eos_token", v.eos_id);
  put("unk_token", v.unk_id);
  put("pad_token", v.pad_id);
  return config;
}

}  // namespace

ExportedVocabulary export_vocabulary(const std::string& path, int64_t vocab_size) {
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::load(path);
  const std::string name = path.substr(path.find_last_of('/') + 1);
  ExportedVocabulary out;
  if (name.ends_with(".json")) {
    out = export_json(path, vocab_size);
  } else if (name.starts_with("rwkv_vocab_v")) {
    out = export_world(*tokenizer, path, vocab_size);
  } else if (name == "tokenizer.model") {
    out = export_pieces(path, vocab_size);
  } else {
    refuse(path, "a tokenizer of this kind cannot be written to GGUF");
  }
  put_special_tokens(*tokenizer, out);
  const StoredView view(out);
  check_same(*tokenizer, *Tokenizer::from_vocabulary(view.stored, path), path);
  return out;
}

TokenizerFiles tokenizer_files(const StoredVocabulary& v, const std::string& source) {
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::from_vocabulary(v, source);
  TokenizerFiles out;
  out.config = config_of(v);
  const std::vector<int32_t> ids = value_or_throw(tokenizer->encode("a", true));
  const bool bos = v.bos_id && !ids.empty() && ids.front() == *v.bos_id;
  const bool eos = v.eos_id && !ids.empty() && ids.back() == *v.eos_id;
  if (v.model == "gpt2") {
    Json json = tokenizer_json_of(v, source);
    if (bos || eos) json.set("post_processor", post_processor_of(v, bos, eos));
    out.name = "tokenizer.json";
    out.content = json.dump() + "\n";
    out.config.set("tokenizer_class", "PreTrainedTokenizerFast");
  } else if (v.model == "llama") {
    out.name = "tokenizer.model";
    out.content = sentencepiece_model(v);
    out.config.set("tokenizer_class", "LlamaTokenizer");
    out.config.set("add_bos_token", bos);
    out.config.set("add_eos_token", eos);
  } else if (v.model == "rwkv") {
    out.name = "rwkv_vocab_v20230424.txt";
    out.content = world_vocabulary(v, *tokenizer);
  } else {
    refuse(source, fmt::format("a tokenizer of the kind '{}' has no file of its own", v.model));
  }
  const std::string config = out.config.dump();
  const auto again = out.name == "tokenizer.json" ? Tokenizer::from_json(out.content, config, out.name)
                                                  : Tokenizer::from_file_bytes(out.content, config, out.name);
  check_same(*tokenizer, *again, source);
  return out;
}

}  // namespace coluber
