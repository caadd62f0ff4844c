// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/output_path.h"

#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "formats/model_folder.h"
#include "formats/weight_source.h"

namespace coluber::cli {
namespace {

namespace fs = std::filesystem;

bool is_same_file(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error);
}

fs::path folder_of(const fs::path& file) { return file.has_parent_path() ? file.parent_path() : fs::path("."); }

// A result of this program is a .safetensors file of another name than weights have.
bool may_be_result(const std::string& name) {
  return name.ends_with(".safetensors") && !name.starts_with("model") && !name.starts_with("consolidated");
}

bool is_read_as_weights(const fs::path& file, const ModelFolder& model) {
  if (is_same_file(file, model.weights_path)) return true;
  try {
    const FileWeights weights(model.weights_path);
    for (const auto& part : weights.files())
      if (is_same_file(file, part->path())) return true;
    return false;
  } catch (const Error&) {
    return false;  // then the model does not load either, or is read from files of another kind
  }
}

bool is_file_of_model(const fs::path& path, const ModelFolder& model) {
  std::error_code error;
  if (is_same_file(folder_of(path), model.folder)) {
    const std::string name = path.filename().string();
    if (!may_be_result(name) && (fs::exists(path, error) || is_weights_file(name))) return true;
  }
  // Links: the name may be another one.
  for (fs::directory_iterator item(model.folder, error), end; !error && item != end; item.increment(error)) {
    if (!is_same_file(item->path(), path)) continue;
    return !may_be_result(item->path().filename().string()) || is_read_as_weights(path, model);
  }
  return is_same_file(path, model.weights_path);
}

}  // namespace

void check_output_path(std::string_view flag, const std::string& path, const std::string& model) {
  if (!is_file_of_model(path, resolve_model(model))) return;
  throw make_error(ErrorCode::kInvalidArgument,
                   "{} names '{}', which is a file of the model '{}' or would be taken for one; name another file",
                   flag, path, model);
}

}  // namespace coluber::cli
