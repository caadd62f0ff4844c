// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_assembly.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/dtype.h"
#include "base/error.h"

namespace coluber {
namespace {

using R = GgufRows;
using V = GgufValues;

[[noreturn]] void refuse(const GgufTensorRule& rule, const GgufPiece& piece, const std::string& problem) {
  throw make_error(ErrorCode::kUnsupported, "tensor '{}' cannot become '{}': {}", piece.source, rule.stored, problem);
}

}  // namespace

// Views of the pieces, held until the last reader is gone.
class GgufAssembly::OpenPieces {
 public:
  OpenPieces(const WeightSource& weights, const std::vector<GgufPiece>& pieces) : weights_(weights) {
    for (const GgufPiece& piece : pieces) {
      auto found = std::find_if(held_.begin(), held_.end(), [&](const auto& h) { return h.name == piece.source; });
      if (found == held_.end()) found = held_.insert(found, {piece.source, weights.get(piece.source)});
      COLUBER_CHECK(found->view.is_contiguous(), "{} is not row-major", piece.source);
      views_.push_back(found->view);
    }
  }
  ~OpenPieces() {
    for (const Held& held : held_) weights_.release(held.view);
  }
  OpenPieces(const OpenPieces&) = delete;
  OpenPieces& operator=(const OpenPieces&) = delete;

  void read(size_t piece, int64_t first_element, int64_t count, float* out) const {
    const TensorView& view = views_[piece];
    if (view.column_order == nullptr)
      return convert_to_float(view.data + dtype_bytes(view.dtype, first_element), view.dtype, count, out);
    // Columns that lie in another order come by whole rows.
    const int64_t cols = view.shape[view.shape.rank() - 1];
    if (first_element % cols == 0 && count % cols == 0)
      return convert_rows_to_float(view, first_element / cols, count / cols, out);
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t i = first_element; i < first_element + count; ++i) {
      convert_rows_to_float(view, i / cols, 1, row.data());
      *out++ = row[static_cast<size_t>(i % cols)];
    }
  }

 private:
  struct Held {
    std::string name;
    TensorView view;
  };
  const WeightSource& weights_;
  std::vector<Held> held_;
  std::vector<TensorView> views_;
};

GgufAssembly::GgufAssembly(const GgufTensorRule& rule, std::vector<GgufPiece> pieces, int64_t layer,
                           const GgufExportSizes& sizes)
    : rule_(rule), pieces_(std::move(pieces)), layer_(layer), sizes_(sizes) {
  for (const GgufPiece& piece : pieces_) {
    if (piece.rows != pieces_[0].rows || piece.cols != pieces_[0].cols)
      refuse(rule_, piece,
             fmt::format("expected {} rows of {} as in '{}'", pieces_[0].rows, pieces_[0].cols, pieces_[0].source));
    rows_ += piece.rows;
  }
  cols_ = pieces_[0].cols;
  const GgufSizes& s = sizes_.sizes;
  const auto expect = [&](int64_t found, int64_t of, const char* what) {
    if (of < 1 || found % of != 0)
      refuse(rule_, pieces_[0], fmt::format("{} are no multiple of {} {}", found, of, what));
  };
  const int64_t values = s.num_v_heads * s.head_v_dim;
  if (rule_.rows == R::kQueryPairs) expect(rows_, 2 * s.num_heads, "rows of heads in pairs");
  if (rule_.rows == R::kKeyPairs) expect(rows_, 2 * s.num_kv_heads, "rows of heads in pairs");
  if (rule_.rows == R::kPartOfKeyHeads) expect(pieces_[0].rows, s.num_k_heads, "key heads");
  if (rule_.rows == R::kTiledHeads) expect(rows_, s.num_v_heads, "value heads");
  if (rule_.rows == R::kTiledRows) expect(rows_, values, "rows of values");
  if (rule_.rows == R::kTiledTail) expect(rows_ - 2 * s.num_k_heads * s.head_k_dim, values, "rows of values");
  if (rule_.rows == R::kTiledColumns) expect(cols_, values, "columns of values");
  if (rule_.rows == R::kLatentKeys || rule_.rows == R::kLatentValues) expect(rows_, s.num_heads, "heads");
  set_shape();
}

void GgufAssembly::set_shape() {
  const int64_t heads = std::max<int64_t>(sizes_.sizes.num_heads, 1), of_head = rows_ / heads;
  shape_ = cols_ == 1 ? Shape{rows_} : Shape{rows_, cols_};
  if (rule_.rows == R::kTransposed) {
    shape_ = Shape{cols_, rows_};
  } else if (rule_.rows == R::kLatentKeys) {
    shape_ = Shape{heads, cols_, sizes_.latent_keys};
  } else if (rule_.rows == R::kLatentValues) {
    shape_ = Shape{heads, of_head - sizes_.latent_keys, cols_};
  }
  if ((rule_.rows == R::kLatentKeys || rule_.rows == R::kLatentValues) &&
      (sizes_.latent_keys < 1 || sizes_.latent_keys >= of_head))
    refuse(rule_, pieces_[0], fmt::format("{} of the {} rows of a head are keys", sizes_.latent_keys, of_head));
}

bool GgufAssembly::is_plain() const noexcept {
  return rule_.rows == R::kAll || rule_.rows == R::kAppended || rule_.rows == R::kPart || rule_.rows == R::kExperts;
}

GgufAssembly::Place GgufAssembly::tiled_place(int64_t row) const {
  const GgufSizes& s = sizes_.sizes;
  const int64_t per_key = s.num_v_heads / s.num_k_heads;
  const int64_t lead = rule_.rows == R::kTiledTail ? 2 * s.num_k_heads * s.head_k_dim : 0;
  const int64_t width = rule_.rows == R::kTiledHeads ? 1 : s.head_v_dim;
  if (row < lead) return {0, row};
  const int64_t head = (row - lead) / width, ours = head % s.num_k_heads * per_key + head / s.num_k_heads;
  return {0, lead + ours * width + (row - lead) % width};
}

GgufAssembly::Place GgufAssembly::place_of(int64_t row) const {
  const GgufSizes& s = sizes_.sizes;
  switch (rule_.rows) {
    case R::kQueryPairs:
    case R::kKeyPairs: {
      const int64_t dim = rows_ / (rule_.rows == R::kQueryPairs ? s.num_heads : s.num_kv_heads), at = row % dim;
      return {0, row - at + at / 2 + at % 2 * (dim / 2)};
    }
    case R::kPartOfKeyHeads: {
      const int64_t each = pieces_[0].rows / s.num_k_heads, group = each * static_cast<int64_t>(pieces_.size());
      return {static_cast<size_t>(row % group / each), row / group * each + row % each};
    }
    case R::kTiledHeads:
    case R::kTiledRows:
    case R::kTiledTail:
      return tiled_place(row);
    case R::kLatentValues: {
      const int64_t each = shape_[1];
      return {0, row / each * (each + sizes_.latent_keys) + sizes_.latent_keys + row % each};
    }
    default:
      return {static_cast<size_t>(row / pieces_[0].rows), row % pieces_[0].rows};
  }
}

int64_t GgufAssembly::column_of(int64_t column) const {
  const GgufSizes& s = sizes_.sizes;
  const int64_t head = column / s.head_v_dim, per_key = s.num_v_heads / s.num_k_heads;
  return (head % s.num_k_heads * per_key + head / s.num_k_heads) * s.head_v_dim + column % s.head_v_dim;
}

// Whole rows of the pieces, one after the other.
void GgufAssembly::read_rows(const OpenPieces& pieces, int64_t first, int64_t count, float* out) const {
  for (int64_t row = first; row < first + count;) {
    const Place place = place_of(row);
    const GgufPiece& piece = pieces_[place.piece];
    const int64_t run = is_plain() ? std::min(first + count - row, piece.rows - place.row) : 1;
    pieces.read(place.piece, (piece.first_row + place.row) * cols_, run * cols_, out);
    out += run * cols_;
    row += run;
  }
}

// Elements that lie apart in the checkpoint: rows become columns, or columns change places.
float GgufAssembly::element(const OpenPieces& pieces, int64_t row, int64_t column) const {
  int64_t from_row = row, from_column = column;
  if (rule_.rows == R::kTransposed) {
    std::swap(from_row, from_column);
  } else if (rule_.rows == R::kLatentKeys) {
    const int64_t head = row / cols_;
    from_row = head * (rows_ / shape_[0]) + column;
    from_column = row % cols_;
  } else {
    from_column = column_of(column);
  }
  float value = 0;
  pieces.read(0, (pieces_[0].first_row + from_row) * cols_ + from_column, 1, &value);
  return value;
}

// A run of the stored elements, which begins and ends with a row.
void GgufAssembly::read(const OpenPieces& pieces, int64_t begin, int64_t count,
                        const std::function<double(int64_t row)>& factor, float* out) const {
  const bool apart = rule_.rows == R::kTransposed || rule_.rows == R::kLatentKeys || rule_.rows == R::kTiledColumns;
  const int64_t width = apart ? shape_[shape_.rank() - 1] : cols_;
  if (apart) {
    for (int64_t i = 0; i < count; ++i) out[i] = element(pieces, (begin + i) / width, (begin + i) % width);
  } else {
    read_rows(pieces, begin / width, count / width, out);
  }
  const int64_t every = sizes_.sizes.rescale_every, step = every > 0 ? layer_ / every : 0;
  for (int64_t at = 0; at < count; at += width) {
    const double scale = factor ? factor((begin + at) / width) : 1.0;
    for (int64_t i = at; i < at + width; ++i) {
      if (rule_.values == V::kLogOfMinus) out[i] = -std::exp(out[i]);
      if (rule_.values == V::kMinusOne) out[i] += 1.0f;
      if (rule_.values == V::kRescaled) out[i] = std::ldexp(out[i], -static_cast<int>(std::min<int64_t>(step, 64)));
      if (factor) out[i] = static_cast<float>(out[i] * scale);
    }
  }
}

TensorValues GgufAssembly::values(const WeightSource& weights, const Shape& shape,
                                  std::function<double(int64_t row)> factor) const {
  COLUBER_CHECK(shape.count() == shape_.count(), "{} has another number of elements", rule_.stored);
  const int64_t length = shape[shape.rank() - 1];
  const auto open = [assembly = *this, &weights, length, factor = std::move(factor)]() -> RowReader {
    auto pieces = std::make_shared<const OpenPieces>(weights, assembly.pieces_);
    return [assembly, pieces, length, factor](int64_t first, int64_t count, float* out) {
      assembly.read(*pieces, first * length, count * length, factor, out);
    };
  };
  return {shape, open};
}

}  // namespace coluber
