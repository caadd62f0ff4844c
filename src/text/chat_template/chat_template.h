// SPDX-License-Identifier: Apache-2.0
//
// Chat templates: a conversation to the text that a model was trained on, as Python's jinja2 renders it in the sandbox
// that Hugging Face's apply_chat_template sets up, byte for byte. Not a general template engine: no files are included,
// values are never changed, nothing is escaped. A parsed template is immutable and may be rendered from several threads
// at once. A mistake in a template or in the variables is a client's: Result. A broken model folder is the operator's:
// Error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "coluber/chat_text.h"

namespace coluber {

namespace jinja {
struct Program;
}

struct TemplateLimits {
  int64_t max_source_bytes = int64_t{1} << 20;
  int64_t max_steps = 20'000'000;                 // roughly, operations of the interpreter
  int64_t max_memory_bytes = int64_t{256} << 20;  // alive at once
  int64_t max_output_bytes = int64_t{64} << 20;   // of the result and of any text on the way to it
  int max_depth = 1500;                           // of macros, blocks and operations in one another
};

// Seconds since 1970-01-01T00:00:00 on a wall clock, with no zone: what strftime_now prints.
int64_t local_clock_now();
// "2024-07-06T08:05:09", "2024-07-06 08:05" or "2024-07-06".
Result<int64_t> parse_clock(std::string_view text);

struct RenderOptions {
  int64_t now = local_clock_now();
  TemplateLimits limits;
};

// A stretch of the result. What does not come from the template comes from the conversation, where text that looks like
// a special token need not be one.
struct TemplateSegment {
  std::string text;
  bool from_template = true;
};

// What went wrong, for callers that show more than the Failure's message.
struct TemplateFailure {
  std::string type;     // "TemplateError" (raise_exception), "TemplateSyntaxError", "UndefinedError", "TypeError",
                        // "SecurityError", "LimitError"
  std::string message;  // without name and line; raise_exception's own words
  int line = 0;
};

class ChatTemplate {
 public:
  // `name` is how messages call the template ("chat_template.jinja").
  static Result<ChatTemplate> parse(std::string_view source, std::string name, const TemplateLimits& limits = {},
                                    TemplateFailure* failure = nullptr);

  // `variables` is an object: messages, tools, add_generation_prompt, bos_token and what else the template may ask for.
  // `tools` and `documents` are null and `add_generation_prompt` is false where they are missing, as in
  // apply_chat_template.
  Result<std::string> render(const Json& variables, const RenderOptions& options = {},
                             TemplateFailure* failure = nullptr) const;
  Result<std::vector<TemplateSegment>> render_segments(const Json& variables, const RenderOptions& options = {},
                                                       TemplateFailure* failure = nullptr) const;

  const std::string& name() const noexcept { return name_; }
  const std::string& source() const noexcept { return *source_; }

 private:
  std::shared_ptr<const jinja::Program> program_;
  std::shared_ptr<const std::string> source_;
  std::string name_;
};

// The templates of a model folder and the special tokens that they are given.
struct ChatTemplates {
  std::vector<std::pair<std::string, ChatTemplate>> named;  // at least one; a single one is called "default"
  Json special_tokens = Json(Json::Object{});               // {"bos_token": "<s>", ...}

  // By name; where that is empty, "tool_use" if there are tools and such a template, else "default".
  Result<const ChatTemplate*> select(std::string_view name, bool has_tools) const;
  // Chooses, adds the special tokens that `variables` does not have, and renders.
  Result<std::string> render(const Json& variables, const RenderOptions& options = {},
                             TemplateFailure* failure = nullptr) const;
  // The same, with what does not come from the template.
  Result<ChatText> render_chat(const Json& variables, const RenderOptions& options = {}) const;

 private:
  Result<const ChatTemplate*> prepare(const Json& variables, Json* all) const;
};

// Reads chat_template.jinja (with additional_chat_templates/*.jinja), tokenizer_config.json or chat_template.json,
// whichever comes first, and the special tokens. None where the folder has no template. Throws Error for files that are
// broken.
std::optional<ChatTemplates> load_chat_template(const std::string& folder);
// The special tokens of tokenizer_config.json and special_tokens_map.json alone.
Json load_special_tokens(const std::string& folder);

}  // namespace coluber
