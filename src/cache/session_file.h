// SPDX-License-Identifier: Apache-2.0
//
// A session in a file: its tokens, all states, attention pages, last logits and sampler, with what they are of and a
// checksum of every part. The file is the whole truth about itself: reading needs no model, and whoever loads it
// compares fingerprint and layout with its own. Written beside the old file and renamed, so that a crash leaves the old
// or the new one. All integers are little-endian. No state of its own; any thread.
//
//   bytes 0..7    "colubses"          8..11 version (1)    12..15 zero
//   16..23        bytes of the header text                 24..31 bytes of the file
//   32..47        checksum of bytes 0..31 and the header text; 48..63 zero
//   64..          the header text (JSON): model, counts, layout, sampler, bytes and checksum of each section
//   then          sections, each at a multiple of 128, zeros between: tokens (int32), logits (float32), states,
//   attention
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/session_layout.h"
#include "cache/state_tag.h"

namespace coluber {

// Where the session's random numbers and its answer stand. Penalties are counted from the tokens anew.
struct SessionSampler {
  uint64_t seed = 0;
  int64_t position = 0;       // numbers of the seed's stream used so far
  bool has_seed = false;      // false: nothing was sampled yet
  int64_t answer_start = -1;  // tokens before the answer that is being made; -1: none is
  bool operator==(const SessionSampler&) const = default;
};

struct SessionImage {
  std::string model_name;  // for people
  std::string architecture;
  Hash128 fingerprint;
  int64_t vocab_size = 0;
  std::vector<int32_t> tokens;
  int64_t num_computed_tokens = 0;  // the first so many are in the states; the rest were given or sampled
  bool long_positions = false;      // positions turn as those of a long sequence (EngineConfig::long_rope_beyond)
  SessionSampler sampler;
  std::vector<float> logits;  // after the last computed token, or none
  SessionLayout layout;
  SessionBytes bytes;
};

// Throws Error(kIo) where the file cannot be written; the file that was there is then unchanged.
void write_session_file(const std::string& path, const SessionImage& image);
// Reads and verifies all of it. Throws Error(kNotFound, kIo), Error(kInvalidData) where a bit is wrong or the header
// makes no sense, Error(kUnsupported) for a later version.
SessionImage read_session_file(const std::string& path);
// The same of bytes in memory, which must stay as long as the image; `name` is for messages.
SessionImage parse_session(std::span<const std::byte> file, std::string_view name);

// The parts of one session in order (one file: a whole one), or a whole one as the part of a rank, in another layout.
// Everything but the layout is that of the first. Throws as convert_session.
SessionImage convert_session_image(std::span<const SessionImage> parts, const LayoutChange& change);

}  // namespace coluber
