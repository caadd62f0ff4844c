// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <optional>

#include "apps/cli/arguments.h"
#include "apps/cli/cli.h"
#include "apps/cli/conversation.h"
#include "apps/cli/engine_options.h"
#include "apps/cli/line_editor.h"
#include "apps/cli/output.h"
#include "apps/cli/progress.h"
#include "base/error.h"

namespace coluber::cli {
namespace {

constexpr int64_t kDefaultMaxTokens = 1024;
constexpr std::string_view kHelp =
    "/help          this list\n"
    "/reset         forget the conversation (the system message stays)\n"
    "/system TEXT   set the system message; without TEXT, remove it\n"
    "/stats         tokens held, reused and computed anew, and why\n"
    "/quit          end (so does Ctrl-D)\n"
    "A line that begins with // is sent with one slash. Ctrl-C stops an answer.\n";

double rate(int64_t count, double seconds) { return seconds > 0.0 ? static_cast<double>(count) / seconds : 0.0; }

class Chat {
 public:
  Chat(Engine& engine, const SamplingParams& sampling, bool interactive)
      : conversation_(engine, sampling), interactive_(interactive) {}

  Conversation& conversation() { return conversation_; }

  // False where the conversation is to end.
  bool take_line(const std::string& line) {
    if (line.find_first_not_of(" \t") == std::string::npos) return true;
    if (line.starts_with("//")) {
      answer(line.substr(1));
    } else if (line.front() == '/') {
      return take_command(line);
    } else {
      answer(line);
    }
    return true;
  }

 private:
  bool take_command(const std::string& line) {
    const size_t space = line.find_first_of(" \t");
    const std::string name = line.substr(0, space);
    const size_t start = space == std::string::npos ? space : line.find_first_not_of(" \t", space);
    const std::string rest = start == std::string::npos ? std::string() : line.substr(start);
    if (name == "/quit" || name == "/exit") return false;
    if (name == "/help") {
      output().write(kHelp);
    } else if (name == "/stats") {
      show_stats();
    } else if (name == "/reset") {
      conversation_.reset();
      notice("the conversation is forgotten");
    } else if (name == "/system") {
      set_system(rest);
    } else {
      notice(fmt::format("there is no {}; /help lists what there is, and // at the start sends a slash", name));
    }
    output().flush();
    return true;
  }

  void set_system(const std::string& text) {
    if (const size_t at = first_invalid_utf8(text); at != std::string::npos) {
      notice("the system message is not valid UTF-8 and was left as it is");
      return;
    }
    conversation_.set_system(text);
    notice(text.empty() ? "the system message is removed"
                        : "the system message is set; the next turn computes the conversation anew");
  }

  void answer(const std::string& text) {
    try {
      check_utf8(text, "the line");
      std::optional<ProgressBar> bar(std::in_place, "reading", "tokens");
      const FinishReason reason = conversation_.answer(
          text,
          [&bar](const std::string& piece) {
            bar.reset();
            output().write(piece);
            output().flush();
            return !interrupted();
          },
          [&bar](int64_t done, int64_t total) {
            check_interrupt();
            if (bar) bar->update(done, total);
          });
      bar.reset();
      finish_answer(reason);
    } catch (const Error& error) {
      take_error(error);
    }
  }

  void finish_answer(FinishReason reason) {
    output().write("\n");
    output().flush();
    if (interrupted()) {
      if (!interactive_) throw Error(ErrorCode::kCancelled, "stopped by Ctrl-C");
      clear_interrupt();
      notice("stopped");
    } else if (reason == FinishReason::kLength) {
      notice(conversation_.context_is_full() ? "the conversation fills the model's context; /reset makes room"
                                             : "the answer was cut at its limit; --max-tokens raises it");
    }
  }

  // On a terminal one failed turn does not end the conversation; a script must hear of it.
  void take_error(const Error& error) {
    if (!interactive_) throw error;
    const bool stopped = error.code() == ErrorCode::kCancelled;
    clear_interrupt();
    output().write("\n");
    output().flush();
    notice(stopped ? std::string_view("stopped; your message was taken back") : std::string_view(error.what()));
    if (error.code() == ErrorCode::kContextLength) notice("/reset makes room");
  }

  void show_stats() const {
    const TurnStats& turn = conversation_.last_turn();
    output().print("tokens held: {}\n", conversation_.tokens_held());
    if (turn.turn == 0) {
      output().write("no turn yet\n");
      return;
    }
    output().print(
        "turn {}: {} tokens of conversation, {} reused, {} computed in {:.2f} s; {} generated, {:.1f} a second\n",
        turn.turn, turn.prompt_tokens, turn.reused_tokens, turn.computed_tokens, turn.prefill_s, turn.generated_tokens,
        rate(turn.generated_tokens, turn.decode_s));
    output().print("why: {}\n", turn.why);
    output().print("all turns: {} reused, {} computed\n", conversation_.total_reused(), conversation_.total_computed());
  }

  Conversation conversation_;
  bool interactive_;
};

void talk_on_terminal(Chat& chat) {
  notice("/help lists the commands, Ctrl-D ends");
  LineEditor editor("> ");
  std::string line;
  while (true) {
    switch (editor.read(&line)) {
      case LineEditor::Result::kEnd:
        return;
      case LineEditor::Result::kInterrupted:
        notice("Ctrl-D or /quit ends");
        break;
      case LineEditor::Result::kLine:
        if (!chat.take_line(line)) return;
    }
  }
}

void talk_through_pipe(Chat& chat) {
  std::string line;
  while (read_stdin_line(&line)) {
    check_interrupt();
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!chat.take_line(line)) return;
  }
}

}  // namespace

int chat_command(const std::vector<std::string>& args) {
  Arguments arguments("chat",
                      "A conversation. The model's state is kept between turns, so a turn computes only what is new. "
                      "In a pipe every line is a turn and gets its answer.");
  EngineFlags engine_flags;
  SamplingFlags sampling_flags;
  std::string system;
  engine_flags.declare_model(arguments);
  arguments.section("Conversation");
  arguments.text("--system", &system, "TEXT", "system message in front of the conversation");
  sampling_flags.declare(arguments, kDefaultMaxTokens);
  engine_flags.declare(arguments);
  engine_flags.declare_memory(arguments);
  arguments.example("coluber chat", "talk to the built-in model");
  arguments.example("coluber chat path/to/model --system \"Answer in one line.\" --temperature 0.3",
                    "another model, with a system message");
  arguments.example("printf 'What is a river?\\nUse it in a sentence.\\n' | coluber chat --seed 1",
                    "two turns from a script");
  arguments.footnote("Inside: /help, /reset, /system TEXT, /stats, /quit.");
  if (!arguments.parse(args)) return 0;
  check_utf8(system, "the text after --system");

  const std::unique_ptr<Engine> engine = load_engine_with_progress(engine_flags.options());
  const SamplingParams sampling = sampling_flags.apply(engine->default_sampling(), engine->model_info().vocab_size);
  if (sampling.logprobs) {
    throw Error(ErrorCode::kInvalidArgument,
                "chat: --logprobs are shown by 'coluber run --json' only; leave it out here");
  }
  const bool interactive = stdin_is_terminal();
  Chat chat(*engine, sampling, interactive);
  chat.conversation().set_system(system);
  if (interactive) {
    talk_on_terminal(chat);
  } else {
    talk_through_pipe(chat);
  }
  return 0;
}

}  // namespace coluber::cli
