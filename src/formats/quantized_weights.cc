// SPDX-License-Identifier: Apache-2.0
#include "formats/quantized_weights.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"

namespace coluber {
namespace {

constexpr size_t kMostShown = 100;

constexpr OpenQuantized* kSchemes[] = {open_gptq, open_awq, open_packed, open_fp4, open_bitsandbytes, open_plain};

// What quantised modules carry for activations, and notes of packages; nothing here reads them.
constexpr std::string_view kUnneeded[] = {"input_scale",       "input_global_scale", "input_zero_point",
                                          "activation_scale",  "input_scale_ub",     "output_scale",
                                          "output_zero_point", "weight_format"};

[[noreturn]] void fail(const WeightSource& stored, const QuantizationConfig& config,
                       const QuantizationProblems& problems) {
  std::string list;
  for (size_t i = 0; i < std::min(problems.size(), kMostShown); ++i) list += "\n  " + problems[i];
  if (problems.size() > kMostShown) list += fmt::format("\n  and {} more", problems.size() - kMostShown);
  throw make_error(ErrorCode::kInvalidData,
                   "{}: tensors do not fit the quantisation that {} describes; check that both files belong to the "
                   "same model:{}",
                   stored.describe(), config.path, list);
}

}  // namespace

// A quantised weight and, between `get` and `release`, its rows.
struct QuantizedWeights::Weight {
  std::unique_ptr<QuantizedTensor> tensor;
  RowLayout layout;
  LoadBuffer rows;
  std::vector<bool> released;  // by row
  int64_t num_released = 0;

  TensorView view(const std::byte* data) const {
    TensorView view = TensorView::contiguous(data, layout.dtype, tensor->shape);
    if (!layout.order.empty()) view.column_order = layout.order.data();
    return view;
  }
  int64_t row_bytes() const { return dtype_bytes(layout.dtype, tensor->cols()); }
  int64_t bytes() const { return row_bytes() * tensor->rows(); }
};

QuantizedWeights::QuantizedWeights(std::unique_ptr<WeightSource> stored, const QuantizationConfig& config,
                                   ThreadPool& pool)
    : stored_(std::move(stored)), pool_(pool) {
  QuantizationProblems problems;
  const QuantizedContext context{*stored_, config, problems};
  for (const std::string& name : stored_->names()) {
    const StoredPart main(*stored_, name);
    for (OpenQuantized* open : kSchemes) {
      const size_t known = problems.size();
      if (std::unique_ptr<QuantizedTensor> tensor = open(context, main)) {
        add(std::move(tensor));
        break;
      }
      if (problems.size() > known) break;
    }
  }
  // A weight beside its own quantised form: nobody can say which one is meant.
  for (const auto& [name, weight] : weights_)
    if (stored_->contains(name) && !hidden_.contains(name))
      problems.push_back(fmt::format("{} and {} both stand for the weight", StoredPart(*stored_, name).describe(),
                                     weight->tensor->parts.front().describe()));
  if (!problems.empty()) fail(*stored_, config, problems);
}

QuantizedWeights::~QuantizedWeights() = default;

void QuantizedWeights::add(std::unique_ptr<QuantizedTensor> tensor) {
  for (const StoredPart& part : tensor->parts) hidden_.emplace(part.name(), true);
  const std::string module = tensor->name.substr(0, tensor->name.rfind('.') + 1);
  for (const std::string_view name : kUnneeded) hidden_.emplace(module + std::string(name), true);
  auto weight = std::make_unique<Weight>();
  weight->layout = row_layout(*tensor);
  const std::string name = tensor->name;
  weight->tensor = std::move(tensor);
  weights_.emplace(name, std::move(weight));
}

bool QuantizedWeights::contains(std::string_view name) const {
  return weights_.contains(name) || (!hidden_.contains(name) && stored_->contains(name));
}

TensorView QuantizedWeights::peek(std::string_view name) const {
  const auto found = weights_.find(name);
  return found == weights_.end() ? stored_->peek(name) : found->second->view(nullptr);
}

TensorView QuantizedWeights::get(std::string_view name) const {
  const auto found = weights_.find(name);
  if (found == weights_.end()) return stored_->get(name);
  Weight& weight = *found->second;
  if (weight.rows.get() == nullptr) {
    weight.rows = spare_.take(weight.bytes());
    write_rows(*weight.tensor, weight.layout, pool_, weight.rows.get());
    weight.released.assign(static_cast<size_t>(weight.tensor->rows()), false);
    weight.num_released = 0;
    made_.emplace(weight.rows.get(), &weight);
    for (const StoredPart& part : weight.tensor->parts) stored_->release(part.view());
  }
  return weight.view(weight.rows.get());
}

std::vector<std::string> QuantizedWeights::names() const {
  std::vector<std::string> names;
  for (std::string& name : stored_->names())
    if (!hidden_.contains(name)) names.push_back(std::move(name));
  for (const auto& [name, weight] : weights_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

int64_t QuantizedWeights::made_bytes() const noexcept {
  int64_t bytes = 0;
  for (const auto& [data, weight] : made_) bytes += weight->bytes();
  return bytes;
}

QuantizedWeights::Weight* QuantizedWeights::owner_of(const std::byte* data) const noexcept {
  auto after = made_.upper_bound(data);
  if (data == nullptr || after == made_.begin()) return nullptr;
  Weight* weight = std::prev(after)->second;
  return data < weight->rows.get() + weight->bytes() ? weight : nullptr;
}

void QuantizedWeights::release(const TensorView& view) const noexcept {
  Weight* weight = owner_of(view.data);
  if (weight == nullptr) return stored_->release(view);
  const int64_t cols = weight->tensor->cols(), rows = weight->tensor->rows();
  const int64_t step = view.shape.rank() == 2 ? view.strides[0] / cols : 1, count = view.shape.count() / cols;
  const int64_t first = (view.data - weight->rows.get()) / weight->row_bytes();
  for (int64_t r = 0; r < count && first + r * step < rows; ++r) {
    std::vector<bool>::reference released = weight->released[static_cast<size_t>(first + r * step)];
    if (!released) ++weight->num_released;
    released = true;
  }
  if (weight->num_released < rows) return;
  made_.erase(weight->rows.get());
  spare_.put_back(std::move(weight->rows));
}

}  // namespace coluber
