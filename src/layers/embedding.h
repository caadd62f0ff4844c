// SPDX-License-Identifier: Apache-2.0
//
// Token embeddings: rows of a [V, D] table as float32. Owns a copy of the table as stored or, where the output head
// shares it, the head's packed matrix, so that it is in memory once. Once loaded nothing touches the checkpoint:
// another process may truncate the file, and reading a page that is gone would end this one.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "coluber/model.h"
#include "kernels/gemm/packed_matrix.h"
#include "layers/weight_loader.h"

namespace coluber {

class Embedding {
 public:
  // Takes `name`.weight [V, D]. `tied`: a head will share the table, so it is not copied; rows can be read once it has.
  Embedding(WeightLoader loader, std::string_view name, int64_t vocab_size, int64_t hidden_size, bool tied = false);

  // x [T, D] of the batch's token ids, which the engine has checked to be inside the vocabulary.
  void forward(const ForwardBatch& batch, float* x) const;

  int64_t vocab_size() const noexcept { return vocab_size_; }
  int64_t hidden_size() const noexcept { return hidden_size_; }
  // Packs the table for a tied head, once; from then on rows come from the packed matrix.
  std::shared_ptr<const PackedMatrix> share_packed(WeightLoader& loader);

 private:
  int64_t vocab_size_, hidden_size_;
  TensorView table_;                        // [V, D] as stored
  std::unique_ptr<std::byte[]> own_table_;  // its values, where no head shares them
  std::shared_ptr<const PackedMatrix> packed_;
};

}  // namespace coluber
