// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "cache/arithmetic.h"
#include "coluber/mamba_base.h"

namespace coluber {

std::vector<int64_t> state_offsets(const std::vector<Shape>& shapes, const std::vector<DType>& dtypes,
                                   int64_t alignment, int64_t* total_bytes) {
  if (shapes.size() != dtypes.size() || alignment < 1)
    throw make_error(ErrorCode::kInvalidConfig,
                     "state offsets: {} shapes, {} dtypes and alignment {}, expected one dtype a shape and an "
                     "alignment of at least 1",
                     shapes.size(), dtypes.size(), alignment);
  std::vector<int64_t> offsets;
  offsets.reserve(shapes.size());
  int64_t end = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    offsets.push_back(round_up(end, alignment));
    end = checked_add(offsets.back(), dtype_bytes(dtypes[i], shapes[i].count()));
  }
  if (total_bytes != nullptr) *total_bytes = end;
  return offsets;
}

namespace {

void check_page(const TensorView& page) {
  if (page.shape.rank() != 4 || page.strides.rank() != 4 || page.shape[1] != 1 || page.shape[2] != 1 ||
      dtype_bits(page.dtype) != 8 || page.strides[3] != 1)
    throw make_error(ErrorCode::kInvalidConfig,
                     "a page view has shape {} of {}, expected contiguous bytes [blocks, 1, 1, page bytes]",
                     page.shape.to_string(), dtype_name(page.dtype));
  if (page.strides[0] < page.shape[3])
    throw make_error(ErrorCode::kInvalidConfig,
                     "blocks overlap: the distance of two blocks is {} bytes, smaller than the page of {} bytes",
                     page.strides[0], page.shape[3]);
}

TensorView bind_state_view(const TensorView& page, const Shape& shape, DType dtype, int64_t offset, size_t index) {
  const int64_t element = dtype_size(dtype);
  if (offset % element != 0 || page.strides[0] % element != 0)
    throw make_error(
        ErrorCode::kInvalidConfig,
        "state {} ({} {}) lies at byte {} of blocks {} bytes apart, which are no multiples of its element size {}; "
        "order or pad the states so that they are",
        index, dtype_name(dtype), shape.to_string(), offset, page.strides[0], element);
  const int64_t end = checked_add(offset, dtype_bytes(dtype, shape.count()));
  if (offset < 0 || end > page.shape[3])
    throw make_error(ErrorCode::kInvalidConfig,
                     "state {} ({} {}) takes bytes {} to {} of a page of {} bytes; the page is too small", index,
                     dtype_name(dtype), shape.to_string(), offset, end, page.shape[3]);
  if (shape.rank() + 1 > kMaxRank)
    throw make_error(ErrorCode::kInvalidConfig, "state {} has shape {}, expected at most {} dimensions", index,
                     shape.to_string(), kMaxRank - 1);
  const Shape inner = contiguous_strides(shape);
  std::vector<int64_t> sizes{page.shape[0]};
  std::vector<int64_t> strides{page.strides[0] / element};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  strides.insert(strides.end(), inner.begin(), inner.end());
  TensorView view;
  view.data = page.data + offset;
  view.dtype = dtype;
  view.shape = Shape(std::span<const int64_t>(sizes));
  view.strides = Shape(std::span<const int64_t>(strides));
  return view;
}

}  // namespace

std::vector<TensorView> bind_state_views(const TensorView& page, const std::vector<Shape>& shapes,
                                         const std::vector<DType>& dtypes, const std::vector<int64_t>& offsets) {
  check_page(page);
  if (shapes.size() != dtypes.size() || shapes.size() != offsets.size())
    throw make_error(ErrorCode::kInvalidConfig,
                     "binding states: {} shapes, {} dtypes and {} offsets, expected equal numbers", shapes.size(),
                     dtypes.size(), offsets.size());
  std::vector<TensorView> views;
  views.reserve(shapes.size());
  for (size_t i = 0; i < shapes.size(); ++i)
    views.push_back(bind_state_view(page, shapes[i], dtypes[i], offsets[i], i));
  return views;
}

namespace {

// [C/16][N][16] with a narrower last block to [C, N].
void unpack_channel_blocks(const float* lanes, int64_t channels, int64_t inner, float* out) {
  constexpr int64_t kLanes = 16;
  for (int64_t first = 0; first < channels; first += kLanes) {
    const int64_t width = std::min(kLanes, channels - first);
    const float* from = lanes + first * inner;
    for (int64_t n = 0; n < inner; ++n)
      for (int64_t lane = 0; lane < width; ++lane) out[(first + lane) * inner + n] = from[n * width + lane];
  }
}

void unpack_codes(const TensorView& block, StateLaneOrder order, float* out) {
  COLUBER_CHECK(block.is_contiguous(), "unpack_state takes one block, whose states are contiguous; found strides {}",
                block.strides.to_string());
  const int64_t count = block.shape.count();
  if (order == StateLaneOrder::kContract) {
    convert_to_float(block.data, block.dtype, count, out);
    return;
  }
  const int axis = order == StateLaneOrder::kHeadBlock16 ? 1 : 0;
  COLUBER_CHECK(block.shape.rank() >= axis + 2, "a state in channel blocks has shape {}, expected {}[channels, ..., N]",
                block.shape.to_string(), axis == 1 ? "heads of " : "");
  if (count == 0) return;
  const int64_t heads = axis == 1 ? block.shape[0] : 1, channels = block.shape[axis];
  std::vector<float> lanes(static_cast<size_t>(count));
  convert_to_float(block.data, block.dtype, count, lanes.data());
  const int64_t head_size = count / heads;
  for (int64_t h = 0; h < heads; ++h)
    unpack_channel_blocks(lanes.data() + h * head_size, channels, head_size / channels, out + h * head_size);
}

}  // namespace

void unpack_state(const TensorView& block, StateLaneOrder order, float* out, const TensorView* scales) {
  unpack_codes(block, order, out);
  if (scales == nullptr) return;
  const int64_t count = block.shape.count(), rows = scales->shape.count();
  COLUBER_CHECK(scales->dtype == DType::kFloat32 && scales->is_contiguous() && rows > 0 && count % rows == 0,
                "a state of shape {} has {} scales of shape {}", block.shape.to_string(), dtype_name(scales->dtype),
                scales->shape.to_string());
  const auto* values = reinterpret_cast<const float*>(scales->data);
  for (int64_t i = 0; i < count; ++i) out[i] *= values[i / (count / rows)];
}

}  // namespace coluber
