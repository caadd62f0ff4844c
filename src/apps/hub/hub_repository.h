// SPDX-License-Identifier: Apache-2.0
//
// A repository on a hub, over HTTP: what files it has, and their bytes. Failures that may pass (cuts, 429, 5xx) are
// tried again; the others come as errors that say what to do. Knows nothing of where files are kept. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/hub/http_transfer.h"
#include "apps/hub/hub_reference.h"

namespace coluber::hub {

struct HubFile {
  std::string name;    // relative, with slashes
  int64_t bytes = -1;  // negative: not known
  std::string etag;    // its checksum (digest.h) where the hub says one; names the blob
};

struct HubListing {
  std::string commit;
  std::vector<HubFile> files;
  const HubFile* find(std::string_view name) const noexcept;
  std::vector<std::string> names() const;
};

struct HubConnection {
  std::string endpoint;                          // "https://huggingface.co"
  std::string token;                             // empty: none
  int retries = 5;                               // in a row without a byte of progress
  std::function<bool()> cancelled;               // asked often, also while waiting
  std::function<void(std::string_view)> notice;  // "trying again in 2 s: ..."
};

class HubRepository {
 public:
  HubRepository(HubConnection connection, HubReference reference);

  HubListing list();
  // Size and checksum of a file that the listing does not know them of.
  void look_up(const std::string& commit, HubFile& file);
  // `begin(from)` says where the bytes that follow belong: at `have`, or at 0 where the server starts anew; then
  // `body`. Returns how many bytes there are in all. Comes back only when the transfer ended in order.
  int64_t fetch(const std::string& commit, const HubFile& file, const std::function<int64_t()>& have,
                const std::function<void(int64_t from)>& begin, const std::function<void(std::string_view)>& body);

 private:
  HttpRequest request(std::string url) const;
  std::string file_url(const std::string& commit, const std::string& name) const;
  [[noreturn]] void refuse(const HttpReply& reply, std::string_view what) const;
  // Runs `attempt` until it returns true. `have` tells of progress between two attempts.
  void with_retries(std::string_view what, const std::function<int64_t()>& have,
                    const std::function<HttpReply()>& attempt);
  void wait(double seconds, std::string_view what, std::string_view reason);

  HubConnection connection_;
  HubReference reference_;
  HttpClient client_;
  bool reached_ = false;  // the hub has answered before
};

}  // namespace coluber::hub
