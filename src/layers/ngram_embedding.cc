// SPDX-License-Identifier: Apache-2.0
#include "layers/ngram_embedding.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"
#include "cache/state_shape.h"
#include "kernels/conv/causal_conv1d.h"
#include "layers/recurrent_layer.h"
#include "tensor/cuda_step.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

constexpr float kLeastLikeness = 1e-6f;

NgramEmbeddingConfig checked(const NgramEmbeddingConfig& config, const WeightLoader& loader) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_positive("streams", config.streams);
  checks.expect_between("n-gram size", config.ngram_size, 2, 16);
  checks.expect_positive("heads of an n-gram", config.heads_per_ngram);
  checks.expect_positive("shards of the table", config.num_shards);
  checks.expect(config.embed_dim > 0 && config.embed_dim % std::max<int64_t>(config.num_heads(), 1) == 0,
                fmt::format("embedding width: expected a positive multiple of the {} heads, found {}",
                            config.num_heads(), config.embed_dim));
  checks.expect_between("positions the convolution looks back on, (kernel - 1) * n-gram size,", config.conv_inputs(), 1,
                        kMaxConvWidth - 1);
  checks.finish("n-gram embedding", loader);
  return config;
}

// Taps every `dilation` positions as a kernel of their whole width, [W', C].
std::vector<float> take_dilated_weight(WeightLoader& loader, std::string_view name, int64_t channels, int64_t taps,
                                       int64_t dilation) {
  const std::vector<float> weight = read_conv_weight(loader, name, channels, taps);
  std::vector<float> wide(static_cast<size_t>(((taps - 1) * dilation + 1) * channels));
  for (int64_t j = 0; j < taps; ++j)
    std::copy_n(weight.begin() + j * channels, channels, wide.begin() + j * dilation * channels);
  return wide;
}

}  // namespace

NgramEmbedding::NgramEmbedding(const NgramEmbeddingConfig& config, WeightLoader loader)
    : MambaBase(layer_name_of(loader)),
      config_(checked(config, loader)),
      engine_config_(loader.config()),
      key_proj_(loader, "key_proj", config_.embed_dim, config_.width(), false),
      value_proj_(loader, "value_proj", config_.embed_dim, config_.hidden_size, false),
      norm_key_(loader, "norm_key", config_.streams, config_.hidden_size, config_.norm_eps, 1.0f),
      norm_query_(loader, "norm_query", config_.streams, config_.hidden_size, config_.norm_eps, 1.0f),
      norm_conv_(loader, "norm_conv", config_.streams, config_.hidden_size, config_.norm_eps, 1.0f),
      conv_weight_(
          take_dilated_weight(loader, "conv1d.weight", config_.width(), config_.conv_kernel, config_.ngram_size)) {
  WeightLoader hash = loader.scoped("ple_embedding");
  multipliers_ = hash.take_integers("layer_multipliers", Shape{config_.ngram_size});
  head_rows_ = hash.take_integers("ngram_heads_vocab_sizes", Shape{config_.num_heads()});
  head_offsets_ = hash.take_integers("ngram_heads_offsets", Shape{config_.num_heads()});
  take_table(hash);
  loader.config().register_layer(*this);
}

void NgramEmbedding::take_table(WeightLoader& loader) {
  const int64_t row_width = config_.embed_dim / config_.num_heads();
  int64_t rows = 0;
  DType dtype = DType::kFloat32;
  auto add = [&](const std::string& name) {
    const TensorView stored = loader.take(name, Shape{0, row_width});
    dtype = stored.dtype;
    rows += stored.shape[0];
    if (loader.describe_only()) return;
    Shard shard;
    shard.rows.reset(new std::byte[static_cast<size_t>(stored.size_bytes())]);
    std::memcpy(shard.rows.get(), stored.data, static_cast<size_t>(stored.size_bytes()));
    shard.end = rows;
    shard.dtype = stored.dtype;
    loader.release(stored);
    table_.push_back(std::move(shard));
  };
  if (loader.has("ngram_embedding.weight")) {
    add("ngram_embedding.weight");
  } else {
    for (int64_t i = 0; i < config_.num_shards; ++i) add(fmt::format("ngram_embedding.shard_{}.weight", i));
  }
  loader.count_matmul(0, dtype_bytes(dtype, config_.embed_dim));
  if (loader.describe_only()) return;
  for (size_t h = 0; h < head_rows_.size(); ++h) {
    if (head_rows_[h] >= 1 && head_offsets_[h] >= 0 && head_rows_[h] <= rows &&
        head_offsets_[h] <= rows - head_rows_[h])
      continue;
    throw make_error(ErrorCode::kInvalidData,
                     "'{}': head {} has {} rows from row {} on, the table has {} rows; the checkpoint's hash "
                     "(ngram_heads_vocab_sizes, ngram_heads_offsets) does not fit its table",
                     loader.full_name("ngram_embedding"), h, head_rows_[h], head_offsets_[h], rows);
  }
}

std::vector<Shape> NgramEmbedding::get_state_shape() const {
  std::vector<Shape> shapes = ple_short_conv_state_shape(config_.width(), config_.conv_inputs() + 1,
                                                         engine_config_.speculative.num_speculative_tokens);
  shapes.push_back(Shape{config_.ngram_size - 1});
  return shapes;
}

std::vector<DType> NgramEmbedding::get_state_dtype() const {
  // Token ids: float32 holds them exactly up to 2^24.
  return {conv_state_dtype(engine_config_), DType::kFloat32};
}

NgramEmbedding::Rows NgramEmbedding::decode_rows(const ForwardBatch& batch) const {
  const auto& metadata = batch.metadata<ShortConvAttentionMetadata>(*this);
  Rows rows;
  rows.count = metadata.num_decodes;
  rows.conv = decode_slots(batch, metadata, kv_cache()[0]);
  rows.tokens = decode_slots(batch, metadata, kv_cache()[1]);
  return rows;
}

NgramEmbedding::Rows NgramEmbedding::prefill_rows(const ForwardBatch& batch) const {
  const auto& metadata = batch.metadata<ShortConvAttentionMetadata>(*this);
  Rows rows;
  rows.first = metadata.num_decodes;
  rows.count = metadata.num_prefills;
  rows.query_start_loc = metadata.query_start_loc_p.data();
  rows.conv = prefill_slots(batch, metadata, kv_cache()[0]);
  rows.tokens = prefill_slots(batch, metadata, kv_cache()[1]);
  rows.exports = prefill_exports(batch, metadata.exports);
  return rows;
}

void NgramEmbedding::read_row(int64_t row, float* out) const {
  const int64_t width = config_.embed_dim / config_.num_heads();
  const auto shard = std::upper_bound(table_.begin(), table_.end(), row,
                                      [](int64_t wanted, const Shard& candidate) { return wanted < candidate.end; });
  const int64_t begin = shard == table_.begin() ? 0 : std::prev(shard)->end;
  convert_to_float(shard->rows.get() + dtype_bytes(shard->dtype, (row - begin) * width), shard->dtype, width, out);
}

void NgramEmbedding::look_up(const int32_t* newest, float* out) const {
  const int64_t width = config_.embed_dim / config_.num_heads();
  bool ended = false;
  // As 64-bit integers that wrap around.
  uint64_t mixed = static_cast<uint64_t>(*newest) * static_cast<uint64_t>(multipliers_[0]);
  for (int64_t n = 2; n <= config_.ngram_size; ++n) {
    const int32_t earlier = *(newest - (n - 1));
    ended = ended || earlier == config_.end_of_text;
    const auto token = static_cast<uint64_t>(ended ? config_.end_of_text : earlier);
    mixed ^= token * static_cast<uint64_t>(multipliers_[static_cast<size_t>(n - 1)]);
    for (int64_t i = 0; i < config_.heads_per_ngram; ++i) {
      const int64_t head = (n - 2) * config_.heads_per_ngram + i;
      const int64_t rows = head_rows_[static_cast<size_t>(head)];
      const int64_t place = static_cast<int64_t>(mixed) % rows;
      read_row(head_offsets_[static_cast<size_t>(head)] + (place < 0 ? place + rows : place), out + head * width);
    }
  }
}

void NgramEmbedding::embed(const ForwardBatch& batch, const Rows& rows, float* out) const {
  const int64_t before = config_.ngram_size - 1;
  for (int64_t r = 0; r < rows.count; ++r) {
    if (rows.tokens.is_null(r)) continue;
    WorkspaceScope scope(*batch.workspace);
    const int64_t begin = rows.begin(r), length = rows.begin(r + 1) - begin;
    int32_t* ids = batch.workspace->take<int32_t>(before + length);
    const void* state = rows.tokens.source(r);
    for (int64_t i = 0; i < before; ++i) {
      ids[i] = state == nullptr ? config_.end_of_text
                                : static_cast<int32_t>(load_state_element(state, rows.tokens.dtype, i));
    }
    std::copy_n(batch.token_ids.begin() + begin, length, ids + before);
    batch.thread_pool->parallel_for(length, 8, [&](int64_t first, int64_t last, int) {
      for (int64_t t = first; t < last; ++t) look_up(ids + before + t, out + (begin + t) * config_.embed_dim);
    });
    for (const RowPart part : RowParts(rows.tokens, rows.exports, r, 0, length)) {
      for (int64_t i = 0; i < before; ++i)
        store_state_element(rows.tokens.at(part.slot), rows.tokens.dtype, i, static_cast<float>(ids[part.end + i]));
    }
  }
}

void NgramEmbedding::gate(const ForwardBatch& batch, const float* embedded, const float* streams, float* gated) const {
  const int64_t tokens = batch.num_tokens(), d = config_.hidden_size, width = config_.width();
  WorkspaceScope scope(*batch.workspace);
  float* key = batch.workspace->take<float>(tokens * width);
  float* query = batch.workspace->take<float>(tokens * width);
  float* value = batch.workspace->take<float>(tokens * d);
  key_proj_.forward(batch, embedded, tokens, key);
  norm_key_.forward(batch, key, tokens, key);
  norm_query_.forward(batch, streams, tokens, query);
  value_proj_.forward(batch, embedded, tokens, value);
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  batch.thread_pool->parallel_for(tokens * config_.streams, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < d; ++j) sum += static_cast<double>(key[i * d + j]) * query[i * d + j];
      const float likeness = static_cast<float>(sum) * scale;
      const float root = std::sqrt(std::max(std::fabs(likeness), kLeastLikeness));
      const float signed_root = likeness > 0 ? root : likeness < 0 ? -root : likeness;  // NaN stays
      const float factor = 1.0f / (1.0f + std::exp(-signed_root));
      const float* v = value + i / config_.streams * d;
      for (int64_t j = 0; j < d; ++j) gated[i * d + j] = factor * v[j];
    }
  });
}

void NgramEmbedding::convolve(const ForwardBatch& batch, const Rows& rows, const float* in, float* out) const {
  if (rows.count == 0) return;
  const int64_t channels = config_.width();
  CausalConv1dArgs args;
  args.x = in + rows.first * channels;
  args.y = out + rows.first * channels;
  args.x_stride = args.y_stride = args.channels = channels;
  args.weight = conv_weight_.data();
  args.silu = true;
  args.width = config_.conv_inputs() + 1;
  args.state = rows.conv;
  args.rows = rows.count;
  args.query_start_loc = rows.query_start_loc;
  (rows.query_start_loc == nullptr ? causal_conv1d_update() : causal_conv1d())(args, batch);
}

void NgramEmbedding::forward(const ForwardBatch& batch, float* streams) {
  const int64_t tokens = batch.num_tokens(), width = config_.width();
  const auto& metadata = batch.metadata<ShortConvAttentionMetadata>(*this);
  check_step(*this, {config_.conv_inputs() * width, config_.ngram_size - 1}, metadata, tokens);
  WorkspaceScope scope(*batch.workspace);
  float* embedded = batch.workspace->take<float>(tokens * config_.embed_dim);
  float* gated = batch.workspace->take<float>(tokens * width);
  float* normed = batch.workspace->take<float>(tokens * width);
  float* convolved = batch.workspace->take<float>(tokens * width);
  // Rows without a slot and tokens that pad the batch: nothing else writes theirs.
  std::fill_n(embedded, tokens * config_.embed_dim, 0.0f);
  std::fill_n(convolved, tokens * width, 0.0f);
  const Rows decodes = decode_rows(batch), prefills = prefill_rows(batch);
  embed(batch, decodes, embedded);
  embed(batch, prefills, embedded);
  gate(batch, embedded, streams, gated);
  norm_conv_.forward(batch, gated, tokens, normed);
  export_windows(batch, metadata, kv_cache()[0], normed, width, config_.conv_inputs());
  convolve(batch, decodes, normed, convolved);
  convolve(batch, prefills, normed, convolved);
  for (int64_t i = 0; i < tokens * width; ++i) streams[i] += gated[i] + convolved[i];
}

}  // namespace coluber
