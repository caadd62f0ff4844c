// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/gemm_blocks.h"

#include <algorithm>
#include <cstring>

namespace coluber {
namespace {

// Of expanded weights: what the second-level caches of the threads hold.
constexpr int64_t kExpandedBytesPerThread = int64_t{1} << 20;
constexpr int64_t kStep = PackedMatrix::kPanelStep;
// Elements of a row that are decoded at a time: a multiple of every block's.
constexpr int64_t kRun = 256;

// kStep rows of a panel as successive k, `width` apart: the layout of PackedMatrix.
void expand_rows(const PackedMatrix& w, int64_t row, int64_t width, float* out) {
  alignas(64) float decoded[kStep][kRun];
  const int64_t rows = std::clamp<int64_t>(w.n() - row, 0, kStep);
  if (rows < kStep) std::memset(decoded, 0, sizeof decoded);
  for (int64_t k = 0; k < w.k(); k += kRun) {
    const int64_t count = std::min(kRun, w.k() - k);
    for (int64_t r = 0; r < rows; ++r) w.decode_blocks(row + r, k, count, decoded[r]);
    for (int64_t i = 0; i < count; ++i) {
      float* to = out + (k + i) * width;
      for (int64_t r = 0; r < kStep; ++r) to[r] = decoded[r][i];
    }
  }
}

}  // namespace

void multiply_rows_of_blocks(const GemmArgs& args, GemmFunction plain, ThreadPool& pool, Workspace& workspace) {
  const PackedMatrix& w = *args.w;
  const int64_t panel_bytes = PackedMatrix::kPanel * w.k() * static_cast<int64_t>(sizeof(float));
  const int64_t group = std::clamp<int64_t>(kExpandedBytesPerThread * pool.size() / panel_bytes, pool.size(),
                                            std::max<int64_t>(w.num_panels(), pool.size()));
  WorkspaceScope scope(workspace);
  float* expanded = workspace.take<float>(std::min(group, w.num_panels()) * PackedMatrix::kPanel * w.k());
  for (int64_t first = 0; first < w.num_panels(); first += group) {
    const int64_t panels = std::min(group, w.num_panels() - first), row = first * PackedMatrix::kPanel;
    pool.parallel_for(panels, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t p = begin; p < end; ++p) {
        const int64_t width = w.panel_width(first + p);
        float* panel = expanded + p * PackedMatrix::kPanel * w.k();
        for (int64_t j = 0; j < width; j += kStep) expand_rows(w, row + p * PackedMatrix::kPanel + j, width, panel + j);
      }
    });
    const PackedMatrix part =
        PackedMatrix::borrow(expanded, std::min(panels * PackedMatrix::kPanel, w.n() - row), w.k());
    GemmArgs of_part = args;
    of_part.w = &part;
    of_part.bias = args.bias == nullptr ? nullptr : args.bias + row;
    of_part.c = args.c + row;
    plain(of_part, pool, workspace);
  }
}

}  // namespace coluber
