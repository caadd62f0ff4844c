// SPDX-License-Identifier: Apache-2.0
//
// Lines from a person: cursor keys, history, UTF-8. line_editor.cc is the only file that sees libedit. For a terminal
// only; one object a process, on the main thread.
#pragma once

#include <memory>
#include <string>

namespace coluber::cli {

class LineEditor {
 public:
  explicit LineEditor(std::string prompt);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class Result { kLine, kInterrupted, kEnd };
  // Reads one line, without its end, and adds it to the history. Ctrl-C gives kInterrupted, Ctrl-D on an empty line
  // kEnd.
  Result read(std::string* line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coluber::cli
