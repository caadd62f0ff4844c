// SPDX-License-Identifier: Apache-2.0
//
// Steps of one token a row on a CUDA device, each one launch: the work of a step is recorded as a CUDA graph when a
// step of its size comes for the second time, and replayed from then on. Whatever differs between such steps is read
// from arrays that lie at the same place every time and are filled in one copy. Sizes are few, because steps are padded
// to `bucket` rows, and the graph that was not used for longest makes room for a new size. A step that is not replayed
// does the same work kernel by kernel, with the same bits. Owns the graphs, their arrays and their scratch memory; one
// thread, one step at a time.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "coluber/model.h"
#include "tensor/cuda_step.h"
#include "tensor/workspace.h"

namespace coluber {

class DecodeGraphs {
 public:
  static constexpr int64_t kMostRows = 256;
  // To how many rows a step of `rows` is padded: 1, 2, 4, 8, 16, 24 and so on; `rows` itself beyond kMostRows.
  static int64_t bucket(int64_t rows) noexcept;

  // Both are borrowed. Without `record` every step goes kernel by kernel.
  DecodeGraphs(Model& model, CudaStep& step, bool record);
  ~DecodeGraphs();
  DecodeGraphs(const DecodeGraphs&) = delete;
  DecodeGraphs& operator=(const DecodeGraphs&) = delete;

  // The batch's forward, with scratch and logits [logits] of its own; `arrays` are all that its layers may read of the
  // host. Where it reads another one, or cannot be recorded, steps go kernel by kernel from then on.
  void run(ForwardBatch& batch, std::span<const HostArray> arrays, int64_t logits);

  int64_t num_graphs() const noexcept;
  int64_t num_replays() const noexcept { return replays_; }

 private:
  using Sizes = std::vector<int64_t>;  // bytes of each array: they decide what is launched
  struct Recorded {
    int64_t last_use = 0;
    void* graph = nullptr;
  };
  void forward(ForwardBatch& batch, int64_t logits);
  void* record(ForwardBatch& batch, int64_t logits);
  Recorded& recorded_of_step();
  void drop(Recorded& recorded);
  void drop_all();

  Model& model_;
  CudaStep& step_;
  bool record_;
  Workspace workspace_;
  std::map<Sizes, Recorded> recorded_;
  Sizes sizes_;
  int64_t steps_ = 0;
  int64_t replays_ = 0;
};

}  // namespace coluber
