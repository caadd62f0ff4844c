// SPDX-License-Identifier: Apache-2.0
//
// Greedy matching: at every place the longest token that the bytes start with, whatever follows.
#include "text/tokenizer/byte_trie.h"
#include "text/tokenizer/model.h"

namespace coluber {
namespace {

class LongestMatch final : public Model {
 public:
  LongestMatch(const std::vector<std::string>& bytes, Vocab vocab) {
    vocab_ = std::move(vocab);
    std::vector<std::pair<std::string_view, int32_t>> keys;
    for (size_t id = 0; id < bytes.size(); ++id) {
      if (!bytes[id].empty()) keys.emplace_back(bytes[id], static_cast<int32_t>(id));
    }
    trie_.build(std::move(keys));
  }
  Result<void> encode(std::string_view text, std::span<const Piece> pieces, Scratch&,
                      std::vector<int32_t>& ids) const override {
    for (const Piece& piece : pieces) {
      std::string_view rest = text.substr(piece.begin, piece.end - piece.begin);
      while (!rest.empty()) {
        size_t length = 0;
        int32_t id = Vocab::kNone;
        trie_.prefixes(rest, [&](size_t found_length, int32_t found_id) {
          length = found_length;
          id = found_id;
        });
        if (length == 0) {
          return fail(ErrorCode::kInvalidArgument, "the vocabulary has no token for the byte 0x{:02x}",
                      static_cast<unsigned char>(rest[0]));
        }
        ids.push_back(id);
        rest.remove_prefix(length);
      }
    }
    return {};
  }
  std::string_view kind() const override { return "LongestMatch"; }

 private:
  ByteTrie trie_;
};

}  // namespace

std::unique_ptr<Model> make_longest_match(const std::vector<std::string>& bytes, Vocab vocab) {
  return std::make_unique<LongestMatch>(bytes, std::move(vocab));
}

}  // namespace coluber
