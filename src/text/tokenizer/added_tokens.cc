// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/added_tokens.h"

#include <algorithm>

#include "text/tokenizer/unicode.h"

namespace coluber {
namespace {

uint32_t last_code_point(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  const char* at = text.data() + begin;
  return next_code_point(at);
}

bool is_single_word(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && is_word(last_code_point(text.substr(0, begin)))) return false;
  const char* at = text.data() + end;
  return end == text.size() || !is_word(next_code_point(at));
}

size_t skip_spaces_back(std::string_view text, size_t begin, size_t limit) {
  while (begin > limit) {
    size_t at = begin - 1;
    while (at > limit && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    const char* cursor = text.data() + at;
    if (!is_whitespace(next_code_point(cursor))) break;
    begin = at;
  }
  return begin;
}

size_t skip_spaces(std::string_view text, size_t end) {
  const char* at = text.data() + end;
  const char* stop = text.data() + text.size();
  while (at < stop) {
    const char* next = at;
    if (!is_whitespace(next_code_point(next))) break;
    at = next;
  }
  return static_cast<size_t>(at - text.data());
}

}  // namespace

int32_t AddedTokens::id_of(const std::string& content) const noexcept {
  const auto found = ids_.find(content);
  return found == ids_.end() ? Vocab::kNone : found->second;
}

int32_t AddedTokens::add(AddedToken token, const Vocab& model) {
  if (token.content.empty()) return Vocab::kNone;
  if (token.special) special_.insert(token.content);
  int32_t id = id_of(token.content);
  if (id == Vocab::kNone) id = model.find(token.content);
  if (id == Vocab::kNone) {
    const auto model_size = static_cast<int32_t>(model.size());
    id = highest_id_ < 0 || (highest_id_ < model_size && model_size > 0) ? model_size : highest_id_ + 1;
  }
  place(id, std::move(token));
  return id;
}

bool AddedTokens::add_at(int32_t id, AddedToken token, const Vocab& model, bool may_rename) {
  const int32_t known = id_of(token.content) != Vocab::kNone ? id_of(token.content) : model.find(token.content);
  if (token.content.empty() || (known != Vocab::kNone && known != id)) return false;
  if (known == Vocab::kNone && ((model.contains(id) && !may_rename) || by_id_.contains(id))) return false;
  if (token.special) special_.insert(token.content);
  place(id, std::move(token));
  return true;
}

void AddedTokens::place(int32_t id, AddedToken token) {
  if (const auto found = by_id_.find(id); found != by_id_.end() && found->second == token) return;
  highest_id_ = std::max(highest_id_, id);
  const bool is_new = ids_.emplace(token.content, id).second;
  by_id_[id] = token;
  if (is_new) {
    tokens_.push_back(std::move(token));
  } else {
    *std::find_if(tokens_.begin(), tokens_.end(),
                  [&](const AddedToken& other) { return other.content == token.content; }) = token;
  }
}

void AddedTokens::build(Matcher& matcher, bool normalized, const Normalizer* normalizer) {
  std::vector<std::string> texts;
  std::vector<int32_t> ids;
  for (const bool special : {true, false}) {
    for (const AddedToken& token : tokens_) {
      if (token.normalized != normalized || special_.contains(token.content) != special) continue;
      std::string text = token.content;
      bool at_origin = true;
      if (normalized && normalizer != nullptr) {
        if (auto done = normalizer->apply(text, at_origin); !done)
          throw Error(ErrorCode::kInvalidData, done.error().message);
      }
      const int32_t id = id_of(token.content);
      decoded_[id] = text;
      if (text.empty()) continue;
      texts.push_back(std::move(text));
      ids.push_back(id);
    }
  }
  std::vector<std::pair<std::string_view, int32_t>> keys;
  // Of tokens with the same text the first one is found; the trie keeps the last.
  for (size_t i = texts.size(); i-- > 0;) {
    keys.emplace_back(texts[i], ids[i]);
    matcher.starts[static_cast<unsigned char>(texts[i][0])] = true;
  }
  matcher.any = !keys.empty();
  matcher.trie.build(std::move(keys));
}

void AddedTokens::finish(const Normalizer* normalizer) {
  build(plain_, false, nullptr);
  build(normalized_, true, normalizer);
}

void AddedTokens::find(std::string_view text, bool normalized, std::vector<AddedPart>& parts) const {
  parts.clear();
  const Matcher& matcher = this->matcher(normalized);
  if (!matcher.any) {
    if (!text.empty()) parts.push_back({0, text.size(), Vocab::kNone});
    return;
  }
  size_t covered = 0;
  for (size_t at = 0; at < text.size();) {
    if (!matcher.starts[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    size_t length = 0;
    int32_t id = Vocab::kNone;
    matcher.trie.prefixes(text.substr(at), [&](size_t found_length, int32_t found_id) {
      length = found_length;
      id = found_id;
    });
    if (id == Vocab::kNone) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + length;
    at = end;
    const AddedToken& token = by_id_.at(id);
    if (token.single_word && !is_single_word(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(skip_spaces_back(text, begin, 0), covered);
    if (token.rstrip) end = skip_spaces(text, end);
    if (covered < begin) parts.push_back({covered, begin, Vocab::kNone});
    parts.push_back({begin, end, id});
    covered = end;
  }
  if (covered != text.size()) parts.push_back({covered, text.size(), Vocab::kNone});
}

}  // namespace coluber
