// SPDX-License-Identifier: Apache-2.0
//
// Which files of a repository a model needs. A repository often holds the same weights several times: only one set is
// fetched, the one that would be read from a folder that held them all. Names alone, nothing is fetched or opened.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace coluber::hub {

// Configurations, tokenizers and templates, in the order given.
std::vector<std::string> files_beside_weights(const std::vector<std::string>& names);

struct WeightFiles {
  std::string index;               // of shards: says which files there are; empty where there is none
  std::vector<std::string> files;  // the weights; empty where an index says them
};

// `wanted` names a GGUF (or .pth) file or a part of its name, where there are several. Throws Error(kNotFound) that
// lists what there is where the repository has no weights, or several sets with nothing to choose by.
WeightFiles choose_weights(const std::vector<std::string>& names, std::string_view wanted, std::string_view repository);

// The files that an index names, sorted. Throws Error(kInvalidData) where it is no index or names what is not there.
std::vector<std::string> files_of_index(std::string_view text, std::string_view index,
                                        const std::vector<std::string>& names);

}  // namespace coluber::hub
