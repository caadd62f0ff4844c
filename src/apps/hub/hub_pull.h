// SPDX-License-Identifier: Apache-2.0
//
// From "org/name" to a folder or file that can be loaded: what is missing is fetched, checked and kept in the cache
// (hub_cache.h). A download that is cut goes on where it ended; contents that do not have the checksum that the hub
// says are never given a name. One thread; several processes may pull the same at once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/hub/hub_reference.h"

namespace coluber::hub {

struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  std::string token;
  std::string cache_folder;
  bool offline = false;  // nothing is fetched
  bool verify = false;   // what is in the cache already is checked again
  int retries = 5;
  std::function<void(int64_t done, int64_t total, std::string_view file)> progress;
  std::function<bool()> cancelled;
  std::function<void(std::string_view)> notice;
};

// HF_ENDPOINT, HF_TOKEN (or the file that HF_TOKEN_PATH names, or HF_HOME/token), HF_HUB_OFFLINE and the folders of
// default_cache_folder(). Throws Error(kInvalidArgument) naming the variable that is wrong.
HubOptions hub_options_of_environment();

struct HubFileState {
  std::string name;
  int64_t bytes = -1;
  bool here = false;
};

struct HubModel {
  std::string path;  // of the folder, or of the file that was asked for
  std::string commit;
  std::vector<HubFileState> files;  // that the model needs
  int64_t fetched_bytes = 0;
};

// Throws Error(kNotFound, kIo, kInvalidData, kCancelled) saying what to do.
HubModel pull(const HubReference& reference, const HubOptions& options);
// What `pull` would need, and how much of it is here. Fetches lists and an index, no weights.
HubModel plan_pull(const HubReference& reference, const HubOptions& options);
// The folder or file in the cache where all of the model is there; asks nobody.
std::optional<std::string> cached_model(const HubReference& reference, const std::string& cache_folder);

}  // namespace coluber::hub
