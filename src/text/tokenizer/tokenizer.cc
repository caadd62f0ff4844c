// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "text/tokenizer/tokenizer_impl.h"
#include "text/tokenizer/unicode.h"

namespace coluber {
namespace {

// Scratch for one call, given back whatever happens.
class ScratchLease {
 public:
  explicit ScratchLease(ScratchPool& pool) : pool_(pool), scratch_(pool.take()) {}
  ~ScratchLease() { pool_.give_back(std::move(scratch_)); }
  ScratchLease(const ScratchLease&) = delete;
  ScratchLease& operator=(const ScratchLease&) = delete;
  Scratch& operator*() const noexcept { return *scratch_; }

 private:
  ScratchPool& pool_;
  std::unique_ptr<Scratch> scratch_;
};

// Text without added tokens: cut and encoded.
Result<void> encode_text(const Tokenizer::Impl& impl, std::string_view text, bool at_origin, Scratch& scratch,
                         std::vector<int32_t>& ids) {
  if (impl.byte_scanner) return impl.model->encode_bytes(text, *impl.byte_scanner, scratch, ids);
  if (impl.pre_tokenizer == nullptr) {
    const Piece whole{0, text.size(), at_origin};
    return impl.model->encode(text, {&whole, 1}, scratch, ids);
  }
  PieceList list;
  list.text.assign(text);
  list.pieces.push_back({0, text.size(), at_origin});
  if (auto done = impl.pre_tokenizer->apply(list); !done) return done;
  return impl.model->encode(list.text, list.pieces, scratch, ids);
}

// Those of the ranges that end behind `begin`.
std::span<const TextRange> behind(std::span<const TextRange> typed, size_t begin) {
  const auto first =
      std::partition_point(typed.begin(), typed.end(), [begin](const TextRange& range) { return range.end <= begin; });
  return typed.subspan(static_cast<size_t>(first - typed.begin()));
}

bool overlaps(const AddedPart& part, std::span<const TextRange> typed) {
  const auto rest = behind(typed, part.begin);
  return !rest.empty() && rest.front().begin < part.end;
}

// Special tokens where somebody typed become text again, one piece with the text beside them.
void drop_typed(const Tokenizer::Impl& impl, std::span<const TextRange> typed, std::vector<AddedPart>& parts) {
  if (typed.empty()) return;
  std::vector<AddedPart> kept;
  for (AddedPart part : parts) {
    const bool special = part.id != Vocab::kNone && impl.tokens[static_cast<size_t>(part.id)].special;
    if (special && overlaps(part, typed)) part.id = Vocab::kNone;
    const bool goes_on = part.id == Vocab::kNone && !kept.empty() && kept.back().id == Vocab::kNone;
    if (goes_on) {
      kept.back().end = part.end;
    } else {
      kept.push_back(part);
    }
  }
  parts = std::move(kept);
}

// A part between the tokens that are found in the plain text: normalized, then searched for the others.
Result<void> encode_part(const Tokenizer::Impl& impl, std::string_view text, bool at_origin, bool is_typed,
                         Scratch& scratch, std::vector<int32_t>& ids) {
  std::string normalized;
  if (impl.normalizer != nullptr) {
    normalized.assign(text);
    if (auto done = impl.normalizer->apply(normalized, at_origin); !done) return done;
    text = normalized;
  }
  if (!impl.added.any(true)) return text.empty() ? Result<void>() : encode_text(impl, text, at_origin, scratch, ids);
  std::vector<AddedPart> parts;
  impl.added.find(text, true, parts);
  const TextRange all{0, text.size()};
  if (is_typed) drop_typed(impl, {&all, 1}, parts);
  for (const AddedPart& part : parts) {
    if (part.begin == part.end) continue;
    if (part.id != Vocab::kNone) {
      ids.push_back(part.id);
      continue;
    }
    const bool first = at_origin && part.begin == 0;
    if (auto done = encode_text(impl, text.substr(part.begin, part.end - part.begin), first, scratch, ids); !done)
      return done;
  }
  return {};
}

// Whether the text, normalized by itself, holds a special token.
bool hides_special(const Tokenizer::Impl& impl, std::string_view text) {
  std::string normalized(text);
  bool at_origin = false;
  if (impl.normalizer != nullptr && !impl.normalizer->apply(normalized, at_origin)) return true;
  std::vector<AddedPart> parts;
  impl.added.find(normalized, true, parts);
  return std::any_of(parts.begin(), parts.end(), [&](const AddedPart& part) {
    return part.id != Vocab::kNone && impl.tokens[static_cast<size_t>(part.id)].special;
  });
}

// The same of a part that may have been typed, or some of it. Normalization moves bytes, so that what was typed and
// would become a special token is cut out and encoded by itself.
Result<void> encode_mixed_part(const Tokenizer::Impl& impl, std::string_view whole, const AddedPart& part,
                               std::span<const TextRange> typed, Scratch& scratch, std::vector<int32_t>& ids) {
  size_t done_to = part.begin;
  const auto encode_to = [&](size_t end, bool is_typed) -> Result<void> {
    if (end == done_to) return {};
    const size_t begin = std::exchange(done_to, end);
    return encode_part(impl, whole.substr(begin, end - begin), begin == 0, is_typed, scratch, ids);
  };
  if (impl.added.any(true)) {
    for (const TextRange& range : behind(typed, part.begin)) {
      if (range.begin >= part.end) break;
      const size_t begin = std::max(range.begin, part.begin), end = std::min(range.end, part.end);
      if (begin >= end || !hides_special(impl, whole.substr(begin, end - begin))) continue;
      if (auto done = encode_to(begin, false); !done) return done;
      if (auto done = encode_to(end, true); !done) return done;
    }
  }
  return encode_to(part.end, false);
}

Result<void> encode_all(const Tokenizer::Impl& impl, std::string_view text, std::span<const TextRange> typed,
                        std::vector<int32_t>& ids) {
  const ScratchLease scratch(impl.scratch);
  std::vector<AddedPart> parts;
  impl.added.find(text, false, parts);
  drop_typed(impl, typed, parts);
  for (const AddedPart& part : parts) {
    if (part.begin == part.end) continue;
    if (part.id != Vocab::kNone) {
      ids.push_back(part.id);
      continue;
    }
    if (auto done = encode_mixed_part(impl, text, part, typed, *scratch, ids); !done) return done;
  }
  return {};
}

}  // namespace

std::unique_ptr<Scratch> ScratchPool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return std::make_unique<Scratch>();
  std::unique_ptr<Scratch> scratch = std::move(free_.back());
  free_.pop_back();
  return scratch;
}

void ScratchPool::give_back(std::unique_ptr<Scratch> scratch) {
  const std::lock_guard lock(mutex_);
  if (free_.size() < kMaxKept) free_.push_back(std::move(scratch));
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Tokenizer::~Tokenizer() = default;

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (auto done = encode_into(text, add_special_tokens, ids); !done) return tl::unexpected(done.error());
  return ids;
}

Result<void> Tokenizer::encode_into(std::string_view text, bool add_special_tokens, std::vector<int32_t>& ids) const {
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = sanitize_utf8(text);
    text = repaired;
  }
  const size_t start = ids.size();
  if (auto done = encode_all(*impl_, text, {}, ids); !done) {
    ids.resize(start);
    return done;
  }
  impl_->post_processor.apply(start, add_special_tokens, ids);
  return {};
}

Result<std::vector<int32_t>> Tokenizer::encode_typed(std::string_view text, std::span<const TextRange> typed) const {
  std::string repaired;
  TextRange everything;
  if (!is_valid_utf8(text)) {  // repairing moves bytes: nobody knows any more what was typed
    repaired = sanitize_utf8(text);
    text = repaired;
    everything.end = text.size();
    typed = {&everything, 1};
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (auto done = encode_all(*impl_, text, typed, ids); !done) return tl::unexpected(done.error());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  DecodeStream stream(impl_->decoder);
  for (const int32_t id : ids) {
    if (!contains(id)) continue;
    const Impl::TokenInfo& token = impl_->tokens[static_cast<size_t>(id)];
    if (!skip_special_tokens || !token.skipped) stream.push(token.text);
  }
  stream.finish();
  return stream.take();
}

int64_t Tokenizer::vocab_size() const noexcept { return impl_->vocab_size; }

int32_t Tokenizer::max_id() const noexcept { return static_cast<int32_t>(impl_->tokens.size()) - 1; }

bool Tokenizer::contains(int32_t id) const noexcept {
  return id >= 0 && static_cast<size_t>(id) < impl_->tokens.size() && impl_->tokens[static_cast<size_t>(id)].known;
}

bool Tokenizer::is_special(int32_t id) const noexcept {
  return contains(id) && impl_->tokens[static_cast<size_t>(id)].special;
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const noexcept {
  int32_t id = impl_->added.id_of(std::string(token));
  if (id == Vocab::kNone) id = impl_->model->vocab().find(token);
  return id == Vocab::kNone ? std::nullopt : std::optional<int32_t>(id);
}

std::optional<std::string> Tokenizer::id_to_token(int32_t id) const {
  if (!contains(id)) return std::nullopt;
  if (const auto found = impl_->added.by_id().find(id); found != impl_->added.by_id().end())
    return found->second.content;
  return std::string(impl_->tokens[static_cast<size_t>(id)].text);
}

std::string Tokenizer::token_bytes(int32_t id) const {
  if (!contains(id)) return {};
  const std::string_view text = impl_->tokens[static_cast<size_t>(id)].text;
  if (const auto found = impl_->added.by_id().find(id); found != impl_->added.by_id().end())
    return found->second.content;
  std::string bytes;
  if (impl_->byte_level) {
    if (append_letter_bytes(bytes, text)) return bytes;
    return std::string(text);
  }
  for (int byte = 0; text.size() == 6 && byte < 256; ++byte) {
    if (text == byte_token(static_cast<unsigned char>(byte))) return std::string(1, static_cast<char>(byte));
  }
  constexpr std::string_view kMetaspace = "\xE2\x96\x81";
  for (size_t at = 0; at < text.size();) {
    const bool space = text.substr(at).starts_with(kMetaspace);
    bytes += space ? ' ' : text[at];
    at += space ? kMetaspace.size() : 1;
  }
  return bytes;
}

const std::string& Tokenizer::bos_token() const noexcept { return impl_->bos_token; }
const std::string& Tokenizer::eos_token() const noexcept { return impl_->eos_token; }
const std::string& Tokenizer::unk_token() const noexcept { return impl_->unk_token; }
const std::string& Tokenizer::pad_token() const noexcept { return impl_->pad_token; }

std::optional<int32_t> Tokenizer::bos_id() const noexcept {
  return impl_->bos_token.empty() ? std::nullopt : token_to_id(impl_->bos_token);
}

std::optional<int32_t> Tokenizer::eos_id() const noexcept {
  return impl_->eos_token.empty() ? std::nullopt : token_to_id(impl_->eos_token);
}

DetokenizeStream::DetokenizeStream(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(&tokenizer),
      skip_special_tokens_(skip_special_tokens),
      stream_(std::make_unique<DecodeStream>(tokenizer.impl_->decoder)) {}

DetokenizeStream::~DetokenizeStream() = default;
DetokenizeStream::DetokenizeStream(DetokenizeStream&&) noexcept = default;
DetokenizeStream& DetokenizeStream::operator=(DetokenizeStream&&) noexcept = default;

std::string DetokenizeStream::push(int32_t id) {
  if (!tokenizer_->contains(id)) return {};
  const Tokenizer::Impl::TokenInfo& token = tokenizer_->impl_->tokens[static_cast<size_t>(id)];
  if (skip_special_tokens_ && token.skipped) return {};
  stream_->push(token.text);
  return stream_->take();
}

std::string DetokenizeStream::flush() {
  stream_->finish();
  return stream_->take();
}

}  // namespace coluber
