// SPDX-License-Identifier: Apache-2.0
#include "layers/rwkv_mixer.h"

#include <cstring>

#include "base/error.h"
#include "kernels/wkv/wkv6.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

// The second size of a pair of tensors [in, rank] and [rank, out]; what does not fit is the loader's to report.
int64_t stored_rank(const WeightLoader& loader, std::string_view name, int dimension) {
  const std::optional<Shape> shape = loader.shape_of(name);
  return shape && shape->rank() == 2 ? (*shape)[dimension] : 1;
}

}  // namespace

void expect_heads(SizeChecks& checks, int64_t hidden_size, int64_t num_heads) {
  checks.expect_positive("hidden size", hidden_size);
  checks.expect_positive("heads", num_heads);
  if (num_heads <= 0) return;
  checks.expect(hidden_size % num_heads == 0,
                fmt::format("heads: expected a divisor of the hidden size {}, found {}", hidden_size, num_heads));
  checks.expect_between("head size", hidden_size / num_heads, 1, kMaxWkvHeadDim);
}

std::vector<float> take_vector(WeightLoader& loader, std::string_view name, int64_t size) {
  const std::optional<Shape> stored = loader.shape_of(name);
  return loader.take_float(name, stored && stored->count() == size ? *stored : Shape{size});
}

Linear transposed_linear(WeightLoader& loader, const TensorView& matrix, bool is_stored) {
  const int64_t in = matrix.shape[0], out = matrix.shape[1];
  TensorView turned = TensorView::contiguous(matrix.data, matrix.dtype, Shape{out, in});
  std::vector<std::byte> bytes;
  if (is_stored && !loader.describe_only()) {
    const auto size = static_cast<size_t>(dtype_size(matrix.dtype));
    bytes.resize(static_cast<size_t>(in * out) * size);
    for (int64_t i = 0; i < in; ++i) {
      const std::byte* row = matrix.data + static_cast<size_t>(i * matrix.strides[0]) * size;
      for (int64_t o = 0; o < out; ++o)
        std::memcpy(bytes.data() + static_cast<size_t>(o * in + i) * size,
                    row + static_cast<size_t>(o * matrix.strides[1]) * size, size);
    }
    loader.release(matrix);
    turned.data = bytes.data();
  }
  return Linear(loader, turned, {});
}

Linear transposed_linear(WeightLoader& loader, std::string_view name, int64_t in, int64_t out) {
  const Shape expected{in, out};
  const bool is_stored = loader.shape_of(name) == expected;
  return transposed_linear(loader, loader.take(name, expected), is_stored);
}

RwkvLora::RwkvLora(Linear down, Linear up, std::vector<float> bias, std::optional<WkvMap> map)
    : down_(std::move(down)), up_(std::move(up)), bias_(std::move(bias)), map_(map) {}

RwkvLora RwkvLora::transposed(WeightLoader& loader, std::string_view down, std::string_view up, std::string_view bias,
                              int64_t in, int64_t out, std::optional<WkvMap> map) {
  const int64_t rank = stored_rank(loader, down, 1);
  return RwkvLora(transposed_linear(loader, down, in, rank), transposed_linear(loader, up, rank, out),
                  bias.empty() ? std::vector<float>() : take_vector(loader, bias, out), map);
}

RwkvLora RwkvLora::sequential(WeightLoader& loader, const std::string& name, bool bias, int64_t in, int64_t out,
                              std::optional<WkvMap> map) {
  const int64_t rank = stored_rank(loader, name + ".lora.0.weight", 0);
  return RwkvLora(Linear(loader, name + ".lora.0", in, rank, false), Linear(loader, name + ".lora.2", rank, out, false),
                  bias ? take_vector(loader, name + ".lora.2.bias", out) : std::vector<float>(), map);
}

void RwkvLora::forward(const ForwardBatch& batch, const float* x, float* y, std::optional<WkvMap> outer) const {
  const int64_t tokens = batch.num_tokens();
  WorkspaceScope scope(*batch.workspace);
  float* narrow = batch.workspace->take<float>(tokens * down_.out_features());
  down_.forward(batch, x, tokens, narrow);
  if (map_) wkv_map()(WkvMapArgs{*map_, narrow, nullptr, narrow, tokens, down_.out_features()}, batch);
  up_.forward(batch, narrow, tokens, y);
  COLUBER_CHECK(bias_.empty() || outer, "a bias is added with the map behind it");
  if (outer)
    wkv_map()(WkvMapArgs{*outer, y, bias_.empty() ? nullptr : bias_.data(), y, tokens, up_.out_features()}, batch);
}

}  // namespace coluber
