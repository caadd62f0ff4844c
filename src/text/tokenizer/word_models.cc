// SPDX-License-Identifier: Apache-2.0
//
// The two models that look words up: WordPiece (longest prefix in the vocabulary, again and again) and WordLevel (whole
// pieces).
#include <algorithm>

#include "text/tokenizer/model.h"
#include "text/tokenizer/unicode.h"

namespace coluber {
namespace {

class WordPiece final : public Model {
 public:
  explicit WordPiece(const Component& component) {
    load_vocab(component, vocab_);
    unk_token_ = component.text_or("unk_token", "[UNK]");
    unk_id_ = vocab_.find(unk_token_);
    prefix_ = component.text_or("continuing_subword_prefix", "##");
    max_characters_ = component.integer("max_input_chars_per_word", 0, 1 << 20, 100);
  }
  std::string_view kind() const override { return "WordPiece"; }

  Result<void> encode(std::string_view text, std::span<const Piece> pieces, Scratch& scratch,
                      std::vector<int32_t>& ids) const override {
    for (const Piece& piece : pieces) {
      const std::string_view word = text.substr(piece.begin, piece.end - piece.begin);
      const size_t before = ids.size();
      if (!is_too_long(word) && add_word(word, scratch.letters, ids)) continue;
      ids.resize(before);
      if (unk_id_ == Vocab::kNone) {
        return fail(ErrorCode::kInvalidArgument, "the unknown token \"{}\" is not in the vocabulary", unk_token_);
      }
      ids.push_back(unk_id_);
    }
    return {};
  }

 private:
  bool is_too_long(std::string_view word) const {
    return std::count_if(word.begin(), word.end(), [](char c) { return (c & 0xC0) != 0x80; }) > max_characters_;
  }

  bool add_word(std::string_view word, std::string& buffer, std::vector<int32_t>& ids) const {
    for (size_t begin = 0; begin < word.size();) {
      buffer.assign(begin > 0 ? prefix_ : std::string());
      const size_t decoration = buffer.size();
      // No token is longer than the longest, so longer candidates need not be tried.
      buffer.append(word.substr(begin, vocab_.longest_token_bytes()));
      int32_t found = Vocab::kNone;
      while (buffer.size() > decoration) {
        const size_t end = begin + buffer.size() - decoration;
        const bool whole = end == word.size() || (static_cast<unsigned char>(word[end]) & 0xC0) != 0x80;
        if (whole) found = vocab_.find(buffer);
        if (found != Vocab::kNone) break;
        buffer.pop_back();
      }
      if (found == Vocab::kNone) return false;
      ids.push_back(found);
      begin += buffer.size() - decoration;
    }
    return true;
  }

  std::string unk_token_;
  std::string prefix_;
  int32_t unk_id_ = Vocab::kNone;
  int64_t max_characters_ = 100;
};

class WordLevel final : public Model {
 public:
  explicit WordLevel(const Component& component) {
    load_vocab(component, vocab_);
    unk_token_ = component.text_or("unk_token", "<unk>");
    unk_id_ = vocab_.find(unk_token_);
  }
  std::string_view kind() const override { return "WordLevel"; }

  Result<void> encode(std::string_view text, std::span<const Piece> pieces, Scratch&,
                      std::vector<int32_t>& ids) const override {
    for (const Piece& piece : pieces) {
      const std::string_view word = text.substr(piece.begin, piece.end - piece.begin);
      int32_t id = vocab_.find(word);
      if (id == Vocab::kNone) id = unk_id_;
      if (id == Vocab::kNone) {
        return fail(ErrorCode::kInvalidArgument,
                    "\"{}\" is no token, and the unknown token \"{}\" is not in the vocabulary either",
                    sanitize_utf8(word.substr(0, 100)), unk_token_);
      }
      ids.push_back(id);
    }
    return {};
  }

 private:
  std::string unk_token_;
  int32_t unk_id_ = Vocab::kNone;
};

}  // namespace

std::unique_ptr<Model> load_word_piece(const Component& component) { return std::make_unique<WordPiece>(component); }

std::unique_ptr<Model> load_word_level(const Component& component) { return std::make_unique<WordLevel>(component); }

}  // namespace coluber
