// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_file.h"

#include <bit>
#include <cstring>
#include <set>
#include <type_traits>

#include "base/block_type.h"
#include "base/error.h"
#include "base/printable.h"
#include "base/utf8.h"
#include "kernels/quant/block_types.h"

namespace coluber {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr int64_t kMostKeys = 1 << 16, kMostTensors = 1 << 20, kMostArray = int64_t{1} << 24, kMostFiles = 1000;
constexpr int64_t kLeastKeyBytes = 8 + 4 + 1, kLeastTensorBytes = 8 + 4 + 8 + 4 + 8;

// Types of metadata values.
enum Kind : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

struct GgmlType {
  uint32_t id;
  std::string_view name;
};
constexpr GgmlType kBlockTypes[] = {
    {2, "Q4_0"},     {3, "Q4_1"},   {6, "Q5_0"},    {7, "Q5_1"},   {8, "Q8_0"},     {10, "Q2_K"},
    {11, "Q3_K"},    {12, "Q4_K"},  {13, "Q5_K"},   {14, "Q6_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {29, "IQ1_M"},   {34, "TQ1_0"}, {35, "TQ2_0"},  {39, "MXFP4"}, {40, "NVFP4"},
};

struct PlainType {
  uint32_t id;
  DType dtype;
};
constexpr PlainType kPlainTypes[] = {
    {0, DType::kFloat32}, {1, DType::kFloat16}, {24, DType::kInt8},    {25, DType::kInt16},
    {26, DType::kInt32},  {27, DType::kInt64},  {28, DType::kFloat64}, {30, DType::kBFloat16},
};

std::optional<DType> dtype_of(uint32_t ggml_type) {
  for (const PlainType& type : kPlainTypes) {
    if (type.id == ggml_type) return type.dtype;
  }
  for (const GgmlType& type : kBlockTypes) {
    if (type.id == ggml_type) return quantized_dtype(type.name);
  }
  return std::nullopt;
}

// Reads forward, never past the end.
class Reader {
 public:
  Reader(std::span<const std::byte> file, std::string_view source) : file_(file), source_(source) {}

  int64_t place() const noexcept { return static_cast<int64_t>(at_); }
  int64_t left() const noexcept { return static_cast<int64_t>(file_.size() - at_); }

  template <typename T>
  T read(std::string_view what) {
    need(sizeof(T), what);
    T value;
    std::memcpy(&value, file_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  // A count that can be there: each of its items has at least `least` bytes.
  int64_t count(std::string_view what, int64_t most, int64_t least) {
    const auto value = read<uint64_t>(what);
    if (value > static_cast<uint64_t>(most) || value > static_cast<uint64_t>(left() / least))
      fail(fmt::format("{} {}; expected at most {}, and no more than the {} bytes behind can hold", value, what, most,
                       left()));
    return static_cast<int64_t>(value);
  }
  std::string_view text(std::string_view what) {
    const auto length = read<uint64_t>(what);
    if (length > static_cast<uint64_t>(left()))
      fail(fmt::format("{} of {} bytes where {} are left", what, length, left()));
    const std::string_view found(reinterpret_cast<const char*>(file_.data()) + at_, static_cast<size_t>(length));
    at_ += static_cast<size_t>(length);
    return found;
  }
  [[noreturn]] void fail(const std::string& problem) const {
    throw make_error(ErrorCode::kInvalidData, "{}: at byte {}: {} (a damaged or incomplete file?)", source_, at_,
                     printable(problem));
  }

 private:
  void need(size_t bytes, std::string_view what) const {
    if (bytes > file_.size() - at_) fail(fmt::format("the file ends inside {}", what));
  }

  std::span<const std::byte> file_;
  std::string_view source_;
  size_t at_ = 0;
};

int64_t read_integer(Reader& reader, uint32_t kind) {
  switch (kind) {
    case kU8:
      return reader.read<uint8_t>("a value");
    case kI8:
      return reader.read<int8_t>("a value");
    case kU16:
      return reader.read<uint16_t>("a value");
    case kI16:
      return reader.read<int16_t>("a value");
    case kU32:
      return reader.read<uint32_t>("a value");
    case kI32:
      return reader.read<int32_t>("a value");
    case kBool:
      return reader.read<uint8_t>("a value") != 0 ? 1 : 0;
    case kI64:
      return reader.read<int64_t>("a value");
    default: {
      const auto value = reader.read<uint64_t>("a value");
      if (value > static_cast<uint64_t>(INT64_MAX)) reader.fail(fmt::format("the number {} is too large", value));
      return static_cast<int64_t>(value);
    }
  }
}

double read_real(Reader& reader, uint32_t kind) {
  return kind == kF32 ? static_cast<double>(reader.read<float>("a value")) : reader.read<double>("a value");
}

int64_t least_bytes(uint32_t kind) {
  constexpr int64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
  return kBytes[kind];
}

GgufValue read_array(Reader& reader) {
  const auto kind = reader.read<uint32_t>("an array's type");
  if (kind > kF64 || kind == kArray)
    reader.fail(fmt::format("an array of type {}; expected numbers, booleans or texts", kind));
  const int64_t count = reader.count("elements of an array", kMostArray, least_bytes(kind));
  if (kind == kString) {
    std::vector<std::string_view> values;
    values.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) values.push_back(reader.text("a text"));
    return values;
  }
  if (kind == kF32 || kind == kF64) {
    std::vector<double> values;
    values.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) values.push_back(read_real(reader, kind));
    return values;
  }
  std::vector<int64_t> values;
  values.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values.push_back(read_integer(reader, kind));
  return values;
}

GgufValue read_value(Reader& reader) {
  const auto kind = reader.read<uint32_t>("a value's type");
  switch (kind) {
    case kString:
      return reader.text("a text");
    case kArray:
      return read_array(reader);
    case kF32:
    case kF64:
      return read_real(reader, kind);
    case kBool:
      return read_integer(reader, kind) != 0;
    default:
      if (kind > kF64) reader.fail(fmt::format("a value of type {}; expected 0 to {}", kind, static_cast<int>(kF64)));
      return read_integer(reader, kind);
  }
}

GgufTensor read_tensor(Reader& reader) {
  GgufTensor tensor;
  tensor.name = std::string(reader.text("a tensor's name"));
  if (!is_valid_utf8(tensor.name)) reader.fail("the name of a tensor is not UTF-8");
  const auto rank = reader.read<uint32_t>("a tensor's rank");
  if (rank < 1 || rank > 4) reader.fail(fmt::format("tensor '{}' of rank {}; expected 1 to 4", tensor.name, rank));
  int64_t sizes[4] = {}, count = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    const auto size = reader.read<uint64_t>("a tensor's size");
    if (size < 1 || size > static_cast<uint64_t>(INT64_MAX) ||
        __builtin_mul_overflow(count, static_cast<int64_t>(size), &count))
      reader.fail(fmt::format("tensor '{}' has the size {} in dimension {}", tensor.name, size, i));
    sizes[rank - 1 - i] = static_cast<int64_t>(size);
  }
  tensor.shape = Shape(std::span<const int64_t>(sizes, rank));
  tensor.ggml_type = reader.read<uint32_t>("a tensor's type");
  tensor.dtype = dtype_of(tensor.ggml_type);
  const auto offset = reader.read<uint64_t>("a tensor's offset");
  if (offset > static_cast<uint64_t>(INT64_MAX / 2))
    reader.fail(fmt::format("tensor '{}' begins at byte {} of the data", tensor.name, offset));
  tensor.offset = static_cast<int64_t>(offset);
  if (!tensor.dtype) return tensor;
  if (const BlockType* blocks = find_block_type(*tensor.dtype); blocks != nullptr && sizes[rank - 1] % blocks->elements)
    reader.fail(fmt::format("tensor '{}' of type {} has rows of {} elements; expected a multiple of {}", tensor.name,
                            blocks->name, sizes[rank - 1], blocks->elements));
  if (count > INT64_MAX / 16) reader.fail(fmt::format("tensor '{}' has {} elements", tensor.name, count));
  tensor.size_bytes = dtype_bytes(*tensor.dtype, count);
  return tensor;
}

void check_start(Reader& reader, GgufHeader& header) {
  if (reader.left() < 4 || reader.read<uint32_t>("the magic") != kMagic)
    reader.fail("this is no GGUF file: it does not begin with \"GGUF\"");
  header.version = reader.read<uint32_t>("the version");
  if (header.version == 2 || header.version == 3) return;
  const bool swapped = header.version == 0x02000000 || header.version == 0x03000000;
  reader.fail(swapped ? std::string("the file is big-endian; expected a little-endian one: convert it anew")
                      : fmt::format("GGUF version {}; versions 2 and 3 are read", header.version));
}

// Offsets count from the start of the data; the data from the next multiple of the alignment.
void place_tensors(GgufHeader& header, const Reader& reader, int64_t file_bytes) {
  int64_t alignment = 32;
  if (const auto found = header.metadata.find("general.alignment"); found != header.metadata.end()) {
    const int64_t* value = std::get_if<int64_t>(&found->second);
    if (value == nullptr || *value < 8 || *value > (1 << 20) || !std::has_single_bit(static_cast<uint64_t>(*value)))
      reader.fail("general.alignment must be a power of two from 8 to 2^20");
    alignment = *value;
  }
  const int64_t begin = (reader.place() + alignment - 1) / alignment * alignment;
  for (GgufTensor& tensor : header.tensors) {
    if (tensor.offset % alignment != 0)
      reader.fail(fmt::format("tensor '{}' begins at byte {} of the data; expected a multiple of {}", tensor.name,
                              tensor.offset, alignment));
    tensor.offset += begin;
    if (tensor.offset > file_bytes || tensor.size_bytes > file_bytes - tensor.offset)
      reader.fail(fmt::format("tensor '{}' has bytes {} to {} of a file of {}", tensor.name, tensor.offset,
                              tensor.offset + tensor.size_bytes, file_bytes));
  }
}

// "x-00001-of-00003.gguf" with another number.
std::string split_name(const std::string& first, int64_t index, int64_t count) {
  const std::string tail = fmt::format("-00001-of-{:05}.gguf", count);
  if (!first.ends_with(tail)) return {};
  return fmt::format("{}-{:05}-of-{:05}.gguf", first.substr(0, first.size() - tail.size()), index + 1, count);
}

// An integer of a header; none where it is missing or something else.
std::optional<int64_t> stated(const GgufHeader& header, std::string_view key) {
  const auto found = header.metadata.find(key);
  const int64_t* value = found == header.metadata.end() ? nullptr : std::get_if<int64_t>(&found->second);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

}  // namespace

std::vector<std::string> gguf_parts(const std::string& path) {
  for (int64_t count = 2; count <= kMostFiles; ++count) {
    if (split_name(path, 0, count).empty()) continue;
    std::vector<std::string> parts;
    for (int64_t i = 0; i < count; ++i) parts.push_back(split_name(path, i, count));
    return parts;
  }
  return {path};
}

std::optional<uint32_t> ggml_type_of(DType dtype) noexcept {
  for (const PlainType& type : kPlainTypes) {
    if (type.dtype == dtype) return type.id;
  }
  for (const GgmlType& type : kBlockTypes) {
    if (type.name == dtype_name(dtype)) return type.id;
  }
  return std::nullopt;
}

GgufHeader parse_gguf(std::span<const std::byte> file, std::string_view source) {
  Reader reader(file, source);
  GgufHeader header;
  check_start(reader, header);
  const int64_t tensors = reader.count("tensors", kMostTensors, kLeastTensorBytes);
  const int64_t keys = reader.count("metadata keys", kMostKeys, kLeastKeyBytes);
  for (int64_t i = 0; i < keys; ++i) {
    const std::string_view stored_key = reader.text("a key");
    const std::string key(stored_key);
    const auto begin = static_cast<size_t>(reader.place());
    GgufValue value = read_value(reader);
    header.entries.push_back({stored_key, file.subspan(begin, static_cast<size_t>(reader.place()) - begin)});
    if (!header.metadata.emplace(key, std::move(value)).second) reader.fail(fmt::format("the key '{}' twice", key));
  }
  std::set<std::string_view> names;
  header.tensors.reserve(static_cast<size_t>(tensors));
  for (int64_t i = 0; i < tensors; ++i) {
    header.tensors.push_back(read_tensor(reader));
    if (!names.insert(header.tensors.back().name).second)
      reader.fail(fmt::format("the tensor '{}' twice", header.tensors.back().name));
  }
  place_tensors(header, reader, static_cast<int64_t>(file.size()));
  return header;
}

GgufFile::GgufFile(const std::string& path) : path_(path) {
  files_.push_back(std::make_unique<MappedFile>(path));
  header_ = parse_gguf(files_[0]->bytes(), path);
  const int64_t count = integer("split.count").value_or(0);
  if (count > 1) append_split(count);
  for (size_t i = 0; i < header_.tensors.size(); ++i) {
    if (by_name_.emplace(header_.tensors[i].name, i).second) continue;
    throw make_error(ErrorCode::kInvalidData, "{}: two of its files hold the tensor '{}'", path,
                     header_.tensors[i].name);
  }
}

void GgufFile::append_split(int64_t count) {
  const int64_t number = integer("split.no").value_or(0);
  if (count > kMostFiles || number != 0 || split_name(path_, 0, count).empty()) {
    throw make_error(ErrorCode::kInvalidArgument,
                     "{}: this is file {} of a model of {} files; name the first of them, which must be called "
                     "NAME-00001-of-{:05}.gguf",
                     path_, number + 1, count, count);
  }
  for (int64_t i = 1; i < count; ++i) {
    const std::string name = split_name(path_, i, count);
    if (!file_exists(name))
      throw make_error(ErrorCode::kNotFound, "{}: its file {} of {} is not there: '{}' (an incomplete download?)",
                       path_, i + 1, count, name);
    files_.push_back(std::make_unique<MappedFile>(name));
    GgufHeader more = parse_gguf(files_.back()->bytes(), name);
    check_place(more, name, i, count);
    for (GgufTensor& tensor : more.tensors) {
      tensor.file = static_cast<int>(i);
      header_.tensors.push_back(std::move(tensor));
    }
  }
}

// A file of another model under the right name shows where its own numbers differ.
void GgufFile::check_place(const GgufHeader& part, const std::string& name, int64_t index, int64_t count) const {
  const int64_t number = stated(part, "split.no").value_or(index), of = stated(part, "split.count").value_or(count);
  const int64_t tensors = stated(header_, "split.tensors.count").value_or(0);
  const int64_t its_tensors = stated(part, "split.tensors.count").value_or(tensors);
  if (number == index && of == count && its_tensors == tensors) return;
  throw make_error(
      ErrorCode::kInvalidData,
      "{}: expected file {} of {} of a model of {} tensors, as '{}' has it; found file {} of {} of a model "
      "of {} tensors. Fetch all files of one model",
      name, index + 1, count, tensors, path_, number + 1, of, its_tensors);
}

bool GgufFile::is_list(std::string_view key) const noexcept {
  const auto found = header_.metadata.find(key);
  return found != header_.metadata.end() && (std::holds_alternative<std::vector<int64_t>>(found->second) ||
                                             std::holds_alternative<std::vector<double>>(found->second) ||
                                             std::holds_alternative<std::vector<std::string_view>>(found->second));
}

const GgufTensor* GgufFile::find(std::string_view name) const noexcept {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

const std::byte* GgufFile::data_of(const GgufTensor& tensor) const noexcept {
  return files_[static_cast<size_t>(tensor.file)]->bytes().data() + tensor.offset;
}

void GgufFile::release(std::span<const std::byte> range) const noexcept {
  for (const auto& file : files_) {
    const auto bytes = file->bytes();
    if (range.data() >= bytes.data() && range.data() + range.size() <= bytes.data() + bytes.size())
      file->release(range);
  }
}

template <typename T>
const T* GgufFile::value_of(std::string_view key, std::string_view expected) const {
  const auto found = header_.metadata.find(key);
  if (found == header_.metadata.end()) return nullptr;
  if (const T* value = std::get_if<T>(&found->second)) return value;
  throw make_error(ErrorCode::kInvalidData, "{}: the metadata '{}' has another type; expected {}", path_, key,
                   expected);
}

std::optional<int64_t> GgufFile::integer(std::string_view key) const {
  const int64_t* value = value_of<int64_t>(key, "an integer");
  return value == nullptr ? std::nullopt : std::optional(*value);
}
std::optional<double> GgufFile::real(std::string_view key) const {
  const double* value = value_of<double>(key, "a real number");
  return value == nullptr ? std::nullopt : std::optional(*value);
}
std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const bool* value = value_of<bool>(key, "a boolean");
  return value == nullptr ? std::nullopt : std::optional(*value);
}
std::optional<std::string_view> GgufFile::text(std::string_view key) const {
  const std::string_view* value = value_of<std::string_view>(key, "a text");
  return value == nullptr ? std::nullopt : std::optional(*value);
}
const std::vector<int64_t>* GgufFile::integers(std::string_view key) const {
  return value_of<std::vector<int64_t>>(key, "a list of integers");
}
const std::vector<double>* GgufFile::reals(std::string_view key) const {
  return value_of<std::vector<double>>(key, "a list of real numbers");
}
const std::vector<std::string_view>* GgufFile::texts(std::string_view key) const {
  return value_of<std::vector<std::string_view>>(key, "a list of texts");
}

}  // namespace coluber
