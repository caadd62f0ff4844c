// SPDX-License-Identifier: Apache-2.0
#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"

namespace coluber {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const noexcept { return fd_; }
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// What the operator can do about it, where the system's words don't say so.
const char* remedy(int error) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) return "; free some space or name another place";
  return "";
}

[[noreturn]] void throw_system(const char* what, const std::string& path, int error) {
  const ErrorCode code = error == ENOENT || error == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo;
  throw make_error(code, "cannot {} '{}': {}{}", what, path, std::strerror(error), remedy(error));
}

int open_for_reading(const std::string& path, struct stat& status) {
  check_path(path);
  // Not blocking: a named pipe without a writer would hang before it can be refused below.
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) throw_system("open", path, errno);
  if (::fstat(fd.get(), &status) != 0) throw_system("examine", path, errno);
  if (S_ISDIR(status.st_mode))
    throw make_error(ErrorCode::kInvalidArgument, "expected a file, but '{}' is a folder", path);
  return fd.release();
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  struct stat status{};
  const Descriptor fd(open_for_reading(path, status));
  if (!S_ISREG(status.st_mode)) {
    throw make_error(ErrorCode::kInvalidArgument, "expected a regular file, but '{}' is a pipe or a device", path);
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (memory == MAP_FAILED && errno == ENOMEM) {
    throw make_error(ErrorCode::kOutOfMemory,
                     "cannot map '{}': its {} bytes are more than the process may address (a limit of ulimit -v?)",
                     path, size_);
  }
  if (memory == MAP_FAILED) throw_system("map", path, errno);
  data_ = static_cast<const std::byte*>(memory);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  return *this;
}

void MappedFile::will_need() const noexcept {
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_WILLNEED);
}

void MappedFile::release(std::span<const std::byte> range) const noexcept {
  // Only whole pages inside the range: the edges hold neighbours' bytes.
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(range.data()) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(range.data() + range.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

std::string read_text_file(const std::string& path, size_t max_bytes) {
  struct stat status{};
  const Descriptor fd(open_for_reading(path, status));
  std::string text;
  if (S_ISREG(status.st_mode)) {
    text.reserve(std::min(static_cast<size_t>(status.st_size), max_bytes));
  } else if (const int flags = ::fcntl(fd.get(), F_GETFL); flags >= 0) {
    // The program at the other end of a pipe may still be at work on what it writes.
    ::fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK);
  }
  std::vector<char> buffer(size_t{1} << 18);
  while (true) {
    const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_system("read", path, errno);
    if (count == 0) return text;
    if (static_cast<size_t>(count) > max_bytes - text.size()) {
      throw make_error(ErrorCode::kInvalidData, "'{}' is larger than the {} bytes that such a file may have", path,
                       max_bytes);
    }
    text.append(buffer.data(), static_cast<size_t>(count));
  }
}

void check_path(const std::string& path) {
  const size_t nul = path.find('\0');
  if (nul == std::string::npos) return;
  throw make_error(ErrorCode::kInvalidArgument,
                   "the name of a file has a NUL byte behind '{}', where the system would take it to end; leave it out",
                   path.substr(0, nul));
}

bool file_exists(const std::string& path) {
  check_path(path);
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && !S_ISDIR(status.st_mode);
}

namespace {

class DescriptorWriter : public FileWriter {
 public:
  DescriptorWriter(int fd, const std::string& path) : fd_(fd), path_(path) { buffer_.reserve(kBufferBytes); }

  void append(std::span<const std::byte> bytes) override {
    if (bytes.size() >= kBufferBytes) {
      flush();
      write_all(bytes);
      return;
    }
    if (buffer_.size() + bytes.size() > kBufferBytes) flush();
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
  void flush() {
    write_all(buffer_);
    buffer_.clear();
  }

 private:
  static constexpr size_t kBufferBytes = size_t{1} << 20;

  void write_all(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw_system("write", path_, errno);
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }

  int fd_;
  const std::string& path_;
  std::vector<std::byte> buffer_;
};

// Through symbolic links, so that replacing the file leaves the link in place.
std::string real_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr), &std::free);
  return resolved ? std::string(resolved.get()) : path;
}

// A device or a pipe has no folder entry that may be replaced: write through it.
void write_special_file(const std::string& path, const std::function<void(FileWriter&)>& write) {
  const Descriptor fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (fd.get() < 0) throw_system("open for writing", path, errno);
  DescriptorWriter writer(fd.get(), path);
  write(writer);
  writer.flush();
}

constexpr std::string_view kTemporary = ".tmp-";

class Temporary {
 public:
  Temporary(const std::string& target, mode_t mode) {
    static std::atomic<unsigned> counter{0};
    int error = EEXIST;
    for (int attempt = 0; attempt < 100 && error == EEXIST; ++attempt) {
      path_ = fmt::format("{}{}{}-{}", target, kTemporary, ::getpid(), counter.fetch_add(1));
      fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
      if (fd_ >= 0) return;
      error = errno;
    }
    throw make_error(ErrorCode::kIo, "cannot create '{}' (written first, then renamed to '{}'): {}", path_, target,
                     std::strerror(error));
  }
  ~Temporary() {
    if (fd_ >= 0) ::close(fd_);
    if (!renamed_) ::unlink(path_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  int fd() const noexcept { return fd_; }
  const std::string& path() const noexcept { return path_; }
  void close(const std::string& target) {
    if (::fsync(fd_) != 0) throw_system("write", target, errno);
    // A network file system reports a full disk as late as here.
    if (::close(std::exchange(fd_, -1)) != 0) throw_system("write", target, errno);
  }
  void rename_to(const std::string& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0) throw_system("replace", target, errno);
    renamed_ = true;
  }

 private:
  std::string path_;
  int fd_ = -1;
  bool renamed_ = false;
};

void sync_folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot sync a folder; the file itself is safe either way.
  if (fd.get() >= 0) ::fsync(fd.get());
}

}  // namespace

void write_file_atomically(const std::string& path, const std::function<void(FileWriter&)>& write,
                           const std::function<void(const std::string& written)>& check) {
  check_path(path);
  const std::string target = real_path(path);
  struct stat status{};
  const bool exists = ::stat(target.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) {
    throw make_error(ErrorCode::kInvalidArgument, "cannot write '{}': it is a folder; name a file in it", path);
  }
  if (exists && !S_ISREG(status.st_mode)) return write_special_file(target, write);
  Temporary temporary(target, exists ? status.st_mode & 0777 : 0666);
  DescriptorWriter writer(temporary.fd(), path);
  write(writer);
  writer.flush();
  temporary.close(target);
  if (check) check(temporary.path());
  temporary.rename_to(target);
  sync_folder_of(target);
}

std::string_view target_of_temporary(std::string_view path) {
  const size_t mark = path.rfind(kTemporary);
  if (mark == std::string_view::npos || path.find('/', mark) != std::string_view::npos) return {};
  return path.substr(0, mark);
}

}  // namespace coluber
