// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/json.h"

namespace coluber {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's numbers are little-endian");

constexpr int64_t kLengthBytes = 8;
constexpr uint64_t kMostHeaderBytes = 100'000'000;  // the format's own limit

struct DTypeName {
  std::string_view name;
  DType dtype;
};
constexpr std::array<DTypeName, 16> kDTypes = {{{"F64", DType::kFloat64},
                                                {"F32", DType::kFloat32},
                                                {"F16", DType::kFloat16},
                                                {"BF16", DType::kBFloat16},
                                                {"F8_E4M3", DType::kFloat8E4M3},
                                                {"F8_E5M2", DType::kFloat8E5M2},
                                                {"F8_E8M0", DType::kFloat8E8M0},
                                                {"I64", DType::kInt64},
                                                {"I32", DType::kInt32},
                                                {"I16", DType::kInt16},
                                                {"I8", DType::kInt8},
                                                {"U64", DType::kUInt64},
                                                {"U32", DType::kUInt32},
                                                {"U16", DType::kUInt16},
                                                {"U8", DType::kUInt8},
                                                {"BOOL", DType::kBool}}};

// A name for a message: quoted, escaped, cut.
std::string quoted(std::string_view name) {
  constexpr size_t kMost = 200;
  return Json(name.size() > kMost ? std::string(name.substr(0, kMost)) + "..." : std::string(name)).dump();
}

class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> file, std::string_view source) : file_(file), source_(source) {}

  SafetensorsHeader parse() {
    const std::string_view text = header_text();
    Result<Json> json = parse_json(text, fmt::format("{}: header", source_), {.refuse_duplicate_keys = true});
    if (!json) throw Error(ErrorCode::kInvalidData, json.error().message);
    if (!json->is_object()) throw wrong("expected the header to be a JSON object, found {}", json->type_name());
    header_.data_offset = kLengthBytes + static_cast<int64_t>(text.size());
    data_bytes_ = static_cast<int64_t>(file_.size()) - header_.data_offset;
    for (const auto& [name, value] : json->as_object()) {
      if (name == "__metadata__") {
        read_metadata(value);
      } else {
        header_.entries.push_back(read_entry(name, value));
      }
    }
    check_cover();
    return std::move(header_);
  }

 private:
  template <typename... Args>
  Error wrong(fmt::format_string<Args...> format, Args&&... args) const {
    return make_error(ErrorCode::kInvalidData, "{}: damaged or not a safetensors file: {}", source_,
                      fmt::format(format, std::forward<Args>(args)...));
  }

  std::string_view header_text() const {
    if (file_.size() < kLengthBytes) {
      throw wrong("expected at least {} bytes, the file has {}", kLengthBytes, file_.size());
    }
    uint64_t length = 0;
    std::memcpy(&length, file_.data(), sizeof length);
    const uint64_t rest = file_.size() - kLengthBytes;
    if (length > rest) {
      throw wrong("its header should be {} bytes long, but only {} bytes follow (a download that broke off?)", length,
                  rest);
    }
    if (length > kMostHeaderBytes) {
      throw wrong("its header is {} bytes long; the format allows {}", length, kMostHeaderBytes);
    }
    return {reinterpret_cast<const char*>(file_.data()) + kLengthBytes, static_cast<size_t>(length)};
  }

  void read_metadata(const Json& value) {
    if (!value.is_object())
      throw wrong("expected __metadata__ to be an object of strings, found {}", value.type_name());
    for (const auto& [key, text] : value.as_object()) {
      if (!text.is_string())
        throw wrong("expected __metadata__ {} to be a string, found {}", quoted(key), text.type_name());
      header_.metadata.emplace_back(key, text.as_string());
    }
  }

  // A list of integers from 0; what JSON holds as a double is beyond 2^63 or has a fraction.
  std::vector<int64_t> read_sizes(const std::string& name, std::string_view key, const Json& info) const {
    const Json* list = info.find(key);
    if (list == nullptr || !list->is_array()) {
      throw wrong("tensor {}: expected {} to be a list of integers, found {}", quoted(name), key,
                  list == nullptr ? std::string_view("none") : list->type_name());
    }
    std::vector<int64_t> sizes;
    for (const Json& item : list->as_array()) {
      if (!item.is_int() || item.as_int() < 0) {
        throw wrong("tensor {}: expected integers from 0 to 2^63 - 1 in {}, found {}", quoted(name), key,
                    quoted(item.dump()));
      }
      sizes.push_back(item.as_int());
    }
    return sizes;
  }

  SafetensorsEntry read_entry(const std::string& name, const Json& info) const {
    if (!info.is_object()) {
      throw wrong("tensor {}: expected an object with dtype, shape and data_offsets, found {}", quoted(name),
                  info.type_name());
    }
    SafetensorsEntry entry;
    entry.name = name;
    const Json* dtype = info.find("dtype");
    if (dtype == nullptr || !dtype->is_string()) throw wrong("tensor {}: expected dtype to be a string", quoted(name));
    entry.dtype_name = dtype->as_string();
    entry.dtype = parse_safetensors_dtype(entry.dtype_name);
    entry.shape = read_sizes(name, "shape", info);
    const std::vector<int64_t> offsets = read_sizes(name, "data_offsets", info);
    if (offsets.size() != 2) throw wrong("tensor {}: expected 2 data_offsets, found {}", quoted(name), offsets.size());
    entry.begin = offsets[0];
    entry.end = offsets[1];
    check_entry(entry);
    return entry;
  }

  void check_entry(const SafetensorsEntry& entry) const {
    if (entry.begin > entry.end || entry.end > data_bytes_) {
      throw wrong("tensor {}: its data_offsets are [{}, {}], but the data is {} bytes long{}", quoted(entry.name),
                  entry.begin, entry.end, data_bytes_, entry.begin > entry.end ? "" : " (a download that broke off?)");
    }
    int64_t count = 1;
    for (const int64_t size : entry.shape) {
      if (__builtin_mul_overflow(count, size, &count)) {
        throw wrong("tensor {}: its shape has more elements than 2^63", quoted(entry.name));
      }
    }
    if (!entry.dtype) return;
    int64_t bytes = 0;
    if (__builtin_mul_overflow(count, dtype_size(*entry.dtype), &bytes) || bytes != entry.end - entry.begin) {
      throw wrong("tensor {}: {} elements of type {} do not fill its {} bytes", quoted(entry.name), count,
                  entry.dtype_name, entry.end - entry.begin);
    }
  }

  // The tensors, in the order of their bytes, must follow each other from the first byte to the last.
  void check_cover() {
    std::vector<SafetensorsEntry>& entries = header_.entries;
    std::stable_sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    int64_t covered = 0;
    for (const SafetensorsEntry& entry : entries) {
      if (entry.begin != covered) {
        throw wrong("tensor {} starts at byte {} of the data, {} byte {}", quoted(entry.name), entry.begin,
                    entry.begin < covered ? "inside the tensor before it, which ends at" : "leaving a hole after",
                    covered);
      }
      covered = entry.end;
    }
    if (covered != data_bytes_) {
      throw wrong("its tensors end at byte {} of the data, which is {} bytes long", covered, data_bytes_);
    }
  }

  std::span<const std::byte> file_;
  std::string_view source_;
  int64_t data_bytes_ = 0;
  SafetensorsHeader header_;
};

}  // namespace

std::optional<DType> parse_safetensors_dtype(std::string_view name) noexcept {
  for (const DTypeName& entry : kDTypes) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

std::optional<std::string_view> safetensors_dtype_name(DType dtype) noexcept {
  for (const DTypeName& entry : kDTypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  return std::nullopt;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view source) {
  return HeaderParser(file, source).parse();
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path), header_(parse_safetensors(file_.bytes(), path)) {
  index_.reserve(header_.entries.size());
  for (size_t i = 0; i < header_.entries.size(); ++i) index_.emplace(header_.entries[i].name, i);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.entries[found->second];
}

TensorView SafetensorsFile::peek(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr) {
    throw make_error(ErrorCode::kNotFound, "{}: there is no tensor {} among its {}", path(), quoted(name),
                     header_.entries.size());
  }
  if (!entry->dtype) {
    throw make_error(ErrorCode::kUnsupported, "{}: tensor {} is of type {}, which is not supported", path(),
                     quoted(name), quoted(entry->dtype_name));
  }
  if (entry->shape.size() > static_cast<size_t>(kMaxRank)) {
    throw make_error(ErrorCode::kUnsupported, "{}: tensor {} has {} dimensions; at most {} are supported", path(),
                     quoted(name), entry->shape.size(), kMaxRank);
  }
  const Shape shape{std::span<const int64_t>(entry->shape)};
  return TensorView::contiguous(file_.bytes().data() + header_.data_offset + entry->begin, *entry->dtype, shape);
}

TensorView SafetensorsFile::get(std::string_view name) const {
  const TensorView view = peek(name);
  return copies_.row_major(find(name)->name, view);
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  names.reserve(header_.entries.size());
  for (const SafetensorsEntry& entry : header_.entries) names.push_back(entry.name);
  return names;
}

void SafetensorsFile::release(const TensorView& view) const noexcept {
  const std::byte *first = file_.bytes().data(), *last = first + file_.bytes().size();
  if (!view.is_contiguous() || view.data < first || view.data >= last) return;  // not in this file, or an aligned copy
  const auto bytes = static_cast<size_t>(view.shape.count()) * static_cast<size_t>(dtype_bits(view.dtype)) / 8;
  file_.release({view.data, std::min(bytes, static_cast<size_t>(last - view.data))});
}

namespace {

std::string_view checked_dtype_name(const SafetensorsOutput& tensor) {
  const auto name = safetensors_dtype_name(tensor.dtype);
  if (!name) {
    throw make_error(ErrorCode::kUnsupported, "tensor {} is of type {}, which the safetensors format does not have",
                     quoted(tensor.name), dtype_name(tensor.dtype));
  }
  return *name;
}

// Wide elements first, so that every tensor lies at a multiple of its element size.
std::vector<const SafetensorsOutput*> in_file_order(const std::vector<SafetensorsOutput>& tensors) {
  std::vector<const SafetensorsOutput*> order;
  std::set<std::string_view> names{"__metadata__"};
  for (const SafetensorsOutput& tensor : tensors) {
    checked_dtype_name(tensor);
    if (!names.insert(tensor.name).second) {
      throw make_error(ErrorCode::kInvalidArgument, "two tensors named {}, or a name that the format keeps for itself",
                       quoted(tensor.name));
    }
    order.push_back(&tensor);
  }
  std::stable_sort(order.begin(), order.end(), [](const SafetensorsOutput* a, const SafetensorsOutput* b) {
    return dtype_bits(a->dtype) > dtype_bits(b->dtype);
  });
  return order;
}

std::string header_of(const std::vector<const SafetensorsOutput*>& order,
                      const std::vector<std::pair<std::string, std::string>>& metadata) {
  Json header{Json::Object()};
  if (!metadata.empty()) {
    Json values{Json::Object()};
    for (const auto& [key, value] : metadata) values.set(key, value);
    header.set("__metadata__", std::move(values));
  }
  Json::Object& members = header.as_object();
  int64_t offset = 0;
  for (const SafetensorsOutput* tensor : order) {
    Json shape{Json::Array()};
    for (const int64_t size : tensor->shape) shape.push_back(size);
    const int64_t end = offset + dtype_bytes(tensor->dtype, tensor->shape.count());
    members.emplace_back(tensor->name, Json::Object{{"dtype", checked_dtype_name(*tensor)},
                                                    {"shape", std::move(shape)},
                                                    {"data_offsets", Json::Array{offset, end}}});
    offset = end;
  }
  std::string text = header.dump();
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  return text;
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<SafetensorsOutput>& tensors,
                       const std::vector<std::pair<std::string, std::string>>& metadata,
                       const std::function<void(const std::string& written)>& check) {
  const std::vector<const SafetensorsOutput*> order = in_file_order(tensors);
  const std::string header = header_of(order, metadata);
  const auto write = [&](FileWriter& out) {
    const uint64_t length = header.size();
    out.append(std::as_bytes(std::span(&length, 1)));
    out.append(std::string_view(header));
    for (const SafetensorsOutput* tensor : order) append_tensor(*tensor, out);
  };
  write_file_atomically(path, write, check);
}

}  // namespace coluber
