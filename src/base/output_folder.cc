// SPDX-License-Identifier: Apache-2.0
#include "base/output_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace coluber {
namespace {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& target) {
    std::error_code error;
    for (int attempt = 0; attempt < 100; ++attempt) {
      path_ = fmt::format("{}.tmp-{}-{}", target, ::getpid(), attempt);
      if (fs::create_directory(path_, error)) return;
      if (error && error != std::errc::file_exists) break;
    }
    const std::string reason = error ? error.message() : "all such names are taken";
    throw make_error(ErrorCode::kIo, "cannot create the folder '{}' (filled first, then renamed to '{}'): {}",
                     std::exchange(path_, {}), target, reason);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);  // some file systems cannot; the files are synced either way
  ::close(fd);
}

[[noreturn]] void throw_rename(const std::string& target, int error) {
  if (error == ENOTEMPTY || error == EEXIST || error == ENOTDIR)
    throw make_error(ErrorCode::kInvalidArgument, "cannot write the folder '{}': there is something of that name",
                     target);
  throw make_error(ErrorCode::kIo, "cannot write the folder '{}': {}", target, std::strerror(error));
}

}  // namespace

void write_folder_atomically(const std::string& path, bool replace,
                             const std::function<void(const std::string& folder)>& write) {
  std::string target = path;
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  std::error_code error;
  // A link stays a link to what is replaced.
  if (fs::is_symlink(target, error)) target = fs::canonical(target, error).string();
  if (target.empty()) throw make_error(ErrorCode::kInvalidArgument, "'{}' is a link to nothing", path);
  TemporaryFolder temporary(target);
  write(temporary.path());
  sync_folder(temporary.path());
  // An empty folder is replaced by a plain rename; what `replace` puts aside goes with `temporary`.
  if (::rename(temporary.path().c_str(), target.c_str()) != 0) {
    const int reason = errno;
    const bool exchanges = replace && (reason == ENOTEMPTY || reason == EEXIST) && fs::is_directory(target, error);
    if (!exchanges) throw_rename(target, reason);
    if (::renameat2(AT_FDCWD, temporary.path().c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) != 0)
      throw_rename(target, errno);
  }
  const std::string parent = fs::path(target).parent_path().string();
  sync_folder(parent.empty() ? "." : parent);
}

}  // namespace coluber
