// SPDX-License-Identifier: Apache-2.0
#include "layers/lm_head.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/lookup_rows.h"
#include "layers/linear.h"
#include "tensor/cuda_step.h"
#include "tensor/workspace.h"

namespace coluber {

LmHead::LmHead(WeightLoader loader, std::string_view name, Embedding& embedding, bool tied,
               const LmHeadOptions& options)
    : logits_size_(options.logits_size > 0 ? options.logits_size : embedding.vocab_size()),
      hidden_size_(embedding.hidden_size()),
      allow_bf16_(may_round_activations(loader)) {
  COLUBER_CHECK(logits_size_ <= embedding.vocab_size() && (!tied || logits_size_ == embedding.vocab_size()),
                "{} logits of a vocabulary of {}", logits_size_, embedding.vocab_size());
  const std::string prefix = name.empty() ? std::string() : std::string(name) + ".", tensor = prefix + "weight";
  if (options.bias) bias_ = loader.take_array(prefix + "bias", Shape{logits_size_});
  if (tied) {
    if (loader.has(tensor)) loader.ignore(tensor, "the output head is tied to the embedding");
    weight_ = embedding.share_packed(loader);
    return;
  }
  const bool any_rows = logits_size_ < embedding.vocab_size() && loader.has(tensor);
  TensorView stored = loader.take(tensor, Shape{any_rows ? 0 : logits_size_, hidden_size_});
  if (stored.shape[0] < logits_size_) stored = loader.take(tensor, Shape{logits_size_, hidden_size_});  // a problem
  weight_ = std::make_shared<const PackedMatrix>(pack_weight(loader, weight_rows(stored, 0, logits_size_)));
}

void LmHead::forward(const ForwardBatch& batch, const float* hidden) const {
  const auto rows = static_cast<int64_t>(batch.logits_rows.size());
  if (rows == 0) return;
  COLUBER_CHECK(batch.logits != nullptr, "{} rows of logits are wanted and there is no place for them", rows);
  WorkspaceScope scope(*batch.workspace);
  const float* wanted = hidden;
  if (rows != batch.num_tokens()) {
    float* gathered = batch.workspace->take<float>(rows * hidden_size_);
    for (const int32_t row : batch.logits_rows)
      COLUBER_CHECK(row >= 0 && row < batch.num_tokens(), "row {} of {} tokens", row, batch.num_tokens());
    LookupRowsArgs args;
    args.table = hidden;
    args.ids = device_array(batch, batch.logits_rows);
    args.rows = rows;
    args.cols = hidden_size_;
    args.y = gathered;
    lookup_rows()(args, batch);
    wanted = gathered;
  }
  gemm()(
      GemmArgs{wanted, hidden_size_, rows, weight_.get(), bias_.data(), batch.logits, logits_size_, false, allow_bf16_},
      batch);
}

}  // namespace coluber
