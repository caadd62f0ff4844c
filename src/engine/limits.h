// SPDX-License-Identifier: Apache-2.0
//
// The most that the engine takes of what numbers in options and requests ask for. A front end that tells a range of its
// own takes the end of it from here, so that no user is told of a value that is refused later.
#pragma once

#include <cstdint>
#include <limits>

namespace coluber {

// Positions are int32, and the last one has a successor.
inline constexpr int64_t kMostSequenceTokens = std::numeric_limits<int32_t>::max() - 1;
inline constexpr int64_t kMostThreads = 1024;
inline constexpr int64_t kMostSequences = 65536;        // max_num_seqs
inline constexpr int64_t kMostBatchedTokens = 1 << 20;  // max_num_batched_tokens
inline constexpr int64_t kMostBlockTokens = 4096;       // block_size, and prefix_match_unit, which divides it
inline constexpr int64_t kMostShards = 1024;            // tensor_parallel_size
inline constexpr int64_t kMostSpeculativeTokens = 64;
inline constexpr int64_t kMostAnswers = 256;    // n, best_of, beam_width
inline constexpr int64_t kMostLogprobs = 1024;  // logprobs, prompt_logprobs
inline constexpr double kMostLengthPenalty = 100.0;

}  // namespace coluber
