// SPDX-License-Identifier: Apache-2.0
//
// The options of one subcommand: declared once, checked with texts of our own, shown by `--help` with defaults and
// examples. arguments.cc is the only file that sees CLI11. Values are written through the pointers given, which must
// outlive `parse`. Flags are spelled as "-n,--max-tokens". What is declared can also be had as data (`describe`), from
// which completions of shells and the manual page are made.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coluber::cli {

struct IntegerRange {
  int64_t low = std::numeric_limits<int64_t>::min();
  int64_t high = std::numeric_limits<int64_t>::max();
};
struct NumberRange {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
};

struct DescribedOption {
  std::string flags;  // "-n,--max-tokens"; the name of a word without a flag
  std::string meta;   // empty for a flag without a value
  std::string help;
  std::vector<std::string> choices;  // empty where any value may stand
};

struct DescribedCommand {
  struct Section {
    std::string title;
    std::vector<DescribedOption> options;
  };
  std::string name, summary;
  std::string usage;                   // "coluber run [MODEL] [OPTIONS]"
  std::vector<DescribedOption> words;  // without flags
  std::vector<Section> sections;
  std::vector<std::pair<std::string, std::string>> commands;  // within it, and what they do
  std::vector<std::pair<std::string, std::string>> examples;  // command line, what it does
  std::vector<std::string> footnotes;
};

class Arguments {
 public:
  Arguments(std::string_view command, std::string_view summary);
  ~Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  void section(std::string_view title);  // heading of the options declared next
  void example(std::string_view command_line, std::string_view what);
  void footnote(std::string_view text);  // a paragraph after the examples

  // A command within this one: "show" of "session".
  void command(std::string_view name, std::string_view summary, int (*run)(const std::vector<std::string>& args));
  // Runs the command within that the first word names; none where it names none.
  std::optional<int> dispatch(const std::vector<std::string>& args) const;

  // An optional word without a flag. `required` words are asked for by name.
  void positional(std::string_view name, std::string* value, std::string_view help, bool required = false);
  // One or more words.
  void positionals(std::string_view name, std::vector<std::string>* values, std::string_view help);
  // `help` shows the value found at the time of declaration as the default, unless it is empty or unset.
  void text(std::string_view flags, std::string* value, std::string_view meta, std::string_view help);
  void text(std::string_view flags, std::optional<std::string>* value, std::string_view meta, std::string_view help);
  void texts(std::string_view flags, std::vector<std::string>* values, std::string_view meta, std::string_view help);
  void integer(std::string_view flags, int64_t* value, IntegerRange range, std::string_view help);
  void integer(std::string_view flags, std::optional<int64_t>* value, IntegerRange range, std::string_view help);
  void number(std::string_view flags, std::optional<double>* value, NumberRange range, std::string_view help);
  // An amount of memory: "8000000", "1.5GB" (powers of 1000), "512MiB" (of 1024), or "25%" of `whole`.
  void bytes(std::string_view flags, std::optional<int64_t>* value, std::function<int64_t()> whole,
             std::string_view help);
  void choice(std::string_view flags, std::string* value, std::vector<std::string> choices, std::string_view help);
  void flag(std::string_view flags, bool* value, std::string_view help);

  // False where help was asked for and printed: the command returns 0. Throws Error(kInvalidArgument) for anything
  // wrong.
  [[nodiscard]] bool parse(const std::vector<std::string>& args);
  std::string help() const;
  // What the commands that `run` calls declare: they end in their `parse`, which then reads nothing and returns false.
  static std::vector<DescribedCommand> describe(const std::function<void()>& run);

 private:
  DescribedCommand description() const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coluber::cli
