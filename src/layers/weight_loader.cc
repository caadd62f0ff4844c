// SPDX-License-Identifier: Apache-2.0
#include "layers/weight_loader.h"

#include <algorithm>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "base/log.h"

namespace coluber {
namespace {

// A stand-in for a missing tensor beyond this would be memory that a damaged configuration asks for.
constexpr int64_t kMostStandInBytes = int64_t{1} << 28;
constexpr size_t kMostProblemsShown = 100;

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

}  // namespace

struct WeightLoader::Books {
  explicit Books(ModelLoadContext& load_context) : context(load_context) {
    for (const std::string& name : context.weights.names()) total_bytes += context.weights.get(name).size_bytes();
  }

  [[noreturn]] void fail() const {
    std::string list;
    for (size_t i = 0; i < std::min(problems.size(), kMostProblemsShown); ++i) list += "\n  " + problems[i];
    if (problems.size() > kMostProblemsShown)
      list += fmt::format("\n  and {} more", problems.size() - kMostProblemsShown);
    throw make_error(
        ErrorCode::kInvalidData,
        "{} does not hold the weights that {} describes; check that both files belong to the same model:{}",
        context.weights.describe(), context.config_path, list);
  }

  void mark_used(const std::string& name, const TensorView& tensor) {
    if (!used.insert(name).second) return;
    done_bytes += tensor.size_bytes();
    if (context.progress) context.progress(done_bytes, total_bytes);
  }

  // Zeros in place of a tensor that a problem was noted for.
  TensorView stand_in(const Shape& expected) {
    Shape shape = expected;
    int64_t bytes = sizeof(float);
    for (int i = 0; i < shape.rank(); ++i) {
      if (shape[i] == 0) shape[i] = 1;
      if (__builtin_mul_overflow(bytes, shape[i], &bytes) || bytes > kMostStandInBytes) fail();
    }
    // One buffer serves all until a longer one is needed; views into the shorter ones stay valid.
    if (zeros.empty() || static_cast<int64_t>(zeros.back().size()) < bytes)
      zeros.emplace_back(static_cast<size_t>(2 * bytes));
    return TensorView::contiguous(zeros.back().data(), DType::kFloat32, shape);
  }

  ModelLoadContext& context;
  std::set<std::string> used;
  std::vector<std::string> problems;
  std::deque<std::vector<std::byte>> zeros;
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

TensorView WeightLoader::take(std::string_view name, const Shape& expected) {
  const std::string full = full_name(name);
  if (!books_->context.weights.contains(full)) {
    books_->problems.push_back(fmt::format("tensor '{}' is missing; expected the shape {}", full, describe(expected)));
    return books_->stand_in(expected);
  }
  const TensorView tensor = books_->context.weights.get(full);
  books_->mark_used(full, tensor);
  if (!is_floating(tensor.dtype)) {
    books_->problems.push_back(
        fmt::format("tensor '{}' holds {}; expected a floating type", full, dtype_name(tensor.dtype)));
    return books_->stand_in(expected);
  }
  if (!fits(tensor.shape, expected)) {
    books_->problems.push_back(
        fmt::format("tensor '{}' has the shape {}; expected {}", full, tensor.shape.to_string(), describe(expected)));
    return books_->stand_in(expected);
  }
  return tensor;
}

std::vector<float> WeightLoader::take_float(std::string_view name, const Shape& expected) {
  const TensorView tensor = take(name, expected);
  const int64_t count = tensor.shape.count();
  std::vector<float> values(static_cast<size_t>(count));
  convert_to_float(tensor.data, tensor.dtype, count, values.data());
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

ThreadPool& WeightLoader::thread_pool() const { return books_->context.thread_pool; }
EngineConfig& WeightLoader::config() const { return books_->context.config; }
// Once something is wrong the load can only end in a message: what was found first is not worth packing.
bool WeightLoader::describe_only() const { return books_->context.describe_only || !books_->problems.empty(); }

void WeightLoader::count_matmul(int64_t parameters, int64_t bytes) {
  books_->matmul_parameters += parameters;
  books_->streamed_bytes += bytes;
}

void WeightLoader::finish(ModelInfo& info) {
  if (!books_->problems.empty()) books_->fail();
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
    const TensorView tensor = weights.get(name);
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
  for (size_t i = 0; i < left_out.size(); ++i) {
    if (left_out[i] == 0) continue;
    const auto& [prefix, why] = books_->ignored[i];
    info.notes.push_back(
        fmt::format("left out '{}' ({} tensor{}): {}", prefix, left_out[i], left_out[i] == 1 ? "" : "s", why));
  }
  if (!unused.empty()) {
    info.notes.push_back(
        fmt::format("nothing uses {} tensor{}, e.g. '{}'", unused.size(), unused.size() == 1 ? "" : "s", unused[0]));
    log_warn("{}: {}", weights.describe(), info.notes.back());
  }
}

}  // namespace coluber
