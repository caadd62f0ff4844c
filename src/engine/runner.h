// SPDX-License-Identifier: Apache-2.0
//
// Carries out step plans: orders the rows decodes first, checks every read against the state's tag, builds each
// backend's metadata once, runs the model, advances sequences and tags. Owns the step's buffers, which stop growing
// after warm-up.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attention/batch_order.h"
#include "base/thread_pool.h"
#include "coluber/backend.h"
#include "coluber/model.h"
#include "engine/decode_graphs.h"
#include "engine/state_cache.h"
#include "engine/step_plan.h"
#include "layers/cache_binding.h"
#include "tensor/cuda_step.h"
#include "tensor/workspace.h"

namespace coluber {

using HiddenSink = std::function<void(int index, const float* values, int64_t rows, int64_t cols)>;

class Runner {
 public:
  // All are borrowed and must outlive the runner.
  Runner(const EngineConfig& config, Model& model, StateCache& cache, ThreadPool& pool, bool enforce_eager = false);

  // Runs the plan. Throws Error(kInternal) where a state is not at the position that a row expects; the states of the
  // plan's rows are then void (their sequences start anew or end), all others are untouched.
  void run(const StepPlan& plan);

  // Logits of row `row` of the last plan, [rows, V]; empty where none were wanted. Valid until the next run.
  std::span<const float> logits(size_t row) const;
  // Where all rows of the last plan wanted the largest logit alone and a device found it: the id of row `row`'s, -1
  // where its logits are not finite (kernels/sampling/largest_logits.h). There are no logits then.
  std::optional<int32_t> largest(size_t row) const;
  // Where row `row` of the running plan begins among the step's tokens: for a hidden sink.
  int64_t first_token(size_t row) const;
  void set_hidden_sink(const HiddenSink* sink) noexcept { hidden_sink_ = sink; }
  int64_t num_steps() const noexcept { return num_steps_; }
  // Of these, those that a device did in one launch.
  int64_t num_graph_steps() const noexcept { return graphs_ ? graphs_->num_replays() : 0; }

 private:
  void order_rows(const StepPlan& plan);
  void fill_rows(const StepPlan& plan);
  void fill_tokens(const PlanRow& row);
  // On a device, rows without a sequence behind the decodes of a step that can be recorded (decode_graphs.h).
  void pad_rows(const StepPlan& plan);
  void fill_tables(const StepPlan& plan);
  void build_metadata();
  void forward(const StepPlan& plan);
  void forward_on_device(ForwardBatch& batch);
  void list_step_arrays();
  // From where the step left them, to where the host looks for them.
  void fetch_logits(const float* logits);
  int32_t replay_base(const PlanRow& row) const;
  void advance_rings(const StepPlan& plan);

  Model& model_;
  StateCache& cache_;
  ThreadPool& pool_;
  bool deterministic_;
  Workspace workspace_;
  std::optional<CudaStep> cuda_;        // where the cache's device is one
  std::optional<DecodeGraphs> graphs_;  // where there is a device and every layer's metadata can be listed
  std::vector<HostArray> arrays_;
  int64_t padded_rows_ = 0;  // of them, those without a sequence
  bool is_padded_ = false;   // the step is one that may be recorded
  HiddenSink device_sink_;   // brings what a device computed to the sink
  std::vector<float> hidden_;
  std::vector<MetadataGroup> groups_;
  const HiddenSink* hidden_sink_ = nullptr;
  int64_t num_steps_ = 0;

  std::vector<ScheduledRow> scheduled_;
  std::vector<int32_t> order_;            // batch row -> plan row
  std::vector<int32_t> token_ids_;        // [T]
  std::vector<int64_t> positions_;        // [T]
  std::vector<int64_t> slot_mapping_;     // [T]
  std::vector<int32_t> query_start_loc_;  // [R+1]
  std::vector<int32_t> seq_lens_;         // [R]
  std::vector<uint8_t> is_prefilling_;    // [R]
  std::vector<uint8_t> long_rope_;        // [R]
  std::vector<int32_t> state_table_;      // [R, 1]
  std::vector<int32_t> replay_base_;      // [R] tokens that the states had when they were last written; with replay
  std::vector<int32_t> page_table_;       // [R, page_columns_]
  int64_t page_columns_ = 0;
  std::vector<const AttentionMetadata*> layer_metadata_;
  int replay_layer_ = -1;  // one of the layers that replay; -1: none
  std::vector<StateExport> state_exports_;
  std::vector<int32_t> logits_rows_;
  std::vector<float> logits_;
  bool finds_largest_ = false;    // in the running step, on the device
  std::vector<int32_t> largest_;  // of `logits_rows_`, instead of `logits_`
  struct LogitsRange {
    int64_t first = 0;
    int64_t rows = 0;
  };
  std::vector<LogitsRange> logits_of_plan_row_;
};

}  // namespace coluber
