// SPDX-License-Identifier: Apache-2.0
#include "kernels/op.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "tensor/cuda_step.h"
#include "tensor/launch_times.h"

namespace coluber {
namespace {

struct Selections {
  std::mutex mutex;
  std::map<std::string, std::string, std::less<>> by_operation;
};

Selections& selections() {
  static Selections instance;
  return instance;
}

// The implementation that COLUBER_FORCE_IMPL names for the operation; empty where it names none. "op=name,op=name".
std::string_view forced_implementation(std::string_view operation) {
  const char* variable = std::getenv("COLUBER_FORCE_IMPL");
  std::string_view rest = variable == nullptr ? std::string_view() : variable;
  std::string_view found;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == item.size()) {
      throw make_error(ErrorCode::kInvalidArgument,
                       "COLUBER_FORCE_IMPL has the item '{}'; expected OPERATION=IMPLEMENTATION, separated by commas",
                       item);
    }
    if (item.substr(0, equals) == operation) found = item.substr(equals + 1);
  }
  return found;
}

size_t find_forced(std::string_view operation, std::string_view forced, std::span<const char* const> names,
                   std::span<const Isa> isas, Isa isa) {
  const auto found = std::find(names.begin(), names.end(), forced);
  if (found == names.end()) {
    std::string known;
    for (const char* name : names) known += (known.empty() ? "" : ", ") + std::string(name);
    throw make_error(ErrorCode::kInvalidArgument, "COLUBER_FORCE_IMPL asks for {}={}; expected one of {}", operation,
                     forced, known);
  }
  const auto index = static_cast<size_t>(found - names.begin());
  if (isas[index] > isa) {
    throw make_error(ErrorCode::kInvalidArgument, "COLUBER_FORCE_IMPL asks for {}={}, which needs {}; this run has {}",
                     operation, forced, isa_name(isas[index]), isa_name(isa));
  }
  return index;
}

// Nothing is thrown through the library's code.
void* take_scratch(void* workspace, int64_t bytes) {
  try {
    return static_cast<Workspace*>(workspace)->take_bytes(bytes);
  } catch (const Error& error) {
    log_warn("{}", error.what());
    return nullptr;
  }
}

}  // namespace

CudaOperation find_cuda_operation(const char* operation) {
  void* found = CudaLibrary::get().find_symbol(("coluber_cuda_run_" + std::string(operation)).c_str());
  if (found == nullptr)
    throw make_error(ErrorCode::kUnsupported, "operation {} does not run on CUDA devices; use --device cpu", operation);
  return reinterpret_cast<CudaOperation>(found);
}

void launch_on_cuda(const char* operation, CudaOperation function, const void* args, const Execution& on) {
  WorkspaceScope scope(*on.workspace);
  const CudaLaunch launch{on.cuda->device().stream(), take_scratch, on.workspace};
  LaunchTimes* times = on.cuda->device().launch_times();
  if (times != nullptr) times->before();
  if (const CudaStatus status = function(args, &launch)) check_cuda(status, std::string("run ") + operation);
  if (times != nullptr) times->after(operation);
}

size_t select_candidate(std::string_view operation, std::span<const char* const> names, std::span<const Isa> isas) {
  const Isa isa = active_isa();
  size_t chosen = 0;
  if (const std::string_view forced = forced_implementation(operation); !forced.empty()) {
    chosen = find_forced(operation, forced, names, isas, isa);
  } else {
    while (chosen < isas.size() && isas[chosen] > isa) ++chosen;
    COLUBER_CHECK(chosen < isas.size(), "operation {} has no candidate for {}", operation, isa_name(isa));
  }
  log_debug("{}: {}", operation, names[chosen]);
  const std::lock_guard lock(selections().mutex);
  selections().by_operation.insert_or_assign(std::string(operation), names[chosen]);
  return chosen;
}

std::vector<Selection> selected_implementations() {
  const std::lock_guard lock(selections().mutex);
  std::vector<Selection> result;
  for (const auto& [operation, implementation] : selections().by_operation)
    result.push_back({operation, implementation});
  return result;
}

}  // namespace coluber
