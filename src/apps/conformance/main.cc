// SPDX-License-Identifier: Apache-2.0
//
// coluber-conformance DIR: runs every case file of a folder ({"rule": NAME, "cases": [{"name", "input", "expect"}]})
// against the functions that the engine runs on. One line a failing case, last "N passed, M failed"; exits 0 only if
// none failed.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "coluber/error.h"
#include "apps/conformance/rules.h"

namespace coluber::conformance {
namespace {

constexpr std::string_view kUsage =
    "usage: coluber-conformance DIR\n\n"
    "Runs every case file (*.json of the form {\"rule\", \"cases\"}) of DIR against the contract's functions.\n"
    "Prints one line a failing case and last 'N passed, M failed'; exits 0 only if none failed.\n";

struct Tally {
  int64_t passed = 0;
  int64_t failed = 0;
  void fail(std::string_view name, std::string_view field, std::string_view expected, std::string_view found) {
    ++failed;
    fmt::print("{}: {}: expected {}, found {}\n", name, field, expected, found);
  }
};

// What the rule's function gave: a value, or the message of its refusal.
struct Outcome {
  Json value;
  std::string refusal;
};

Outcome run_rule(Rule rule, const Json& input) {
  try {
    return {rule(Input(input)), {}};
  } catch (const Error& error) {
    return {Json(), error.what()};
  }
}

// Empty where equal, else the first field that differs.
std::string first_difference(const Json& expected, const Json& found) {
  for (const auto& [key, value] : expected.as_object()) {
    const Json* other = found.find(key);
    if (other == nullptr || !(*other == value)) return key;
  }
  for (const auto& [key, value] : found.as_object())
    if (expected.find(key) == nullptr) return key;
  return {};
}

std::string dump_field(const Json& object, const std::string& key) {
  const Json* value = object.find(key);
  return value == nullptr ? "nothing" : value->dump();
}

void run_case(Rule rule, const std::string& file_name, const Json& entry, Tally& tally) {
  const Json* name_value = entry.find("name");
  const std::string name =
      file_name + "/" + (name_value != nullptr && name_value->is_string() ? name_value->as_string() : "?");
  const Json* input = entry.find("input");
  const Json* expect = entry.find("expect");
  if (input == nullptr || !input->is_object() || expect == nullptr || !expect->is_object()) {
    tally.fail(name, "case", "objects 'input' and 'expect'", entry.dump());
    return;
  }
  try {
    const Outcome outcome = run_rule(rule, *input);
    const bool refused = !outcome.refusal.empty();
    if (expect->find("error") != nullptr) {
      if (refused)
        ++tally.passed;
      else
        tally.fail(name, "error", "a refusal", outcome.value.dump());
      return;
    }
    if (refused) {
      tally.fail(name, "error", "no refusal", outcome.refusal);
      return;
    }
    const std::string field = first_difference(*expect, outcome.value);
    if (field.empty())
      ++tally.passed;
    else
      tally.fail(name, field, dump_field(*expect, field), dump_field(outcome.value, field));
  } catch (const CaseError& error) {
    tally.fail(name, "input", "a well-formed case", error.what());
  } catch (const std::exception& error) {
    // Such as sizes that no memory holds: neither a result nor a refusal that says why.
    tally.fail(name, "case", "a result or a clear refusal", error.what());
  }
}

void run_file(const std::filesystem::path& path, Tally& tally) {
  const std::string file_name = path.stem().string();
  Json file;
  try {
    file = read_json_file(path.string());
  } catch (const Error& error) {
    tally.fail(file_name, "file", "JSON", error.what());
    return;
  }
  const Json* rule_name = file.find("rule");
  const Json* cases = file.find("cases");
  if (rule_name == nullptr && cases == nullptr) return;  // some other JSON file
  if (rule_name == nullptr || !rule_name->is_string() || cases == nullptr || !cases->is_array() ||
      cases->as_array().empty()) {
    tally.fail(file_name, "file", "a string 'rule' and a filled array 'cases'", "neither or one of them");
    return;
  }
  const Rule rule = find_rule(rule_name->as_string());
  if (rule == nullptr) {
    for (const Json& entry : cases->as_array()) {
      const Json* name = entry.find("name");
      tally.fail(file_name + "/" + (name != nullptr && name->is_string() ? name->as_string() : "?"), "rule",
                 "a known rule", "'" + rule_name->as_string() + "'");
    }
    return;
  }
  for (const Json& entry : cases->as_array()) run_case(rule, file_name, entry, tally);
}

int run_folder(const std::string& folder) {
  std::error_code failure;
  std::vector<std::filesystem::path> files;
  std::filesystem::directory_iterator entry(folder, failure);
  for (; !failure && entry != std::filesystem::directory_iterator(); entry.increment(failure))
    if (entry->path().extension() == ".json") files.push_back(entry->path());
  if (failure) {
    fmt::print(stderr, "coluber-conformance: cannot read the folder '{}': {}\n", folder, failure.message());
    return exit_code(ErrorCode::kNotFound);
  }
  std::sort(files.begin(), files.end());
  Tally tally;
  for (const std::filesystem::path& file : files) run_file(file, tally);
  if (tally.passed + tally.failed == 0) {
    fmt::print(stderr,
               "coluber-conformance: '{}' holds no case file; expected *.json of the form {{\"rule\", \"cases\"}}\n",
               folder);
    return exit_code(ErrorCode::kNotFound);
  }
  fmt::print("{} passed, {} failed\n", tally.passed, tally.failed);
  return tally.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace coluber::conformance

int main(int argc, char** argv) {
  const std::string argument = argc == 2 ? argv[1] : "";
  if (argument == "--help" || argument == "-h") {
    fmt::print("{}", coluber::conformance::kUsage);
    return 0;
  }
  if (argument.empty() || argument[0] == '-') {
    fmt::print(stderr, "{}", coluber::conformance::kUsage);
    return coluber::exit_code(coluber::ErrorCode::kInvalidArgument);
  }
  try {
    coluber::set_log_level(coluber::LogLevel::kWarn);
    return coluber::conformance::run_folder(argument);
  } catch (const std::exception& error) {
    fmt::print(stderr, "coluber-conformance: {}\n", error.what());
    return 1;
  }
}
