// SPDX-License-Identifier: Apache-2.0
#include "layers/weight_loader.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "base/log.h"
#include "tensor/tensor_convert.h"

namespace coluber {
namespace {

// No weight is larger than this (64 GiB): a stand-in beyond it is what a damaged configuration asks for.
constexpr int64_t kMostStandInBytes = int64_t{1} << 36;
// Copies of stand-ins, all together: the vectors of a layer, where matrices cost only addresses.
constexpr int64_t kMostCopiedStandIns = int64_t{1} << 24;
constexpr size_t kMostProblems = 1000;
constexpr size_t kMostProblemsShown = 100;
constexpr size_t kMostHostShown = 12;

// Zeros that cost addresses and no memory: the system backs pages that are only read with one page of zeros.
class ZeroPages {
 public:
  explicit ZeroPages(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* memory = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) data_ = static_cast<std::byte*>(memory);
  }
  ~ZeroPages() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  ZeroPages(const ZeroPages&) = delete;
  ZeroPages& operator=(const ZeroPages&) = delete;

  const std::byte* data() const noexcept { return data_; }  // null where the system has no such range
  int64_t bytes() const noexcept { return static_cast<int64_t>(bytes_); }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_;
};

bool fits(const Shape& found, const Shape& expected) {
  if (found.rank() != expected.rank()) return false;
  for (int i = 0; i < found.rank(); ++i) {
    if (expected[i] != 0 && expected[i] != found[i]) return false;
  }
  return true;
}

// "[2, ?]"
std::string describe(const Shape& expected) {
  std::string text = "[";
  for (int i = 0; i < expected.rank(); ++i) {
    if (i > 0) text += ", ";
    text += expected[i] == 0 ? "?" : std::to_string(expected[i]);
  }
  return text + "]";
}

// Eight-bit floats come with a scale, without which they are other numbers; its name, empty where there is none.
std::string scale_of(const WeightSource& weights, const std::string& name, DType dtype) {
  if (dtype_bits(dtype) > 8) return {};
  for (const char* ending : {"_scale", "_scale_inv", "_scales"})
    if (weights.contains(name + ending)) return name + ending;
  return {};
}

}  // namespace

struct WeightLoader::Books {
  explicit Books(ModelLoadContext& load_context) : context(load_context) {
    for (const std::string& name : context.weights.names()) total_bytes += context.weights.peek(name).size_bytes();
  }

  // `so_far`: there may be more than was looked at.
  [[noreturn]] void fail(bool so_far) const {
    std::string list;
    for (size_t i = 0; i < std::min(problems.size(), kMostProblemsShown); ++i) list += "\n  " + problems[i];
    if (problems.size() > kMostProblemsShown)
      list += fmt::format("\n  and {}{} more", so_far ? "at least " : "", problems.size() - kMostProblemsShown);
    else if (so_far)
      list += "\n  (and perhaps more: the sizes are too large to look on)";
    throw make_error(
        ErrorCode::kInvalidData,
        "{} does not hold the weights that {} describes; check that both files belong to the same model:{}",
        context.weights.describe(), context.config_path, list);
  }

  [[noreturn]] void refuse_device() const {
    std::string list;
    for (size_t i = 0; i < std::min(on_host.size(), kMostHostShown); ++i) list += "\n  " + on_host[i];
    if (on_host.size() > kMostHostShown) list += fmt::format("\n  and {} more", on_host.size() - kMostHostShown);
    throw make_error(ErrorCode::kUnsupported, "{} has layers that run on the CPU alone; use --device cpu:{}",
                     context.weights.describe(), list);
  }

  void mark_used(const std::string& name, const TensorView& tensor) {
    if (!used.insert(name).second) return;
    done_bytes += tensor.size_bytes();
    if (context.progress) context.progress(done_bytes, total_bytes);
  }

  // Notes a problem; zeros in place of the tensor that it is about.
  TensorView stand_in(std::string problem, const Shape& expected) {
    problems.push_back(std::move(problem));
    if (problems.size() >= kMostProblems) fail(true);
    Shape shape = expected;
    int64_t bytes = sizeof(float);
    for (int i = 0; i < shape.rank(); ++i) {
      if (shape[i] == 0) shape[i] = 1;
      if (__builtin_mul_overflow(bytes, shape[i], &bytes) || bytes > kMostStandInBytes) fail(true);
    }
    return TensorView::contiguous(zeros_of(bytes), DType::kFloat32, shape);
  }

  const std::byte* zeros_of(int64_t bytes) {
    // One range serves all until a longer one is needed; views into the shorter ones stay valid.
    if (zeros.empty() || zeros.back()->bytes() < bytes)
      zeros.push_back(std::make_unique<ZeroPages>(std::max<int64_t>(2 * bytes, 4096)));
    if (zeros.back()->data() == nullptr) fail(true);
    return zeros.back()->data();
  }

  // What is only looked at. Weights that are made from others have no data before they are asked for.
  TensorView looked_at(TensorView tensor) {
    if (tensor.data == nullptr) tensor.data = const_cast<std::byte*>(zeros_of(tensor.size_bytes()));
    return tensor;
  }

  void count_copied_stand_in(int64_t bytes) {
    copied_stand_ins += bytes;
    if (copied_stand_ins > kMostCopiedStandIns) fail(true);
  }

  // One note a reason, however many layers have such tensors.
  void note_left_out(const std::vector<int64_t>& left_out, ModelInfo& info) const {
    struct Kind {
      std::string_view prefix, why;
      int64_t prefixes = 0, tensors = 0;
    };
    std::vector<Kind> kinds;
    for (size_t i = 0; i < left_out.size(); ++i) {
      if (left_out[i] == 0) continue;
      const auto& [prefix, why] = ignored[i];
      auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& known) { return known.why == why; });
      if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {prefix, why});
      ++kind->prefixes;
      kind->tensors += left_out[i];
    }
    for (const Kind& kind : kinds) {
      const std::string count = fmt::format("{} tensor{}", kind.tensors, kind.tensors == 1 ? "" : "s");
      info.notes.push_back(kind.prefixes > 1 ? fmt::format("left out {}, e.g. '{}': {}", count, kind.prefix, kind.why)
                                             : fmt::format("left out '{}' ({}): {}", kind.prefix, count, kind.why));
    }
  }

  ModelLoadContext& context;
  std::set<std::string> used;
  std::vector<std::string> problems;
  std::vector<std::string> on_host;  // what cannot run on the device
  std::vector<std::unique_ptr<ZeroPages>> zeros;
  int64_t copied_stand_ins = 0;
  std::vector<std::pair<std::string, std::string>> ignored;  // prefix, why
  int64_t done_bytes = 0, total_bytes = 0;
  int64_t matmul_parameters = 0, streamed_bytes = 0;
};

WeightLoader::WeightLoader(ModelLoadContext& context) : books_(std::make_shared<Books>(context)) {}

WeightLoader WeightLoader::scoped(std::string_view child) const {
  WeightLoader inner = *this;
  if (!child.empty()) inner.prefix_ += std::string(child) + ".";
  return inner;
}

std::string WeightLoader::full_name(std::string_view name) const { return prefix_ + std::string(name); }

bool WeightLoader::has(std::string_view name) const { return books_->context.weights.contains(full_name(name)); }

std::optional<Shape> WeightLoader::shape_of(std::string_view name) const {
  if (!has(name)) return std::nullopt;
  return books_->context.weights.peek(full_name(name)).shape;
}

TensorView WeightLoader::take(std::string_view name, const Shape& expected) {
  const std::string full = full_name(name);
  const WeightSource& weights = books_->context.weights;
  if (!weights.contains(full)) {
    return books_->stand_in(fmt::format("tensor '{}' is missing; expected the shape {}", full, describe(expected)),
                            expected);
  }
  const TensorView tensor = weights.peek(full);
  books_->mark_used(full, tensor);
  if (!is_floating(tensor.dtype)) {
    return books_->stand_in(
        fmt::format("tensor '{}' holds {}; expected a floating type", full, dtype_name(tensor.dtype)), expected);
  }
  if (const std::string scale = scale_of(weights, full, tensor.dtype); !scale.empty()) {
    return books_->stand_in(
        fmt::format("tensor '{}' holds {} with a scale beside it ('{}'), which is not read; expected "
                    "float32, bfloat16 or float16",
                    full, dtype_name(tensor.dtype), scale),
        expected);
  }
  if (!fits(tensor.shape, expected)) {
    return books_->stand_in(
        fmt::format("tensor '{}' has the shape {}; expected {}", full, tensor.shape.to_string(), describe(expected)),
        expected);
  }
  return describe_only() ? books_->looked_at(tensor) : weights.get(full);
}

std::vector<float> WeightLoader::take_float(std::string_view name, const Shape& expected) {
  keep_on_host(fmt::format("'{}' is read by the CPU", full_name(name)));
  return read_float(name, expected);
}

void WeightLoader::keep_on_host(std::string_view why) {
  if (!device().is_host()) books_->on_host.emplace_back(why);
}

Device& WeightLoader::place_of_arrays() const { return describe_only() ? cpu_device() : device(); }

std::vector<float> WeightLoader::read_float(std::string_view name, const Shape& expected) {
  const size_t problems = books_->problems.size();
  const TensorView tensor = take(name, expected);
  const int64_t count = tensor.shape.count();
  const bool is_stand_in = books_->problems.size() > problems;
  if (is_stand_in) books_->count_copied_stand_in(count * static_cast<int64_t>(sizeof(float)));
  std::vector<float> values(static_cast<size_t>(count));
  if (is_stand_in) return values;
  convert_to_float(tensor, values.data());
  release(tensor);
  return values;
}

std::vector<int64_t> WeightLoader::take_integers(std::string_view name, const Shape& expected) {
  const std::string full = full_name(name);
  const WeightSource& weights = books_->context.weights;
  std::vector<int64_t> values(static_cast<size_t>(expected.count()));
  auto problem = [&](const std::string& found) {
    books_->problems.push_back(
        fmt::format("tensor '{}' {}; expected int64 or int32 of the shape {}", full, found, describe(expected)));
    return values;
  };
  if (!weights.contains(full)) return problem("is missing");
  const TensorView tensor = weights.peek(full);
  books_->mark_used(full, tensor);
  if (tensor.dtype != DType::kInt64 && tensor.dtype != DType::kInt32)
    return problem(fmt::format("holds {}", dtype_name(tensor.dtype)));
  if (!fits(tensor.shape, expected)) return problem("has the shape " + tensor.shape.to_string());
  if (describe_only()) return values;
  const std::byte* data = weights.get(full).data;
  for (size_t i = 0; i < values.size(); ++i) {
    int32_t narrow = 0;
    if (tensor.dtype == DType::kInt64) {
      std::memcpy(&values[i], data + i * sizeof(int64_t), sizeof(int64_t));
    } else {
      std::memcpy(&narrow, data + i * sizeof(int32_t), sizeof(int32_t));
      values[i] = narrow;
    }
  }
  return values;
}

std::string_view WeightLoader::first_of(std::initializer_list<std::string_view> names) const {
  for (std::string_view name : names) {
    if (has(name)) return name;
  }
  COLUBER_CHECK(names.size() > 0, "first_of without names");
  return *names.begin();
}

void WeightLoader::ignore(std::string_view prefix, std::string_view why) {
  books_->ignored.emplace_back(full_name(prefix), std::string(why));
}

void WeightLoader::release(const TensorView& tensor) const noexcept { books_->context.weights.release(tensor); }

ThreadPool& WeightLoader::thread_pool() const { return books_->context.thread_pool; }
Device& WeightLoader::device() const {
  return books_->context.device != nullptr ? *books_->context.device : cpu_device();
}
EngineConfig& WeightLoader::config() const { return books_->context.config; }
// Once something is wrong the load can only end in a message: what was found first is not worth packing.
bool WeightLoader::describe_only() const {
  return books_->context.describe_only || !books_->problems.empty() || !books_->on_host.empty();
}

void WeightLoader::count_matmul(int64_t parameters, int64_t bytes) {
  books_->matmul_parameters += parameters;
  books_->streamed_bytes += bytes;
}

void WeightLoader::finish(ModelInfo& info) {
  if (!books_->problems.empty()) books_->fail(false);
  if (!books_->on_host.empty()) books_->refuse_device();
  const WeightSource& weights = books_->context.weights;
  std::map<DType, int64_t> by_dtype;
  std::vector<int64_t> left_out(books_->ignored.size());
  std::vector<std::string> unused;
  for (const std::string& name : weights.names()) {
    if (books_->used.count(name) == 0) {
      const auto known = std::find_if(books_->ignored.begin(), books_->ignored.end(),
                                      [&](const auto& entry) { return name.starts_with(entry.first); });
      if (known == books_->ignored.end()) {
        unused.push_back(name);
      } else {
        ++left_out[static_cast<size_t>(known - books_->ignored.begin())];
      }
      continue;
    }
    const TensorView tensor = weights.peek(name);
    by_dtype[tensor.dtype] += tensor.shape.count();
    info.weight_bytes += tensor.size_bytes();
  }
  for (const auto& [dtype, count] : by_dtype) {
    info.parameters += count;
    info.parameters_by_dtype.emplace_back(dtype, count);
  }
  std::stable_sort(info.parameters_by_dtype.begin(), info.parameters_by_dtype.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  info.matmul_parameters = books_->matmul_parameters;
  info.streamed_bytes = books_->streamed_bytes;
  books_->note_left_out(left_out, info);
  if (!unused.empty()) {
    info.notes.push_back(
        fmt::format("nothing uses {} tensor{}, e.g. '{}'", unused.size(), unused.size() == 1 ? "" : "s", unused[0]));
    log_warn("{}: {}", weights.describe(), info.notes.back());
  }
}

}  // namespace coluber
