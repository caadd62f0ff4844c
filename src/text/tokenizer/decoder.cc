// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/decoder.h"

#include <algorithm>
#include <optional>

#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pattern.h"
#include "text/tokenizer/unicode.h"

namespace coluber {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// A stage made from a sink type and the settings that its constructor takes.
template <typename Sink, typename... Settings>
class StageOf final : public DecodeStage {
 public:
  explicit StageOf(Settings... settings) : settings_(std::move(settings)...) {}
  std::unique_ptr<TokenSink> start(TokenSink& next) const override {
    return std::apply([&](const Settings&... settings) { return std::make_unique<Sink>(next, settings...); },
                      settings_);
  }

 private:
  std::tuple<Settings...> settings_;
};

template <typename Sink, typename... Settings>
std::unique_ptr<DecodeStage> make_stage(Settings... settings) {
  return std::make_unique<StageOf<Sink, Settings...>>(std::move(settings)...);
}

// A stage that looks at whole tokens: parts are collected first.
class WholeTokens : public TokenSink {
 public:
  explicit WholeTokens(TokenSink& next) : next_(next) {}
  void token(std::string_view text, bool starts, bool ends) final {
    if (starts && ends) return on_token(text);
    collected_ += text;
    if (!ends) return;
    on_token(collected_);
    collected_.clear();
  }
  void finish() final {
    on_finish();
    next_.finish();
  }

 protected:
  virtual void on_token(std::string_view text) = 0;
  virtual void on_finish() {}
  void emit(std::string_view text) { next_.token(text, true, true); }
  TokenSink& next_;

 private:
  std::string collected_;
};

class ByteLevel final : public WholeTokens {
 public:
  using WholeTokens::WholeTokens;

 private:
  void on_token(std::string_view text) override {
    if (!append_letter_bytes(bytes_, text)) bytes_ += text;
    std::string rest;
    const std::string ready = sanitize_utf8(bytes_, false, &rest);
    bytes_ = std::move(rest);
    next_.token(ready, !started_, false);
    started_ = true;
  }
  void on_finish() override {
    next_.token(sanitize_utf8(bytes_), !started_, true);
    bytes_.clear();
    started_ = false;
  }
  std::string bytes_;
  bool started_ = false;
};

std::optional<char> parse_byte_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  const int high = text[3] == '+' ? 0 : digit(text[3]);
  const int low = digit(text[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<char>(high * 16 + low);
}

// A run of byte tokens is text only as a whole (else each of them is U+FFFD), so it waits for the run's end.
class ByteFallback final : public WholeTokens {
 public:
  using WholeTokens::WholeTokens;

 private:
  void on_token(std::string_view text) override {
    if (const auto byte = parse_byte_token(text)) {
      run_ += *byte;
      return;
    }
    end_run();
    emit(text);
  }
  void on_finish() override { end_run(); }
  void end_run() {
    if (run_.empty()) return;
    if (valid_utf8_prefix(run_) == run_.size()) {
      emit(run_);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) emit(kReplacementCharacter);
    }
    run_.clear();
  }
  std::string run_;
};

class Fuse final : public TokenSink {
 public:
  explicit Fuse(TokenSink& next) : next_(next) {}
  void token(std::string_view text, bool, bool) override {
    next_.token(text, !started_, false);
    started_ = true;
  }
  void finish() override {
    next_.token({}, !started_, true);
    started_ = false;
    next_.finish();
  }

 private:
  TokenSink& next_;
  bool started_ = false;
};

class StripStart final : public TokenSink {
 public:
  StripStart(TokenSink& next, std::string content, int64_t count)
      : next_(next), content_(std::move(content)), count_(count) {}
  void token(std::string_view text, bool starts, bool ends) override {
    if (starts) left_ = count_;
    while (left_ > 0 && !text.empty()) {
      if (!text.starts_with(content_)) {
        left_ = 0;
        break;
      }
      text.remove_prefix(content_.size());
      --left_;
    }
    next_.token(text, starts, ends);
  }
  void finish() override { next_.finish(); }

 private:
  TokenSink& next_;
  std::string content_;
  int64_t count_;
  int64_t left_ = 0;
};

class StripStop final : public WholeTokens {
 public:
  StripStop(TokenSink& next, std::string content, int64_t count)
      : WholeTokens(next), content_(std::move(content)), count_(count) {}

 private:
  void on_token(std::string_view text) override {
    for (int64_t left = count_; left > 0 && text.ends_with(content_); --left) text.remove_suffix(content_.size());
    emit(text);
  }
  std::string content_;
  int64_t count_;
};

void append_replaced(std::string& out, std::string_view text, std::string_view from, std::string_view to) {
  size_t at = 0;
  for (size_t found = text.find(from); found != std::string_view::npos; found = text.find(from, at)) {
    out += text.substr(at, found - at);
    out += to;
    at = found + from.size();
  }
  out += text.substr(at);
}

// A literal of one character cannot lie across two parts.
class ReplaceCharacter final : public TokenSink {
 public:
  ReplaceCharacter(TokenSink& next, std::string from, std::string to)
      : next_(next), from_(std::move(from)), to_(std::move(to)) {}
  void token(std::string_view text, bool starts, bool ends) override {
    out_.clear();
    append_replaced(out_, text, from_, to_);
    next_.token(out_, starts, ends);
  }
  void finish() override { next_.finish(); }

 private:
  TokenSink& next_;
  std::string from_;
  std::string to_;
  std::string out_;
};

class ReplacePattern final : public WholeTokens {
 public:
  ReplacePattern(TokenSink& next, Pattern pattern, std::string content)
      : WholeTokens(next), pattern_(std::move(pattern)), content_(std::move(content)) {}

 private:
  void on_token(std::string_view text) override {
    // Where an expression gives up on a token, the token stays as it is: text that is there is never lost.
    if (!pattern_.find_all(text, matches_)) return emit(text);
    std::string out;
    size_t at = 0;
    for (const Span& match : matches_) {
      out += text.substr(at, match.begin - at);
      out += content_;
      at = match.end;
    }
    out += text.substr(at);
    emit(out);
  }
  Pattern pattern_;
  std::string content_;
  std::vector<Span> matches_;
};

class Metaspace final : public TokenSink {
 public:
  Metaspace(TokenSink& next, std::string replacement, bool strips_first)
      : next_(next), replacement_(std::move(replacement)), strips_first_(strips_first) {}
  void token(std::string_view text, bool starts, bool ends) override {
    if (starts) ++count_;
    out_.clear();
    append_replaced(out_, text, replacement_, count_ == 1 && strips_first_ ? "" : " ");
    next_.token(out_, starts, ends);
  }
  void finish() override {
    count_ = 0;
    next_.finish();
  }

 private:
  TokenSink& next_;
  std::string replacement_;
  bool strips_first_;
  int64_t count_ = 0;
  std::string out_;
};

using Replacement = std::pair<std::string_view, std::string_view>;

std::string replace_all(std::string text, std::initializer_list<Replacement> replacements) {
  for (const auto& [from, to] : replacements) {
    if (text.find(from) == std::string::npos) continue;
    std::string out;
    append_replaced(out, text, from, to);
    text = std::move(out);
  }
  return text;
}

std::string clean_token(std::string_view text) {
  return replace_all(std::string(text), {{" .", "."},
                                         {" ?", "?"},
                                         {" !", "!"},
                                         {" ,", ","},
                                         {" ' ", "'"},
                                         {" n't", "n't"},
                                         {" 'm", "'m"},
                                         {" do not", " don't"},
                                         {" 's", "'s"},
                                         {" 've", "'ve"},
                                         {" 're", "'re"}});
}

class WordPiece final : public WholeTokens {
 public:
  WordPiece(TokenSink& next, std::string prefix, bool cleanup)
      : WholeTokens(next), prefix_(std::move(prefix)), cleanup_(cleanup) {}

 private:
  void on_token(std::string_view text) override {
    std::string out;
    if (!first_ && text.starts_with(prefix_)) {
      out = text.substr(prefix_.size());
    } else {
      if (!first_) out = " ";
      out += text;
    }
    first_ = false;
    emit(cleanup_ ? clean_token(out) : out);
  }
  void on_finish() override { first_ = true; }
  std::string prefix_;
  bool cleanup_;
  bool first_ = true;
};

// The last token loses its suffix, the others get a space for it, so each token waits for the next.
class BpeSuffix final : public WholeTokens {
 public:
  BpeSuffix(TokenSink& next, std::string suffix) : WholeTokens(next), suffix_(std::move(suffix)) {}

 private:
  void on_token(std::string_view text) override {
    release(" ");
    waiting_ = std::string(text);
  }
  void on_finish() override { release(""); }
  void release(std::string_view replacement) {
    if (!waiting_) return;
    std::string out;
    append_replaced(out, *waiting_, suffix_, replacement);
    emit(out);
    waiting_.reset();
  }
  std::string suffix_;
  std::optional<std::string> waiting_;
};

class Ctc final : public WholeTokens {
 public:
  Ctc(TokenSink& next, std::string pad, std::string delimiter, bool cleanup)
      : WholeTokens(next), pad_(std::move(pad)), delimiter_(std::move(delimiter)), cleanup_(cleanup) {}

 private:
  void on_token(std::string_view text) override {
    if (previous_ && *previous_ == text) return;
    previous_ = std::string(text);
    std::string out = replace_all(*previous_, {{pad_, ""}});
    if (cleanup_) out = replace_all(clean_token(out), {{delimiter_, " "}});
    if (!out.empty()) emit(out);
  }
  void on_finish() override { previous_.reset(); }
  std::string pad_;
  std::string delimiter_;
  bool cleanup_;
  std::optional<std::string> previous_;
};

class Join final : public WholeTokens {
 public:
  using WholeTokens::WholeTokens;

 private:
  void on_token(std::string_view text) override {
    if (!first_) emit(" ");
    first_ = false;
    emit(text);
  }
  void on_finish() override { first_ = true; }
  bool first_ = true;
};

// Works on the joined text. A cut before a space is safe where no apostrophe stands before it: every pattern starts
// with a space, and only " ' " has another one. So a word waits for the next space.
class Cleanup final : public TokenSink {
 public:
  explicit Cleanup(TokenSink& next) : next_(next) {}
  void token(std::string_view text, bool, bool) override {
    const size_t seen = waiting_.size();
    waiting_ += text;
    for (size_t at = waiting_.size(); at-- > std::max<size_t>(seen, 1);) {
      if (waiting_[at] != ' ' || waiting_[at - 1] == '\'' || waiting_[at - 1] == ' ') continue;
      release(at);
      return;
    }
  }
  void finish() override {
    release(waiting_.size());
    next_.finish();
  }

 private:
  void release(size_t end) {
    next_.token(replace_all(waiting_.substr(0, end), {{" .", "."},
                                                      {" ?", "?"},
                                                      {" !", "!"},
                                                      {" ,", ","},
                                                      {" ' ", "'"},
                                                      {" n't", "n't"},
                                                      {" 'm", "'m"},
                                                      {" 's", "'s"},
                                                      {" 've", "'ve"},
                                                      {" 're", "'re"}}),
                true, true);
    waiting_.erase(0, end);
  }
  TokenSink& next_;
  std::string waiting_;
};

std::unique_ptr<DecodeStage> load_replace(const Component& component) {
  Pattern pattern(component, "pattern");
  const std::string& content = component.text("content");
  const std::string& literal = pattern.literal_text();
  if (pattern.is_literal() && utf8_char_bytes(literal[0]) == literal.size()) {
    return make_stage<ReplaceCharacter>(literal, content);
  }
  return make_stage<ReplacePattern>(std::move(pattern), content);
}

std::unique_ptr<DecodeStage> load_metaspace(const Component& component) {
  const bool old_spelling_off = component.has("add_prefix_space") && !component.boolean("add_prefix_space");
  const std::string scheme = component.text_or("prepend_scheme", old_spelling_off ? "never" : "always");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    component.refuse("\"prepend_scheme\" should be always, first or never, found \"" + scheme + "\"");
  }
  return make_stage<Metaspace>(component.character("replacement", "\xE2\x96\x81"), scheme != "never");
}

}  // namespace

DecodeChain::DecodeChain() { stages_.push_back(make_stage<Join>()); }

DecodeChain::~DecodeChain() = default;

void DecodeChain::load(const Component& component) {
  stages_.clear();
  load_stage(component, 0);
}

void DecodeChain::add_cleanup() { stages_.push_back(make_stage<Cleanup>()); }

void DecodeChain::load_stage(const Component& component, int depth) {
  const std::string& type = component.type();
  if (type == "Sequence") {
    if (depth >= kMaxComponentDepth)
      component.refuse(fmt::format("sequences are nested deeper than {}", kMaxComponentDepth));
    for (const Component& child : component.children("decoders")) load_stage(child, depth + 1);
  } else if (type == "ByteLevel") {
    stages_.push_back(make_stage<ByteLevel>());
  } else if (type == "ByteFallback") {
    stages_.push_back(make_stage<ByteFallback>());
  } else if (type == "Fuse") {
    stages_.push_back(make_stage<Fuse>());
  } else if (type == "Replace") {
    stages_.push_back(load_replace(component));
  } else if (type == "Strip") {
    const std::string content = component.character("content");
    const int64_t start = component.integer("start", 0, INT64_MAX);
    const int64_t stop = component.integer("stop", 0, INT64_MAX);
    if (start > 0) stages_.push_back(make_stage<StripStart>(content, start));
    if (stop > 0) stages_.push_back(make_stage<StripStop>(content, stop));
  } else if (type == "Metaspace") {
    stages_.push_back(load_metaspace(component));
  } else if (type == "WordPiece") {
    stages_.push_back(make_stage<WordPiece>(component.text_or("prefix", "##"), component.boolean("cleanup", true)));
  } else if (type == "BPEDecoder") {
    std::string suffix = component.text_or("suffix", "</w>");
    if (suffix.empty()) component.refuse("\"suffix\" is empty");
    stages_.push_back(make_stage<BpeSuffix>(std::move(suffix)));
  } else if (type == "CTC") {
    std::string pad = component.text_or("pad_token", "<pad>");
    std::string delimiter = component.text_or("word_delimiter_token", "|");
    if (pad.empty() || delimiter.empty())
      component.refuse("\"pad_token\" and \"word_delimiter_token\" must not be empty");
    stages_.push_back(make_stage<Ctc>(std::move(pad), std::move(delimiter), component.boolean("cleanup", true)));
  } else {
    component.unknown_kind("decoder", {"Sequence", "ByteLevel", "ByteFallback", "Fuse", "Replace", "Strip", "Metaspace",
                                       "WordPiece", "BPEDecoder", "CTC"});
  }
}

class DecodeStream::Output final : public TokenSink {
 public:
  void token(std::string_view part, bool, bool) override { text += part; }
  void finish() override {}
  std::string text;
};

DecodeStream::DecodeStream(const DecodeChain& chain) : output_(std::make_unique<Output>()), first_(output_.get()) {
  for (size_t i = chain.stages().size(); i-- > 0;) {
    stages_.push_back(chain.stages()[i]->start(*first_));
    first_ = stages_.back().get();
  }
}

DecodeStream::~DecodeStream() = default;

void DecodeStream::push(std::string_view token) { first_->token(token, true, true); }

void DecodeStream::finish() { first_->finish(); }

std::string DecodeStream::take() {
  std::string text = std::move(output_->text);
  output_->text.clear();
  return text;
}

}  // namespace coluber
