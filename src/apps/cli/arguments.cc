// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/arguments.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include "apps/cli/output.h"
#include "base/error.h"

namespace coluber::cli {
namespace {

constexpr size_t kHelpColumn = 34;
constexpr size_t kHelpWidth = 110;
constexpr char kNoBreak = '\x01';  // a space at which no line ends

struct Declared {
  std::string flags;
  std::string meta;  // empty for a flag
  std::string help;
  CLI::Option* option = nullptr;
  std::function<void(const std::vector<std::string>& words)> apply;
  std::vector<std::string> choices = {};
};

struct Section {
  std::string title;
  std::vector<Declared> options;
};

struct Inner {
  std::string name, summary;
  int (*run)(const std::vector<std::string>& args);
};

// Where `describe` gathers; null else.
thread_local std::vector<DescribedCommand>* describing = nullptr;

// What a user types: a subcommand behind the program, or a program of its own.
std::string typed(std::string_view command) {
  return command.starts_with("coluber-") ? std::string(command) : fmt::format("coluber {}", command);
}

[[noreturn]] void refuse(std::string_view command, const std::string& message) {
  throw make_error(ErrorCode::kInvalidArgument, "{}{} See '{} --help'", message, message.back() == '?' ? "" : ".",
                   typed(command));
}

// The long spelling, which messages use.
std::string long_name(std::string_view flags) {
  const size_t comma = flags.rfind(',');
  return std::string(comma == std::string_view::npos ? flags : flags.substr(comma + 1));
}

std::string range_text(const IntegerRange& range) {
  const bool bounded_above = range.high != std::numeric_limits<int64_t>::max();
  if (bounded_above) return fmt::format("a whole number from {} to {}", range.low, range.high);
  if (range.low != std::numeric_limits<int64_t>::min()) return fmt::format("a whole number, {} or more", range.low);
  return "a whole number";
}

std::string range_text(const NumberRange& range) {
  if (std::isfinite(range.high)) return fmt::format("a number from {} to {}", range.low, range.high);
  if (std::isfinite(range.low)) return fmt::format("a number, {} or more", range.low);
  return "a number";
}

int64_t parse_integer(std::string_view command, std::string_view flags, const std::string& word, IntegerRange range) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || value < range.low || value > range.high) {
    refuse(command, fmt::format("{} expects {}, found '{}'", long_name(flags), range_text(range), word));
  }
  return value;
}

double parse_number(std::string_view command, std::string_view flags, const std::string& word, NumberRange range) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value) || value < range.low ||
      value > range.high) {
    refuse(command, fmt::format("{} expects {}, found '{}'", long_name(flags), range_text(range), word));
  }
  return value;
}

// Bytes of a unit; 0 where there is no such unit.
double unit_bytes(std::string_view unit) {
  if (unit.empty() || unit == "B") return 1.0;
  // vLLM's single letters: small ones are powers of 1000, capitals of 1024.
  constexpr std::string_view kLetters = "kmgt", kCapitals = "KMGT";
  const bool small = kLetters.find(unit[0]) != std::string_view::npos;
  const size_t power = small ? kLetters.find(unit[0]) : kCapitals.find(unit[0]);
  if (power == std::string_view::npos) return 0.0;
  const std::string_view rest = unit.substr(1);
  if (rest != "" && rest != "B" && rest != "iB") return 0.0;
  const bool binary = rest == "iB" || (rest.empty() && !small);
  return std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power + 1));
}

int64_t parse_bytes(std::string_view command, std::string_view flags, const std::string& word,
                    const std::function<int64_t()>& whole) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const std::string_view unit(end, static_cast<size_t>(word.data() + word.size() - end));
  const bool share = unit == "%" && whole;
  const double factor = share ? 0.01 * static_cast<double>(whole()) : unit_bytes(unit);
  const double bytes = value * factor;
  if (error != std::errc() || !(value > 0.0) || factor <= 0.0 || (share && value > 100.0) || bytes < 1.0 ||
      bytes > 9e18) {
    refuse(command,
           fmt::format(
               "{} expects an amount of memory above 0 and up to 9e18 bytes, such as 8000000, 1.5GB, 512MiB or 25% (of "
               "what is free), found '{}'",
               long_name(flags), word));
  }
  return static_cast<int64_t>(bytes);
}

// Breaks at spaces; every line after the first starts with `indent` spaces.
std::string wrap(std::string_view text, size_t column, size_t indent) {
  std::string out;
  size_t at = column;
  while (!text.empty()) {
    const size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    if (at > indent && at + 1 + word.size() > kHelpWidth) {
      out += '\n' + std::string(indent, ' ');
      at = indent;
    } else if (at > indent && !out.empty()) {
      out += ' ';
      ++at;
    }
    for (const char c : word) out += c == kNoBreak ? ' ' : c;
    at += word.size();
    text = space == std::string_view::npos ? std::string_view() : text.substr(space + 1);
  }
  return out;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t next = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = row[j];
      row[j] = next;
    }
  }
  return row[b.size()];
}

}  // namespace

struct Arguments::Impl {
  CLI::App app;
  std::string command;
  std::string summary;
  std::vector<Section> sections{{"Options", {}}};
  std::vector<Declared> positionals;
  std::vector<std::string> required;
  std::vector<std::pair<std::string, std::string>> examples;
  std::vector<std::string> footnotes;
  std::vector<Inner> commands;

  std::string usage() const {
    std::string text = typed(command);
    for (const Declared& declared : positionals) {
      const bool is_required = std::find(required.begin(), required.end(), declared.flags) != required.end();
      text += is_required ? " " + declared.flags : " [" + declared.flags + "]";
    }
    const bool has_options =
        std::any_of(sections.begin(), sections.end(), [](const Section& s) { return !s.options.empty(); });
    return text + (has_options || commands.empty() ? " [OPTIONS]" : " COMMAND");
  }

  void add(std::string_view flags, std::string_view meta, std::string help, const std::string& shown_default,
           std::function<void(const std::vector<std::string>&)> apply, bool many = false) {
    if (!shown_default.empty()) help += fmt::format(" (default:{}{})", kNoBreak, shown_default);
    CLI::Option* option = app.add_option(std::string(flags));
    option->type_size(1)->expected(1)->allow_extra_args(false);
    option->multi_option_policy(many ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::TakeLast);
    sections.back().options.push_back(
        {std::string(flags), std::string(meta), std::move(help), option, std::move(apply)});
  }

  // The known flag that is nearest to a mistyped one, or that it shortens or goes on from; empty where none is near.
  std::string nearest(std::string_view word) const {
    std::string best;
    size_t best_distance = 3;
    for (const Section& section : sections) {
      for (const Declared& declared : section.options) {
        const std::string name = long_name(declared.flags);
        // Of --out and --output one command has the one; "--a" begins too much to be a hint.
        const std::string_view shorter = word.size() < name.size() ? word : std::string_view(name);
        if (best.empty() && shorter.size() >= std::string_view("--out").size() &&
            word.substr(0, shorter.size()) == name.substr(0, shorter.size()))
          best = name;
        const size_t distance = edit_distance(word, name);
        if (distance < best_distance) best_distance = distance, best = name;
      }
    }
    return best;
  }

  [[noreturn]] void refuse_extras() const {
    const std::vector<std::string> extras = app.remaining();
    const std::string word = extras.empty() ? "" : extras.front();
    if (word.size() > 1 && word[0] == '-') {
      const std::string name = word.substr(0, word.find('='));
      const std::string near = nearest(name);
      refuse(command, fmt::format("there is no option '{}'{}", name,
                                  near.empty() ? std::string() : fmt::format("; did you mean '{}'?", near)));
    }
    refuse(command, fmt::format("'{}' was not expected here; text with spaces needs quotes", word));
  }
};

Arguments::Arguments(std::string_view command, std::string_view summary) : impl_(std::make_unique<Impl>()) {
  impl_->command = command;
  impl_->summary = summary;
  impl_->app.set_help_flag("-h,--help");
  impl_->app.allow_extras();
}

Arguments::~Arguments() = default;

void Arguments::section(std::string_view title) { impl_->sections.push_back({std::string(title), {}}); }

void Arguments::example(std::string_view command_line, std::string_view what) {
  impl_->examples.emplace_back(command_line, what);
}

void Arguments::footnote(std::string_view text) { impl_->footnotes.emplace_back(text); }

void Arguments::command(std::string_view name, std::string_view summary,
                        int (*run)(const std::vector<std::string>& args)) {
  impl_->commands.push_back({std::string(name), std::string(summary), run});
}

std::optional<int> Arguments::dispatch(const std::vector<std::string>& args) const {
  for (const Inner& inner : impl_->commands)
    if (!args.empty() && args.front() == inner.name) return inner.run({args.begin() + 1, args.end()});
  return std::nullopt;
}

void Arguments::positional(std::string_view name, std::string* value, std::string_view help, bool required) {
  CLI::Option* option = impl_->app.add_option(std::string(name));
  option->type_size(1)->expected(1)->allow_extra_args(false);
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  if (required) impl_->required.emplace_back(name);
  impl_->positionals.push_back({std::string(name), "", std::string(help), option,
                                [value](const std::vector<std::string>& words) { *value = words.back(); }});
}

void Arguments::positionals(std::string_view name, std::vector<std::string>* values, std::string_view help) {
  CLI::Option* option = impl_->app.add_option(std::string(name));
  option->type_size(1)->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args(true);
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  impl_->required.emplace_back(name);
  impl_->positionals.push_back({std::string(name), "", std::string(help), option,
                                [values](const std::vector<std::string>& words) { *values = words; }});
}

void Arguments::text(std::string_view flags, std::string* value, std::string_view meta, std::string_view help) {
  impl_->add(flags, meta, std::string(help), *value,
             [value](const std::vector<std::string>& words) { *value = words.back(); });
}

void Arguments::text(std::string_view flags, std::optional<std::string>* value, std::string_view meta,
                     std::string_view help) {
  impl_->add(flags, meta, std::string(help), value->value_or(""),
             [value](const std::vector<std::string>& words) { *value = words.back(); });
}

void Arguments::texts(std::string_view flags, std::vector<std::string>* values, std::string_view meta,
                      std::string_view help) {
  impl_->add(
      flags, meta, std::string(help), "", [values](const std::vector<std::string>& words) { *values = words; }, true);
}

void Arguments::integer(std::string_view flags, int64_t* value, IntegerRange range, std::string_view help) {
  impl_->add(flags, "N", std::string(help), std::to_string(*value),
             [this, value, range, name = std::string(flags)](const std::vector<std::string>& words) {
               *value = parse_integer(impl_->command, name, words.back(), range);
             });
}

void Arguments::integer(std::string_view flags, std::optional<int64_t>* value, IntegerRange range,
                        std::string_view help) {
  impl_->add(flags, "N", std::string(help), *value ? std::to_string(**value) : std::string(),
             [this, value, range, name = std::string(flags)](const std::vector<std::string>& words) {
               *value = parse_integer(impl_->command, name, words.back(), range);
             });
}

void Arguments::number(std::string_view flags, std::optional<double>* value, NumberRange range, std::string_view help) {
  impl_->add(flags, "X", std::string(help), *value ? fmt::format("{}", **value) : std::string(),
             [this, value, range, name = std::string(flags)](const std::vector<std::string>& words) {
               *value = parse_number(impl_->command, name, words.back(), range);
             });
}

void Arguments::bytes(std::string_view flags, std::optional<int64_t>* value, std::function<int64_t()> whole,
                      std::string_view help) {
  impl_->add(flags, "SIZE", std::string(help), *value ? std::to_string(**value) : std::string(),
             [this, value, whole = std::move(whole), name = std::string(flags)](const std::vector<std::string>& words) {
               *value = parse_bytes(impl_->command, name, words.back(), whole);
             });
}

void Arguments::choice(std::string_view flags, std::string* value, std::vector<std::string> choices,
                       std::string_view help) {
  std::string meta;
  for (const std::string& choice : choices) meta += (meta.empty() ? "" : "|") + choice;
  impl_->add(flags, meta, std::string(help), *value,
             [this, value, choices, meta, name = std::string(flags)](const std::vector<std::string>& words) {
               for (const std::string& choice : choices) {
                 if (choice == words.back()) {
                   *value = choice;
                   return;
                 }
               }
               refuse(impl_->command,
                      fmt::format("{} expects one of {}, found '{}'", long_name(name), meta, words.back()));
             });
  impl_->sections.back().options.back().choices = std::move(choices);
}

void Arguments::flag(std::string_view flags, bool* value, std::string_view help) {
  CLI::Option* option = impl_->app.add_flag(std::string(flags));
  impl_->sections.back().options.push_back(
      {std::string(flags), "", std::string(help), option, [value](const std::vector<std::string>&) { *value = true; }});
}

std::vector<DescribedCommand> Arguments::describe(const std::function<void()>& run) {
  std::vector<DescribedCommand> found;
  struct Gathering {
    explicit Gathering(std::vector<DescribedCommand>* into) { describing = into; }
    ~Gathering() { describing = nullptr; }
  } gathering(&found);
  run();
  return found;
}

DescribedCommand Arguments::description() const {
  const auto described = [](const Declared& declared) {
    std::string help = declared.help;
    std::replace(help.begin(), help.end(), kNoBreak, ' ');
    return DescribedOption{declared.flags, declared.meta, std::move(help), declared.choices};
  };
  DescribedCommand all{impl_->command, impl_->summary, impl_->usage(), {}, {}, {}, impl_->examples, impl_->footnotes};
  for (const Declared& word : impl_->positionals) all.words.push_back(described(word));
  for (const Inner& inner : impl_->commands) all.commands.emplace_back(inner.name, inner.summary);
  for (const Section& section : impl_->sections) {
    if (section.options.empty()) continue;
    all.sections.push_back({section.title, {}});
    for (const Declared& option : section.options) all.sections.back().options.push_back(described(option));
  }
  return all;
}

bool Arguments::parse(const std::vector<std::string>& args) {
  if (describing != nullptr) {
    describing->push_back(description());
    return false;
  }
  // CLI11 takes the words from the back.
  std::vector<std::string> reversed(args.rbegin(), args.rend());
  try {
    impl_->app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    output().write(help());
    return false;
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string what = error.what();
    refuse(impl_->command, fmt::format("{} needs a value", what.substr(0, what.find(':'))));
  } catch (const CLI::ParseError& error) {
    refuse(impl_->command, error.what());
  }
  if (impl_->app.remaining_size() > 0) impl_->refuse_extras();
  for (const Declared& declared : impl_->positionals) {
    if (declared.option->count() > 0) {
      declared.apply(declared.option->results());
    } else {
      for (const std::string& name : impl_->required) {
        if (name == declared.flags) refuse(impl_->command, fmt::format("{} is missing", name));
      }
    }
  }
  for (const Section& section : impl_->sections) {
    for (const Declared& declared : section.options) {
      if (declared.option->count() > 0) declared.apply(declared.option->results());
    }
  }
  return true;
}

std::string Arguments::help() const {
  std::string out = "Usage: " + impl_->usage() + "\n\n" + wrap(impl_->summary, 0, 0) + "\n";
  const auto line = [&out](const std::string& left, const std::string& right) {
    std::string text = "  " + left;
    text += text.size() + 2 > kHelpColumn ? '\n' + std::string(kHelpColumn, ' ')
                                          : std::string(kHelpColumn - text.size(), ' ');
    out += text + wrap(right, kHelpColumn, kHelpColumn) + "\n";
  };
  if (!impl_->positionals.empty()) out += "\n";
  for (const Declared& declared : impl_->positionals) line(declared.flags, declared.help);
  for (const Section& section : impl_->sections) {
    if (section.options.empty()) continue;
    out += "\n" + section.title + ":\n";
    for (const Declared& declared : section.options) {
      std::string left = declared.flags;
      if (const size_t comma = left.find(','); comma != std::string::npos) left.insert(comma + 1, " ");
      line(declared.meta.empty() ? left : left + " " + declared.meta, declared.help);
    }
  }
  if (!impl_->commands.empty()) out += "\nCommands:\n";
  for (const Inner& inner : impl_->commands) out += fmt::format("  {:<12}{}\n", inner.name, inner.summary);
  if (!impl_->examples.empty()) out += "\nExamples:\n";
  for (const auto& [command_line, what] : impl_->examples) out += fmt::format("  # {}\n  {}\n", what, command_line);
  for (const std::string& text : impl_->footnotes) out += "\n" + wrap(text, 0, 0) + "\n";
  return out;
}

}  // namespace coluber::cli
