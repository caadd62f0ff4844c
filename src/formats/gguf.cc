// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "base/error.h"

namespace coluber {
namespace {

Shape transformed(const GgufTensor& tensor, GgufTransform transform) {
  const Shape& s = tensor.shape;
  if (transform == GgufTransform::kConv && s.rank() == 2) return Shape{s[0], 1, s[1]};
  if (transform == GgufTransform::kFlat) return Shape{s.count()};
  // [H, 1] of Mamba-2's A is a vector; [D, N] of Mamba's stays.
  if (transform == GgufTransform::kLogOfMinus && s.rank() == 2 && s[1] == 1) return Shape{s[0]};
  return s;
}

}  // namespace

bool is_gguf_file(std::string_view name) noexcept { return name.ends_with(".gguf"); }

bool is_first_gguf_file(std::string_view name) noexcept {
  constexpr std::string_view kFirst = "-00001-of-00001.gguf";
  if (!is_gguf_file(name) || name.size() < kFirst.size()) return is_gguf_file(name);
  const std::string_view tail = name.substr(name.size() - kFirst.size());
  const bool is_split = tail[0] == '-' && tail.substr(6, 4) == "-of-" && tail.find_first_not_of("0123456789", 1) == 6 &&
                        tail.find_first_not_of("0123456789", 10) == 15;
  return !is_split || tail.substr(0, 6) == kFirst.substr(0, 6);
}

GgufWeights::GgufWeights(const std::string& path) : file_(path), architecture_(&gguf_architecture(file_)) {
  for (const GgufTensor& tensor : file_.tensors()) add(tensor);
}

// A tensor that no rule names keeps its name, so that `inspect` tells of it.
void GgufWeights::add(const GgufTensor& tensor) {
  std::string name = tensor.name;
  GgufTransform transform = GgufTransform::kNone;
  std::string_view rest = tensor.name, prefix;
  const bool in_layer = rest.starts_with("blk.");
  if (in_layer) {
    const size_t dot = rest.find('.', 4);
    if (dot != std::string_view::npos) {
      prefix = rest.substr(4, dot + 1 - 4);
      rest = rest.substr(dot + 1);
    }
  }
  const auto& rules = in_layer ? architecture_->layer : architecture_->whole;
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const auto& r) { return r.stored == rest; });
  if (rule != rules.end()) {
    transform = rule->transform;
    name = in_layer ? std::string(architecture_->layer_prefix) + std::string(prefix) : std::string();
    name += rule->name;
  }
  const Entry entry{&tensor, transform, transformed(tensor, transform)};
  if (!entries_.emplace(name, entry).second)
    throw make_error(ErrorCode::kInvalidData, "{}: two tensors stand for '{}', the second is '{}'", file_.path(), name,
                     tensor.name);
}

const GgufWeights::Entry& GgufWeights::entry_of(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    throw make_error(ErrorCode::kNotFound, "{}: there is no tensor for '{}' among its {}", file_.path(),
                     std::string(name), entries_.size());
  if (!found->second.tensor->dtype)
    throw make_error(ErrorCode::kUnsupported,
                     "{}: tensor '{}' has the ggml type {}, which is not read; quantise the model to another type",
                     file_.path(), found->second.tensor->name, found->second.tensor->ggml_type);
  return found->second;
}

TensorView GgufWeights::peek(std::string_view name) const {
  const Entry& entry = entry_of(name);
  const bool computed = entry.transform == GgufTransform::kLogOfMinus;
  return TensorView::contiguous(file_.data_of(*entry.tensor), computed ? DType::kFloat32 : *entry.tensor->dtype,
                                entry.shape);
}

TensorView GgufWeights::get(std::string_view name) const {
  const Entry& entry = entry_of(name);
  if (entry.transform != GgufTransform::kLogOfMinus) return peek(name);
  const std::lock_guard lock(mutex_);
  std::vector<float>& values = computed_[std::string(name)];
  if (values.empty()) {
    values.resize(static_cast<size_t>(entry.shape.count()));
    convert_to_float(file_.data_of(*entry.tensor), *entry.tensor->dtype, entry.shape.count(), values.data());
    for (float& value : values) value = std::log(-value);
  }
  return TensorView::contiguous(values.data(), DType::kFloat32, entry.shape);
}

std::vector<std::string> GgufWeights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    if (entry.tensor->dtype) names.push_back(name);
  }
  return names;
}

void GgufWeights::release(const TensorView& view) const noexcept {
  if (view.dtype == DType::kFloat32 || view.shape.count() == 0) return;  // small, or a computed one
  file_.release({view.data, static_cast<size_t>(view.size_bytes())});
}

}  // namespace coluber
