// SPDX-License-Identifier: Apache-2.0
//
// The folder where downloads are kept, in the layout of Hugging Face's own tools, so that both find what either
// fetched:
//
//   models--org--name/blobs/<etag>                  contents, named by their checksum
//   models--org--name/blobs/<etag>.incomplete       what has come so far
//   models--org--name/snapshots/<commit>/<file>     links to them
//   models--org--name/refs/<revision>               the commit that a branch or tag meant when it was last asked for
//   .locks/models--org--name/<etag>.lock            held while a file is fetched
//
// Paths and links; fetches nothing. Several processes may use one folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/hub/hub_reference.h"

namespace coluber::hub {

// HF_HUB_CACHE, or HF_HOME/hub, or XDG_CACHE_HOME/huggingface/hub, or ~/.cache/huggingface/hub.
std::string default_cache_folder();

class HubCache {
 public:
  HubCache(std::string folder, const std::string& repository);

  const std::string& folder() const noexcept { return folder_; }
  std::string blob(const std::string& etag) const;
  std::string snapshot(const std::string& commit) const;
  std::string lock(const std::string& etag) const;

  // The commit that the reference means here; nothing where that is not known.
  std::optional<std::string> commit_of(const HubReference& reference) const;
  void set_commit(const HubReference& reference, const std::string& commit) const;  // does nothing for a commit itself
  // Makes snapshots/<commit>/<file> lead to the blob; a copy where the file system has no links.
  void link(const std::string& commit, const std::string& file, const std::string& etag) const;
  // Names of a snapshot's files whose contents are there, relative, sorted.
  std::vector<std::string> files(const std::string& commit) const;

 private:
  std::string folder_;  // the repository's
  std::string locks_;
};

// Held while it lives, against other processes too. Waits, asking `cancelled` now and then: Error(kCancelled).
class FileLock {
 public:
  template <typename Cancelled>
  FileLock(const std::string& path, const Cancelled& cancelled) {
    open_file(path);
    while (!try_lock()) {
      if (cancelled()) stop();
      wait_a_moment();
    }
  }
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  void open_file(const std::string& path);
  bool try_lock() const;
  [[noreturn]] void stop();
  static void wait_a_moment();
  int descriptor_ = -1;
};

}  // namespace coluber::hub
