// SPDX-License-Identifier: Apache-2.0
#include "apps/hub/hub_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/printable.h"

namespace coluber::hub {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

void make_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw make_error(ErrorCode::kIo,
                     "cannot make the folder '{}' for downloads: {}; HF_HOME or --cache-dir names another place",
                     printable(folder.string()), error.message());
}

std::string repository_folder(const std::string& repository) {
  std::string name = "models--" + repository;
  name.replace(name.find('/'), 1, "--");
  return name;
}

std::string trimmed(std::string text) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  text.resize(end == std::string::npos ? 0 : end + 1);
  return text;
}

}  // namespace

std::string default_cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (std::string folder = variable(name); !folder.empty()) return folder;
  }
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/huggingface/hub";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/huggingface/hub";
  throw Error(ErrorCode::kInvalidArgument,
              "there is no place for downloads: set HF_HOME (or HOME), or give --cache-dir a folder");
}

HubCache::HubCache(std::string folder, const std::string& repository)
    : folder_(folder + "/" + repository_folder(repository)),
      locks_(folder + "/.locks/" + repository_folder(repository)) {}

std::string HubCache::blob(const std::string& etag) const { return folder_ + "/blobs/" + etag; }
std::string HubCache::snapshot(const std::string& commit) const { return folder_ + "/snapshots/" + commit; }
std::string HubCache::lock(const std::string& etag) const { return locks_ + "/" + etag + ".lock"; }

std::optional<std::string> HubCache::commit_of(const HubReference& reference) const {
  if (reference.is_commit()) return reference.revision;
  const std::string path = folder_ + "/refs/" + reference.revision;
  if (!file_exists(path)) return std::nullopt;
  HubReference commit;
  commit.revision = trimmed(read_text_file(path, 4096));
  // What another program left half written is nothing that a path may be made of.
  if (!commit.is_commit()) return std::nullopt;
  return commit.revision;
}

void HubCache::set_commit(const HubReference& reference, const std::string& commit) const {
  if (reference.is_commit()) return;
  const fs::path path = folder_ + "/refs/" + reference.revision;
  make_folders(path.parent_path());
  write_file_atomically(path.string(), [&](FileWriter& writer) { writer.append(commit); });
}

void HubCache::link(const std::string& commit, const std::string& file, const std::string& etag) const {
  const fs::path place = fs::path(snapshot(commit)) / file;
  make_folders(place.parent_path());
  const fs::path target = fs::path(blob(etag)).lexically_relative(place.parent_path());
  std::error_code error;
  if (fs::is_symlink(place, error) && fs::read_symlink(place, error) == target) return;
  // Made beside it and renamed: readers see the old file or the new one.
  const fs::path fresh = fmt::format("{}.{}.link", place.string(), getpid());
  fs::remove(fresh, error);
  fs::create_symlink(target, fresh, error);
  if (error) fs::copy_file(blob(etag), fresh, fs::copy_options::overwrite_existing, error);
  if (!error) fs::rename(fresh, place, error);
  if (!error) return;
  const std::string reason = error.message();
  fs::remove(fresh, error);
  throw make_error(ErrorCode::kIo, "cannot make '{}': {}", printable(place.string()), reason);
}

std::vector<std::string> HubCache::files(const std::string& commit) const {
  std::vector<std::string> names;
  const fs::path root = snapshot(commit);
  std::error_code error;
  for (fs::recursive_directory_iterator item(root, error), end; !error && item != end; item.increment(error)) {
    std::error_code unreadable;
    if (fs::is_regular_file(item->path(), unreadable))
      names.push_back(item->path().lexically_relative(root).generic_string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void FileLock::open_file(const std::string& path) {
  make_folders(fs::path(path).parent_path());
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw make_error(ErrorCode::kIo, "cannot open '{}': {}", printable(path), std::strerror(errno));
}

bool FileLock::try_lock() const {
  if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return true;
  // A file system without locks (some network ones): two processes would only fetch the same bytes twice.
  return errno != EWOULDBLOCK && errno != EINTR;
}

void FileLock::stop() {
  close(descriptor_);
  descriptor_ = -1;
  throw Error(ErrorCode::kCancelled, "stopped while another process fetches the same file");
}

void FileLock::wait_a_moment() { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

FileLock::~FileLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace coluber::hub
