// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/arguments.h"
#include "apps/cli/cli.h"
#include "apps/cli/output.h"

namespace coluber::cli {
namespace {

// Text as troff prints it, whatever stands in it.
std::string troff(std::string_view text) {
  std::string safe = !text.empty() && (text[0] == '.' || text[0] == '\'') ? "\\&" : "";
  for (const char c : text) {
    if (c == '\\') {
      safe += "\\e";
    } else if (c == '-') {
      safe += "\\-";
    } else if (c == '\'') {
      safe += "\\(aq";
    } else if (c == '"') {
      safe += "\\(dq";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string tagged(const DescribedOption& option) {
  std::string flags = option.flags;
  if (const size_t comma = flags.find(','); comma != std::string::npos) flags.insert(comma + 1, " ");
  std::string text = fmt::format(".TP\n.B {}", troff(flags));
  if (!option.meta.empty()) text = fmt::format(".TP\n\\fB{}\\fR \\fI{}\\fR", troff(flags), troff(option.meta));
  return fmt::format("{}\n{}\n", text, troff(option.help));
}

std::string page(const DescribedCommand& command) {
  std::string text = fmt::format(".SS {}\n.B {}\n.PP\n{}\n", troff("coluber " + command.name), troff(command.usage),
                                 troff(command.summary));
  for (const DescribedOption& word : command.words) text += tagged(word);
  for (const auto& section : command.sections) {
    text += fmt::format(".PP\n.I {}:\n", troff(section.title));
    for (const DescribedOption& option : section.options) text += tagged(option);
  }
  for (const auto& [line, what] : command.examples)
    text += fmt::format(".PP\n{}:\n.PP\n.RS 4\n.nf\n{}\n.fi\n.RE\n", troff(what), troff(line));
  for (const std::string& footnote : command.footnotes) text += fmt::format(".PP\n{}\n", troff(footnote));
  return text;
}

}  // namespace

int man_command(const std::vector<std::string>& args) {
  Arguments arguments("man",
                      "Writes the manual page, which says what every command's --help says. 'make install' puts "
                      "it where man looks.");
  arguments.example("coluber man | man -l -", "read it");
  if (!arguments.parse(args)) return 0;
  std::string text =
      ".\\\" Made by 'coluber man'.\n.TH COLUBER 1 \"\" \"coluber " COLUBER_VERSION
      "\"\n.SH NAME\ncoluber \\- runs recurrent and hybrid language models\n.SH SYNOPSIS\n.B coluber\n.I COMMAND\n"
      "[\\fIMODEL\\fR] [\\fIOPTIONS\\fR]\n.SH DESCRIPTION\n"
      "MODEL is the folder of a checkpoint, or a file of its weights; without it the small built\\-in model runs.\n"
      ".SH COMMANDS\n";
  for (const DescribedCommand& command : describe_commands()) text += page(command);
  output().write(text);
  return 0;
}

}  // namespace coluber::cli
