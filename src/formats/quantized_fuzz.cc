// SPDX-License-Identifier: Apache-2.0
//
// Input: a JSON object, a line end, and bytes. The object has `config`, a config.json that says how weights are
// quantised, and `tensors`, a type and a shape by name; the bytes, over and over, are their values. Whatever it is, the
// checkpoint is read whole or refused.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"
#include "formats/quantized_weights.h"
#include "tensor/tensor_convert.h"

namespace {

using coluber::Json;
using coluber::Shape;
using coluber::TensorView;

// Of a tensor: more would only take time.
constexpr int64_t kMostBytes = int64_t{1} << 16;
constexpr size_t kMostTensors = 16;

class Tensors final : public coluber::WeightSource {
 public:
  Tensors(const Json& described, std::string_view values) {
    for (const auto& [name, facts] : described.as_object()) {
      const auto dtype = coluber::parse_dtype(facts.at("dtype").as_string());
      if (!dtype || static_cast<int>(*dtype) >= 128 || by_name_.size() == kMostTensors) continue;
      std::vector<int64_t> sizes;
      for (const Json& size : facts.at("shape").as_array()) sizes.push_back(size.as_int());
      const Shape shape{std::span<const int64_t>(sizes)};
      if (shape.count() > kMostBytes || coluber::dtype_bytes(*dtype, shape.count()) > kMostBytes) continue;
      // Exactly as many bytes as the type takes, so that a sanitizer sees one too many.
      std::vector<std::byte> bytes(static_cast<size_t>(coluber::dtype_bytes(*dtype, shape.count())));
      for (size_t i = 0; i < bytes.size() && !values.empty(); ++i)
        bytes[i] = static_cast<std::byte>(values[i % values.size()]);
      by_name_[name] = {*dtype, shape, std::move(bytes)};
    }
  }
  bool contains(std::string_view name) const override { return by_name_.contains(name); }
  TensorView get(std::string_view name) const override {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) throw coluber::make_error(coluber::ErrorCode::kNotFound, "no tensor '{}'", name);
    return TensorView::contiguous(found->second.bytes.data(), found->second.dtype, found->second.shape);
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : by_name_) names.push_back(name);
    return names;
  }
  std::string describe() const override { return "fuzz"; }

 private:
  struct Tensor {
    coluber::DType dtype;
    Shape shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Tensor, std::less<>> by_name_;
};

void read_all(const Json& input, std::string_view values) {
  static coluber::ThreadPool pool(1);
  const auto config = coluber::read_quantization_config(input.at("config"), "fuzz", {});
  auto stored = std::make_unique<Tensors>(input.at("tensors"), values);
  if (!config) return;
  const coluber::QuantizedWeights weights(std::move(stored), *config, pool);
  for (const std::string& name : weights.names()) {
    const TensorView view = weights.get(name);
    if (view.shape != weights.peek(name).shape || view.dtype != weights.peek(name).dtype) std::abort();
    coluber::to_float_vector(view);
    weights.release(view);
  }
  if (weights.made_bytes() != 0) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\n'), input.size());
  try {
    const Json json = coluber::value_or_throw(coluber::parse_json(input.substr(0, end), "fuzz"));
    read_all(json, input.substr(std::min(end + 1, input.size())));
  } catch (const coluber::Error& error) {
    if (error.code() == coluber::ErrorCode::kInternal) std::abort();
  }
  return 0;
}
