// SPDX-License-Identifier: Apache-2.0
//
// Files that a command writes must not be files that the model is read from. Looks at names and files, writes nothing.
#pragma once

#include <string>
#include <string_view>

namespace coluber::cli {

// `flag` ("logits: --out") opens the message. Throws Error(kInvalidArgument) where `path` is a file of the model, under
// whatever name, or would become one by its name. Other results that lie beside the model may be written again.
void check_output_path(std::string_view flag, const std::string& path, const std::string& model);

}  // namespace coluber::cli
