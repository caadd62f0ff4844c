// SPDX-License-Identifier: Apache-2.0
#include "apps/hub/blob_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/printable.h"

namespace coluber::hub {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPiece = 4 << 20;
constexpr size_t kMaxEtag = 200;

[[noreturn]] void fail_with(std::string_view doing, const std::string& path) {
  throw make_error(ErrorCode::kIo, "cannot {} '{}': {}", doing, printable(path), std::strerror(errno));
}

int64_t digest_file(int descriptor, const std::string& path, Digest* digest, const std::function<bool()>& cancelled) {
  std::vector<char> piece(kPiece);
  int64_t bytes = 0;
  for (;;) {
    const ssize_t count = read(descriptor, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_with("read", path);
    if (count == 0) return bytes;
    bytes += count;
    if (digest != nullptr) digest->update({piece.data(), static_cast<size_t>(count)});
    if (cancelled && cancelled()) throw Error(ErrorCode::kCancelled, "stopped while reading what was downloaded");
  }
}

}  // namespace

bool is_name_of_blob(std::string_view etag) noexcept {
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.";
  return !etag.empty() && etag.size() <= kMaxEtag && etag.front() != '.' &&
         etag.find_first_not_of(kLetters) == std::string_view::npos;
}

BlobFile::BlobFile(std::string blob, std::string etag, int64_t bytes, const std::function<bool()>& cancelled)
    : blob_(std::move(blob)), path_(blob_ + ".incomplete"), etag_(std::move(etag)), expected_(bytes) {
  if (Digest::knows(etag_) && expected_ >= 0) digest_ = std::make_unique<Digest>(etag_, expected_);
  open_file();
  try {
    size_ = digest_file(descriptor_, path_, digest_.get(), cancelled);
    if (expected_ >= 0 && size_ > expected_) go_on_from(0);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

BlobFile::~BlobFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void BlobFile::open_file() {
  std::error_code error;
  fs::create_directories(fs::path(path_).parent_path(), error);
  descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (descriptor_ < 0) fail_with("write", path_);
}

void BlobFile::go_on_from(int64_t offset) {
  if (offset == size_) return;
  COLUBER_CHECK(offset == 0, "{} of {} bytes", offset, size_);
  if (ftruncate(descriptor_, 0) != 0 || lseek(descriptor_, 0, SEEK_SET) != 0) fail_with("begin anew", path_);
  size_ = 0;
  if (digest_) digest_ = std::make_unique<Digest>(etag_, expected_);
}

void BlobFile::append(std::string_view bytes) {
  if (expected_ >= 0 && size_ + static_cast<int64_t>(bytes.size()) > expected_)
    throw make_error(ErrorCode::kInvalidData, "more bytes come for '{}' than the {} that the hub said",
                     printable(fs::path(blob_).filename().string()), expected_);
  if (digest_) digest_->update(bytes);
  while (!bytes.empty()) {
    const ssize_t count = write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_with("write", path_);
    bytes.remove_prefix(static_cast<size_t>(count));
    size_ += count;
  }
}

std::string BlobFile::finish() {
  std::string wrong;
  if (expected_ >= 0 && size_ != expected_) wrong = fmt::format("{} bytes came, {} were expected", size_, expected_);
  if (wrong.empty() && digest_) {
    if (const std::string found = digest_->hex(); found != etag_)
      wrong = fmt::format("its checksum is {}, the hub says {}", found, etag_);
  }
  if (!wrong.empty()) {
    unlink(path_.c_str());
    return wrong;
  }
  if (fsync(descriptor_) != 0 || rename(path_.c_str(), blob_.c_str()) != 0) fail_with("finish", blob_);
  return wrong;
}

std::string checksum_of(const std::string& path, const std::string& etag, const std::function<bool()>& cancelled) {
  if (!Digest::knows(etag)) return etag;
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_with("read", path);
  struct Closer {
    int descriptor;
    ~Closer() { close(descriptor); }
  } closer{descriptor};
  struct stat status{};
  if (fstat(descriptor, &status) != 0) fail_with("read", path);
  Digest digest(etag, status.st_size);
  digest_file(descriptor, path, &digest, cancelled);
  return digest.hex();
}

}  // namespace coluber::hub
