// SPDX-License-Identifier: Apache-2.0
//
// A folder of results that appears whole or not at all, as write_file_atomically (mapped_file.h) does for one file.
#pragma once

#include <functional>
#include <string>

namespace coluber {

// `write` fills a new folder beside `path`, whose path it gets; then that folder takes the name. Whatever `write`
// throws leaves nothing behind. A folder of that name is kept until then; it must be empty, unless it is to be
// replaced, which readers see as one step. Throws Error(kIo), Error(kInvalidArgument) where something else is in the
// way.
void write_folder_atomically(const std::string& path, bool replace,
                             const std::function<void(const std::string& folder)>& write);

}  // namespace coluber
