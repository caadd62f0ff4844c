// SPDX-License-Identifier: Apache-2.0
//
// The conventions of the command line: what every subcommand is made of and what it shares with the others. One file
// per subcommand, `<name>_command.cc`, with one function `int <name>_command(const std::vector<std::string>& args)`;
// main.cc has the table that names them, catches what they throw, and turns it into a message and an exit code. Not
// thread-safe: a command runs on the main thread.
//
// A subcommand
//   1. declares its options with `Arguments` (arguments.h, the only door to CLI11) and calls `parse`;
//   2. checks the rest, throwing `Error(ErrorCode::kInvalidArgument, ...)` for a mistake in the usage (exit code 2):
//   messages
//      name the flag, what was found, what was expected, and the way out;
//   3. writes results to `Output` (output.h), never to std::cout or printf, and everything else to stderr with
//   `notice`;
//   4. returns 0. It never calls exit, and never catches what it cannot mend.
//
// Exit codes: 0; 2 for usage; 130 after Ctrl-C; others as `exit_code(ErrorCode)`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "coluber/engine.h"

namespace coluber::cli {

// `args` are the words after the subcommand's name.
int run_command(const std::vector<std::string>& args);
int chat_command(const std::vector<std::string>& args);
int batch_command(const std::vector<std::string>& args);
int serve_command(const std::vector<std::string>& args);  // in apps/server
int session_command(const std::vector<std::string>& args);
int pull_command(const std::vector<std::string>& args);
int logits_command(const std::vector<std::string>& args);
int tokenize_command(const std::vector<std::string>& args);
int detokenize_command(const std::vector<std::string>& args);
int template_command(const std::vector<std::string>& args);
int inspect_command(const std::vector<std::string>& args);
int models_command(const std::vector<std::string>& args);
int convert_command(const std::vector<std::string>& args);
int cache_sim_command(const std::vector<std::string>& args);
int bench_command(const std::vector<std::string>& args);
int bench_serve_command(const std::vector<std::string>& args);  // in apps/bench_serve
int completions_command(const std::vector<std::string>& args);
int man_command(const std::vector<std::string>& args);

struct DescribedCommand;  // arguments.h
// Every command, those within others behind them, as they declare themselves.
std::vector<DescribedCommand> describe_commands();

// The folder or file to load: what the user named, or the built-in model where that is empty. "org/name" that is no
// path here is a model on a hub: taken from the cache, or fetched first (pull_command.cc). Throws Error(kNotFound)
// listing the places that were searched; what a download throws.
std::string find_model(const std::string& model);

// The folder or file of "org/name" and the like; nothing where `name` is a path or could be meant as one.
std::optional<std::string> find_on_hub(const std::string& name);

// "1,2,3" or "@FILE" (ids between commas or white space) as token ids. `flag` names the option in messages.
// Throws Error(kInvalidArgument) naming the word that is no id; an empty list is allowed.
std::vector<int32_t> parse_token_ids(std::string_view text, std::string_view flag);
// Throws Error(kInvalidArgument) naming the first id outside [0, vocab_size), its place and the size.
void check_token_ids(const std::vector<int32_t>& ids, int64_t vocab_size);

// Offset of the first byte that is not part of well-formed UTF-8, or npos.
size_t first_invalid_utf8(std::string_view text) noexcept;
// Throws Error(kInvalidArgument) naming the byte offset and value. `what` is "the prompt", "line 3 of the input", ...
void check_utf8(std::string_view text, std::string_view what);

// Everything from stdin. Throws Error(kIo); Error(kInvalidArgument) beyond `max_bytes`.
std::string read_stdin(size_t max_bytes = size_t{1} << 30);
// The next line of stdin without its end; false at the end of the input. Do not mix with `read_stdin`.
bool read_stdin_line(std::string* line);
// True where the next line has been read already, so that `read_stdin_line` will not wait.
bool stdin_line_is_buffered() noexcept;

// A result as one line of JSON. ASCII only: U+2028 and its like end a line for some readers.
std::string json_line(const Json& value);

bool stdin_is_terminal() noexcept;
bool stdout_is_terminal() noexcept;
bool stderr_is_terminal() noexcept;
int terminal_columns() noexcept;  // of stderr or stdout, 80 where neither is a terminal

// One line to stderr: "coluber: <message>".
void notice(std::string_view message);

// Ctrl-C sets a flag; a second one while the flag stands ends the process at once with 130.
void install_signal_handlers();
bool interrupted() noexcept;
void clear_interrupt() noexcept;
// Throws Error(kCancelled) where Ctrl-C was pressed: call between steps of long work.
void check_interrupt();
// While one lives, Ctrl-C ends the process at once with 130: for long work that cannot look at the flag and leaves
// nothing behind. Throws as `check_interrupt` where Ctrl-C was pressed before. One at a time.
class EndAtInterrupt {
 public:
  EndAtInterrupt();
  ~EndAtInterrupt();
  EndAtInterrupt(const EndAtInterrupt&) = delete;
  EndAtInterrupt& operator=(const EndAtInterrupt&) = delete;
};
// Waits until standard input has something, its end included: true; or until Ctrl-C was pressed: false. A read alone
// would miss a Ctrl-C that comes just before it.
bool wait_for_input() noexcept;

}  // namespace coluber::cli
