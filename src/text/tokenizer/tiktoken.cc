// SPDX-License-Identifier: Apache-2.0
//
// tiktoken's byte-pair encoding: two neighbours join where their bytes are a token, the lowest rank first, and a rank
// is an id. The expression that cuts texts is not in the file; that of Kimi's tokenizer is known by its class.
#include <charconv>

#include "text/tokenizer/base64.h"
#include "text/tokenizer/foreign_formats.h"
#include "text/tokenizer/unicode.h"
#include "text/tokenizer/vocabulary_splits.h"

namespace coluber {
namespace {

constexpr int64_t kMostIds = 1 << 22;
constexpr size_t kMostTokenBytes = 512;  // ways to cut a token are tried one by one
constexpr int32_t kReservedTokens = 256;
constexpr std::string_view kKimiClass = "TikTokenTokenizer";

struct Rank {
  std::string bytes;
  int64_t rank = 0;
};

// "aGVsbG8= 42"; none where the line is no such pair.
std::optional<Rank> parse_line(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0) return std::nullopt;
  Rank rank;
  const std::string_view digits = line.substr(space + 1);
  const char* end = digits.data() + digits.size();
  const auto [at, error] = std::from_chars(digits.data(), end, rank.rank);
  if (at != end || error != std::errc() || rank.rank < 0) return std::nullopt;
  auto bytes = decode_base64(line.substr(0, space));
  if (!bytes || bytes->empty()) return std::nullopt;
  rank.bytes = std::move(*bytes);
  return rank;
}

std::string_view take_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

BpeParts read_ranks(std::string_view text, const std::string& source) {
  BpeParts parts;
  parts.ignore_merges = true;
  std::string letters;
  for (int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (line.empty()) continue;
    const auto refuse = [&](const std::string& why) {
      throw make_error(ErrorCode::kInvalidData, "{}: line {}: {}", source, number, why);
    };
    const std::optional<Rank> rank = parse_line(line);
    if (!rank)
      refuse("expected a token in base64, a space and its rank, found \"" + sanitize_utf8(line.substr(0, 80)) + "\"");
    if (rank->bytes.size() > kMostTokenBytes) refuse(fmt::format("a token of more than {} bytes", kMostTokenBytes));
    if (rank->rank > kMostIds) refuse(fmt::format("the rank {} is above {}", rank->rank, kMostIds));
    letters.clear();
    append_byte_letters(letters, rank->bytes);
    if (!parts.vocab.add(letters, rank->rank))
      refuse(fmt::format("the token or its rank {} is there twice", rank->rank));
  }
  if (parts.vocab.size() == 0) throw make_error(ErrorCode::kInvalidData, "{}: it has no tokens", source);
  parts.ranks.assign(static_cast<size_t>(parts.vocab.end_id()), BpeParts::kNoMerge);
  for (int32_t id = 0; id < parts.vocab.end_id(); ++id) {
    if (parts.vocab.contains(id)) parts.ranks[static_cast<size_t>(id)] = static_cast<uint32_t>(id);
  }
  return parts;
}

void check_class(const Json* config, const std::string& source) {
  const Json* name = config == nullptr ? nullptr : config->find("tokenizer_class");
  if (name == nullptr || name->is_null() || (name->is_string() && name->as_string() == kKimiClass)) return;
  throw make_error(ErrorCode::kUnsupported,
                   "{}: tiktoken's files do not say how texts are cut, and of the tokenizer_class {} in "
                   "tokenizer_config.json it is not known (known: {}); put the model's tokenizer.json beside it",
                   source, name->dump().substr(0, 200), kKimiClass);
}

Json split_components() {
  Json pattern{Json::Object{{"Regex", Json(std::string(kKimiPattern))}}};
  Json split{Json::Object{{"type", Json("Split")}, {"pattern", std::move(pattern)}, {"behavior", Json("Isolated")}}};
  Json letters{
      Json::Object{{"type", Json("ByteLevel")}, {"add_prefix_space", Json(false)}, {"use_regex", Json(false)}}};
  Json sequence{Json::Object{{"type", Json("Sequence")}}};
  sequence.set("pretokenizers", Json(Json::Array{std::move(split), std::move(letters)}));
  Json components{Json::Object{}};
  components.set("pre_tokenizer", std::move(sequence));
  components.set("decoder", Json(Json::Object{{"type", Json("ByteLevel")}}));
  return components;
}

}  // namespace

bool looks_like_tiktoken(std::string_view bytes) noexcept { return parse_line(take_line(bytes)).has_value(); }

ForeignTokenizer read_tiktoken(std::string_view text, const Json* config, const std::string& source) {
  check_class(config, source);
  BpeParts parts = read_ranks(text, source);
  ForeignTokenizer tokenizer;
  const int32_t first = parts.vocab.end_id();
  // Special tokens follow the others; those that tokenizer_config.json does not name have names of their own.
  for (int32_t id = first; id < first + kReservedTokens; ++id) {
    AddedToken token;
    token.content = fmt::format("<|reserved_token_{}|>", id);
    token.special = true;
    token.normalized = false;
    tokenizer.added.emplace_back(id, std::move(token));
  }
  tokenizer.model = make_bpe(std::move(parts));
  tokenizer.components = split_components();
  tokenizer.byte_level = true;
  return tokenizer;
}

}  // namespace coluber
