// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/normalizer.h"

#include <optional>
#include <vector>

#include "text/tokenizer/charsmap.h"
#include "text/tokenizer/pattern.h"
#include "text/tokenizer/unicode.h"

namespace coluber {
namespace {

// Replacements that feed each other grow without end; no honest normalizer needs so much room.
size_t max_normalized_bytes(size_t text_bytes) { return (size_t{8} << 20) + 32 * text_bytes; }

tl::unexpected<Failure> too_long(size_t bytes, size_t text_bytes) {
  return fail(ErrorCode::kInvalidArgument, "the normalizer makes {} bytes of a text of {} bytes, the limit is {}",
              bytes, text_bytes, max_normalized_bytes(text_bytes));
}

// Maps every character with `map(out, code_point)`, which appends what replaces it.
template <typename Map>
void map_characters(std::string& text, bool& at_origin, Map&& map) {
  std::string out;
  out.reserve(text.size());
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    const uint32_t code_point = next_code_point(at);
    map(out, code_point);
    if (out.empty()) at_origin = false;
  }
  text = std::move(out);
}

class Sequence final : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  Result<void> apply(std::string& text, bool& at_origin) const override {
    const size_t text_bytes = text.size();
    for (const auto& step : steps_) {
      if (auto done = step->apply(text, at_origin); !done) return done;
      if (text.size() > max_normalized_bytes(text_bytes)) return too_long(text.size(), text_bytes);
    }
    return {};
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  Result<void> apply(std::string& text, bool&) const override {
    if (!is_ascii(text)) text = normalize(text, form_);
    return {};
  }

 private:
  NormalForm form_;
};

class Lowercase final : public Normalizer {
 public:
  Result<void> apply(std::string& text, bool& at_origin) const override {
    map_characters(text, at_origin, append_lower);
    return {};
  }
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  Result<void> apply(std::string& text, bool& at_origin) const override {
    const char* at = text.data();
    const char* end = at + text.size();
    size_t first = text.size();
    size_t last = 0;
    while (at < end) {
      const auto begin = static_cast<size_t>(at - text.data());
      if (is_whitespace(next_code_point(at))) continue;
      if (first == text.size()) first = begin;
      last = static_cast<size_t>(at - text.data());
    }
    if (right_) text.resize(last);
    if (left_ && first > 0) {
      text.erase(0, first);
      at_origin = false;
    }
    return {};
  }

 private:
  bool left_;
  bool right_;
};

class StripAccents final : public Normalizer {
 public:
  Result<void> apply(std::string& text, bool& at_origin) const override {
    map_characters(text, at_origin, [](std::string& out, uint32_t code_point) {
      if (!is_mark(code_point)) append_utf8(out, code_point);
    });
    return {};
  }
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string text) : text_(std::move(text)) {}
  Result<void> apply(std::string& text, bool&) const override {
    if (!text.empty()) text.insert(0, text_);
    return {};
  }

 private:
  std::string text_;
};

class Append final : public Normalizer {
 public:
  explicit Append(std::string text) : text_(std::move(text)) {}
  Result<void> apply(std::string& text, bool&) const override {
    if (!text.empty()) text += text_;
    return {};
  }

 private:
  std::string text_;
};

class Replace final : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  Result<void> apply(std::string& text, bool& at_origin) const override {
    std::vector<Span> matches;
    if (auto done = pattern_.find_all(text, matches); !done) return done;
    if (matches.empty()) return {};
    if (content_.size() > max_normalized_bytes(text.size()) / matches.size()) {
      return too_long(content_.size() * matches.size(), text.size());
    }
    std::string out;
    out.reserve(text.size() + matches.size() * content_.size());
    size_t at = 0;
    for (const Span& match : matches) {
      out.append(text, at, match.begin - at);
      out += content_;
      at = match.end;
      if (out.empty() && at > 0) at_origin = false;
    }
    out.append(text, at, std::string::npos);
    text = std::move(out);
    return {};
  }

 private:
  Pattern pattern_;
  std::string content_;
};

bool is_cjk(uint32_t c) noexcept {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
         (c >= 0x2F800 && c <= 0x2FA1F);
}

class Bert final : public Normalizer {
 public:
  Bert(bool clean, bool cjk, bool strip, bool lower) : clean_(clean), cjk_(cjk), strip_(strip), lower_(lower) {}
  Result<void> apply(std::string& text, bool& at_origin) const override {
    if (clean_) map_characters(text, at_origin, clean);
    if (cjk_) {
      map_characters(text, at_origin, [](std::string& out, uint32_t code_point) {
        const bool apart = is_cjk(code_point);
        if (apart) out += ' ';
        append_utf8(out, code_point);
        if (apart) out += ' ';
      });
    }
    if (strip_) {
      text = normalize(text, NormalForm::kNfd);
      map_characters(text, at_origin, [](std::string& out, uint32_t code_point) {
        if (!is_nonspacing_mark(code_point)) append_utf8(out, code_point);
      });
    }
    if (lower_) map_characters(text, at_origin, append_lower);
    return {};
  }

 private:
  static void clean(std::string& out, uint32_t code_point) {
    if (is_whitespace(code_point) && code_point != 0x0B && code_point != 0x0C && code_point != 0x85) {
      out += ' ';
    } else if (code_point != 0xFFFD && !is_control_or_format(code_point)) {
      append_utf8(out, code_point);
    }
  }

  bool clean_;
  bool cjk_;
  bool strip_;
  bool lower_;
};

class Nmt final : public Normalizer {
 public:
  Result<void> apply(std::string& text, bool& at_origin) const override {
    map_characters(text, at_origin, [](std::string& out, uint32_t c) {
      const bool removed =
          (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
      if (removed) return;
      const bool space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                         (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                         c == 0xFFFD;
      append_utf8(out, space ? ' ' : c);
    });
    return {};
  }
};

class Precompiled final : public Normalizer {
 public:
  explicit Precompiled(Charsmap map) : map_(std::move(map)) {}
  Result<void> apply(std::string& text, bool& at_origin) const override {
    const bool had_text = !text.empty();
    text = map_.apply(text);
    if (had_text && text.empty()) at_origin = false;
    return {};
  }

 private:
  Charsmap map_;
};

class ByteLetters final : public Normalizer {
 public:
  Result<void> apply(std::string& text, bool&) const override {
    std::string out;
    out.reserve(text.size() * 2);
    append_byte_letters(out, text);
    text = std::move(out);
    return {};
  }
};

std::unique_ptr<Normalizer> load_sequence(const Component& component, int depth) {
  if (depth >= kMaxComponentDepth)
    component.refuse(fmt::format("sequences are nested deeper than {}", kMaxComponentDepth));
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (const Component& child : component.children("normalizers")) steps.push_back(load_normalizer(child, depth + 1));
  return std::make_unique<Sequence>(std::move(steps));
}

std::unique_ptr<Normalizer> load_bert(const Component& component) {
  const bool lower = component.boolean("lowercase", true);
  return std::make_unique<Bert>(component.boolean("clean_text", true), component.boolean("handle_chinese_chars", true),
                                component.boolean("strip_accents", lower), lower);
}

std::unique_ptr<Normalizer> load_precompiled(const Component& component) {
  if (!component.has("precompiled_charsmap"))
    return std::make_unique<Sequence>(std::vector<std::unique_ptr<Normalizer>>());
  auto map = Charsmap::from_base64(component.text("precompiled_charsmap"));
  if (!map) component.refuse("\"precompiled_charsmap\" is damaged: " + map.error().message);
  return std::make_unique<Precompiled>(std::move(*map));
}

}  // namespace

std::unique_ptr<Normalizer> load_normalizer(const Component& component, int depth) {
  const std::string& type = component.type();
  if (type == "Sequence") return load_sequence(component, depth);
  if (type == "NFC") return std::make_unique<UnicodeForm>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeForm>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(NormalForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "Strip") {
    return std::make_unique<Strip>(component.boolean("strip_left", true), component.boolean("strip_right", true));
  }
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Prepend") return std::make_unique<Prepend>(component.text("prepend"));
  if (type == "Append") return std::make_unique<Append>(component.text("append"));
  if (type == "Replace") return std::make_unique<Replace>(Pattern(component, "pattern"), component.text("content"));
  if (type == "BertNormalizer") return load_bert(component);
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "Precompiled") return load_precompiled(component);
  if (type == "ByteLevel") return std::make_unique<ByteLetters>();
  component.unknown_kind("normalizer",
                         {"Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Prepend",
                          "Append", "Replace", "BertNormalizer", "Nmt", "Precompiled", "ByteLevel"});
}

}  // namespace coluber
