// SPDX-License-Identifier: Apache-2.0
#include "kernels/op_registry.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"

namespace coluber {
namespace {

std::vector<std::function<OperationNames()>>& entries() {
  static std::vector<std::function<OperationNames()>> instance;
  return instance;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string names_of(const std::vector<OperationNames>& operations) {
  std::vector<std::string> names;
  for (const OperationNames& operation : operations) names.push_back(operation.operation);
  return joined(names);
}

// What is wrong with one item; empty where nothing is. `lists_known` is set where the message calls for the list of
// operations, which is told once.
std::string problem_of(std::string_view item, const std::vector<OperationNames>& known, Isa isa, bool* lists_known) {
  const size_t equals = item.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == item.size())
    return fmt::format("the item '{}' is not of the form OPERATION=IMPLEMENTATION", item);
  const std::string_view operation = item.substr(0, equals), wanted = item.substr(equals + 1);
  const auto found = std::find_if(known.begin(), known.end(), [&](const auto& o) { return o.operation == operation; });
  if (found == known.end()) {
    *lists_known = true;
    return fmt::format("there is no operation '{}'", operation);
  }
  const auto& names = found->implementations;
  const auto place = std::find(names.begin(), names.end(), wanted);
  if (place == names.end())
    return fmt::format("{} has no implementation '{}'; expected one of {}", operation, wanted, joined(names));
  const Isa needed = found->isas[static_cast<size_t>(place - names.begin())];
  if (needed > isa)
    return fmt::format("{}={} needs {}, and this run has {}", operation, wanted, isa_name(needed), isa_name(isa));
  return {};
}

}  // namespace

void enter_operation(std::function<OperationNames()> names) { entries().push_back(std::move(names)); }

std::vector<OperationNames> known_operations() {
  std::vector<OperationNames> known;
  for (const auto& entry : entries()) known.push_back(entry());
  std::sort(known.begin(), known.end(), [](const auto& a, const auto& b) { return a.operation < b.operation; });
  return known;
}

void check_forced_implementations() {
  const Isa isa = active_isa();
  const char* variable = std::getenv("COLUBER_FORCE_IMPL");
  if (variable == nullptr || *variable == '\0') return;
  const std::vector<OperationNames> known = known_operations();
  std::string problems;
  bool lists_known = false;
  for (std::string_view rest = variable; !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    if (item.empty()) continue;
    const std::string problem = problem_of(item, known, isa, &lists_known);
    if (!problem.empty()) problems += (problems.empty() ? "" : "; ") + problem;
  }
  if (problems.empty()) return;
  throw make_error(ErrorCode::kInvalidArgument,
                   "COLUBER_FORCE_IMPL is '{}': {}. It takes OPERATION=IMPLEMENTATION, separated by commas, or is left "
                   "unset{}",
                   variable, problems, lists_known ? "; the operations are " + names_of(known) : "");
}

}  // namespace coluber
