// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "apps/cli/arguments.h"
#include "apps/cli/cli.h"
#include "apps/cli/output.h"
#include "base/error.h"

namespace coluber::cli {
namespace {

using Commands = std::vector<DescribedCommand>;

bool takes_file(const DescribedOption& option) {
  static const std::set<std::string_view> kFiles = {"FILE", "PATH", "DIR", "MODEL", "TRACE"};
  return kFiles.contains(option.meta);
}

std::vector<std::string> spellings(const DescribedOption& option) {
  std::vector<std::string> all;
  for (size_t at = 0; at < option.flags.size();) {
    const size_t end = std::min(option.flags.find(',', at), option.flags.size());
    all.push_back(option.flags.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : std::string(between)) + word;
  return all;
}

template <typename Work>
void each_option(const DescribedCommand& command, const Work& work) {
  for (const auto& section : command.sections)
    for (const DescribedOption& option : section.options) work(option);
}

// The first sentence, or what fits beside a word.
std::string brief(const std::string& help) {
  constexpr size_t kLongest = 80;
  const std::string first = help.substr(0, std::min({help.find("; "), help.find(": "), help.find(" (default:")}));
  if (first.size() <= kLongest) return first;
  return first.substr(0, first.rfind(' ', kLongest)) + " ...";
}

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
  return text;
}

std::vector<std::string> top_names(const Commands& commands) {
  std::vector<std::string> names;
  for (const DescribedCommand& command : commands)
    if (command.name.find(' ') == std::string::npos) names.push_back(command.name);
  return names;
}

std::vector<std::string> inner_names(const DescribedCommand& command) {
  std::vector<std::string> names;
  for (const auto& [name, summary] : command.commands) names.push_back(name);
  return names;
}

// ---- bash --------------------------------------------------------------------------------------------------------

std::string bash_case(const DescribedCommand& command) {
  std::vector<std::string> flags{"--help"}, files, others;
  std::string choices;
  each_option(command, [&](const DescribedOption& option) {
    const std::vector<std::string> names = spellings(option);
    flags.insert(flags.end(), names.begin(), names.end());
    if (option.meta.empty()) return;
    if (!option.choices.empty()) {
      choices += fmt::format("        {}) words=\"{}\" ;;\n", joined(names, "|"), joined(option.choices, " "));
    } else {
      auto& kind = takes_file(option) ? files : others;
      kind.insert(kind.end(), names.begin(), names.end());
    }
  });
  std::string text = fmt::format("    \"{}\")\n      flags=\"{}\"\n", command.name, joined(flags, " "));
  if (!command.commands.empty()) text += fmt::format("      inner=\"{}\"\n", joined(inner_names(command), " "));
  text += "      case $previous in\n" + choices;
  if (!files.empty()) text += fmt::format("        {}) files=yes ;;\n", joined(files, "|"));
  if (!others.empty()) text += fmt::format("        {}) return ;;\n", joined(others, "|"));
  return text + "        *) ;;\n      esac\n      ;;\n";
}

std::string bash(const Commands& commands) {
  std::string text =
      "# Completion of coluber for bash, made by 'coluber completions bash'.\n"
      "_coluber() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}\n"
      "  local flags='' words='' inner='' files=''\n"
      "  COMPREPLY=()\n"
      "  if [[ $current == '=' ]]; then current=''; elif [[ $previous == '=' ]]; then "
      "previous=${COMP_WORDS[COMP_CWORD-2]}; fi\n";
  text += fmt::format(
      "  if ((COMP_CWORD == 1)); then\n    mapfile -t COMPREPLY < <(compgen -W \"{} help --help --version\" -- "
      "\"$current\")\n    return\n  fi\n",
      joined(top_names(commands), " "));
  std::vector<std::string> within;
  for (const DescribedCommand& command : commands)
    for (const std::string& inner : inner_names(command)) within.push_back(fmt::format("'{} {}'", command.name, inner));
  text += fmt::format(
      "  case \"$command ${{COMP_WORDS[2]:-}}\" in\n    {}) if ((COMP_CWORD > 2)); then command=\"$command "
      "${{COMP_WORDS[2]}}\"; fi ;;\n    *) ;;\n  esac\n  case $command in\n",
      joined(within, "|"));
  for (const DescribedCommand& command : commands) text += bash_case(command);
  return text +
         "    *) return ;;\n  esac\n"
         "  if [[ -n $words ]]; then\n    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
         "  elif [[ $current == -* && -z $files ]]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$current\")\n"
         "  else\n    compopt -o filenames\n    mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
         "    if ((COMP_CWORD == 2)) && [[ -n $inner ]]; then\n"
         "      mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -W \"$inner\" -- \"$current\")\n    fi\n  fi\n"
         "}\n"
         "complete -F _coluber coluber\n";
}

// ---- zsh ---------------------------------------------------------------------------------------------------------

std::string zsh_text(const std::string& text) {
  std::string safe = replaced(replaced(text, "\\", "\\\\"), "'", "'\\''");
  for (const std::string_view mark : {"[", "]", ":"}) safe = replaced(safe, mark, "\\" + std::string(mark));
  return safe;
}

std::string zsh_command(const DescribedCommand& command) {
  std::string text = fmt::format("    '{}')\n      options=(\n", command.name);
  each_option(command, [&](const DescribedOption& option) {
    const std::string value = option.meta.empty()       ? ""
                              : !option.choices.empty() ? fmt::format(":value:({})", joined(option.choices, " "))
                              : takes_file(option)      ? ":" + zsh_text(option.meta) + ":_files"
                                                        : ":" + zsh_text(option.meta) + ": ";
    for (const std::string& name : spellings(option))
      text += fmt::format("        '*{}{}[{}]{}'\n", name, !value.empty() && name.starts_with("--") ? "=" : "",
                          zsh_text(brief(option.help)), value);
  });
  text += "        '(- *)--help[what it does and its options]'\n";
  if (!command.commands.empty())
    text += fmt::format("        '1:command:_alternative \"inner:command:({})\" \"files:file:_files\"'\n",
                        joined(inner_names(command), " "));
  return text + "        '*:file:_files'\n      )\n      ;;\n";
}

std::string zsh(const Commands& commands) {
  std::string text =
      "#compdef coluber\n# Completion of coluber for zsh, made by 'coluber completions zsh'.\n"
      "_coluber() {\n  local -a options names\n  local command=${words[2]:-}\n"
      "  if ((CURRENT == 2)); then\n    names=(\n";
  for (const DescribedCommand& command : commands)
    if (command.name.find(' ') == std::string::npos)
      text += fmt::format("      '{}:{}'\n", command.name, zsh_text(brief(command.summary)));
  text += "    )\n    _describe command names\n    return\n  fi\n  case \"$command ${words[3]:-}\" in\n";
  std::string within;
  for (const DescribedCommand& command : commands)
    for (const std::string& inner : inner_names(command))
      within += fmt::format("{}'{} {}'", within.empty() ? "" : "|", command.name, inner);
  text += fmt::format(
      "    {}) if ((CURRENT > 3)); then command=\"$command $words[3]\"; shift words; ((CURRENT--)); fi ;;\n  esac\n"
      "  case $command in\n",
      within);
  for (const DescribedCommand& command : commands) text += zsh_command(command);
  return text +
         "    *) return 1 ;;\n  esac\n  shift words\n  ((CURRENT--))\n  _arguments -s \"$options[@]\"\n}\n"
         "if [ \"$funcstack[1]\" = _coluber ]; then _coluber \"$@\"; else compdef _coluber coluber; fi\n";
}

// ---- fish --------------------------------------------------------------------------------------------------------

std::string fish_text(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

std::string fish_command(const DescribedCommand& command) {
  const size_t space = command.name.find(' ');
  std::string condition = fmt::format("__fish_seen_subcommand_from {}", command.name.substr(0, space));
  if (space != std::string::npos)
    condition += fmt::format("; and __fish_seen_subcommand_from {}", command.name.substr(space + 1));
  std::string text;
  for (const auto& [name, summary] : command.commands)
    text += fmt::format("complete -c coluber -n '{}' -a {} -d {}\n", condition, name, fish_text(summary));
  if (!command.commands.empty())
    condition += fmt::format("; and not __fish_seen_subcommand_from {}", joined(inner_names(command), " "));
  each_option(command, [&](const DescribedOption& option) {
    text += fmt::format("complete -c coluber -n '{}'", condition);
    for (const std::string& name : spellings(option))
      text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    if (!option.choices.empty()) {
      text += fmt::format(" -x -a '{}'", joined(option.choices, " "));
    } else if (!option.meta.empty()) {
      text += takes_file(option) ? " -r -F" : " -x";
    }
    text += fmt::format(" -d {}\n", fish_text(brief(option.help)));
  });
  return text;
}

std::string fish(const Commands& commands) {
  std::string text = "# Completion of coluber for fish, made by 'coluber completions fish'.\n";
  for (const DescribedCommand& command : commands)
    if (command.name.find(' ') == std::string::npos)
      text += fmt::format("complete -c coluber -f -n __fish_use_subcommand -a {} -d {}\n", command.name,
                          fish_text(brief(command.summary)));
  text += "complete -c coluber -l help -d 'what it does and its options'\n";
  for (const DescribedCommand& command : commands) text += fish_command(command);
  return text;
}

}  // namespace

int completions_command(const std::vector<std::string>& args) {
  Arguments arguments("completions",
                      "Writes what a shell needs to complete command lines of coluber. "
                      "'make install' puts it where bash, zsh and fish look.");
  std::string shell;
  arguments.positional("SHELL", &shell, "bash, zsh or fish", true);
  arguments.example("source <(coluber completions bash)", "in this shell");
  arguments.example("coluber completions fish > ~/.config/fish/completions/coluber.fish", "in every fish");
  if (!arguments.parse(args)) return 0;
  if (shell != "bash" && shell != "zsh" && shell != "fish")
    throw make_error(ErrorCode::kInvalidArgument, "completions: SHELL must be bash, zsh or fish, found '{}'", shell);
  const Commands commands = describe_commands();
  output().write(shell == "bash" ? bash(commands) : shell == "zsh" ? zsh(commands) : fish(commands));
  return 0;
}

}  // namespace coluber::cli
