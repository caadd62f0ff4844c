// SPDX-License-Identifier: Apache-2.0
#include "engine/runner.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "attention/metadata_arrays.h"
#include "base/error.h"
#include "kernels/sampling/largest_logits.h"

namespace coluber {

namespace {
constexpr size_t kLeastCells = 16384;         // of a page table
constexpr uint64_t kLeastPaddedColumns = 16;  // of the page table of a step that may be recorded
}  // namespace

Runner::Runner(const EngineConfig& config, Model& model, StateCache& cache, ThreadPool& pool, bool enforce_eager)
    : model_(model),
      cache_(cache),
      pool_(pool),
      deterministic_(config.deterministic),
      workspace_(cache.device()),
      groups_(make_metadata_groups(config, cache.device())) {
  if (auto* device = dynamic_cast<CudaDevice*>(&cache.device())) {
    cuda_.emplace(*device);
    if (std::ranges::all_of(groups_, [](const MetadataGroup& group) { return can_list_arrays(group.spec); }))
      graphs_.emplace(model, *cuda_, !enforce_eager);
  }
  layer_metadata_.assign(config.layers.size(), nullptr);
  cache_.use_threads(pool);
  for (const StateLayout::Layer& layer : cache_.state_layout().layers)
    if (layer.ring_bytes > 0) replay_layer_ = layer.layer_index;
}

void Runner::order_rows(const StepPlan& plan) {
  scheduled_.clear();
  for (const PlanRow& row : plan.rows)
    scheduled_.push_back({row.num_tokens, row.read_position, row.sequence->num_prompt_tokens});
  reorder_batch_to_split_decodes_and_prefills(scheduled_, 1, order_);
}

void Runner::fill_tokens(const PlanRow& row) {
  const Sequence& sequence = *row.sequence;
  for (int64_t i = row.read_position; i < row.write_position; ++i) {
    token_ids_.push_back(sequence.tokens[static_cast<size_t>(i)]);
    positions_.push_back(i);
    slot_mapping_.push_back(cache_.attention_slot(sequence, i));
  }
}

void Runner::fill_rows(const StepPlan& plan) {
  token_ids_.clear();
  positions_.clear();
  slot_mapping_.clear();
  seq_lens_.clear();
  is_prefilling_.clear();
  long_rope_.clear();
  logits_rows_.clear();
  state_exports_.clear();
  query_start_loc_.assign(1, 0);
  logits_of_plan_row_.assign(plan.rows.size(), {});
  for (int32_t plan_row : order_) {
    const PlanRow& row = plan.rows[static_cast<size_t>(plan_row)];
    for (const InnerState& inner : row.sequence->inner.list)
      state_exports_.push_back({static_cast<int32_t>(seq_lens_.size()),
                                static_cast<int32_t>(inner.position - row.read_position), inner.slot});
    fill_tokens(row);
    const auto end = static_cast<int32_t>(token_ids_.size());
    query_start_loc_.push_back(end);
    seq_lens_.push_back(static_cast<int32_t>(row.write_position));
    is_prefilling_.push_back(row.read_position < row.sequence->num_prompt_tokens ? 1 : 0);
    long_rope_.push_back(row.sequence->long_rope ? 1 : 0);
    const int64_t wanted = row.logits == WantedLogits::kAll    ? row.num_tokens
                           : row.logits != WantedLogits::kNone ? 1
                                                               : 0;
    logits_of_plan_row_[static_cast<size_t>(plan_row)] = {static_cast<int64_t>(logits_rows_.size()), wanted};
    for (int64_t i = wanted; i > 0; --i) logits_rows_.push_back(end - static_cast<int32_t>(i));
  }
}

// The last token of a prompt, run as a decode, comes before the first base: its state is written.
int32_t Runner::replay_base(const PlanRow& row) const {
  const int32_t count = row.read_position > 0 ? cache_.ring_count(row.read_slot) : 0;
  const bool ends_prompt = row.num_tokens == 1 && row.write_position == row.sequence->num_prompt_tokens;
  const bool is_before = count == 0 && (row.read_position == 0 || ends_prompt);
  return static_cast<int32_t>(is_before ? row.write_position : row.read_position - count);
}

void Runner::advance_rings(const StepPlan& plan) {
  if (replay_layer_ < 0) return;
  const auto* metadata =
      dynamic_cast<const BaseMambaAttentionMetadata*>(layer_metadata_[static_cast<size_t>(replay_layer_)]);
  COLUBER_CHECK(metadata != nullptr, "layer {} replays without the metadata for it", replay_layer_);
  for (size_t r = 0; r < order_.size(); ++r) {
    const bool is_decode = std::cmp_less(r, metadata->num_decodes);
    const int32_t count = is_decode && metadata->is_flush_d[r] == 0 ? metadata->write_pos_d[r] + 1 : 0;
    cache_.set_ring_count(plan.rows[static_cast<size_t>(order_[r])].write_slot, count);
  }
}

// Every row is a decode with a state, its one token's logits are wanted, and its positions turn by the frequencies that
// all models have: those of long sequences are chosen on the host, a launch for each run of rows.
void Runner::pad_rows(const StepPlan& plan) {
  padded_rows_ = 0;
  const auto rows = std::ssize(plan.rows);
  is_padded_ = graphs_ && rows <= DecodeGraphs::kMostRows && hidden_sink_ == nullptr && state_exports_.empty() &&
               std::ranges::all_of(plan.rows, [](const PlanRow& row) {
                 return row.num_tokens == 1 && row.read_position > 0 && row.logits != WantedLogits::kNone &&
                        !row.sequence->long_rope;
               });
  if (!is_padded_) return;
  padded_rows_ = DecodeGraphs::bucket(rows) - rows;
  for (int64_t row = rows; row < rows + padded_rows_; ++row) {
    token_ids_.push_back(0);
    positions_.push_back(0);
    slot_mapping_.push_back(kPadSlotId);
    query_start_loc_.push_back(static_cast<int32_t>(row + 1));
    seq_lens_.push_back(1);
    is_prefilling_.push_back(0);
    long_rope_.push_back(0);
    logits_rows_.push_back(static_cast<int32_t>(row));
  }
}

void Runner::fill_tables(const StepPlan& plan) {
  state_table_.clear();
  replay_base_.clear();
  page_columns_ = 1;
  for (const PlanRow& row : plan.rows)
    page_columns_ = std::max(page_columns_, static_cast<int64_t>(row.sequence->pages.size()));
  // Powers of two, or a step would have another size, and be recorded anew, with every page that its longest row gets.
  if (is_padded_)
    page_columns_ =
        static_cast<int64_t>(std::bit_ceil(std::max(static_cast<uint64_t>(page_columns_), kLeastPaddedColumns)));
  // Longer sequences have more columns: room for several times as many, or every new column would ask for memory.
  const size_t cells = seq_lens_.size() * static_cast<size_t>(page_columns_);
  if (cells > page_table_.capacity()) page_table_.reserve(std::max(4 * cells, kLeastCells));
  page_table_.assign(cells, kNullBlockId);
  for (size_t r = 0; r < order_.size(); ++r) {
    const PlanRow& row = plan.rows[static_cast<size_t>(order_[r])];
    state_table_.push_back(row.write_slot);
    if (replay_layer_ >= 0) replay_base_.push_back(replay_base(row));
    std::copy(row.sequence->pages.begin(), row.sequence->pages.end(),
              page_table_.begin() + static_cast<int64_t>(r) * page_columns_);
  }
  state_table_.resize(state_table_.size() + static_cast<size_t>(padded_rows_), kNullBlockId);
}

void Runner::build_metadata() {
  const auto rows = static_cast<int64_t>(seq_lens_.size());
  CommonAttentionMetadata common;
  common.query_start_loc = query_start_loc_;
  common.seq_lens = seq_lens_;
  common.num_reqs = rows;
  common.num_actual_tokens = static_cast<int64_t>(token_ids_.size());
  common.slot_mapping = slot_mapping_;
  common.is_prefilling = is_prefilling_;
  common.replayssm_decode_base = replay_base_;
  common.state_exports = state_exports_;
  for (int64_t r = 0; r < rows; ++r) {
    common.max_query_len = std::max<int64_t>(common.max_query_len, common.query_len(r));
    common.max_seq_len = std::max<int64_t>(common.max_seq_len, seq_lens_[static_cast<size_t>(r)]);
  }
  for (MetadataGroup& group : groups_) {
    const bool recurrent = std::holds_alternative<MambaSpec>(group.spec);
    common.block_table = recurrent ? BlockTableView{state_table_.data(), rows, 1, 1}
                                   : BlockTableView{page_table_.data(), rows, page_columns_, page_columns_};
    const AttentionMetadata& metadata = group.builder->build(0, common);
    for (int layer : group.layer_indices) layer_metadata_[static_cast<size_t>(layer)] = &metadata;
  }
}

void Runner::forward(const StepPlan& plan) {
  // Those of rows without a sequence stay where they are.
  const size_t wanted = logits_rows_.size() - static_cast<size_t>(padded_rows_);
  finds_largest_ = cuda_ && wanted > 0 && std::ranges::none_of(plan.rows, [](const PlanRow& row) {
                     return row.logits == WantedLogits::kLast || row.logits == WantedLogits::kAll;
                   });
  largest_.resize(finds_largest_ ? wanted : 0);
  logits_.resize(finds_largest_ ? 0 : wanted * static_cast<size_t>(model_.info().vocab_size));
  ForwardBatch batch;
  batch.token_ids = token_ids_;
  batch.positions = positions_;
  batch.query_start_loc = query_start_loc_;
  batch.seq_lens = seq_lens_;
  batch.long_rope = long_rope_;
  batch.deterministic = deterministic_;
  batch.logits_rows = logits_rows_;
  batch.layer_metadata = layer_metadata_;
  batch.thread_pool = &pool_;
  batch.workspace = &workspace_;
  batch.logits = logits_.data();
  batch.hidden_sink = hidden_sink_ != nullptr && *hidden_sink_ ? hidden_sink_ : nullptr;
  COLUBER_CHECK(batch.num_tokens() == plan.num_tokens + padded_rows_, "{} tokens for a plan of {} and {} more",
                batch.num_tokens(), plan.num_tokens, padded_rows_);
  workspace_.reset();
  if (cuda_) return forward_on_device(batch);
  model_.forward(batch);
}

// The one wait of a step. 256 rows of 131072 logits take longer to get to the host than a step of 8 billion weights.
void Runner::fetch_logits(const float* logits) {
  CudaDevice& device = cuda_->device();
  if (!finds_largest_)
    return device.copy(logits_.data(), logits, std::ssize(logits_) * static_cast<int64_t>(sizeof(float)));
  // Not from the memory that recorded steps know by its address.
  const Execution on{&pool_, &workspace_, &*cuda_};
  auto* ids = workspace_.take<int32_t>(std::ssize(largest_));
  largest_logits()(LargestLogitsArgs{logits, std::ssize(largest_), model_.info().vocab_size, ids}, on);
  device.copy(largest_.data(), ids, std::ssize(largest_) * static_cast<int64_t>(sizeof(int32_t)));
}

void Runner::forward_on_device(ForwardBatch& batch) {
  CudaDevice& device = cuda_->device();
  batch.cuda = &*cuda_;
  if (is_padded_) {
    list_step_arrays();
    graphs_->run(batch, arrays_, static_cast<int64_t>(logits_rows_.size()) * model_.info().vocab_size);
    return fetch_logits(batch.logits);
  }
  cuda_->begin();
  batch.logits = workspace_.take<float>(static_cast<int64_t>(logits_rows_.size()) * model_.info().vocab_size);
  device_sink_ = [&](int index, const float* values, int64_t rows, int64_t cols) {
    hidden_.resize(static_cast<size_t>(rows * cols));
    device.copy(hidden_.data(), values, std::ssize(hidden_) * static_cast<int64_t>(sizeof(float)));
    (*hidden_sink_)(index, hidden_.data(), rows, cols);
  };
  if (batch.hidden_sink != nullptr) batch.hidden_sink = &device_sink_;
  model_.forward(batch);
  fetch_logits(batch.logits);
}

// All that layers may read of a step.
void Runner::list_step_arrays() {
  arrays_ = {host_array(token_ids_),   host_array(positions_),    host_array(query_start_loc_),
             host_array(seq_lens_),    host_array(long_rope_),    host_array(logits_rows_),
             host_array(state_table_), host_array(slot_mapping_), host_array(page_table_)};
  for (const MetadataGroup& group : groups_)
    list_arrays(*layer_metadata_[static_cast<size_t>(group.layer_indices.front())], arrays_);
}

void Runner::run(const StepPlan& plan) {
  COLUBER_CHECK(!plan.rows.empty(), "a step without rows");
  for (const PlanRow& row : plan.rows) cache_.check_read(row);
  // Until the step is through, the written slots hold no state that a later step may trust.
  for (const PlanRow& row : plan.rows) cache_.begin_write(row);
  order_rows(plan);
  fill_rows(plan);
  pad_rows(plan);
  fill_tables(plan);
  build_metadata();
  forward(plan);
  advance_rings(plan);
  for (const PlanRow& row : plan.rows) cache_.end_write(row);
  ++num_steps_;
}

int64_t Runner::first_token(size_t row) const {
  const auto place = std::ranges::find(order_, static_cast<int32_t>(row));
  COLUBER_CHECK(place != order_.end(), "row {} is not in the plan", row);
  return query_start_loc_[static_cast<size_t>(place - order_.begin())];
}

std::optional<int32_t> Runner::largest(size_t row) const {
  const auto [first, rows] = logits_of_plan_row_[row];
  if (!finds_largest_ || rows == 0) return std::nullopt;
  return largest_[static_cast<size_t>(first)];
}

std::span<const float> Runner::logits(size_t row) const {
  const auto [first, rows] = logits_of_plan_row_[row];
  if (finds_largest_) return {};
  const auto vocab = static_cast<size_t>(model_.info().vocab_size);
  return {logits_.data() + static_cast<size_t>(first) * vocab, static_cast<size_t>(rows) * vocab};
}

}  // namespace coluber
