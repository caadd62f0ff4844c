// SPDX-License-Identifier: Apache-2.0
#include "formats/torch_archive.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "formats/unpickler.h"
#include "formats/zip_directory.h"

namespace coluber {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's numbers are little-endian");

// Tensors that repeat elements (a stride of zero) are written out when they are asked for; together they may not need
// more than this.
constexpr int64_t kMostRepeatedBytes = int64_t{64} << 20;
constexpr std::string_view kPickle = "data.pkl";

std::string quoted(std::string_view name) {
  constexpr size_t kMost = 200;
  return Json(name.size() > kMost ? std::string(name.substr(0, kMost)) + "..." : std::string(name)).dump();
}

class ArchiveParser {
 public:
  ArchiveParser(std::span<const std::byte> file, std::string_view source) : file_(file), source_(source) {}

  std::vector<TorchTensor> parse() {
    if (!looks_like_zip(file_)) refuse_other_format();
    entries_ = read_zip_directory(file_, source_);
    for (const ZipEntry& entry : entries_) by_name_.emplace(entry.name, &entry);
    root_ = find_root();
    check_byte_order();
    std::vector<TorchTensor> tensors;
    for (const PickledTensor& pickled : read_pickled_tensors(bytes_of(*find(kPickle)), source_))
      tensors.push_back(place(pickled));
    return tensors;
  }

 private:
  template <typename... Args>
  Error wrong(fmt::format_string<Args...> format, Args&&... args) const {
    return make_error(ErrorCode::kInvalidData, "{}: damaged PyTorch file: {}", source_,
                      fmt::format(format, std::forward<Args>(args)...));
  }

  std::span<const std::byte> bytes_of(const ZipEntry& entry) const {
    return file_.subspan(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.end - entry.begin));
  }

  // "archive/": everything lies in one folder, named after the file that was written.
  std::string find_root() const {
    const ZipEntry* pickle = nullptr;
    for (const ZipEntry& entry : entries_) {
      if (entry.name != kPickle && !entry.name.ends_with("/" + std::string(kPickle))) continue;
      if (pickle == nullptr || entry.name.size() < pickle->name.size()) pickle = &entry;
    }
    if (pickle == nullptr)
      throw make_error(ErrorCode::kInvalidData,
                       "{}: a zip archive, but not one of torch.save: it has no data.pkl among its {} entries", source_,
                       entries_.size());
    return pickle->name.substr(0, pickle->name.size() - kPickle.size());
  }

  const ZipEntry* find(std::string_view name) const {
    const auto found = by_name_.find(root_ + std::string(name));
    return found == by_name_.end() ? nullptr : found->second;
  }

  void check_byte_order() const {
    const ZipEntry* entry = find("byteorder");
    if (entry == nullptr) return;
    const std::span<const std::byte> bytes = bytes_of(*entry);
    const std::string_view order(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (order != "little")
      throw make_error(ErrorCode::kUnsupported,
                       "{}: its byte order is {}; only little-endian files are read (save it anew on an ordinary "
                       "machine)",
                       source_, quoted(order));
  }

  // One past the last element that the tensor reaches, from the start of the storage.
  int64_t reach(const PickledTensor& tensor, int64_t* count) const {
    int64_t last = tensor.offset;
    *count = 1;
    for (size_t i = 0; i < tensor.sizes.size(); ++i) {
      int64_t step = 0;
      if (__builtin_mul_overflow(*count, tensor.sizes[i], count) ||
          __builtin_mul_overflow(std::max<int64_t>(tensor.sizes[i] - 1, 0), tensor.strides[i], &step) ||
          __builtin_add_overflow(last, step, &last))
        throw wrong("tensor {}: its shape reaches beyond 2^63 elements", quoted(tensor.name));
    }
    if (std::find(tensor.sizes.begin(), tensor.sizes.end(), 0) != tensor.sizes.end()) {
      *count = 0;
      return tensor.offset;
    }
    if (__builtin_add_overflow(last, 1, &last)) throw wrong("tensor {}: reaches too far", quoted(tensor.name));
    return last;
  }

  TorchTensor place(const PickledTensor& pickled) {
    const ZipEntry* storage = find("data/" + pickled.storage);
    if (storage == nullptr)
      throw wrong("tensor {}: its storage data/{} is not in the archive", quoted(pickled.name),
                  pickled.storage.substr(0, 200));
    const int64_t stored = storage->end - storage->begin;
    if (stored != pickled.storage_bytes)
      throw wrong("tensor {}: its storage should be {} bytes and is {}", quoted(pickled.name), pickled.storage_bytes,
                  stored);
    TorchTensor tensor{pickled.name,   pickled.dtype_name, pickled.dtype,  pickled.sizes, pickled.strides,
                       storage->begin, storage->begin,     storage->begin, storage->end};
    int64_t count = 0;
    const int64_t last = reach(pickled, &count);
    const int64_t element_bytes = pickled.dtype ? dtype_size(*pickled.dtype) : 1;
    int64_t bytes = 0;
    if (last > stored / element_bytes)
      throw wrong("tensor {}: reaches element {} of its storage, which has {}", quoted(pickled.name), last,
                  stored / element_bytes);
    if (__builtin_mul_overflow(count, element_bytes, &bytes)) throw wrong("tensor {}: too large", quoted(pickled.name));
    tensor.begin += pickled.offset * element_bytes;
    tensor.end += last * element_bytes;
    if (bytes > stored) count_repeated(pickled.name, bytes);
    return tensor;
  }

  void count_repeated(const std::string& name, int64_t bytes) {
    if (bytes > kMostRepeatedBytes - repeated_bytes_)
      throw make_error(ErrorCode::kUnsupported,
                       "{}: tensor {} repeats the elements of its storage and would take {} bytes; save "
                       "tensor.contiguous() instead",
                       source_, quoted(name), bytes);
    repeated_bytes_ += bytes;
  }

  [[noreturn]] void refuse_other_format() const {
    if (file_.empty()) throw wrong("it is empty (a download that broke off?)");
    const auto first = static_cast<unsigned char>(file_[0]);
    const std::string_view text(reinterpret_cast<const char*>(file_.data()), std::min<size_t>(file_.size(), 64));
    if (text.starts_with("version https://git-lfs"))
      throw make_error(ErrorCode::kInvalidData,
                       "{}: this is a pointer of Git LFS, not the file; fetch it with 'git lfs pull'", source_);
    if (first != 0x80)
      throw make_error(
          ErrorCode::kInvalidData,
          "{}: expected a file of torch.save, a zip archive that starts with 'PK', found the byte 0x{:02x}", source_,
          first);
    throw make_error(
        ErrorCode::kUnsupported,
        "{}: a file in the form from before PyTorch 1.6, which is not read. Convert it: python3 -c \"import "
        "torch; torch.save(torch.load('old.bin', map_location='cpu', weights_only=True), 'new.bin')\"",
        source_);
  }

  std::span<const std::byte> file_;
  std::string_view source_;
  std::vector<ZipEntry> entries_;
  std::unordered_map<std::string, const ZipEntry*> by_name_;
  std::string root_;
  int64_t repeated_bytes_ = 0;
};

}  // namespace

std::vector<TorchTensor> parse_torch_archive(std::span<const std::byte> file, std::string_view source) {
  return ArchiveParser(file, source).parse();
}

TorchArchive::TorchArchive(const std::string& path) : file_(path), tensors_(parse_torch_archive(file_.bytes(), path)) {
  index_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

std::vector<std::string> TorchArchive::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const TorchTensor& tensor : tensors_) names.push_back(tensor.name);
  return names;
}

const TorchTensor& TorchArchive::find(std::string_view name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) {
    throw make_error(ErrorCode::kNotFound, "{}: there is no tensor {} among its {}", path(), quoted(name),
                     tensors_.size());
  }
  return tensors_[found->second];
}

TensorView TorchArchive::view_of(const TorchTensor& tensor) const {
  if (!tensor.dtype) {
    throw make_error(ErrorCode::kUnsupported, "{}: tensor {} is of type {}, which is not supported", path(),
                     quoted(tensor.name), tensor.dtype_name);
  }
  if (tensor.sizes.size() > static_cast<size_t>(kMaxRank)) {
    throw make_error(ErrorCode::kUnsupported, "{}: tensor {} has {} dimensions; at most {} are supported", path(),
                     quoted(tensor.name), tensor.sizes.size(), kMaxRank);
  }
  const Shape shape{std::span<const int64_t>(tensor.sizes)};
  TensorView view = TensorView::contiguous(file_.bytes().data() + tensor.begin, *tensor.dtype, shape);
  view.strides = Shape{std::span<const int64_t>(tensor.strides)};
  return view;
}

TensorView TorchArchive::get(std::string_view name) const {
  const TorchTensor& tensor = find(name);
  return copies_.row_major(tensor.name, view_of(tensor));
}

TensorView TorchArchive::peek(std::string_view name) const {
  const TorchTensor& tensor = find(name);
  const TensorView view = view_of(tensor);
  if (view.is_contiguous()) return TensorView::contiguous(view.data, view.dtype, view.shape);
  if (view.size_bytes() > tensor.storage_end - tensor.storage_begin) return get(name);
  return TensorView::contiguous(file_.bytes().data() + tensor.storage_begin, view.dtype, view.shape);
}

void TorchArchive::release(const TensorView& view) const noexcept {
  const std::byte *first = file_.bytes().data(), *last = first + file_.bytes().size();
  if (!view.is_contiguous() || view.data < first || view.data >= last) return;  // not in this file, or a copy
  const auto bytes = static_cast<size_t>(view.shape.count()) * static_cast<size_t>(dtype_bits(view.dtype)) / 8;
  file_.release({view.data, std::min(bytes, static_cast<size_t>(last - view.data))});
}

}  // namespace coluber
