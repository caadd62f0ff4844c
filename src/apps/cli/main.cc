// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "apps/cli/arguments.h"
#include "apps/cli/cli.h"
#include "apps/cli/output.h"
#include "base/error.h"

namespace coluber::cli {
namespace {

struct Command {
  std::string_view name;
  std::string_view summary;
  int (*run)(const std::vector<std::string>& args);
};

constexpr Command kCommands[] = {
    {"run", "generate text from a prompt, as it comes", run_command},
    {"chat", "a conversation, with line editing and history", chat_command},
    {"batch", "many requests from a file, many at once", batch_command},
    {"serve", "an HTTP server with OpenAI's API", serve_command},
    {"inspect", "what a model is and what memory it takes, before running it", inspect_command},
    {"models", "the families of models that can be run", models_command},
    {"tokenize", "text to token ids", tokenize_command},
    {"detokenize", "token ids to text", detokenize_command},
    {"template", "render conversations with a model's chat template", template_command},
    {"session", "show, export and import files of 'run --session'", session_command},
    {"logits", "logits, hidden states and recurrent states into a safetensors file", logits_command},
    {"pull", "fetch a model from a hub into the cache", pull_command},
    {"convert", "write a model in another format, or quantised", convert_command},
    {"cache-sim", "what the cache would give and take for a trace of requests", cache_sim_command},
    {"bench", "how fast this machine runs a model, and how far that is from what it could do", bench_command},
    {"completions", "what a shell needs to complete command lines", completions_command},
    {"man", "the manual page", man_command},
};

std::string usage() {
  std::string text =
      "Coluber runs recurrent and hybrid language models.\n\n"
      "Usage: coluber COMMAND [MODEL] [OPTIONS]\n\nCommands:\n";
  for (const Command& command : kCommands) text += fmt::format("  {:<13}{}\n", command.name, command.summary);
  text +=
      "\nMODEL is the folder of a checkpoint, a file of its weights, or a model on a hub (org/name, "
      "org/name@revision,\n"
      "org/name:file.gguf), fetched once; without it the small built-in model runs.\n\n"
      "Examples:\n"
      "  coluber run -p \"What does river mean?\"\n"
      "  coluber chat\n"
      "  coluber inspect path/to/model\n\n"
      "'coluber COMMAND --help' explains a command; 'coluber --version' tells the version.\n";
  return text;
}

// A descriptor that is closed at the start would be taken by the next file that is opened, and output would go into it.
void occupy_standard_descriptors() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) != -1) continue;
    // Opened the wrong way round, so that reading or writing still fails.
    const int mode = descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (open("/dev/null", mode) < 0) _exit(exit_code(ErrorCode::kIo));
  }
}

int dispatch(const std::vector<std::string>& words) {
  if (words.empty()) {
    std::fputs(usage().c_str(), stderr);
    return exit_code(ErrorCode::kInvalidArgument);
  }
  const std::string& name = words.front();
  if (name == "--version" || name == "-V" || name == "version") {
    output().write("coluber " COLUBER_VERSION "\n");
    return 0;
  }
  if (name == "--help" || name == "-h" || (name == "help" && words.size() == 1)) {
    output().write(usage());
    return 0;
  }
  const bool help = name == "help";
  const std::string& wanted = help ? words[1] : name;
  for (const Command& command : kCommands) {
    if (command.name != wanted) continue;
    return command.run(help ? std::vector<std::string>{"--help"}
                            : std::vector<std::string>(words.begin() + 1, words.end()));
  }
  std::string known;
  for (const Command& command : kCommands) known += fmt::format("{}{}", known.empty() ? "" : ", ", command.name);
  throw make_error(ErrorCode::kInvalidArgument, "there is no command '{}'; the commands are {}", wanted, known);
}

// What was written before a failure still belongs to the user; that it cannot be written is told only where nothing
// else is.
void flush_quietly() {
  try {
    output().flush();
  } catch (...) {
  }
}

int fail_with(ErrorCode code, std::string_view message) {
  flush_quietly();
  notice(message);
  return exit_code(code);
}

int run_guarded(const std::vector<std::string>& words) {
  try {
    const int status = dispatch(words);
    output().flush();
    return status;
  } catch (const ClosedPipe&) {
    return exit_code(ErrorCode::kIo);
  } catch (const Error& error) {
    return fail_with(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail_with(ErrorCode::kOutOfMemory,
                     "out of memory; a shorter context (--max-model-len) or a smaller model takes less");
  } catch (const std::exception& error) {
    return fail_with(ErrorCode::kInternal, fmt::format("internal error: {}", error.what()));
  }
}

}  // namespace

std::vector<DescribedCommand> describe_commands() {
  std::vector<DescribedCommand> all;
  for (const Command& command : kCommands) {
    const auto of = [&](const std::vector<std::string>& words) {
      for (DescribedCommand& found : Arguments::describe([&] { (void)command.run(words); }))
        all.push_back(std::move(found));
    };
    of({});
    COLUBER_CHECK(!all.empty() && all.back().name == command.name, "'{}' declares no options", command.name);
    for (const auto& [inner, summary] : std::vector(all.back().commands)) of({inner});
  }
  return all;
}

}  // namespace coluber::cli

int main(int argc, char** argv) {
  coluber::cli::occupy_standard_descriptors();
  coluber::cli::install_signal_handlers();
  return coluber::cli::run_guarded(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
}
