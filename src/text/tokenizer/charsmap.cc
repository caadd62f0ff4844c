// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/charsmap.h"

#include <cstring>

#include "text/tokenizer/base64.h"
#include "text/tokenizer/unicode.h"

namespace coluber {
namespace {

constexpr size_t kLongestCluster = 6;  // grapheme clusters of so many bytes are looked up character by character

// The fields of a unit of the double array.
bool has_leaf(uint32_t unit) noexcept { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) noexcept { return unit & 0x7FFFFFFF; }
uint32_t label_of(uint32_t unit) noexcept { return unit & 0x800000FF; }
uint32_t offset_of(uint32_t unit) noexcept { return (unit >> 10) << ((unit & 0x200) >> 6); }

}  // namespace

Result<Charsmap> Charsmap::from_base64(std::string_view base64) {
  auto bytes = decode_base64(base64);
  if (!bytes) return tl::unexpected(bytes.error());
  return from_bytes(*bytes);
}

Result<Charsmap> Charsmap::from_bytes(std::string_view bytes) {
  uint32_t trie_bytes = 0;
  if (bytes.size() < sizeof trie_bytes) return fail(ErrorCode::kInvalidData, "{} bytes are too few", bytes.size());
  std::memcpy(&trie_bytes, bytes.data(), sizeof trie_bytes);
  if (trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes > bytes.size() - sizeof trie_bytes) {
    return fail(ErrorCode::kInvalidData, "it declares a table of {} bytes and has {}", trie_bytes,
                bytes.size() - sizeof trie_bytes);
  }
  Charsmap map;
  map.units_.resize(trie_bytes / 4);
  std::memcpy(map.units_.data(), bytes.data() + sizeof trie_bytes, trie_bytes);
  map.texts_ = bytes.substr(sizeof trie_bytes + trie_bytes);
  if (valid_utf8_prefix(map.texts_) != map.texts_.size())
    return fail(ErrorCode::kInvalidData, "its texts are not UTF-8");
  return map;
}

std::optional<std::string_view> Charsmap::transform(std::string_view chunk) const noexcept {
  size_t node = offset_of(units_[0]);
  for (const char c : chunk) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) return std::nullopt;
    node ^= byte;
    if (node >= units_.size()) return std::nullopt;
    const uint32_t unit = units_[node];
    if (label_of(unit) != byte) return std::nullopt;
    node ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    if (node >= units_.size()) return std::nullopt;
    // The shortest key that is a prefix of the chunk decides, as in the reference.
    return text_at(value_of(units_[node]));
  }
  return std::nullopt;
}

std::optional<std::string_view> Charsmap::text_at(size_t start) const noexcept {
  if (start > texts_.size() || (start < texts_.size() && (static_cast<unsigned char>(texts_[start]) & 0xC0) == 0x80)) {
    return std::nullopt;
  }
  return std::string_view(texts_).substr(start, std::min(texts_.find('\0', start), texts_.size()) - start);
}

std::string_view Charsmap::replace_start(std::string_view text, size_t* consumed) const noexcept {
  *consumed = std::min<size_t>(utf8_char_bytes(text[0]), text.size());
  std::string_view replacement = text.substr(0, *consumed);
  size_t node = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (byte == 0 || node >= units_.size()) break;
    const uint32_t unit = units_[node];
    if (label_of(unit) != byte) break;
    node ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    if (node >= units_.size()) break;
    // A key that ends inside a character would leave half of it behind.
    if (i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xC0) == 0x80) continue;
    if (const auto found = text_at(value_of(units_[node]))) {
      replacement = *found;
      *consumed = i + 1;
    }
  }
  return replacement;
}

std::string Charsmap::apply(std::string_view text) const {
  std::vector<size_t> ends;
  grapheme_ends(text, ends);
  std::string out;
  out.reserve(text.size());
  size_t begin = 0;
  for (const size_t end : ends) {
    const std::string_view cluster = text.substr(begin, end - begin);
    begin = end;
    if (cluster.size() < kLongestCluster) {
      if (const auto found = transform(cluster)) {
        out += *found;
        continue;
      }
    }
    for (size_t at = 0; at < cluster.size();) {
      const std::string_view character = cluster.substr(at, utf8_char_bytes(cluster[at]));
      at += character.size();
      out += transform(character).value_or(character);
    }
  }
  return out;
}

}  // namespace coluber
