// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/cli.h"
#include "base/error.h"
#include "base/mapped_file.h"

namespace coluber::cli {
namespace {

constexpr const char* kBuiltinName = "asp-7m";

std::string executable_folder() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return {};
  const std::string_view whole(path, static_cast<size_t>(length));
  return std::string(whole.substr(0, whole.rfind('/')));
}

}  // namespace

std::string find_model(const std::string& model) {
  if (!model.empty()) return find_on_hub(model).value_or(model);
  std::vector<std::string> places;
  // Where the variable is set it is the only place: a wrong setting must not silently run another model.
  if (const char* folder = std::getenv("COLUBER_MODEL_DIR"); folder != nullptr && *folder != '\0') {
    places.push_back(std::string(folder) + "/" + kBuiltinName);
    places.emplace_back(folder);
  } else {
    if (const std::string folder = executable_folder(); !folder.empty()) {
      places.push_back(folder + "/../share/coluber/models/" + kBuiltinName);
    }
    places.push_back(std::string(COLUBER_SOURCE_DIR "/models/") + kBuiltinName);
  }
  std::string searched;
  for (const std::string& place : places) {
    if (file_exists(place + "/config.json")) return place;
    searched += "\n  " + place;
  }
  throw make_error(ErrorCode::kNotFound,
                   "no model was named and the built-in one is not there; name a model's folder, or set "
                   "COLUBER_MODEL_DIR to the folder that holds {}. Looked for config.json in:{}",
                   kBuiltinName, searched);
}

}  // namespace coluber::cli
