// SPDX-License-Identifier: Apache-2.0
//
// Byte-level BPE of a stored vocabulary as the tokenizer.json that says the same, and the checks of both kinds.
#include "text/tokenizer/stored_vocabulary.h"

#include <algorithm>

#include "base/printable.h"
#include "text/tokenizer/tokenizer_impl.h"
#include "text/tokenizer/unicode.h"
#include "text/tokenizer/vocabulary_splits.h"

namespace coluber {
namespace {

using Split = VocabularySplit;

const Split& split_of(const StoredVocabulary& vocabulary, const std::string& source) {
  if (const Split* split = find_vocabulary_split(vocabulary.split)) return *split;
  throw make_error(ErrorCode::kUnsupported,
                   "{}: how its tokenizer cuts texts (tokenizer.ggml.pre) is '{}', which is not known (known: {}); put "
                   "the model's tokenizer.json beside the file",
                   source, printable(sanitize_utf8(vocabulary.split.substr(0, 80))), known_split_names());
}

void check(const StoredVocabulary& v, const std::string& source) {
  const auto refuse = [&](const std::string& why) {
    throw make_error(ErrorCode::kInvalidData, "{}: its tokenizer: {}", source, why);
  };
  if (v.tokens.empty()) refuse("it has no tokens");
  if (v.tokens.size() > static_cast<size_t>(INT32_MAX) / 2) refuse("it has too many tokens");
  const auto check_size = [&](std::string_view what, size_t size) {
    if (size != v.tokens.size())
      refuse(fmt::format("expected {} for each of {} tokens, found {}", what, v.tokens.size(), size));
  };
  if (!v.types.empty()) check_size("a type", v.types.size());
  if (v.model == "llama" || v.model == "t5") check_size("a score", v.scores.size());
  for (const int64_t byte : v.charsmap)
    if (byte < -128 || byte > 255) refuse(fmt::format("its table of characters holds {}, which is no byte", byte));
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    if (v.type_of(i) < StoredTokenType::kUndefined || v.type_of(i) > StoredTokenType::kByte)
      refuse(fmt::format("token {}: the type {} is not known (0 to 6 are)", i, v.types[i]));
    if (valid_utf8_prefix(v.tokens[i]) != v.tokens[i].size()) refuse(fmt::format("token {} is not UTF-8", i));
  }
  const auto check_id = [&](std::string_view name, const std::optional<int64_t>& id) {
    if (id && (*id < 0 || *id >= static_cast<int64_t>(v.tokens.size())))
      refuse(fmt::format("the {} token has the id {}, expected 0 to {}", name, *id, v.tokens.size() - 1));
  };
  check_id("bos", v.bos_id);
  check_id("eos", v.eos_id);
  check_id("unk", v.unk_id);
  check_id("pad", v.pad_id);
  if (v.add_bos.value_or(false) && !v.bos_id) refuse("it adds a bos token and names none");
  if (v.add_eos.value_or(false) && !v.eos_id) refuse("it adds an eos token and names none");
}

Json typed(std::string_view type) { return Json(Json::Object{{"type", Json(type)}}); }

Json pre_tokenizer_of(const Split& split) {
  Json::Array stages;
  for (const std::string_view pattern : split.patterns) {
    Json stage = typed("Split");
    stage.set("pattern", Json(Json::Object{{"Regex", Json(pattern)}}));
    stage.set("behavior", Json("Isolated"));
    stages.push_back(std::move(stage));
  }
  Json letters = typed("ByteLevel");
  letters.set("add_prefix_space", Json(false));
  letters.set("use_regex", Json(false));
  stages.push_back(std::move(letters));
  Json sequence = typed("Sequence");
  sequence.set("pretokenizers", Json(std::move(stages)));
  return sequence;
}

Json byte_level_json(const StoredVocabulary& v, const Split& split) {
  Json::Object vocab;
  Json::Array merges, added;
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    const StoredTokenType type = v.type_of(i);
    if (type == StoredTokenType::kUnused) continue;  // fills the table up to the model's size
    vocab.emplace_back(std::string(v.tokens[i]), Json(static_cast<int64_t>(i)));
    if (type != StoredTokenType::kControl && type != StoredTokenType::kUserDefined) continue;
    Json token{Json::Object{{"id", Json(static_cast<int64_t>(i))}, {"content", Json(v.tokens[i])}}};
    token.set("special", Json(type == StoredTokenType::kControl));
    token.set("normalized", Json(false));
    added.push_back(std::move(token));
  }
  for (const std::string_view merge : v.merges) merges.emplace_back(merge);
  Json model = typed("BPE");
  model.set("ignore_merges", Json(split.ignore_merges));
  model.set("vocab", Json(std::move(vocab)));
  model.set("merges", Json(std::move(merges)));
  Json tokenizer{Json::Object{}};
  tokenizer.set("added_tokens", Json(std::move(added)));
  if (split.composes) tokenizer.set("normalizer", typed("NFC"));
  tokenizer.set("pre_tokenizer", pre_tokenizer_of(split));
  tokenizer.set("decoder", typed("ByteLevel"));
  tokenizer.set("model", std::move(model));
  return tokenizer;
}

// The names of special tokens, as a tokenizer_config.json has them.
Json names_of(const StoredVocabulary& v) {
  Json names{Json::Object{}};
  const auto add = [&](const char* name, const std::optional<int64_t>& id) {
    if (id && v.type_of(static_cast<size_t>(*id)) != StoredTokenType::kUnused)
      names.set(name, Json(v.tokens[static_cast<size_t>(*id)]));
  };
  add("bos_token", v.bos_id);
  add("eos_token", v.eos_id);
  add("unk_token", v.unk_id);
  add("pad_token", v.pad_id);
  return names;
}

}  // namespace

std::string_view find_split_name(std::span<const std::string> patterns, bool composes, bool ignore_merges) {
  std::string_view name;
  for (const Split& split : vocabulary_splits()) {
    if (!std::equal(split.patterns.begin(), split.patterns.end(), patterns.begin(), patterns.end())) continue;
    if (split.composes == composes && split.ignore_merges == ignore_merges) return split.names.front();
    if (name.empty()) name = split.names.front();
  }
  return name;
}

Json tokenizer_json_of(const StoredVocabulary& vocabulary, const std::string& source) {
  check(vocabulary, source);
  return byte_level_json(vocabulary, split_of(vocabulary, source));
}

std::unique_ptr<Tokenizer> Tokenizer::from_vocabulary(const StoredVocabulary& vocabulary, const std::string& source) {
  const bool is_byte_level = vocabulary.model == "gpt2", is_world = vocabulary.model == "rwkv";
  if (!is_byte_level && !is_world && vocabulary.model != "llama" && vocabulary.model != "t5")
    throw make_error(ErrorCode::kUnsupported,
                     "{}: its tokenizer (tokenizer.ggml.model) is '{}'; gpt2, llama, rwkv and t5 are read. Put the "
                     "model's tokenizer.json beside the file",
                     source, sanitize_utf8(vocabulary.model.substr(0, 80)));
  check(vocabulary, source);
  auto impl = std::make_unique<Impl>();
  impl->source = source;
  const Json names = names_of(vocabulary);
  bool add_bos = vocabulary.model == "llama";
  const bool add_eos = vocabulary.model == "t5";
  if (is_byte_level) {
    const Split& split = split_of(vocabulary, source);
    add_bos = split.add_bos;
    impl->load(byte_level_json(vocabulary, split), &names);
  } else if (is_world) {
    impl->load(read_world_vocabulary(vocabulary, source), nullptr);
    return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
  } else {
    impl->load(read_sentencepiece(vocabulary, source), &names);
  }
  const auto ids = [](bool adds, const std::optional<int64_t>& id) {
    return adds && id ? std::vector<int32_t>{static_cast<int32_t>(*id)} : std::vector<int32_t>();
  };
  impl->post_processor.set_bos_eos(ids(vocabulary.add_bos.value_or(add_bos), vocabulary.bos_id),
                                   ids(vocabulary.add_eos.value_or(add_eos), vocabulary.eos_id));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

}  // namespace coluber
