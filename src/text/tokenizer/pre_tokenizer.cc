// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pattern.h"
#include "text/tokenizer/unicode.h"

namespace coluber {
namespace {

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior load_behavior(const Component& component, std::optional<Behavior> fallback = std::nullopt) {
  if (fallback && !component.has("behavior")) return *fallback;
  const std::string& name = component.text("behavior");
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  component.refuse("the behavior \"" + name +
                   "\" is not known; known are Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

struct Section {
  Span span;
  bool matched;
};

// The matches and what lies between them, empty parts included where the reference has them.
void sections_of(const std::vector<Span>& matches, size_t size, bool invert, std::vector<Section>& sections) {
  sections.clear();
  size_t at = 0;
  for (const Span& match : matches) {
    if (at != match.begin) sections.push_back({{at, match.begin}, invert});
    sections.push_back({match, !invert});
    at = match.end;
  }
  if (at != size) sections.push_back({{at, size}, invert});
}

void merge_with_previous(std::vector<Section>& sections) {
  size_t kept = 0;
  bool previous = false;
  for (const Section section : sections) {
    if (section.matched && !previous && kept > 0) {
      sections[kept - 1].span.end = section.span.end;
    } else {
      sections[kept++] = section;
    }
    previous = section.matched;
  }
  sections.resize(kept);
}

void merge_with_next(std::vector<Section>& sections) {
  std::vector<Section> merged;
  bool previous = false;
  for (size_t i = sections.size(); i-- > 0;) {
    if (sections[i].matched && !previous && !merged.empty()) {
      merged.back().span.begin = sections[i].span.begin;
    } else {
      merged.push_back(sections[i]);
    }
    previous = sections[i].matched;
  }
  sections.assign(merged.rbegin(), merged.rend());
}

void merge_contiguous(std::vector<Section>& sections) {
  size_t kept = 0;
  bool previous = false;
  for (const Section section : sections) {
    if (section.matched == previous && kept > 0) {
      sections[kept - 1].span.end = section.span.end;
    } else {
      sections[kept++] = section;
    }
    previous = section.matched;
  }
  sections.resize(kept);
}

void merge_sections(Behavior behavior, std::vector<Section>& sections) {
  switch (behavior) {
    case Behavior::kRemoved:
      std::erase_if(sections, [](const Section& section) { return section.matched; });
      break;
    case Behavior::kIsolated:
      break;
    case Behavior::kMergedWithPrevious:
      merge_with_previous(sections);
      break;
    case Behavior::kMergedWithNext:
      merge_with_next(sections);
      break;
    case Behavior::kContiguous:
      merge_contiguous(sections);
      break;
  }
}

// Cuts every piece at what `find(text, matches)` finds.
template <typename Find>
Result<void> split(PieceList& list, Behavior behavior, bool invert, Find&& find) {
  std::vector<Piece> cut;
  std::vector<Span> matches;
  std::vector<Section> sections;
  for (const Piece& piece : list.pieces) {
    const std::string_view text = std::string_view(list.text).substr(piece.begin, piece.end - piece.begin);
    matches.clear();
    if (Result<void> done = find(text, matches); !done) return done;
    sections_of(matches, text.size(), invert, sections);
    merge_sections(behavior, sections);
    for (const Section& section : sections) {
      if (section.span.begin >= section.span.end) continue;
      cut.push_back({piece.begin + section.span.begin, piece.begin + section.span.end,
                     piece.at_origin && section.span.begin == 0});
    }
  }
  list.pieces.swap(cut);
  return {};
}

// Finds every single character of which `is` holds.
template <typename Is>
auto each_character(Is is) {
  return [is](std::string_view text, std::vector<Span>& matches) -> Result<void> {
    const char* at = text.data();
    const char* end = at + text.size();
    while (at < end) {
      const auto begin = static_cast<size_t>(at - text.data());
      if (is(next_code_point(at))) matches.push_back({begin, static_cast<size_t>(at - text.data())});
    }
    return {};
  };
}

// Rebuilds the text piece by piece with `write(out, piece_text, piece)`.
template <typename Write>
void rewrite(PieceList& list, Write&& write) {
  std::string out;
  out.reserve(list.text.size() * 2);
  for (Piece& piece : list.pieces) {
    const size_t begin = out.size();
    write(out, std::string_view(list.text).substr(piece.begin, piece.end - piece.begin), piece);
    piece.begin = begin;
    piece.end = out.size();
  }
  list.text = std::move(out);
}

class Sequence final : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}
  Result<void> apply(PieceList& list) const override {
    for (const auto& step : steps_) {
      if (auto done = step->apply(list); !done) return done;
    }
    return {};
  }
  std::optional<Scanner> byte_level_scanner() const override;
  bool ends_in_byte_letters() const override { return !steps_.empty() && steps_.back()->ends_in_byte_letters(); }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

class Split final : public PreTokenizer {
 public:
  Split(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  Result<void> apply(PieceList& list) const override {
    return split(list, behavior_, invert_,
                 [&](std::string_view text, std::vector<Span>& matches) { return pattern_.find_all(text, matches); });
  }
  // A scanner covers the whole text with matches, so inverting it or merging would change the pieces.
  const std::optional<Scanner>& plain_scanner() const {
    static const std::optional<Scanner> none;
    return behavior_ == Behavior::kIsolated ? pattern_.scanner() : none;
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex) : add_prefix_space_(add_prefix_space), use_regex_(use_regex) {}
  Result<void> apply(PieceList& list) const override {
    if (add_prefix_space_) {
      rewrite(list, [](std::string& out, std::string_view text, const Piece&) {
        if (!text.starts_with(' ')) out += ' ';
        out += text;
      });
    }
    if (use_regex_) {
      const Scanner scanner;
      auto done = split(list, Behavior::kIsolated, false,
                        [&](std::string_view text, std::vector<Span>& matches) -> Result<void> {
                          for (size_t at = 0; at < text.size();) {
                            const size_t end = scanner.next(text, at);
                            matches.push_back({at, end});
                            at = end;
                          }
                          return {};
                        });
      if (!done) return done;
    }
    rewrite(list, [](std::string& out, std::string_view text, const Piece&) { append_byte_letters(out, text); });
    return {};
  }
  std::optional<Scanner> byte_level_scanner() const override {
    return !add_prefix_space_ && use_regex_ ? std::optional<Scanner>(Scanner()) : std::nullopt;
  }
  bool ends_in_byte_letters() const override { return true; }
  bool only_letters() const { return !add_prefix_space_ && !use_regex_; }

 private:
  bool add_prefix_space_;
  bool use_regex_;
};

std::optional<Scanner> Sequence::byte_level_scanner() const {
  if (steps_.size() == 1) return steps_[0]->byte_level_scanner();
  if (steps_.size() != 2) return std::nullopt;
  const auto* split = dynamic_cast<const Split*>(steps_[0].get());
  const auto* letters = dynamic_cast<const ByteLevel*>(steps_[1].get());
  return split != nullptr && letters != nullptr && letters->only_letters() ? split->plain_scanner() : std::nullopt;
}

class Metaspace final : public PreTokenizer {
 public:
  enum class Scheme { kAlways, kFirst, kNever };
  Metaspace(std::string replacement, Scheme scheme, bool split)
      : replacement_(std::move(replacement)), scheme_(scheme), split_(split) {}
  Result<void> apply(PieceList& list) const override {
    rewrite(list, [&](std::string& out, std::string_view text, const Piece& piece) {
      const bool has_it = text.starts_with(' ') || text.starts_with(replacement_);
      const bool wanted = scheme_ == Scheme::kAlways || (scheme_ == Scheme::kFirst && piece.at_origin);
      if (wanted && !has_it) out += replacement_;
      for (const char c : text) {
        if (c == ' ') {
          out += replacement_;
        } else {
          out += c;
        }
      }
    });
    if (!split_) return {};
    const Pattern pattern = Pattern::literal(replacement_);
    return split(list, Behavior::kMergedWithNext, false,
                 [&](std::string_view text, std::vector<Span>& matches) { return pattern.find_all(text, matches); });
  }

 private:
  std::string replacement_;
  Scheme scheme_;
  bool split_;
};

class Whitespace final : public PreTokenizer {
 public:
  Result<void> apply(PieceList& list) const override {
    return split(list, Behavior::kRemoved, true, [](std::string_view text, std::vector<Span>& matches) -> Result<void> {
      enum Kind { kSpace, kWord, kOther };
      Kind previous = kSpace;
      const char* at = text.data();
      const char* end = at + text.size();
      while (at < end) {
        const auto begin = static_cast<size_t>(at - text.data());
        const uint32_t code_point = next_code_point(at);
        const Kind kind = is_word(code_point) ? kWord : is_whitespace(code_point) ? kSpace : kOther;
        const auto stop = static_cast<size_t>(at - text.data());
        if (kind != kSpace && kind == previous) {
          matches.back().end = stop;
        } else if (kind != kSpace) {
          matches.push_back({begin, stop});
        }
        previous = kind;
      }
      return {};
    });
  }
};

// Splits at the characters of one kind.
class CharacterSplit final : public PreTokenizer {
 public:
  using Is = bool (*)(uint32_t);
  CharacterSplit(Is is, Behavior behavior) : is_(is), behavior_(behavior) {}
  Result<void> apply(PieceList& list) const override { return split(list, behavior_, false, each_character(is_)); }

 private:
  Is is_;
  Behavior behavior_;
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(int64_t length) : length_(length) {}
  Result<void> apply(PieceList& list) const override {
    return split(list, Behavior::kIsolated, false,
                 [&](std::string_view text, std::vector<Span>& matches) -> Result<void> {
                   size_t begin = 0;
                   int64_t count = 0;
                   for (size_t at = 0; at < text.size();) {
                     at += utf8_char_bytes(text[at]);
                     if (++count < length_ && at < text.size()) continue;
                     matches.push_back({begin, at});
                     begin = at;
                     count = 0;
                   }
                   return {};
                 });
  }

 private:
  int64_t length_;
};

std::unique_ptr<PreTokenizer> load_sequence(const Component& component, int depth) {
  if (depth >= kMaxComponentDepth)
    component.refuse(fmt::format("sequences are nested deeper than {}", kMaxComponentDepth));
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  for (const Component& child : component.children("pretokenizers"))
    steps.push_back(load_pre_tokenizer(child, depth + 1));
  return std::make_unique<Sequence>(std::move(steps));
}

std::unique_ptr<PreTokenizer> load_metaspace(const Component& component) {
  using Scheme = Metaspace::Scheme;
  const bool old_spelling_off = component.has("add_prefix_space") && !component.boolean("add_prefix_space");
  const std::string name = component.text_or("prepend_scheme", old_spelling_off ? "never" : "always");
  if (name != "always" && name != "first" && name != "never") {
    component.refuse("\"prepend_scheme\" should be always, first or never, found \"" + name + "\"");
  }
  if (old_spelling_off && name != "never") {
    component.refuse("\"add_prefix_space\" is false but \"prepend_scheme\" is \"" + name + "\"; remove one of them");
  }
  return std::make_unique<Metaspace>(component.character("replacement", "\xE2\x96\x81"),
                                     name == "always"  ? Scheme::kAlways
                                     : name == "first" ? Scheme::kFirst
                                                       : Scheme::kNever,
                                     component.boolean("split", true));
}

std::unique_ptr<PreTokenizer> load_bert() {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  steps.push_back(std::make_unique<CharacterSplit>(is_whitespace, Behavior::kRemoved));
  steps.push_back(std::make_unique<CharacterSplit>(is_punctuation, Behavior::kIsolated));
  return std::make_unique<Sequence>(std::move(steps));
}

}  // namespace

std::unique_ptr<PreTokenizer> load_pre_tokenizer(const Component& component, int depth) {
  const std::string& type = component.type();
  if (type == "Sequence") return load_sequence(component, depth);
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>(component.boolean("add_prefix_space", true),
                                       component.boolean("use_regex", true));
  }
  if (type == "Split") {
    return std::make_unique<Split>(Pattern(component, "pattern"), load_behavior(component),
                                   component.boolean("invert", false));
  }
  if (type == "Metaspace") return load_metaspace(component);
  if (type == "Whitespace") return std::make_unique<Whitespace>();
  if (type == "WhitespaceSplit") return std::make_unique<CharacterSplit>(is_whitespace, Behavior::kRemoved);
  if (type == "Digits") {
    return std::make_unique<CharacterSplit>(
        is_number, component.boolean("individual_digits", false) ? Behavior::kIsolated : Behavior::kContiguous);
  }
  if (type == "Punctuation") {
    return std::make_unique<CharacterSplit>(is_punctuation, load_behavior(component, Behavior::kIsolated));
  }
  if (type == "CharDelimiterSplit") {
    return std::make_unique<Split>(Pattern::literal(component.character("delimiter")), Behavior::kRemoved, false);
  }
  if (type == "BertPreTokenizer") return load_bert();
  if (type == "FixedLength") return std::make_unique<FixedLength>(component.integer("length", 1, int64_t{1} << 40, 5));
  component.unknown_kind("pre-tokenizer",
                         {"Sequence", "ByteLevel", "Split", "Metaspace", "Whitespace", "WhitespaceSplit", "Digits",
                          "Punctuation", "CharDelimiterSplit", "BertPreTokenizer", "FixedLength"});
}

}  // namespace coluber
