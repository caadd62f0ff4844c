// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_tensor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/block_type.h"
#include "base/dtype.h"
#include "base/error.h"

namespace coluber {
namespace {

constexpr int64_t kMostExperts = 1 << 14;

using R = GgufRows;
using V = GgufValues;

const GgufTensorRule kAsItIs{};

bool is_latent(const GgufTensorRule& rule) { return rule.rows == R::kLatentKeys || rule.rows == R::kLatentValues; }
bool turns(const GgufTensorRule& rule) { return rule.rows == R::kTransposed || is_latent(rule); }
bool keeps_order(const GgufTensorRule& rule) { return rule.rows == R::kAll || rule.rows == R::kAppended; }

// Elements that cannot be told apart without reading values: of a block, or one.
int64_t elements_together(DType dtype) {
  const BlockType* blocks = find_block_type(dtype);
  return blocks == nullptr ? 1 : blocks->elements;
}

// Calls body(begin, end, thread) over all rows, some 256 KiB at a time.
template <typename Body>
void for_each_run(ThreadPool* pool, int64_t rows, int64_t row_bytes, Body body) {
  constexpr int64_t kBytes = 1 << 18;
  if (pool == nullptr) {
    body(0, rows, 0);
  } else {
    pool->parallel_for(rows, std::max<int64_t>(1, kBytes / std::max<int64_t>(row_bytes, 1)), body);
  }
}

// Calls body(first, count) over all elements in pieces that hold whole blocks.
template <typename Body>
void for_each_piece(ThreadPool* pool, int64_t elements, Body body) {
  constexpr int64_t kPiece = 1 << 14;
  for_each_run(pool, (elements + kPiece - 1) / kPiece, kPiece * 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) body(i * kPiece, std::min(kPiece, elements - i * kPiece));
  });
}

void change_values(V change, float scale, float* values, int64_t count) {
  if (change == V::kAsStored) return;
  for (float* value = values; value < values + count; ++value) {
    if (change == V::kLogOfMinus) *value = std::log(-*value);
    if (change == V::kMinusOne) *value -= 1.0f;
    if (change == V::kRescaled) *value *= scale;
  }
}

}  // namespace

struct GgufTensorPlan::Part {
  const GgufTensor* tensor;
  const GgufTensorRule* rule;
  GgufValues values;
  int64_t rows = 0, cols = 1;     // of ours
  int64_t first_row = 0;          // stored: where ours begin
  float scale = 1;                // kRescaled
  std::array<int64_t, 2> last{};  // the last two stored sizes, where matrices are turned
};

int64_t count_of_experts(const GgufTensor& tensor, const GgufTensorRule& rule, const std::string& path) {
  if (rule.rows != R::kExperts) return 1;
  if (tensor.shape.rank() == 3 && tensor.shape[0] <= kMostExperts && tensor.shape[1] % rule.parts == 0)
    return tensor.shape[0];
  throw make_error(ErrorCode::kInvalidData,
                   "{}: tensor '{}' has the shape {}; expected up to {} experts, rows in {} parts and columns", path,
                   tensor.name, tensor.shape.to_string(), kMostExperts, rule.parts);
}

GgufTensorPlan::GgufTensorPlan(std::vector<GgufSource> sources, const GgufSizes& sizes, const std::string& path)
    : sources_(std::move(sources)), sizes_(sizes), path_(path) {
  shape_ = first().shape;
  if (unread() != nullptr) return;
  std::vector<Part> parts;
  for (const GgufSource& source : sources_) parts.push_back(part_of(source));
  dtype_ = *first().dtype;
  for (const Part& part : parts) {
    check(part);
    const bool cuts_blocks =
        part.rule->rows == R::kTiledColumns && sizes_.head_v_dim % elements_together(*part.tensor->dtype) != 0;
    const bool is_moved = part.values == V::kAsStored && !turns(*part.rule) && !cuts_blocks;
    if (!is_moved || *part.tensor->dtype != dtype_) dtype_ = DType::kFloat32;
  }
  set_shape(parts);
  set_place(parts);
}

// Where nothing has to be put together.
void GgufTensorPlan::set_place(const std::vector<Part>& parts) {
  const Part& only = parts[0];
  if (parts.size() > 1 || only.values != V::kAsStored) return;
  const bool is_run = keeps_order(*only.rule) || only.rule->rows == R::kPart || only.rule->rows == R::kExperts;
  if (is_run) {
    offset_ = dtype_bytes(dtype_, only.first_row * only.cols);
  } else if (only.rule->rows == R::kTiledColumns && dtype_ != *only.tensor->dtype && shape_.rank() == 2) {
    // The move would cut blocks: in float32 the matrix would take several times its bytes.
    dtype_ = *only.tensor->dtype;
    offset_ = 0;
    column_order_.resize(static_cast<size_t>(only.cols));
    for (int64_t c = 0; c < only.cols; ++c)
      column_order_[static_cast<size_t>(stored_column(c))] = static_cast<int32_t>(c);
  }
}

const GgufTensor* GgufTensorPlan::unread() const noexcept {
  for (const GgufSource& source : sources_)
    if (!source.tensor->dtype) return source.tensor;
  return nullptr;
}

void GgufTensorPlan::refuse(const GgufTensor& tensor, const std::string& problem) const {
  throw make_error(ErrorCode::kInvalidData, "{}: tensor '{}' has the shape {}; {}", path_, tensor.name,
                   tensor.shape.to_string(), problem);
}

GgufTensorPlan::Part GgufTensorPlan::part_of(const GgufSource& source) const {
  const GgufTensor& tensor = *source.tensor;
  const Shape& s = tensor.shape;
  const GgufTensorRule& rule = source.rule == nullptr ? kAsItIs : *source.rule;
  Part part{&tensor, &rule, rule.values};
  if (rule.values == V::kRescaled) {
    const int64_t step = sizes_.rescale_every > 0 ? source.layer / sizes_.rescale_every : 0;
    part.scale = std::ldexp(1.0f, static_cast<int>(std::min<int64_t>(step, 64)));
    if (step == 0) part.values = V::kAsStored;
  }
  if (s.rank() > 1) part.cols = s[s.rank() - 1];
  part.rows = s.count() / part.cols;
  if (turns(rule)) {
    if (s.rank() < 2) refuse(tensor, "expected at least two dimensions");
    part.last = {s[s.rank() - 2], s[s.rank() - 1]};
  }
  if (rule.rows == R::kTransposed) {
    part.cols = part.last[0];
    part.rows = s.count() / part.cols;
  }
  if (rule.rows == R::kExperts) {
    part.rows = s[1] / rule.parts;
    part.first_row = source.expert * s[1] + rule.part * part.rows;
  } else if (rule.parts > 1) {
    if (part.rows % rule.parts != 0) refuse(tensor, fmt::format("expected a multiple of {} rows", rule.parts));
    part.rows /= rule.parts;
    if (rule.rows == R::kPart) part.first_row = rule.part * part.rows;
  }
  return part;
}

// Whether the rows can be what the sizes of the metadata say.
void GgufTensorPlan::check(const Part& part) const {
  const auto expect_multiple = [&](int64_t of, int64_t value, std::string_view what) {
    if (of < 1 || value % of != 0)
      refuse(*part.tensor, fmt::format("expected a multiple of {} {} by the metadata", of, what));
  };
  const GgufSizes& s = sizes_;
  const bool tiles = part.rule->rows == R::kTiledHeads || part.rule->rows == R::kTiledRows ||
                     part.rule->rows == R::kTiledTail || part.rule->rows == R::kTiledColumns;
  if (tiles) {
    expect_multiple(s.num_k_heads, s.num_v_heads, "heads of keys");
    const int64_t width = part.rule->rows == R::kTiledHeads ? s.num_v_heads : s.num_v_heads * s.head_v_dim;
    const int64_t lead = part.rule->rows == R::kTiledTail ? 2 * s.num_k_heads * s.head_k_dim : 0;
    const int64_t found = part.rule->rows == R::kTiledColumns ? part.cols : part.rows;
    if (width < 1 || found != lead + width)
      refuse(*part.tensor, fmt::format("expected {} {} by the metadata", lead + width,
                                       part.rule->rows == R::kTiledColumns ? "columns" : "rows"));
  }
  if (part.rule->rows == R::kQueryPairs) expect_multiple(2 * s.num_heads, part.rows, "rows");
  if (part.rule->rows == R::kKeyPairs) expect_multiple(2 * s.num_kv_heads, part.rows, "rows");
  if (part.rule->rows == R::kPartOfKeyHeads) expect_multiple(s.num_k_heads, part.rows, "rows");
  if (is_latent(*part.rule) && part.tensor->shape.rank() != 3) refuse(*part.tensor, "expected heads, rows and columns");
  if (!keeps_order(*part.rule) && !turns(*part.rule) && part.cols % elements_together(*part.tensor->dtype) != 0)
    refuse(*part.tensor, "expected rows of whole blocks");
}

void GgufTensorPlan::set_shape(const std::vector<Part>& parts) {
  const Part& part = parts[0];
  const GgufRows rows = part.rule->rows;
  if (is_latent(*part.rule)) {
    const Shape &k = part.tensor->shape, &v = parts.back().tensor->shape;
    if (parts.size() != 2 || rows != R::kLatentKeys || parts[1].rule->rows != R::kLatentValues || v[0] != k[0] ||
        v[2] != k[1])
      refuse(*part.tensor, "expected the keys' and the values' half of the same heads and columns");
    shape_ = Shape{k[0] * (k[2] + v[1]), k[1]};
    return;
  }
  int64_t total = 0;
  for (const Part& each : parts) {
    if (each.cols != part.cols) refuse(*each.tensor, fmt::format("expected {} columns", part.cols));
    total += each.rows;
  }
  const Shape& s = part.tensor->shape;
  if (parts.size() > 1 || rows == R::kExperts || part.rule->parts > 1) {
    shape_ = part.cols == 1 && s.rank() == 1 ? Shape{total} : Shape{total, part.cols};
  } else if (rows == R::kTransposed) {
    shape_[s.rank() - 1] = part.last[0];
    shape_[s.rank() - 2] = part.last[1];
  }
  const int64_t count = shape_.count();
  switch (part.rule->shape) {
    case GgufShape::kAsStored:
      return;
    case GgufShape::kFlat:
      shape_ = Shape{count};
      return;
    case GgufShape::kConv:
      shape_ = Shape{count / part.cols, 1, part.cols};
      return;
    case GgufShape::kPerHead:
      shape_ = Shape{1, 1, count, 1};
      return;
    case GgufShape::kRow:
      shape_ = Shape{1, count};
      return;
    case GgufShape::kLast:
      shape_ = Shape{1, 1, count};
      return;
  }
}

int64_t GgufTensorPlan::stored_row(const Part& part, int64_t row) const {
  const GgufSizes& s = sizes_;
  const int64_t per_key = s.num_k_heads > 0 ? s.num_v_heads / s.num_k_heads : 1;
  const auto tiled = [&](int64_t head) { return head % per_key * s.num_k_heads + head / per_key; };
  switch (part.rule->rows) {
    case R::kQueryPairs:
    case R::kKeyPairs: {
      const int64_t heads = part.rule->rows == R::kQueryPairs ? s.num_heads : s.num_kv_heads;
      const int64_t dim = part.rows / heads, half = dim / 2, i = row % dim;
      return row - i + i % half * 2 + i / half;
    }
    case R::kPartOfKeyHeads: {
      const int64_t each = part.rows / s.num_k_heads;  // rows of ours in a key head
      return (row / each * part.rule->parts + part.rule->part) * each + row % each;
    }
    case R::kTiledHeads:
      return tiled(row);
    case R::kTiledRows:
      return tiled(row / s.head_v_dim) * s.head_v_dim + row % s.head_v_dim;
    case R::kTiledTail: {
      const int64_t lead = 2 * s.num_k_heads * s.head_k_dim, at = row - lead;
      return row < lead ? row : lead + tiled(at / s.head_v_dim) * s.head_v_dim + at % s.head_v_dim;
    }
    default:
      return part.first_row + row;
  }
}

int64_t GgufTensorPlan::stored_column(int64_t column) const {
  const GgufSizes& s = sizes_;
  const int64_t head = column / s.head_v_dim, per_key = s.num_v_heads / s.num_k_heads;
  return (head % per_key * s.num_k_heads + head / per_key) * s.head_v_dim + column % s.head_v_dim;
}

// In their own type; runs of columns are whole blocks.
void GgufTensorPlan::copy_rows(const Part& part, const std::byte* data, std::byte* out, ThreadPool* pool) const {
  const int64_t row_bytes = dtype_bytes(dtype_, part.cols);
  const bool tiles = part.rule->rows == R::kTiledColumns;
  const int64_t run = tiles ? sizes_.head_v_dim : part.cols, run_bytes = dtype_bytes(dtype_, run);
  for_each_run(pool, part.rows, row_bytes, [&](int64_t begin, int64_t end, int) {
    std::byte* to = out + begin * row_bytes;
    for (int64_t row = begin; row < end; ++row) {
      const std::byte* from = data + stored_row(part, row) * row_bytes;
      for (int64_t column = 0; column < part.cols; column += run, to += run_bytes) {
        const int64_t at = tiles ? dtype_bytes(dtype_, stored_column(column)) : 0;
        std::memcpy(to, from + at, static_cast<size_t>(run_bytes));
      }
    }
  });
}

void GgufTensorPlan::convert_rows(const Part& part, const std::byte* data, float* out, ThreadPool* pool) const {
  const DType dtype = *part.tensor->dtype;
  const int64_t cols = part.cols;
  const auto change = [&](float* begin, int64_t count) { change_values(part.values, part.scale, begin, count); };
  if (keeps_order(*part.rule)) {
    for_each_piece(pool, part.rows * cols, [&](int64_t first, int64_t count) {
      convert_to_float(data + dtype_bytes(dtype, first), dtype, count, out + first);
      change(out + first, count);
    });
    return;
  }
  // What bodies of a loop need is there before: they cannot fail.
  const bool tiles = part.rule->rows == R::kTiledColumns;
  std::vector<float> rows(tiles ? static_cast<size_t>(cols * (pool == nullptr ? 1 : pool->size())) : 0);
  for_each_run(pool, part.rows, cols * static_cast<int64_t>(sizeof(float)),
               [&](int64_t begin, int64_t end, int thread) {
                 for (int64_t row = begin; row < end; ++row) {
                   float* to = out + row * cols;
                   float* stored = tiles ? rows.data() + thread * cols : to;
                   convert_to_float(data + dtype_bytes(dtype, stored_row(part, row) * cols), dtype, cols, stored);
                   for (int64_t c = 0; tiles && c < cols; ++c) to[c] = stored[stored_column(c)];
                   change(to, cols);
                 }
               });
}

// Each of the matrices in the last two dimensions.
void GgufTensorPlan::turn(const Part& part, const std::byte* data, float* out, ThreadPool* pool) const {
  constexpr int64_t kAtOnce = 16;  // columns: those of a cache line
  const int64_t rows = part.last[0], cols = part.last[1], count = part.tensor->shape.count();
  const DType dtype = *part.tensor->dtype;
  std::vector<float> stored(static_cast<size_t>(count));
  for_each_piece(pool, count, [&](int64_t first, int64_t of_piece) {
    convert_to_float(data + dtype_bytes(dtype, first), dtype, of_piece, stored.data() + first);
    change_values(part.values, part.scale, stored.data() + first, of_piece);
  });
  const int64_t strips = (cols + kAtOnce - 1) / kAtOnce;
  for_each_run(pool, count / (rows * cols) * strips, rows * kAtOnce * 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t strip = begin; strip < end; ++strip) {
      const int64_t matrix = strip / strips * rows * cols, first = strip % strips * kAtOnce;
      const float* from = stored.data() + matrix;
      float* to = out + matrix;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = first; c < std::min(cols, first + kAtOnce); ++c) to[c * rows + r] = from[r * cols + c];
    }
  });
}

void GgufTensorPlan::join_latent(const std::vector<Part>& parts, const GgufFile& file, float* out,
                                 ThreadPool* pool) const {
  const Shape &k = parts[0].tensor->shape, &v = parts[1].tensor->shape;
  std::vector<float> keys(static_cast<size_t>(k.count())), values(static_cast<size_t>(v.count()));
  turn(parts[0], file.data_of(*parts[0].tensor), keys.data(), pool);
  const std::byte* data = file.data_of(*parts[1].tensor);
  const DType dtype = *parts[1].tensor->dtype;
  for_each_piece(pool, v.count(), [&](int64_t first, int64_t count) {
    convert_to_float(data + dtype_bytes(dtype, first), dtype, count, values.data() + first);
    change_values(parts[1].values, parts[1].scale, values.data() + first, count);
  });
  for (int64_t head = 0; head < k[0]; ++head) {
    out = std::copy_n(keys.data() + head * k[1] * k[2], k[1] * k[2], out);
    out = std::copy_n(values.data() + head * v[1] * v[2], v[1] * v[2], out);
  }
}

void GgufTensorPlan::assemble(const GgufFile& file, std::byte* out, ThreadPool* pool) const {
  std::vector<Part> parts;
  for (const GgufSource& source : sources_) parts.push_back(part_of(source));
  if (is_latent(*parts[0].rule)) return join_latent(parts, file, reinterpret_cast<float*>(out), pool);
  for (const Part& part : parts) {
    const std::byte* data = file.data_of(*part.tensor);
    if (turns(*part.rule)) {
      turn(part, data, reinterpret_cast<float*>(out), pool);
    } else if (*part.tensor->dtype == dtype_ && part.values == V::kAsStored) {
      copy_rows(part, data, out, pool);
    } else {
      convert_rows(part, data, reinterpret_cast<float*>(out), pool);
    }
    out += dtype_bytes(dtype_, part.rows * part.cols);
  }
}

}  // namespace coluber
