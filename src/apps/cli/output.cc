// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace coluber::cli {
namespace {
constexpr size_t kBufferBytes = 1 << 16;
}

void Output::write(std::string_view text) {
  buffer_ += text;
  if (buffer_.size() >= kBufferBytes) flush();
}

void Output::flush() {
  // Emptied first: what could not be written once is not tried again by main.
  const std::string pending = std::move(buffer_);
  buffer_.clear();
  size_t done = 0;
  while (done < pending.size()) {
    const ssize_t count = ::write(STDOUT_FILENO, pending.data() + done, pending.size() - done);
    if (count >= 0) {
      done += static_cast<size_t>(count);
    } else if (errno == EPIPE) {
      throw ClosedPipe{};
    } else if (errno != EINTR) {
      throw make_error(ErrorCode::kIo,
                       "writing to standard output failed after {} bytes: {}; free some space or send "
                       "the output elsewhere",
                       done, std::strerror(errno));
    }
  }
}

Output& output() {
  static Output instance;
  return instance;
}

}  // namespace coluber::cli
