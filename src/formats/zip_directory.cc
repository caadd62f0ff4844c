// SPDX-License-Identifier: Apache-2.0
#include "formats/zip_directory.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/json.h"

namespace coluber {
namespace {

constexpr uint32_t kEntrySignature = 0x04034b50, kDirectorySignature = 0x02014b50, kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50, kLocator64Signature = 0x07064b50;
constexpr size_t kEntryBytes = 30, kDirectoryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr size_t kLongestComment = 65535;
constexpr uint64_t kIn64 = 0xFFFFFFFF;  // the number stands in the zip64 part
constexpr uint16_t kExtra64 = 1;
constexpr uint16_t kEncrypted = 1 | 1 << 6 | 1 << 13;

struct Directory {
  uint64_t begin = 0, bytes = 0, entries = 0;
};

class DirectoryReader {
 public:
  DirectoryReader(std::span<const std::byte> file, std::string_view source) : file_(file), source_(source) {}

  std::vector<ZipEntry> read() const {
    const Directory directory = find_directory();
    if (directory.begin > file_.size() || directory.bytes > file_.size() - directory.begin)
      throw wrong("its directory should be {} bytes at byte {}, the file has {}", directory.bytes, directory.begin,
                  file_.size());
    std::vector<ZipEntry> entries;
    size_t at = directory.begin;
    const size_t end = directory.begin + directory.bytes;
    while (at < end) {
      if (end - at < kDirectoryBytes || read32(at) != kDirectorySignature)
        throw wrong("its directory breaks off after {} entries", entries.size());
      const size_t name_bytes = read16(at + 28), extra_bytes = read16(at + 30);
      const size_t rest = name_bytes + extra_bytes + read16(at + 32);
      if (end - at - kDirectoryBytes < rest) throw wrong("its directory breaks off after {} entries", entries.size());
      entries.push_back(read_entry(at, name_bytes, extra_bytes));
      at += kDirectoryBytes + rest;
    }
    if (entries.size() != directory.entries)
      throw wrong("its directory should have {} entries and has {}", directory.entries, entries.size());
    return entries;
  }

 private:
  template <typename... Args>
  Error wrong(fmt::format_string<Args...> format, Args&&... args) const {
    return make_error(ErrorCode::kInvalidData, "{}: damaged zip archive: {} (a download that broke off?)", source_,
                      fmt::format(format, std::forward<Args>(args)...));
  }

  template <typename T>
  T number(size_t at) const {
    T value;
    std::memcpy(&value, file_.data() + at, sizeof value);
    return value;
  }
  uint16_t read16(size_t at) const { return number<uint16_t>(at); }
  uint32_t read32(size_t at) const { return number<uint32_t>(at); }
  uint64_t read64(size_t at) const { return number<uint64_t>(at); }

  // The end record is the last one whose comment reaches to the end of the file.
  size_t find_end() const {
    if (file_.size() >= kEndBytes) {
      const size_t last = file_.size() - kEndBytes, first = last - std::min(last, kLongestComment);
      for (size_t at = last + 1; at-- > first;) {
        if (read32(at) == kEndSignature && read16(at + 20) == last - at) return at;
      }
    }
    throw wrong("it has no end record");
  }

  Directory find_directory() const {
    const size_t end = find_end();
    Directory directory{read32(end + 16), read32(end + 12), read16(end + 10)};
    if (end < kLocator64Bytes || read32(end - kLocator64Bytes) != kLocator64Signature) return directory;
    const uint64_t end64 = read64(end - kLocator64Bytes + 8);
    if (file_.size() < kEnd64Bytes || end64 > file_.size() - kEnd64Bytes || read32(end64) != kEnd64Signature)
      throw wrong("its zip64 end record should be at byte {} and is not", end64);
    return {read64(end64 + 48), read64(end64 + 40), read64(end64 + 32)};
  }

  // The numbers that an entry keeps in its zip64 field, in the order of the format; those that fit elsewhere are left.
  void read_extra64(size_t at, size_t bytes, std::initializer_list<uint64_t*> numbers) const {
    for (const size_t end = at + bytes; end - at >= 4;) {
      const uint16_t id = read16(at);
      size_t left = read16(at + 2);
      at += 4;
      if (left > end - at) return;
      if (id != kExtra64) {
        at += left;
        continue;
      }
      for (uint64_t* number : numbers) {
        if (*number != kIn64) continue;
        if (left < 8) return;
        *number = read64(at);
        at += 8;
        left -= 8;
      }
      return;
    }
  }

  ZipEntry read_entry(size_t at, size_t name_bytes, size_t extra_bytes) const {
    ZipEntry entry;
    entry.name.assign(reinterpret_cast<const char*>(file_.data()) + at + kDirectoryBytes, name_bytes);
    uint64_t packed = read32(at + 20), plain = read32(at + 24), header = read32(at + 42);
    read_extra64(at + kDirectoryBytes + name_bytes, extra_bytes, {&plain, &packed, &header});
    const std::string shown = Json(entry.name.substr(0, 200)).dump();
    if ((read16(at + 8) & kEncrypted) != 0)
      throw make_error(ErrorCode::kUnsupported, "{}: {} is encrypted, which is not read", source_, shown);
    if (read16(at + 10) != 0)
      throw make_error(ErrorCode::kUnsupported,
                       "{}: {} is compressed; only archives that store are read, as torch.save writes them (unpack it "
                       "and zip it anew with 'zip -0')",
                       source_, shown);
    if (packed != plain) throw wrong("{} should be {} bytes and takes {}", shown, plain, packed);
    if (file_.size() < kEntryBytes || header > file_.size() - kEntryBytes || read32(header) != kEntrySignature)
      throw wrong("{} should be at byte {} and is not", shown, header);
    const uint64_t begin = header + kEntryBytes + read16(header + 26) + read16(header + 28);
    if (begin > file_.size() || plain > file_.size() - begin)
      throw wrong("{} should be {} bytes at byte {}, the file has {}", shown, plain, begin, file_.size());
    entry.begin = static_cast<int64_t>(begin);
    entry.end = static_cast<int64_t>(begin + plain);
    return entry;
  }

  std::span<const std::byte> file_;
  std::string_view source_;
};

}  // namespace

bool looks_like_zip(std::span<const std::byte> file) noexcept {
  uint32_t signature = 0;
  if (file.size() < sizeof signature) return false;
  std::memcpy(&signature, file.data(), sizeof signature);
  return signature == kEntrySignature || signature == kEndSignature;
}

std::vector<ZipEntry> read_zip_directory(std::span<const std::byte> file, std::string_view source) {
  return DirectoryReader(file, source).read();
}

}  // namespace coluber
