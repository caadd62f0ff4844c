// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/batch_output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "apps/cli/batch_input.h"
#include "apps/cli/cli.h"
#include "apps/cli/output.h"
#include "base/error.h"
#include "base/mapped_file.h"

namespace coluber::cli {
namespace {

constexpr size_t kMaxOutputBytes = size_t{1} << 36;
constexpr std::string_view kLineStart = "{\"id\":";

[[noreturn]] void fail_system(const char* what, const std::string& path) {
  throw make_error(ErrorCode::kIo, "batch: cannot {} --output '{}': {}", what, path, std::strerror(errno));
}

[[noreturn]] void refuse(const std::string& path, int64_t line, const std::string& problem) {
  throw make_error(ErrorCode::kInvalidData,
                   "batch: --output '{}' exists and line {} of it is no result of a batch: {}; name another file, or "
                   "remove this one to start anew",
                   path, line, problem);
}

// Of a line that ends before its time, as much as there is.
bool may_be_torn(std::string_view line) {
  const size_t shared = std::min(line.size(), kLineStart.size());
  return line.substr(0, shared) == kLineStart.substr(0, shared);
}

}  // namespace

BatchOutput::BatchOutput(const std::string& path) : path_(path) {
  if (path == "-") return;
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND, 0666);
  if (fd_ < 0) fail_system("open", path);
  try {
    struct stat status{};
    if (::fstat(fd_, &status) != 0) fail_system("examine", path);
    if (!S_ISREG(status.st_mode)) return;  // a pipe or /dev/null: nothing to go on from
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw make_error(ErrorCode::kResourceExhausted,
                       "batch: another process is writing --output '{}'; wait for it or name another file", path);
    }
    read_done(read_text_file(path, kMaxOutputBytes));
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

BatchOutput::~BatchOutput() {
  if (fd_ >= 0) ::close(fd_);
}

void BatchOutput::take_done(const Json& result, int64_t line_number) {
  const Json* id = result.find("id");
  if (id == nullptr) refuse(path_, line_number, "it has no 'id'");
  if (!id->is_null()) {
    done_ids_.insert(batch_id_key(*id));
  } else if (const Json* line = result.find("line"); line != nullptr && line->is_int()) {
    done_lines_.insert(line->as_int());
  }
}

void BatchOutput::read_done(const std::string& text) {
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t newline = text.find('\n', at);
    const bool whole = newline != std::string::npos;
    const std::string_view line = std::string_view(text).substr(at, whole ? newline - at : std::string::npos);
    ++number;
    const Result<Json> result = parse_json(line, "the line");
    if (result) {
      take_done(*result, number);
      // Its end alone is missing: the next line must not be written into it.
      if (!whole && ::write(fd_, "\n", 1) != 1) fail_system("write", path_);
    } else if (!whole && may_be_torn(line)) {
      if (::ftruncate(fd_, static_cast<off_t>(at)) != 0) fail_system("shorten", path_);
      dropped_torn_line_ = true;
    } else {
      refuse(path_, number, result.error().message);
    }
    if (!whole) return;
    at = newline + 1;
  }
}

void BatchOutput::write(const Json& result) {
  const std::string line = json_line(result);
  if (fd_ < 0) {
    output().write(line);
    output().flush();
    return;
  }
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t count = ::write(fd_, line.data() + done, line.size() - done);
    if (count >= 0) {
      done += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      throw make_error(
          ErrorCode::kIo,
          "batch: writing --output '{}' failed: {}; what is in it is whole but for its last line: the same "
          "command goes on from there",
          path_, std::strerror(errno));
    }
  }
}

}  // namespace coluber::cli
