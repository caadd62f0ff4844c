// SPDX-License-Identifier: Apache-2.0
#include "cache/parking.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <vector>

#include "base/error.h"

namespace coluber {

std::shared_ptr<ParkedSequence> ParkedSequence::park(HostBuffers& buffers, Device& device, const PagePool& slots,
                                                     int32_t slot, const PagePool* pages, std::span<const int32_t> ids,
                                                     const StateTag& tag) {
  COLUBER_CHECK(pages != nullptr || ids.empty(), "{} pages of no pool", ids.size());
  const int64_t page_bytes = pages != nullptr ? pages->page_bytes() : 0;
  const int64_t bytes = slots.page_bytes() + std::ssize(ids) * page_bytes;
  HostBuffers::Buffer memory = buffers.take(bytes);
  if (memory.data() == nullptr) return nullptr;
  device.copy(memory.data(), slots.page(slot), slots.page_bytes());
  std::byte* to = memory.data() + slots.page_bytes();
  for (size_t i = 0; pages != nullptr && i < ids.size(); ++i) {
    device.copy(to, pages->page(ids[i]), page_bytes);
    to += page_bytes;
  }
  device.synchronize();
  auto parked = std::make_shared<ParkedSequence>();
  parked->memory_ = std::move(memory);
  parked->bytes_ = bytes;
  parked->num_pages_ = std::ssize(ids);
  parked->tag_ = tag;
  return parked;
}

ParkedSequence::~ParkedSequence() {
  if (fd_ >= 0) close(fd_);
}

namespace {

// A file that nobody else sees and that goes with its last descriptor.
int open_unnamed(const std::string& folder) {
  const int fd = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL)) return fd;
  std::string name = folder + "/coluber-parked-XXXXXX";  // the file system has no files without a name
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return named;
}

bool write_all(int fd, const std::byte* data, int64_t size) {
  while (size > 0) {
    const ssize_t written = write(fd, data, static_cast<size_t>(size));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    size -= written;
  }
  return true;
}

bool read_all(int fd, std::byte* data, int64_t size, int64_t offset) {
  while (size > 0) {
    const ssize_t taken = pread(fd, data, static_cast<size_t>(size), offset);
    if (taken < 0 && errno == EINTR) continue;
    if (taken <= 0) return false;
    data += taken;
    size -= taken;
    offset += taken;
  }
  return true;
}

std::string reason() { return errno != 0 ? std::generic_category().message(errno) : "it is shorter than it was"; }

}  // namespace

std::shared_ptr<ParkedSequence> ParkedSequence::park_in_file(Device& device, const PagePool& slots, int32_t slot,
                                                             const PagePool* pages, std::span<const int32_t> ids,
                                                             const StateTag& tag, const std::string& folder,
                                                             std::string& problem) {
  auto parked = std::make_shared<ParkedSequence>();
  parked->fd_ = open_unnamed(folder);
  if (parked->fd_ < 0) {
    problem = fmt::format("no file can be made in '{}': {}", folder, reason());
    return nullptr;
  }
  const int64_t page_bytes = pages != nullptr ? pages->page_bytes() : 0;
  std::vector<std::byte> staged(static_cast<size_t>(std::max(slots.page_bytes(), page_bytes)));
  const auto put = [&](const std::byte* from, int64_t size) {
    device.copy(staged.data(), from, size);
    device.synchronize();
    return write_all(parked->fd_, staged.data(), size);
  };
  bool is_whole = put(slots.page(slot), slots.page_bytes());
  for (size_t i = 0; is_whole && i < ids.size(); ++i) is_whole = put(pages->page(ids[i]), page_bytes);
  if (!is_whole) {
    problem = fmt::format("a file in '{}' cannot be written: {}", folder, reason());
    return nullptr;
  }
  parked->bytes_ = slots.page_bytes() + std::ssize(ids) * page_bytes;
  parked->num_pages_ = std::ssize(ids);
  parked->tag_ = tag;
  return parked;
}

bool ParkedSequence::unpark(Device& device, const PagePool& slots, int32_t slot, const PagePool* pages,
                            std::span<const int32_t> ids, std::string& problem) const {
  COLUBER_CHECK(std::ssize(ids) == num_pages_, "{} pages for a sequence parked with {}", ids.size(), num_pages_);
  std::vector<std::byte> staged;
  int64_t offset = 0;
  const auto take = [&](std::byte* to, int64_t size) {
    const std::byte* from = memory_.data() + offset;
    if (fd_ >= 0) {
      staged.resize(static_cast<size_t>(size));
      errno = 0;
      if (!read_all(fd_, staged.data(), size, offset)) return false;
      from = staged.data();
    }
    device.copy(to, from, size);
    if (fd_ >= 0) device.synchronize();
    offset += size;
    return true;
  };
  bool is_whole = take(slots.page(slot), slots.page_bytes());
  for (size_t i = 0; is_whole && i < ids.size(); ++i) is_whole = take(pages->page(ids[i]), pages->page_bytes());
  device.synchronize();
  if (!is_whole) problem = fmt::format("its file cannot be read: {}", reason());
  return is_whole;
}

}  // namespace coluber
