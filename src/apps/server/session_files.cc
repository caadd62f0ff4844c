// SPDX-License-Identifier: Apache-2.0
#include "apps/server/session_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/ascii.h"
#include "base/error.h"
#include "base/mapped_file.h"

namespace coluber::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNameBytes = 64;
constexpr std::string_view kStates = ".session", kFacts = ".json";

void make_folder(const fs::path& path) {
  std::error_code problem;
  fs::create_directories(path, problem);
  if (problem || access(path.c_str(), R_OK | W_OK | X_OK) != 0)
    throw make_error(ErrorCode::kIo, "'{}' is no folder that may be read and written to; name another --session-dir",
                     path.string());
}

// What a process that was killed has not written to its end.
bool is_half_written(const fs::path& path) {
  const std::string_view target = target_of_temporary(path.native());
  return target.ends_with(kStates) || target.ends_with(kFacts);
}

void remove_half_written(const std::string& dir) {
  std::error_code ignored;
  for (const auto& file : fs::recursive_directory_iterator(dir, ignored))
    if (is_half_written(file.path())) fs::remove(file.path(), ignored);
}

}  // namespace

bool is_plain_name(std::string_view name) noexcept {
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return ascii::is_digit(c) || ascii::is_letter(c) || c == '-' || c == '_' || c == '.';
         });
}

SessionFiles::SessionFiles(std::string dir) : dir_(std::move(dir)) {
  if (dir_.empty()) return;
  make_folder(fs::path(dir_) / "parked");
  const std::string path = dir_ + "/.lock";
  lock_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0 || flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    if (lock_ >= 0) close(lock_);
    throw make_error(ErrorCode::kIo, "--session-dir '{}' is another server's now; name another, or stop that server",
                     dir_);
  }
  remove_half_written(dir_);
}

SessionFiles::~SessionFiles() {
  if (lock_ >= 0) close(lock_);
}

std::string SessionFiles::saved_path(const std::string& owner, const std::string& name) const {
  COLUBER_CHECK(is_plain_name(name), "a session's name that was not checked");
  const fs::path folder = owner.empty() ? fs::path(dir_) : fs::path(dir_) / ("of-" + owner);
  make_folder(folder);
  return folder / (name + std::string(kStates));
}

std::string SessionFiles::find_saved(const std::string& owner, const std::string& name) const {
  COLUBER_CHECK(is_plain_name(name), "a session's name that was not checked");
  const std::string file = name + std::string(kStates);
  if (!owner.empty())
    if (const std::string own = fs::path(dir_) / ("of-" + owner) / file; file_exists(own)) return own;
  const std::string shared = fs::path(dir_) / file;
  return file_exists(shared) ? shared : std::string();
}

std::string SessionFiles::parked_path(const std::string& id) const {
  return dir_ + "/parked/" + id + std::string(kStates);
}

std::string SessionFiles::facts_path(const std::string& id) const {
  return dir_ + "/parked/" + id + std::string(kFacts);
}

void SessionFiles::write_facts(const std::string& id, const Json& facts) const {
  write_file_atomically(facts_path(id), [&facts](FileWriter& file) { file.append(std::string_view(facts.dump())); });
}

Json SessionFiles::read_facts(const std::string& id) const { return read_json_file(facts_path(id)); }

bool SessionFiles::has_states(const std::string& id) const { return file_exists(parked_path(id)); }

int64_t SessionFiles::bytes(const std::string& id) const {
  std::error_code ignored;
  const auto size = fs::file_size(parked_path(id), ignored);
  return ignored ? 0 : static_cast<int64_t>(size);
}

void SessionFiles::remove_parked(const std::string& id) const noexcept {
  std::error_code ignored;
  fs::remove(facts_path(id), ignored);
  fs::remove(parked_path(id), ignored);
}

std::vector<std::string> SessionFiles::parked() const {
  std::vector<std::string> ids;
  if (dir_.empty()) return ids;
  for (const auto& file : fs::directory_iterator(fs::path(dir_) / "parked")) {
    const std::string id = file.path().stem();
    if (!is_plain_name(id)) continue;
    if (file.path().extension() == kFacts) {
      ids.push_back(id);
    } else if (file.path().extension() == kStates && !file_exists(facts_path(id))) {
      std::error_code ignored;
      fs::remove(file.path(), ignored);
    }
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace coluber::server
