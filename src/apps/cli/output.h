// SPDX-License-Identifier: Apache-2.0
//
// Standard output, with every write checked: a full disk is an error, a closed pipe ends the command quietly. Buffers
// until `flush` (streaming text flushes after each piece). One object a process, used on the main thread.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

namespace coluber::cli {

// The reader of our pipe is gone: main ends without a message.
struct ClosedPipe {};

class Output {
 public:
  // Throws Error(kIo) with the system's reason, ClosedPipe where nobody reads any more.
  void write(std::string_view text);
  void flush();
  template <typename... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    write(fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::string buffer_;
};

// The process's output; main flushes it after the command.
Output& output();

}  // namespace coluber::cli
