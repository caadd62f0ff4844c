// SPDX-License-Identifier: Apache-2.0
#include "kernels/sampling/top_candidates.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "kernels/sampling/logits_ops.h"

namespace coluber {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
// Beyond this a heap costs more than sorting everything by radix.
constexpr int64_t kLargestHeap = 2048;

bool is_better(const SampleCandidate& a, const SampleCandidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// A heap with the worst of the best on top; blocks that cannot beat it are skipped. Ids ascend, so that an equal logit
// that comes later never displaces one that is there.
void select_by_heap(const float* logits, int64_t vocab, const float* block_maxima, int64_t count,
                    std::vector<SampleCandidate>& heap) {
  float bar = kLowest;
  for (int64_t begin = 0; begin < vocab; begin += kScanBlock) {
    if (block_maxima[begin / kScanBlock] <= bar) continue;
    for (int64_t i = begin; i < std::min(begin + kScanBlock, vocab); ++i) {
      if (!(logits[i] > bar)) continue;
      if (static_cast<int64_t>(heap.size()) == count) {
        std::pop_heap(heap.begin(), heap.end(), is_better);
        heap.pop_back();
      }
      heap.push_back({logits[i], static_cast<int32_t>(i)});
      std::push_heap(heap.begin(), heap.end(), is_better);
      if (static_cast<int64_t>(heap.size()) == count) bar = heap.front().logit;
    }
  }
  std::sort_heap(heap.begin(), heap.end(), is_better);
}

// Ascends as the logit descends; both zeros are one key.
uint32_t descending_key(float logit) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);
  return (bits & 0x80000000u) != 0 ? bits : ~bits & 0x7fffffffu;
}

// Stable, from the lowest digit up: equal logits keep their ascending ids.
void sort_by_radix(std::vector<SampleCandidate>& from, std::vector<SampleCandidate>& to) {
  constexpr int kDigit = 11, kBuckets = 1 << kDigit;
  to.resize(from.size());
  for (int shift = 0; shift < 32; shift += kDigit) {
    std::array<uint32_t, kBuckets> place{};
    for (const SampleCandidate& c : from) ++place[(descending_key(c.logit) >> shift) & (kBuckets - 1)];
    uint32_t next = 0;
    for (uint32_t& p : place) next += std::exchange(p, next);
    for (const SampleCandidate& c : from) to[place[(descending_key(c.logit) >> shift) & (kBuckets - 1)]++] = c;
    from.swap(to);
  }
}

}  // namespace

void select_top_candidates(const float* logits, int64_t vocab, const float* block_maxima, int64_t count,
                           SampleScratch& scratch) {
  scratch.candidates.clear();
  if (count <= 0) return;
  if (count <= kLargestHeap) {
    select_by_heap(logits, vocab, block_maxima, count, scratch.candidates);
    return;
  }
  for (int64_t i = 0; i < vocab; ++i) {
    if (logits[i] > kLowest) scratch.candidates.push_back({logits[i], static_cast<int32_t>(i)});
  }
  sort_by_radix(scratch.candidates, scratch.sorted);
  if (static_cast<int64_t>(scratch.candidates.size()) > count) scratch.candidates.resize(static_cast<size_t>(count));
}

}  // namespace coluber
