// SPDX-License-Identifier: Apache-2.0
#include "engine/decode_graphs.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace coluber {
namespace {

constexpr int64_t kMostGraphs = 64;  // a few MB each

}  // namespace

int64_t DecodeGraphs::bucket(int64_t rows) noexcept {
  if (rows > kMostRows || rows <= 2) return rows;
  return rows <= 4 ? 4 : (rows + 7) / 8 * 8;
}

DecodeGraphs::DecodeGraphs(Model& model, CudaStep& step, bool record)
    : model_(model), step_(step), record_(record), workspace_(step.device()) {}

DecodeGraphs::~DecodeGraphs() {
  try {
    step_.device().synchronize();
    drop_all();
  } catch (const Error& error) {
    log_warn("{}", error.what());
  }
}

void DecodeGraphs::drop(Recorded& recorded) {
  if (recorded.graph == nullptr) return;
  check_cuda(step_.device().api().destroy_graph(recorded.graph), "give back a graph");
  recorded.graph = nullptr;
}

void DecodeGraphs::drop_all() {
  for (auto& [sizes, recorded] : recorded_) drop(recorded);
}

// Pages of growing sequences make new sizes all the time: those that no step has any more must not keep their place.
DecodeGraphs::Recorded& DecodeGraphs::recorded_of_step() {
  if (!recorded_.contains(sizes_) && std::ssize(recorded_) >= kMostGraphs) {
    const auto oldest =
        std::ranges::min_element(recorded_, {}, [](const auto& entry) { return entry.second.last_use; });
    drop(oldest->second);
    recorded_.erase(oldest);
  }
  return recorded_[sizes_];
}

int64_t DecodeGraphs::num_graphs() const noexcept {
  return std::ranges::count_if(recorded_, [](const auto& entry) { return entry.second.graph != nullptr; });
}

void DecodeGraphs::forward(ForwardBatch& batch, int64_t logits) {
  workspace_.reset();
  batch.workspace = &workspace_;
  batch.logits = workspace_.take<float>(logits);
  model_.forward(batch);
}

// What only the host can do, such as taking memory, ends the recording with an error of the device's.
void* DecodeGraphs::record(ForwardBatch& batch, int64_t logits) {
  CudaDevice& device = step_.device();
  workspace_.reset();  // here, for memory may not be taken or moved from now on
  void* graph = nullptr;
  check_cuda(device.api().begin_capture(device.stream()), "begin to record a step");
  step_.set_recording(true);
  try {
    forward(batch, logits);
    step_.set_recording(false);
    check_cuda(device.api().end_capture(device.stream(), &graph), "record a step");
    return graph;
  } catch (const Error& error) {
    log_warn("steps run kernel by kernel on {}, for one cannot be recorded: {}", device.name(), error.what());
  }
  step_.set_recording(false);
  device.api().end_capture(device.stream(), &graph);  // says once more that it failed, or has ended already
  if (graph != nullptr) device.api().destroy_graph(graph);
  record_ = false;
  return nullptr;
}

void DecodeGraphs::run(ForwardBatch& batch, std::span<const HostArray> arrays, int64_t logits) {
  sizes_.clear();
  for (const HostArray& array : arrays) sizes_.push_back(array.bytes);
  if (step_.begin_with(arrays)) drop_all();
  Recorded* recorded = nullptr;
  if (record_ && step_.device().launch_times() == nullptr) {
    recorded = &recorded_of_step();
    if (recorded->graph == nullptr && recorded->last_use > 0) recorded->graph = record(batch, logits);
    recorded->last_use = ++steps_;
  }
  if (recorded != nullptr && recorded->graph != nullptr) {
    workspace_.reset();
    batch.logits = workspace_.take<float>(logits);
    check_cuda(step_.device().api().launch_graph(recorded->graph, step_.device().stream()), "launch a step");
    ++replays_;
    return;
  }
  const int64_t capacity = workspace_.capacity_bytes();
  forward(batch, logits);
  // Scratch memory that grew moves before the next step, and graphs know it by its address.
  if (workspace_.capacity_bytes() != capacity) drop_all();
}

}  // namespace coluber
