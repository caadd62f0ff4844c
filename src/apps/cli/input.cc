// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>

#include "apps/cli/cli.h"
#include "base/error.h"
#include "base/mapped_file.h"

namespace coluber::cli {
namespace {

bool is_separator(char c) { return c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Length of the well-formed UTF-8 character at the start of `text`, 0 where there is none (Unicode 15, table 3-7).
size_t utf8_character(std::string_view text) noexcept {
  const auto byte = [&text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto within = [&](size_t i, unsigned low, unsigned high) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return within(1, 0x80, 0xBF) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const unsigned low = first == 0xE0 ? 0xA0 : 0x80;
    const unsigned high = first == 0xED ? 0x9F : 0xBF;  // surrogates are no characters
    return within(1, low, high) && within(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const unsigned low = first == 0xF0 ? 0x90 : 0x80;
    const unsigned high = first == 0xF4 ? 0x8F : 0xBF;
    return within(1, low, high) && within(2, 0x80, 0xBF) && within(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

// Up to `capacity` bytes from stdin; 0 at the end.
size_t read_some(char* buffer, size_t capacity) {
  while (true) {
    if (!wait_for_input()) check_interrupt();
    const ssize_t count = ::read(STDIN_FILENO, buffer, capacity);
    if (count >= 0) return static_cast<size_t>(count);
    if (errno != EINTR) {
      throw make_error(ErrorCode::kIo, "reading standard input failed: {}", std::strerror(errno));
    }
  }
}

// Bytes of standard input beyond the line that was read last. Its lines are not erased one by one, which would copy the
// rest each time.
struct LineBuffer {
  std::string bytes;
  size_t line_start = 0;
};
LineBuffer g_line_buffer;

}  // namespace

std::vector<int32_t> parse_token_ids(std::string_view text, std::string_view flag) {
  std::string from_file;
  if (!text.empty() && text.front() == '@') {
    from_file = read_text_file(std::string(text.substr(1)));
    text = from_file;
  }
  std::vector<int32_t> ids;
  size_t at = 0;
  while (true) {
    while (at < text.size() && is_separator(text[at])) ++at;
    if (at == text.size()) return ids;
    size_t end = at;
    while (end < text.size() && !is_separator(text[end])) ++end;
    const std::string_view word = text.substr(at, end - at);
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || stop != word.data() + word.size()) {
      throw make_error(ErrorCode::kInvalidArgument,
                       "{}: word {} is '{}', expected token ids: whole numbers up to {} between commas or spaces", flag,
                       ids.size() + 1, word.substr(0, 40), std::numeric_limits<int32_t>::max());
    }
    ids.push_back(id);
    at = end;
  }
}

void check_token_ids(const std::vector<int32_t>& ids, int64_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      throw make_error(ErrorCode::kInvalidArgument,
                       "token id {} at position {} is outside the vocabulary: this model has {} tokens, ids 0 to {}",
                       ids[i], i, vocab_size, vocab_size - 1);
    }
  }
}

size_t first_invalid_utf8(std::string_view text) noexcept {
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_character(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

void check_utf8(std::string_view text, std::string_view what) {
  const size_t at = first_invalid_utf8(text);
  if (at == std::string_view::npos) return;
  throw make_error(ErrorCode::kInvalidArgument,
                   "{} is not valid UTF-8: byte 0x{:02X} at offset {} starts no character; convert it first, for "
                   "example with 'iconv -t UTF-8'",
                   what, static_cast<unsigned char>(text[at]), at);
}

std::string read_stdin(size_t max_bytes) {
  std::string text;
  char buffer[1 << 16];
  while (const size_t count = read_some(buffer, sizeof buffer)) {
    text.append(buffer, count);
    if (text.size() > max_bytes) {
      throw make_error(ErrorCode::kInvalidArgument, "standard input is longer than {} bytes, the most that is read",
                       max_bytes);
    }
  }
  return text;
}

bool read_stdin_line(std::string* line) {
  std::string& pending = g_line_buffer.bytes;
  size_t& line_start = g_line_buffer.line_start;
  size_t searched = line_start;
  char buffer[1 << 16];
  while (true) {
    const size_t newline = pending.find('\n', searched);
    if (newline != std::string::npos) {
      line->assign(pending, line_start, newline - line_start);
      line_start = newline + 1;
      return true;
    }
    pending.erase(0, line_start);
    line_start = 0;
    searched = pending.size();
    const size_t count = read_some(buffer, sizeof buffer);
    if (count == 0) {
      if (pending.empty()) return false;
      *line = std::move(pending);
      pending.clear();
      return true;
    }
    pending.append(buffer, count);
  }
}

std::string json_line(const Json& value) { return value.dump(-1, true) + "\n"; }

bool stdin_line_is_buffered() noexcept {
  return g_line_buffer.bytes.find('\n', g_line_buffer.line_start) != std::string::npos;
}

}  // namespace coluber::cli
