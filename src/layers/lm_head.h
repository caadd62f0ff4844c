// SPDX-License-Identifier: Apache-2.0
//
// The output head: logits of the rows that a step wants. Its weight is its own or, tied, the embedding's, packed once
// for both.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "coluber/model.h"
#include "kernels/gemm/packed_matrix.h"
#include "layers/embedding.h"
#include "layers/weight_loader.h"

namespace coluber {

struct LmHeadOptions {
  bool bias = false;  // `name`.bias [V]
  // Logits that are wanted, where the last rows of the embedding are padding (not tied): the stored head has these
  // rows or all. 0: V.
  int64_t logits_size = 0;
};

class LmHead {
 public:
  // Takes `name`.weight [V, D] unless `tied`; a stored copy of a tied weight is known and left out.
  LmHead(WeightLoader loader, std::string_view name, Embedding& embedding, bool tied,
         const LmHeadOptions& options = {});

  // batch.logits [logits_rows, logits_size] from hidden [T, D].
  void forward(const ForwardBatch& batch, const float* hidden) const;
  int64_t logits_size() const noexcept { return logits_size_; }

 private:
  int64_t logits_size_, hidden_size_;
  bool allow_bf16_;
  std::shared_ptr<const PackedMatrix> weight_;
  FloatArray bias_;  // empty without
};

}  // namespace coluber
