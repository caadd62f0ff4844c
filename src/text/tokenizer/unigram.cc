// SPDX-License-Identifier: Apache-2.0
//
// Unigram language model: of all ways to cut a piece into tokens the one with the highest sum of scores (Viterbi over
// byte positions). Sums are made in the reference's order, so that ties fall the same way.
#include <limits>
#include <optional>

#include "text/tokenizer/byte_trie.h"
#include "text/tokenizer/model.h"
#include "text/tokenizer/unicode.h"

namespace coluber {
namespace {

constexpr double kUnknownPenalty = 10.0;
constexpr size_t kMaxPieceBytes = size_t{1} << 30;

class Unigram final : public Model {
 public:
  explicit Unigram(const Component& component);
  explicit Unigram(UnigramParts parts);
  Result<void> encode(std::string_view text, std::span<const Piece> pieces, Scratch& scratch,
                      std::vector<int32_t>& ids) const override;
  std::string_view kind() const override { return "Unigram"; }

 private:
  void find_byte_tokens();
  Result<void> encode_piece(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;
  Result<bool> find_best_path(std::string_view piece, Scratch& scratch) const;
  void add_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  std::vector<double> scores_;
  ByteTrie trie_;
  std::optional<int32_t> unk_id_;
  double unknown_score_ = 0;
  bool byte_fallback_ = false;
  bool keeps_floats_ = false;  // sums of scores are rounded to single precision
  int32_t fallback_ids_[256];
};

Unigram::Unigram(const Component& component) {
  const Json* list = component.json().find("vocab");
  if (list == nullptr || !list->is_array()) {
    component.refuse(fmt::format("\"vocab\" should be an array of [token, score], found {}",
                                 list == nullptr ? "nothing" : list->type_name()));
  }
  const Json::Array& entries = list->as_array();
  double lowest = std::numeric_limits<double>::infinity();
  vocab_.reserve(entries.size());
  std::vector<std::pair<std::string_view, int32_t>> keys;
  for (const Json& entry : entries) {
    const auto id = static_cast<int32_t>(scores_.size());
    if (!entry.is_array() || entry.as_array().size() != 2 || !entry.as_array()[0].is_string() ||
        !entry.as_array()[1].is_number()) {
      component.refuse(fmt::format("vocab[{}] should be [token, score], found {}", id, entry.dump()));
    }
    const std::string& token = entry.as_array()[0].as_string();
    scores_.push_back(entry.as_array()[1].as_double());
    lowest = std::min(lowest, scores_.back());
    if (!vocab_.add(token, id)) component.refuse(fmt::format("vocab[{}]: the token \"{}\" is there twice", id, token));
    if (!token.empty()) keys.emplace_back(vocab_.token(id), id);
  }
  trie_.build(std::move(keys));
  unknown_score_ = lowest - kUnknownPenalty;
  if (component.has("unk_id")) {
    if (entries.empty()) component.refuse("the vocabulary is empty, but \"unk_id\" names one of its tokens");
    unk_id_ = static_cast<int32_t>(component.integer("unk_id", 0, static_cast<int64_t>(entries.size()) - 1));
  }
  byte_fallback_ = component.boolean("byte_fallback", false);
  find_byte_tokens();
}

Unigram::Unigram(UnigramParts parts)
    : scores_(std::move(parts.scores)), unk_id_(parts.unk_id), byte_fallback_(parts.byte_fallback) {
  vocab_ = std::move(parts.vocab);
  std::vector<std::pair<std::string_view, int32_t>> keys;
  for (int32_t id = 0; id < vocab_.end_id(); ++id) {
    if (!parts.is_matched[static_cast<size_t>(id)] || vocab_.token(id).empty()) continue;
    keys.emplace_back(vocab_.token(id), id);
  }
  trie_.build(std::move(keys));
  unknown_score_ = parts.unknown_score;
  keeps_floats_ = true;
  find_byte_tokens();
}

void Unigram::find_byte_tokens() {
  for (int byte = 0; byte < 256; ++byte) {
    fallback_ids_[byte] = vocab_.find(byte_token(static_cast<unsigned char>(byte)));
  }
}

Result<void> Unigram::encode(std::string_view text, std::span<const Piece> pieces, Scratch& scratch,
                             std::vector<int32_t>& ids) const {
  for (const Piece& piece : pieces) {
    const std::string_view word = text.substr(piece.begin, piece.end - piece.begin);
    bool hit;
    WordCache::Slot* slot = scratch.cache.find(word, hit);
    if (hit) {
      ids.insert(ids.end(), slot->ids, slot->ids + slot->count);
      continue;
    }
    const size_t before = ids.size();
    if (auto done = encode_piece(word, scratch, ids); !done) return done;
    WordCache::store(slot, word, ids.data() + before, ids.size() - before);
  }
  return {};
}

// Fills, for every end of a token, the best sum, where that token starts and its id. False where an unknown character
// has no token.
Result<bool> Unigram::find_best_path(std::string_view piece, Scratch& scratch) const {
  const size_t size = piece.size();
  if (size > kMaxPieceBytes) return fail(ErrorCode::kInvalidArgument, "a piece of {} bytes is too long", size);
  scratch.scores.assign(size + 1, 0.0);
  scratch.starts.assign(size + 1, -1);
  scratch.word_ids.assign(size + 1, 0);
  double* best = scratch.scores.data();
  int32_t* starts = scratch.starts.data();
  int32_t* tokens = scratch.word_ids.data();
  const double* scores = scores_.data();
  for (size_t at = 0; at < size;) {
    const size_t character = utf8_char_bytes(piece[at]);
    const double here = best[at];
    bool single = false;
    const auto offer = [&](size_t end, double score, int32_t id) {
      const double sum = keeps_floats_ ? static_cast<double>(static_cast<float>(score + here)) : score + here;
      if (starts[end] >= 0 && !(sum > best[end])) return;
      best[end] = sum;
      starts[end] = static_cast<int32_t>(at);
      tokens[end] = id;
    };
    trie_.prefixes(piece.substr(at), [&](size_t length, int32_t id) {
      offer(at + length, scores[id], id);
      single |= length == character;
    });
    if (!single) {
      const size_t end = at + character;
      if (!unk_id_ && (starts[end] < 0 || unknown_score_ + here > best[end])) return false;
      if (unk_id_) offer(end, unknown_score_, *unk_id_);
    }
    at += character;
  }
  return true;
}

Result<void> Unigram::encode_piece(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  auto found = find_best_path(piece, scratch);
  if (!found) return tl::unexpected(found.error());
  if (!*found) {
    return fail(ErrorCode::kInvalidArgument,
                "\"{}\" has a character that is no token, and the model names no unknown token",
                sanitize_utf8(piece.substr(0, 40)));
  }
  // Backwards along the path; every run of unknown characters is one. `previous` collects the ends of tokens, last
  // first.
  std::vector<int32_t>& ends = scratch.previous;
  ends.clear();
  for (size_t end = piece.size(); end > 0; end = static_cast<size_t>(scratch.starts[end]))
    ends.push_back(static_cast<int32_t>(end));
  size_t begin = 0;
  for (size_t i = ends.size(); i-- > 0;) {
    auto end = static_cast<size_t>(ends[i]);
    const int32_t id = scratch.word_ids[end];
    if (!unk_id_ || id != *unk_id_) {
      ids.push_back(id);
    } else {
      while (i > 0 && scratch.word_ids[static_cast<size_t>(ends[i - 1])] == *unk_id_)
        end = static_cast<size_t>(ends[--i]);
      add_unknown(piece.substr(begin, end - begin), ids);
    }
    begin = end;
  }
  return {};
}

void Unigram::add_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  if (const int32_t id = vocab_.find(text); id != Vocab::kNone) {
    ids.push_back(id);
    return;
  }
  const auto id_of = [&](char c) { return fallback_ids_[static_cast<unsigned char>(c)]; };
  bool all_bytes = byte_fallback_;
  for (const char c : text) all_bytes = all_bytes && id_of(c) != Vocab::kNone;
  if (!all_bytes) {
    ids.push_back(*unk_id_);
    return;
  }
  for (const char c : text) ids.push_back(id_of(c));
}

}  // namespace

std::unique_ptr<Model> make_unigram(UnigramParts parts) { return std::make_unique<Unigram>(std::move(parts)); }

std::unique_ptr<Model> load_unigram(const Component& component) { return std::make_unique<Unigram>(component); }

}  // namespace coluber
