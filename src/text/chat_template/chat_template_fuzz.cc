// SPDX-License-Identifier: Apache-2.0
//
// Input: a template, a zero byte, the variables as JSON. Whatever the bytes, parsing and rendering end in a text or in
// a Failure, within their limits; a text is UTF-8 and equals its segments.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/chat_template/chat_template.h"
#include "text/chat_template/python.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

coluber::RenderOptions small_limits() {
  coluber::RenderOptions options;
  options.now = 1720253109;
  options.limits.max_source_bytes = 1 << 16;
  options.limits.max_steps = 20'000;
  options.limits.max_memory_bytes = 4 << 20;
  options.limits.max_output_bytes = 1 << 20;
  options.limits.max_depth = 300;  // sanitizers make frames large
  return options;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view source = input.substr(0, zero);
  const coluber::RenderOptions options = small_limits();
  const auto parsed = coluber::ChatTemplate::parse(source, "fuzz", options.limits);
  if (!parsed) {
    require(!parsed.error().message.empty());
    return 0;
  }
  coluber::Json variables{coluber::Json::Object{}};
  if (zero != input.npos) {
    if (auto json = coluber::parse_json(input.substr(zero + 1), "fuzz"); json && json->is_object())
      variables = std::move(*json);
  }
  const auto text = parsed->render(variables, options);
  const auto segments = parsed->render_segments(variables, options);
  require(text.has_value() == segments.has_value());
  if (!text) return 0;
  require(coluber::jinja::first_invalid_utf8(*text) == std::string::npos);
  std::string joined;
  for (const auto& segment : *segments) joined += segment.text;
  require(joined == *text);
  return 0;
}
