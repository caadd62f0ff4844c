// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/line_editor.h"

#include <histedit.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cwchar>

#include "apps/cli/cli.h"
#include "base/error.h"

namespace coluber::cli {
namespace {

constexpr int kHistoryLines = 1000;

// libedit's own reader goes on after the first interrupted read, so Ctrl-C would need two presses.
int read_character(EditLine* editor, wchar_t* out) {
  std::mbstate_t state{};
  while (true) {
    char byte = 0;
    if (!wait_for_input()) return -1;
    const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
    if (count == 0) return 0;
    if (count < 0) {
      if (errno == EINTR && !interrupted()) continue;  // a window was resized
      return -1;
    }
    // Ctrl-D typed between two lines, before the editor took the terminal over, arrives as a zero byte.
    const LineInfo* line = el_line(editor);
    if (byte == 0 && line->lastchar == line->buffer) return 0;
    const size_t used = std::mbrtowc(out, &byte, 1, &state);
    if (used == static_cast<size_t>(-2)) continue;  // more bytes of this character follow
    if (used == static_cast<size_t>(-1)) {
      state = {};
      continue;  // a byte that is no text
    }
    return 1;
  }
}

}  // namespace

struct LineEditor::Impl {
  EditLine* editor = nullptr;
  History* history = nullptr;
  HistEvent event{};
  std::string prompt;
};

LineEditor::LineEditor(std::string prompt) : impl_(std::make_unique<Impl>()) {
  impl_->prompt = std::move(prompt);
  // Without a UTF-8 locale libedit would take each byte for a character.
  if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
  impl_->editor = el_init("coluber", stdin, stderr, stderr);
  impl_->history = history_init();
  if (impl_->editor == nullptr || impl_->history == nullptr) {
    throw Error(ErrorCode::kIo, "the terminal does not allow line editing; set TERM, or send the lines through a pipe");
  }
  history(impl_->history, &impl_->event, H_SETSIZE, kHistoryLines);
  history(impl_->history, &impl_->event, H_SETUNIQUE, 1);
  el_set(impl_->editor, EL_CLIENTDATA, impl_.get());
  el_set(
      impl_->editor, EL_PROMPT, +[](EditLine* editor) -> char* {
        Impl* self = nullptr;
        el_get(editor, EL_CLIENTDATA, &self);
        return self->prompt.data();
      });
  el_set(impl_->editor, EL_EDITOR, "emacs");
  el_set(impl_->editor, EL_HIST, ::history, impl_->history);
  el_set(impl_->editor, EL_GETCFN, read_character);
  el_set(impl_->editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  el_source(impl_->editor, nullptr);  // the user's ~/.editrc, where there is one
}

LineEditor::~LineEditor() {
  if (impl_->history != nullptr) history_end(impl_->history);
  if (impl_->editor != nullptr) el_end(impl_->editor);
}

LineEditor::Result LineEditor::read(std::string* line) {
  int count = 0;
  // libedit shows the prompt before it takes the terminal over: what is typed in between would be edited by bytes.
  el_set(impl_->editor, EL_PREP_TERM, 1);
  const char* text = el_gets(impl_->editor, &count);
  if (interrupted()) {
    clear_interrupt();
    el_reset(impl_->editor);
    std::fputs("\n", stderr);
    return Result::kInterrupted;
  }
  if (text == nullptr || count <= 0) {
    std::fputs("\n", stderr);
    return Result::kEnd;
  }
  line->assign(text, static_cast<size_t>(count));
  while (!line->empty() && (line->back() == '\n' || line->back() == '\r')) line->pop_back();
  if (!line->empty()) history(impl_->history, &impl_->event, H_ENTER, line->c_str());
  return Result::kLine;
}

}  // namespace coluber::cli
