// SPDX-License-Identifier: Apache-2.0
//
// The few fields of SentencePiece's model (a protocol buffer: sentencepiece_model.proto) that encoding and decoding
// need.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "text/tokenizer/byte_trie.h"
#include "text/tokenizer/charsmap.h"
#include "text/tokenizer/foreign_formats.h"
#include "text/tokenizer/unicode.h"

namespace coluber {
namespace {

constexpr std::string_view kMetaspace = "\xE2\x96\x81";
constexpr float kUnknownPenalty = 10;
constexpr int64_t kAllSpaces = 1 << 20;
constexpr size_t kMostPieces = size_t{1} << 22;
constexpr size_t kMostPieceBytes = 512;  // of those that are joined: ways to cut them are tried one by one

enum class PieceType : uint64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
enum class ModelType : uint64_t { kUnigram = 1, kBpe, kWord, kChar };

struct SpmPiece {
  std::string_view text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

struct Spec {
  std::vector<SpmPiece> pieces;
  ModelType type = ModelType::kUnigram;
  bool byte_fallback = false;
  bool whitespace_is_suffix = false;
  std::string_view unk_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>";
  std::string_view charsmap;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// The fields of one message of a protocol buffer.
class Message {
 public:
  struct Field {
    uint64_t number = 0;
    uint64_t value = 0;      // a varint, or the bits of a fixed-size number
    std::string_view bytes;  // of a text or a nested message
  };

  Message(std::string_view bytes, const std::string& source) : rest_(bytes), source_(source) {}

  bool next(Field* field) {
    if (rest_.empty()) return false;
    const uint64_t tag = varint();
    *field = {tag >> 3, 0, {}};
    switch (tag & 7) {
      case 0:
        field->value = varint();
        return true;
      case 1:
        std::memcpy(&field->value, take(8).data(), 8);
        return true;
      case 2:
        field->bytes = take(varint());
        return true;
      case 5:
        std::memcpy(&field->value, take(4).data(), 4);
        return true;
      default:
        throw damaged();
    }
  }

 private:
  Error damaged() const {
    return make_error(
        ErrorCode::kInvalidData,
        "{}: expected a tokenizer.model of SentencePiece (a protocol buffer) and found something else, or "
        "half of one (a download that broke off?)",
        source_);
  }
  std::string_view take(uint64_t count) {
    if (count > rest_.size()) throw damaged();
    const std::string_view taken = rest_.substr(0, static_cast<size_t>(count));
    rest_.remove_prefix(static_cast<size_t>(count));
    return taken;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    throw damaged();
  }

  std::string_view rest_;
  const std::string& source_;
};

SpmPiece read_piece(std::string_view bytes, const std::string& source) {
  SpmPiece piece;
  Message message(bytes, source);
  for (Message::Field field; message.next(&field);) {
    if (field.number == 1) piece.text = field.bytes;
    if (field.number == 2) piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    if (field.number == 3) piece.type = static_cast<PieceType>(field.value);
  }
  return piece;
}

void read_trainer(std::string_view bytes, const std::string& source, Spec& spec) {
  Message message(bytes, source);
  for (Message::Field field; message.next(&field);) {
    if (field.number == 3) spec.type = static_cast<ModelType>(field.value);
    if (field.number == 24) spec.whitespace_is_suffix = field.value != 0;
    if (field.number == 35) spec.byte_fallback = field.value != 0;
    if (field.number == 45) spec.unk_piece = field.bytes;
    if (field.number == 46) spec.bos_piece = field.bytes;
    if (field.number == 47) spec.eos_piece = field.bytes;
  }
}

void read_normalizer(std::string_view bytes, const std::string& source, Spec& spec) {
  Message message(bytes, source);
  for (Message::Field field; message.next(&field);) {
    if (field.number == 2) spec.charsmap = field.bytes;
    if (field.number == 3) spec.add_dummy_prefix = field.value != 0;
    if (field.number == 4) spec.remove_extra_whitespaces = field.value != 0;
    if (field.number == 5) spec.escape_whitespaces = field.value != 0;
  }
}

Spec read_spec(std::string_view bytes, const std::string& source) {
  Spec spec;
  Message message(bytes, source);
  for (Message::Field field; message.next(&field);) {
    if (field.number == 1) {
      if (spec.pieces.size() >= kMostPieces)
        throw make_error(ErrorCode::kInvalidData, "{}: more than {} pieces", source, kMostPieces);
      spec.pieces.push_back(read_piece(field.bytes, source));
    }
    if (field.number == 2) read_trainer(field.bytes, source, spec);
    if (field.number == 3) read_normalizer(field.bytes, source, spec);
  }
  return spec;
}

void check_pieces(const Spec& spec, const std::string& source) {
  if (spec.pieces.empty()) throw make_error(ErrorCode::kInvalidData, "{}: it has no pieces", source);
  for (size_t id = 0; id < spec.pieces.size(); ++id) {
    const SpmPiece& piece = spec.pieces[id];
    const auto refuse = [&](const std::string& why) {
      throw make_error(ErrorCode::kInvalidData, "{}: piece {} (\"{}\"): {}", source, id,
                       sanitize_utf8(piece.text.substr(0, 80)), why);
    };
    if (piece.text.empty() || valid_utf8_prefix(piece.text) != piece.text.size()) refuse("expected a text in UTF-8");
    if (std::isnan(piece.score)) refuse("its score is not a number");
    if (piece.type < PieceType::kNormal || piece.type > PieceType::kByte) refuse("its type is not known");
    if (spec.type == ModelType::kBpe && piece.type == PieceType::kNormal && piece.text.size() > kMostPieceBytes)
      refuse(fmt::format("it is longer than {} bytes", kMostPieceBytes));
  }
  if (spec.type == ModelType::kUnigram || spec.type == ModelType::kBpe) return;
  throw make_error(ErrorCode::kUnsupported, "{}: a SentencePiece model of kind {}; known are unigram and bpe", source,
                   spec.type == ModelType::kWord   ? "word"
                   : spec.type == ModelType::kChar ? "char"
                                                   : "that is not named");
}

// As SentencePiece's own normalizer does it: the longest key of its table at every place, runs of spaces into one,
// spaces into ▁, one of which stands before (or behind) the text.
class SentencePieceNormalizer final : public Normalizer {
 public:
  SentencePieceNormalizer(const Spec& spec, std::optional<Charsmap> map, bool prefix_every_part)
      : map_(std::move(map)),
        space_(spec.escape_whitespaces ? kMetaspace : " "),
        mark_(spec.add_dummy_prefix),
        mark_behind_(spec.whitespace_is_suffix),
        mark_every_part_(prefix_every_part),
        squeeze_(spec.remove_extra_whitespaces) {
    std::vector<std::pair<std::string_view, int32_t>> keys;
    for (const SpmPiece& piece : spec.pieces) {
      if (piece.type == PieceType::kUserDefined) keys.emplace_back(piece.text, 0);
    }
    if (keys.empty()) return;
    kept_.emplace();
    kept_->build(std::move(keys));
  }

  Result<void> apply(std::string& text, bool& at_origin) const override {
    if (text.empty()) return {};
    const bool mark = mark_ && (at_origin || mark_every_part_);
    std::string out;
    out.reserve(text.size() + text.size() / 4 + space_.size());
    std::string_view rest = text;
    if (squeeze_) skip_spaces(rest);
    if (!rest.empty()) {
      if (mark && !mark_behind_) out += space_;
      append_all(rest, out);
      if (mark && mark_behind_) out += space_;
    }
    text = std::move(out);
    return {};
  }

 private:
  std::string_view start_of(std::string_view text, size_t* consumed) const {
    size_t kept = 0;
    if (kept_) kept_->prefixes(text, [&](size_t length, int32_t) { kept = length; });
    if (kept > 0) return text.substr(0, *consumed = kept);
    if (map_) return map_->replace_start(text, consumed);
    *consumed = utf8_char_bytes(text[0]);
    return text.substr(0, *consumed);
  }
  void skip_spaces(std::string_view& text) const {
    size_t consumed = 0;
    while (!text.empty() && start_of(text, &consumed) == " ") text.remove_prefix(consumed);
  }
  void append_all(std::string_view rest, std::string& out) const {
    bool after_space = squeeze_;
    while (!rest.empty()) {
      size_t consumed = 0;
      std::string_view part = start_of(rest, &consumed);
      rest.remove_prefix(consumed);
      while (after_space && part.starts_with(' ')) part.remove_prefix(1);
      for (const char c : part) {
        if (c == ' ') {
          out += space_;
        } else {
          out += c;
        }
      }
      if (!part.empty()) after_space = squeeze_ && part.ends_with(' ');
    }
    while (squeeze_ && out.ends_with(space_)) out.resize(out.size() - space_.size());
  }

  std::optional<Charsmap> map_;
  std::optional<ByteTrie> kept_;  // user-defined pieces, which stay as they are
  std::string space_;
  bool mark_, mark_behind_, mark_every_part_, squeeze_;
};

// A user-defined piece counts a little less than as many of the likeliest pieces as it has bytes.
std::unique_ptr<Model> make_unigram_model(const Spec& spec, Vocab vocab, std::optional<int32_t> unk_id) {
  float lowest = std::numeric_limits<float>::max(), highest = std::numeric_limits<float>::lowest();
  for (const SpmPiece& piece : spec.pieces) {
    if (piece.type != PieceType::kNormal) continue;
    lowest = std::min(lowest, piece.score);
    highest = std::max(highest, piece.score);
  }
  UnigramParts parts;
  parts.vocab = std::move(vocab);
  parts.unknown_score = lowest - kUnknownPenalty;
  parts.unk_id = unk_id;
  parts.byte_fallback = spec.byte_fallback;
  for (const SpmPiece& piece : spec.pieces) {
    const bool is_given = piece.type == PieceType::kUserDefined;
    parts.scores.push_back(is_given ? static_cast<double>(static_cast<float>(piece.text.size()) * highest) - 0.1
                                    : static_cast<double>(piece.score));
    parts.is_matched.push_back(is_given || piece.type == PieceType::kNormal);
  }
  return make_unigram(std::move(parts));
}

std::unique_ptr<Model> make_model(const Spec& spec, Vocab vocab, std::optional<int32_t> unk_id) {
  const std::vector<SpmPiece>& pieces = spec.pieces;
  if (spec.type == ModelType::kUnigram) return make_unigram_model(spec, std::move(vocab), unk_id);
  std::vector<int32_t> order(pieces.size());
  std::iota(order.begin(), order.end(), 0);
  const auto score = [&](int32_t id) { return pieces[static_cast<size_t>(id)].score; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return score(a) > score(b); });
  BpeParts parts;
  parts.vocab = std::move(vocab);
  parts.ranks.assign(pieces.size(), BpeParts::kNoMerge);
  parts.unk_id = unk_id;
  parts.byte_fallback = spec.byte_fallback;
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].type == PieceType::kUserDefined) parts.fixed.push_back(static_cast<int32_t>(id));
  }
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && score(order[i]) != score(order[i - 1])) ++rank;  // of equal scores the leftmost pair comes first
    if (pieces[static_cast<size_t>(order[i])].type == PieceType::kNormal)
      parts.ranks[static_cast<size_t>(order[i])] = rank;
  }
  return make_bpe(std::move(parts));
}

Json make_decoder(const Spec& spec) {
  const auto object = [](std::string_view type) { return Json(Json::Object{{"type", Json(type)}}); };
  Json spaces = object("Replace");
  spaces.set("pattern", Json(Json::Object{{"String", Json(kMetaspace)}}));
  spaces.set("content", Json(" "));
  Json stages{Json::Array{std::move(spaces), object("ByteFallback"), object("Fuse")}};
  if (spec.add_dummy_prefix || spec.remove_extra_whitespaces) {
    Json strip = object("Strip");
    strip.set("content", Json(" "));
    // Where a text keeps no spaces at its start, neither does what is decoded, even if special tokens before it go.
    const int64_t count = spec.remove_extra_whitespaces ? kAllSpaces : 1;
    strip.set("start", Json(count));
    strip.set("stop", Json(0));
    stages.push_back(std::move(strip));
  }
  Json decoder = object("Sequence");
  decoder.set("decoders", std::move(stages));
  return decoder;
}

// Hugging Face's tokenizers of "legacy" behaviour mark the start of every part between special tokens.
bool marks_every_part(const Json* config) {
  const Json* legacy = config == nullptr ? nullptr : config->find("legacy");
  return legacy != nullptr && legacy->is_bool() && legacy->as_bool();
}

ForeignTokenizer make_tokenizer(const Spec& spec, bool marks_parts, const std::string& source) {
  check_pieces(spec, source);
  ForeignTokenizer tokenizer;
  Vocab vocab;
  vocab.reserve(spec.pieces.size());
  std::optional<int32_t> unk_id;
  for (size_t i = 0; i < spec.pieces.size(); ++i) {
    const SpmPiece& piece = spec.pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (!vocab.add(piece.text, id))
      throw make_error(ErrorCode::kInvalidData, "{}: the piece \"{}\" is there twice", source, piece.text);
    if (piece.type == PieceType::kUnknown) unk_id = id;
    if (piece.type != PieceType::kControl) continue;
    AddedToken token;
    token.content = piece.text;
    token.special = true;
    token.normalized = false;
    tokenizer.added.emplace_back(id, std::move(token));
    if (piece.text == spec.bos_piece) tokenizer.bos_token = piece.text;
    if (piece.text == spec.eos_piece) tokenizer.eos_token = piece.text;
  }
  if (unk_id) tokenizer.unk_token = vocab.token(*unk_id);
  std::optional<Charsmap> map;
  if (!spec.charsmap.empty()) {
    auto read = Charsmap::from_bytes(spec.charsmap);
    if (!read)
      throw make_error(ErrorCode::kInvalidData, "{}: its table of characters is damaged: {}", source,
                       read.error().message);
    map = std::move(*read);
  }
  tokenizer.normalizer = std::make_unique<SentencePieceNormalizer>(spec, std::move(map), marks_parts);
  tokenizer.model = make_model(spec, std::move(vocab), unk_id);
  tokenizer.components.set("decoder", make_decoder(spec));
  return tokenizer;
}

}  // namespace

SentencePieces read_sentencepieces(std::string_view bytes, const std::string& source) {
  const Spec spec = read_spec(bytes, source);
  check_pieces(spec, source);
  SentencePieces pieces;
  for (const SpmPiece& piece : spec.pieces) {
    pieces.texts.emplace_back(piece.text);
    pieces.scores.push_back(piece.score);
    pieces.types.push_back(static_cast<int64_t>(piece.type));
  }
  // A table of texts to be replaced has no place in a list of pieces.
  pieces.is_bpe = spec.type == ModelType::kBpe && spec.charsmap.empty() && !spec.whitespace_is_suffix;
  pieces.add_dummy_prefix = spec.add_dummy_prefix;
  pieces.remove_extra_spaces = spec.remove_extra_whitespaces;
  return pieces;
}

ForeignTokenizer read_sentencepiece(std::string_view bytes, const Json* config, const std::string& source) {
  return make_tokenizer(read_spec(bytes, source), marks_every_part(config), source);
}

ForeignTokenizer read_sentencepiece(const StoredVocabulary& vocabulary, const std::string& source) {
  Spec spec;
  const bool is_bpe = vocabulary.model == "llama";
  spec.type = is_bpe ? ModelType::kBpe : ModelType::kUnigram;
  spec.byte_fallback = true;
  const std::string charsmap(vocabulary.charsmap.begin(), vocabulary.charsmap.end());
  spec.charsmap = charsmap;
  spec.add_dummy_prefix = vocabulary.add_space_prefix;
  spec.remove_extra_whitespaces = vocabulary.remove_extra_spaces;
  const auto name = [&](const std::optional<int64_t>& id, std::string_view& piece) {
    piece = id ? vocabulary.tokens[static_cast<size_t>(*id)] : std::string_view();
  };
  name(vocabulary.bos_id, spec.bos_piece);
  name(vocabulary.eos_id, spec.eos_piece);
  name(vocabulary.unk_id, spec.unk_piece);
  std::vector<std::pair<int32_t, AddedToken>> added;
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    StoredTokenType type = vocabulary.type_of(i);
    if (type == StoredTokenType::kUndefined) type = StoredTokenType::kNormal;
    if (type == StoredTokenType::kUserDefined) {  // spelled as texts spell it, with spaces
      AddedToken token;
      token.content = vocabulary.tokens[i];
      token.normalized = false;
      added.emplace_back(static_cast<int32_t>(i), std::move(token));
      type = StoredTokenType::kUnused;
    }
    spec.pieces.push_back(
        {vocabulary.tokens[i], static_cast<float>(vocabulary.scores[i]), static_cast<PieceType>(type)});
  }
  // The converter takes the tables of LlamaTokenizer, which marks the start of every part.
  ForeignTokenizer tokenizer = make_tokenizer(spec, is_bpe, source);
  std::move(added.begin(), added.end(), std::back_inserter(tokenizer.added));
  return tokenizer;
}

}  // namespace coluber
