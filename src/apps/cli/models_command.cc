// SPDX-License-Identifier: Apache-2.0
//
// The families that this program runs, as the registry has them: nothing here names one.
#include <algorithm>

#include "apps/cli/arguments.h"
#include "apps/cli/cli.h"
#include "apps/cli/output.h"
#include "base/error.h"
#include "coluber/registry.h"

namespace coluber::cli {
namespace {

std::string joined(const std::vector<std::string>& words, std::string_view quote) {
  std::string text;
  for (const std::string& word : words) text += fmt::format("{}{}{}{}", text.empty() ? "" : ", ", quote, word, quote);
  return text;
}

std::vector<const ModelFamily*> families() {
  std::vector<const ModelFamily*> list;
  const ModelRegistry& registry = ModelRegistry::instance();
  for (const std::string& name : registry.names()) list.push_back(registry.find(name));
  return list;
}

void print_table() {
  size_t width = 0;
  for (const ModelFamily* family : families()) width = std::max(width, family->model_type.size());
  for (const ModelFamily* family : families()) {
    const std::string classes = family->architectures.empty() ? "-" : joined(family->architectures, "");
    output().print("{:<{}}  {}{}\n", family->model_type, width, classes,
                   family->recognizes ? " (also known by its tensors)" : "");
  }
}

// The table of docs/models.md.
void print_markdown() {
  output().write("| `model_type` | classes in `architectures` | known without them |\n| --- | --- | --- |\n");
  for (const ModelFamily* family : families()) {
    output().print("| `{}` | {} | {} |\n", family->model_type, joined(family->architectures, "`"),
                   family->recognizes ? "by its tensors" : "");
  }
}

Json families_json() {
  Json list{Json::Array()};
  for (const ModelFamily* family : families()) {
    Json classes{Json::Array()};
    for (const std::string& name : family->architectures) classes.push_back(name);
    list.push_back(Json::Object{{"model_type", family->model_type},
                                {"architectures", std::move(classes)},
                                {"known_by_tensors", family->recognizes != nullptr}});
  }
  return list;
}

}  // namespace

int models_command(const std::vector<std::string>& args) {
  Arguments arguments("models",
                      "The families of models that this program runs: what config.json may name as model_type or among "
                      "its architectures, and which are known by their tensors where there is no config.json.");
  bool supported = false, json = false, markdown = false;
  arguments.flag("--supported", &supported,
                 "the families that run (all that this command lists, so it may be left out)");
  arguments.section("Output");
  arguments.flag("--json", &json, "a list of objects on one line");
  arguments.flag("--markdown", &markdown, "a table, as in docs/models.md");
  arguments.example("coluber models --supported", "a line for each family");
  arguments.example("coluber models --supported --json", "for a program");
  arguments.example("coluber models --supported --markdown", "for a document");
  if (!arguments.parse(args)) return 0;
  if (json && markdown)
    throw make_error(ErrorCode::kInvalidArgument, "models: both --json and --markdown were given; leave one out");
  if (json) {
    output().write(json_line(families_json()));
  } else if (markdown) {
    print_markdown();
  } else {
    print_table();
  }
  return 0;
}

}  // namespace coluber::cli
