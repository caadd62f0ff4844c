// SPDX-License-Identifier: Apache-2.0
//
// Byte-pair encoding. A word starts as one symbol a character (or a byte, where byte letters stand for bytes); again
// and again the pair with the lowest rank, the leftmost of equals, becomes one symbol. Short words look for it by a
// scan over their ranks, which fit in a few cache lines; words beyond kScanSymbols use a heap, so that a text without a
// space stays O(n log n).
#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "text/tokenizer/byte_trie.h"
#include "text/tokenizer/merge_table.h"
#include "text/tokenizer/model.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/unicode.h"

namespace coluber {
namespace {

constexpr size_t kScanSymbols = 64;
constexpr std::string_view kMetaspace = "\xE2\x96\x81";

class Bpe final : public Model {
 public:
  explicit Bpe(const Component& component);
  explicit Bpe(BpeParts parts);
  Result<void> encode(std::string_view text, std::span<const Piece> pieces, Scratch& scratch,
                      std::vector<int32_t>& ids) const override;
  bool can_encode_bytes() const override { return bytes_ready_; }
  Result<void> encode_bytes(std::string_view text, const Scanner& scanner, Scratch& scratch,
                            std::vector<int32_t>& ids) const override;
  std::string_view kind() const override { return "BPE"; }

 private:
  void load_merges(const Component& component);
  void make_merges(const std::vector<uint32_t>& ranks);
  void find_fixed(const std::vector<int32_t>& fixed);
  void note_metaspace(std::string_view left, std::string_view right);
  void prepare_bytes();
  void encode_byte_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;
  Result<void> encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;
  Result<void> encode_long(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;
  Result<void> encode_uncached(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;
  Result<void> start_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  std::pair<size_t, int32_t> longest_fixed(std::string_view text) const;
  bool add_byte_tokens(std::string_view text, std::vector<int32_t>& symbols) const;
  void merge(std::vector<int32_t>& symbols, Scratch& scratch) const;
  void merge_by_scan(std::vector<int32_t>& symbols) const;
  void merge_by_heap(std::vector<int32_t>& symbols, Scratch& scratch) const;

  MergeTable merges_;
  std::optional<ByteTrie> fixed_;
  std::string prefix_;
  std::string suffix_;
  std::string unk_token_;
  std::optional<int32_t> unk_id_;
  bool fuse_unk_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool bytes_ready_ = false;                 // all byte letters are tokens, and no option looks at characters
  bool cuts_at_metaspace_ = false;           // no merge joins anything to a following ▁
  std::array<int32_t, 256> letter_ids_{};    // by byte, the id of its letter
  std::array<int32_t, 256> fallback_ids_{};  // by byte, the id of "<0xNN>"
};

Bpe::Bpe(const Component& component) {
  load_vocab(component, vocab_);
  prefix_ = component.text_or("continuing_subword_prefix", "");
  suffix_ = component.text_or("end_of_word_suffix", "");
  fuse_unk_ = component.boolean("fuse_unk", false);
  byte_fallback_ = component.boolean("byte_fallback", false);
  ignore_merges_ = component.boolean("ignore_merges", false);
  if (component.has("unk_token")) {
    unk_token_ = component.text("unk_token");
    const int32_t id = vocab_.find(unk_token_);
    if (id != Vocab::kNone) unk_id_ = id;
  }
  for (size_t byte = 0; byte < 256; ++byte)
    fallback_ids_[byte] = vocab_.find(byte_token(static_cast<unsigned char>(byte)));
  load_merges(component);
  prepare_bytes();
}

Bpe::Bpe(BpeParts parts)
    : unk_id_(parts.unk_id), fuse_unk_(true), byte_fallback_(parts.byte_fallback), ignore_merges_(parts.ignore_merges) {
  vocab_ = std::move(parts.vocab);
  if (unk_id_) unk_token_ = vocab_.token(*unk_id_);
  for (size_t byte = 0; byte < 256; ++byte)
    fallback_ids_[byte] = vocab_.find(byte_token(static_cast<unsigned char>(byte)));
  make_merges(parts.ranks);
  find_fixed(parts.fixed);
  prepare_bytes();
}

void Bpe::find_fixed(const std::vector<int32_t>& fixed) {
  if (fixed.empty()) return;
  std::vector<std::pair<std::string_view, int32_t>> keys;
  for (const int32_t id : fixed) {
    const std::string_view text = vocab_.token(id);
    keys.emplace_back(text, id);
    const size_t mark = text.rfind(kMetaspace);  // a run of ▁ that ends the token or stands inside it
    if (mark != std::string_view::npos && text.substr(0, mark).find_first_not_of(kMetaspace) != std::string_view::npos)
      cuts_at_metaspace_ = false;
  }
  fixed_.emplace();
  fixed_->build(std::move(keys));
}

// Every way to cut a token into two that are tokens.
void Bpe::make_merges(const std::vector<uint32_t>& ranks) {
  const auto rank_of = [&](int32_t id) {
    return id >= 0 && static_cast<size_t>(id) < ranks.size() ? ranks[static_cast<size_t>(id)] : BpeParts::kNoMerge;
  };
  struct Pair {
    int32_t left, right;
    MergeTable::Merge merge;
  };
  std::vector<Pair> pairs;
  cuts_at_metaspace_ = vocab_.find(kMetaspace) != Vocab::kNone;
  for (int32_t id = 0; id < vocab_.end_id(); ++id) {
    const std::string_view text = vocab_.token(id);
    if (rank_of(id) == BpeParts::kNoMerge) continue;
    for (size_t at = 0; at < text.size();) {
      at += utf8_char_bytes(text[at]);
      if (at >= text.size()) break;
      const int32_t left = vocab_.find(text.substr(0, at)), right = vocab_.find(text.substr(at));
      if (rank_of(left) == BpeParts::kNoMerge || rank_of(right) == BpeParts::kNoMerge) continue;
      pairs.push_back({left, right, {rank_of(id), id}});
      note_metaspace(text.substr(0, at), text.substr(at));
    }
  }
  merges_.reserve(pairs.size());
  for (const Pair& pair : pairs) merges_.add(pair.left, pair.right, pair.merge);
}

// Whether any merge joins something to a following run of ▁.
void Bpe::note_metaspace(std::string_view left, std::string_view right) {
  if (right.starts_with(kMetaspace) && !left.ends_with(kMetaspace)) cuts_at_metaspace_ = false;
  if (left.empty() || right.empty()) cuts_at_metaspace_ = false;
}

void Bpe::load_merges(const Component& component) {
  const Json* list = component.json().find("merges");
  if (list == nullptr || !list->is_array()) {
    component.refuse(
        fmt::format("\"merges\" should be an array, found {}", list == nullptr ? "nothing" : list->type_name()));
  }
  merges_.reserve(list->as_array().size());
  cuts_at_metaspace_ = vocab_.find(kMetaspace) != Vocab::kNone && prefix_.empty() && suffix_.empty();
  uint32_t rank = 0;
  std::string joined;
  for (const Json& merge : list->as_array()) {
    const auto refuse = [&](const std::string& why) { component.refuse(fmt::format("merges[{}]: {}", rank, why)); };
    std::string_view left;
    std::string_view right;
    if (merge.is_string()) {
      const std::string& text = merge.as_string();
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        refuse("expected two tokens with one space between, found \"" + text + "\"");
      }
      left = std::string_view(text).substr(0, space);
      right = std::string_view(text).substr(space + 1);
    } else if (merge.is_array() && merge.as_array().size() == 2 && merge.as_array()[0].is_string() &&
               merge.as_array()[1].is_string()) {
      left = merge.as_array()[0].as_string();
      right = merge.as_array()[1].as_string();
    } else {
      refuse("expected \"a b\" or [\"a\", \"b\"], found " + merge.dump());
    }
    const auto id_of = [&](std::string_view token) {
      const int32_t id = vocab_.find(token);
      if (id == Vocab::kNone) refuse(fmt::format("the token \"{}\" is not in the vocabulary", token));
      return id;
    };
    const int32_t left_id = id_of(left);
    const int32_t right_id = id_of(right);
    if (right.size() < prefix_.size()) refuse(fmt::format("\"{}\" is shorter than the prefix \"{}\"", right, prefix_));
    joined.assign(left);
    joined += right.substr(prefix_.size());
    merges_.add(left_id, right_id, {rank++, id_of(joined)});
    note_metaspace(left, right);
  }
}

void Bpe::prepare_bytes() {
  bytes_ready_ = prefix_.empty() && suffix_.empty();
  for (size_t byte = 0; byte < 256; ++byte) {
    std::string letter;
    const char raw = static_cast<char>(byte);
    append_byte_letters(letter, {&raw, 1});
    letter_ids_[byte] = vocab_.find(letter);
    // 0xC0, 0xC1 and 0xF5 and up occur in no UTF-8 text, and vocabularies may leave them out.
    const bool occurs = byte < 0xC0 || (byte > 0xC1 && byte < 0xF5);
    if (letter_ids_[byte] == Vocab::kNone && occurs) bytes_ready_ = false;
  }
}

Result<void> Bpe::encode(std::string_view text, std::span<const Piece> pieces, Scratch& scratch,
                         std::vector<int32_t>& ids) const {
  for (const Piece& piece : pieces) {
    const std::string_view word = text.substr(piece.begin, piece.end - piece.begin);
    if (auto done = encode_long(word, scratch, ids); !done) return done;
  }
  return {};
}

// A text without pre-tokenizer is one word; where no merge crosses the start of a ▁ run, its parts merge independently.
Result<void> Bpe::encode_long(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (!cuts_at_metaspace_ || ignore_merges_ || word.size() <= WordCache::kMaxKeyBytes)
    return encode_word(word, scratch, ids);
  size_t begin = 0;
  size_t at = 0;
  while (true) {
    while (word.substr(at).starts_with(kMetaspace)) at += kMetaspace.size();
    const size_t next = word.find(kMetaspace, at);
    const size_t end = next == std::string_view::npos ? word.size() : next;
    if (begin < end) {
      if (auto done = encode_word(word.substr(begin, end - begin), scratch, ids); !done) return done;
    }
    if (end == word.size()) return {};
    begin = at = end;
  }
}

Result<void> Bpe::encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  bool hit;
  WordCache::Slot* slot = scratch.cache.find(word, hit);
  if (hit) {
    ids.insert(ids.end(), slot->ids, slot->ids + slot->count);
    return {};
  }
  const size_t before = ids.size();
  if (auto done = encode_uncached(word, scratch, ids); !done) return done;
  WordCache::store(slot, word, ids.data() + before, ids.size() - before);
  return {};
}

Result<void> Bpe::encode_uncached(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    if (const int32_t id = vocab_.find(word); id != Vocab::kNone) {
      ids.push_back(id);
      return {};
    }
  }
  std::vector<int32_t>& symbols = scratch.word_ids;
  symbols.clear();
  if (auto done = start_symbols(word, symbols); !done) return done;
  merge(symbols, scratch);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  return {};
}

bool Bpe::add_byte_tokens(std::string_view text, std::vector<int32_t>& symbols) const {
  const auto id_of = [&](char c) { return fallback_ids_[static_cast<unsigned char>(c)]; };
  if (std::any_of(text.begin(), text.end(), [&](char c) { return id_of(c) == Vocab::kNone; })) return false;
  for (const char c : text) symbols.push_back(id_of(c));
  return true;
}

std::pair<size_t, int32_t> Bpe::longest_fixed(std::string_view text) const {
  std::pair<size_t, int32_t> longest{0, Vocab::kNone};
  if (fixed_) fixed_->prefixes(text, [&](size_t length, int32_t id) { longest = {length, id}; });
  return longest;
}

Result<void> Bpe::start_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  std::string decorated;
  bool unknown = false;  // an unknown symbol that waits for its neighbours
  for (size_t at = 0; at < word.size();) {
    if (const auto [length, fixed_id] = longest_fixed(word.substr(at)); length > 0) {
      if (unknown) symbols.push_back(*unk_id_);
      unknown = false;
      symbols.push_back(fixed_id);
      at += length;
      continue;
    }
    std::string_view character = word.substr(at, utf8_char_bytes(word[at]));
    const bool first = at == 0;
    at += character.size();
    if ((!first && !prefix_.empty()) || (at == word.size() && !suffix_.empty())) {
      decorated.clear();
      if (!first) decorated += prefix_;
      decorated += character;
      if (at == word.size()) decorated += suffix_;
      character = decorated;
    }
    const int32_t id = vocab_.find(character);
    if (id != Vocab::kNone) {
      if (unknown) symbols.push_back(*unk_id_);
      unknown = false;
      symbols.push_back(id);
      continue;
    }
    if (byte_fallback_ && add_byte_tokens(character, symbols)) continue;
    if (unk_token_.empty()) continue;
    if (!unk_id_) {
      return fail(ErrorCode::kInvalidArgument,
                  "\"{}\" is no token, and the unknown token \"{}\" is not in the vocabulary either", character,
                  unk_token_);
    }
    if (unknown && !fuse_unk_) symbols.push_back(*unk_id_);
    unknown = true;
  }
  if (unknown) symbols.push_back(*unk_id_);
  return {};
}

Result<void> Bpe::encode_bytes(std::string_view text, const Scanner& scanner, Scratch& scratch,
                               std::vector<int32_t>& ids) const {
  for (size_t at = 0; at < text.size();) {
    const size_t end = scanner.next(text, at);
    const std::string_view word = text.substr(at, end - at);
    at = end;
    bool hit;
    WordCache::Slot* slot = scratch.cache.find(word, hit);
    if (hit) {
      ids.insert(ids.end(), slot->ids, slot->ids + slot->count);
      continue;
    }
    const size_t before = ids.size();
    encode_byte_word(word, scratch, ids);
    WordCache::store(slot, word, ids.data() + before, ids.size() - before);
  }
  return {};
}

void Bpe::encode_byte_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    scratch.letters.clear();
    append_byte_letters(scratch.letters, word);
    if (const int32_t id = vocab_.find(scratch.letters); id != Vocab::kNone) {
      ids.push_back(id);
      return;
    }
  }
  std::vector<int32_t>& symbols = scratch.word_ids;
  symbols.resize(word.size());
  for (size_t i = 0; i < word.size(); ++i) symbols[i] = letter_ids_[static_cast<unsigned char>(word[i])];
  merge(symbols, scratch);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void Bpe::merge(std::vector<int32_t>& symbols, Scratch& scratch) const {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kScanSymbols) {
    merge_by_scan(symbols);
  } else {
    merge_by_heap(symbols, scratch);
  }
}

void Bpe::merge_by_scan(std::vector<int32_t>& symbols) const {
  MergeTable::Merge pairs[kScanSymbols];
  size_t count = symbols.size();
  int32_t* ids = symbols.data();
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = merges_.find(ids[i], ids[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == MergeTable::kNoRank) break;
    ids[best] = pairs[best].id;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      ids[i] = ids[i + 1];
      pairs[i] = pairs[i + 1];
    }
    --count;
    if (best > 0) pairs[best - 1] = merges_.find(ids[best - 1], ids[best]);
    if (best + 1 < count) pairs[best] = merges_.find(ids[best], ids[best + 1]);
  }
  symbols.resize(count);
}

// A linked list of symbols and a heap of (rank, position). An entry is stale where the pair at its position has another
// rank now.
void Bpe::merge_by_heap(std::vector<int32_t>& symbols, Scratch& scratch) const {
  const auto count = static_cast<int32_t>(symbols.size());
  auto& previous = scratch.previous;
  auto& next = scratch.next;
  auto& heap = scratch.heap_ranks;
  previous.resize(symbols.size());
  next.resize(symbols.size());
  heap.clear();
  const auto entry_of = [](uint32_t rank, int32_t at) {
    return static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(at);
  };
  const auto pair_at = [&](int32_t at) {
    const int32_t right = next[static_cast<size_t>(at)];
    return right < 0 ? MergeTable::Merge()
                     : merges_.find(symbols[static_cast<size_t>(at)], symbols[static_cast<size_t>(right)]);
  };
  const auto push = [&](int32_t at) {
    const MergeTable::Merge merge = pair_at(at);
    if (merge.rank == MergeTable::kNoRank) return;
    heap.push_back(entry_of(merge.rank, at));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (int32_t i = 0; i < count; ++i) {
    previous[static_cast<size_t>(i)] = i - 1;
    next[static_cast<size_t>(i)] = i + 1 < count ? i + 1 : -1;
  }
  for (int32_t i = 0; i + 1 < count; ++i) {
    if (const MergeTable::Merge merge = pair_at(i); merge.rank != MergeTable::kNoRank)
      heap.push_back(entry_of(merge.rank, i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto at = static_cast<int32_t>(heap.back() & UINT32_MAX);
    const auto rank = static_cast<uint32_t>(heap.back() >> 32);
    heap.pop_back();
    if (symbols[static_cast<size_t>(at)] < 0) continue;
    const MergeTable::Merge merge = pair_at(at);
    if (merge.rank != rank) continue;
    const int32_t right = next[static_cast<size_t>(at)];
    symbols[static_cast<size_t>(at)] = merge.id;
    symbols[static_cast<size_t>(right)] = -1;
    const int32_t after = next[static_cast<size_t>(right)];
    next[static_cast<size_t>(at)] = after;
    if (after >= 0) previous[static_cast<size_t>(after)] = at;
    if (previous[static_cast<size_t>(at)] >= 0) push(previous[static_cast<size_t>(at)]);
    push(at);
  }
  std::erase_if(symbols, [](int32_t id) { return id < 0; });
}

}  // namespace

std::unique_ptr<Model> make_bpe(BpeParts parts) { return std::make_unique<Bpe>(std::move(parts)); }

std::unique_ptr<Model> load_bpe(const Component& component) { return std::make_unique<Bpe>(component); }

}  // namespace coluber
