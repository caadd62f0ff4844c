// SPDX-License-Identifier: Apache-2.0
//
// One tensor as a GGUF file stores it, from those of a checkpoint: a rule of gguf_rules.h taken backwards. Reads values
// a run of rows at a time, when asked; owns nothing of the checkpoint. Immutable.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "coluber/model.h"
#include "formats/gguf_rules.h"
#include "formats/tensor_encoder.h"

namespace coluber {

// Rows of a checkpoint's tensor; of one dimension each element is a row, as in the rules.
struct GgufPiece {
  std::string source;
  int64_t first_row = 0, rows = 0, cols = 1;
};

// What the rules need beyond the metadata's sizes.
struct GgufExportSizes {
  GgufSizes sizes;
  int64_t latent_keys = 0;  // of each head in the joint projection of keys and values
};

class GgufAssembly {
 public:
  // `pieces`: one, or those that the stored tensor joins: parts in their order, or the parts of each expert in turn.
  // Throws Error(kUnsupported) where they cannot be what the rule says.
  GgufAssembly(const GgufTensorRule& rule, std::vector<GgufPiece> pieces, int64_t layer, const GgufExportSizes& sizes);

  // Of the stored tensor as the rules leave it: [rows, columns], one dimension where there is one column, or [experts,
  // rows, columns].
  const Shape& shape() const noexcept { return shape_; }
  // `factor` of a stored row; null: 1.
  TensorValues values(const WeightSource& weights, const Shape& shape, std::function<double(int64_t row)> factor) const;

 private:
  class OpenPieces;
  struct Place {
    size_t piece;
    int64_t row;
  };
  Place place_of(int64_t stored_row) const;
  Place tiled_place(int64_t stored_row) const;
  int64_t column_of(int64_t stored_column) const;
  bool is_plain() const noexcept;
  void set_shape();
  void read_rows(const OpenPieces& pieces, int64_t first, int64_t count, float* out) const;
  float element(const OpenPieces& pieces, int64_t row, int64_t column) const;
  void read(const OpenPieces& pieces, int64_t begin, int64_t count, const std::function<double(int64_t row)>& factor,
            float* out) const;

  GgufTensorRule rule_;
  std::vector<GgufPiece> pieces_;
  int64_t layer_;
  GgufExportSizes sizes_;
  int64_t rows_ = 0, cols_ = 1;  // stored
  Shape shape_;
};

}  // namespace coluber
