// SPDX-License-Identifier: Apache-2.0
#include "layers/embedding.h"

#include <cstring>
#include <string>

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/gemm/lookup_rows.h"
#include "layers/linear.h"
#include "tensor/cuda_step.h"
#include "tensor/huge_pages.h"

namespace coluber {

Embedding::Embedding(WeightLoader loader, std::string_view name, int64_t vocab_size, int64_t hidden_size, bool tied)
    : vocab_size_(vocab_size),
      hidden_size_(hidden_size),
      table_(loader.take(name.empty() ? "weight" : std::string(name) + ".weight", Shape{vocab_size, hidden_size})) {
  loader.count_matmul(0, dtype_bytes(table_.dtype, hidden_size));
  if (tied || loader.describe_only()) return;
  if (table_.column_order != nullptr)
    throw make_error(ErrorCode::kUnsupported, "tensor '{}': an embedding quantised with act-order is not read",
                     loader.full_name(name));
  if (!loader.device().is_host()) {
    packed_ = std::make_shared<const PackedMatrix>(place_weight(loader, table_));
    return;
  }
  const auto bytes = static_cast<size_t>(table_.size_bytes());
  own_table_.reset(new std::byte[bytes]);
  ask_for_huge_pages(own_table_.get(), table_.size_bytes());
  constexpr int64_t kPiece = 1 << 21;
  loader.thread_pool().parallel_for(table_.size_bytes(), kPiece, [&](int64_t begin, int64_t end, int) {
    std::memcpy(own_table_.get() + begin, table_.data + begin, static_cast<size_t>(end - begin));
  });
  loader.release(table_);
  table_ = TensorView::contiguous(own_table_.get(), table_.dtype, table_.shape);
}

std::shared_ptr<const PackedMatrix> Embedding::share_packed(WeightLoader& loader) {
  if (packed_ == nullptr) packed_ = std::make_shared<const PackedMatrix>(pack_weight(loader, table_));
  if (packed_->n() > 0) own_table_.reset();
  return packed_;
}

void Embedding::forward(const ForwardBatch& batch, float* x) const {
  // First, and here: the bodies of a pool's loop cannot throw.
  for (int32_t token : batch.token_ids) {
    COLUBER_CHECK(token >= 0 && token < vocab_size_, "token {} is outside the vocabulary of {}", token, vocab_size_);
  }
  LookupRowsArgs args;
  if (packed_ != nullptr && packed_->n() > 0) args.packed = packed_.get();
  args.table = table_.data;
  args.dtype = table_.dtype;
  args.ids = device_array(batch, batch.token_ids);
  args.rows = batch.num_tokens();
  args.cols = hidden_size_;
  args.y = x;
  lookup_rows()(args, batch);
}

}  // namespace coluber
