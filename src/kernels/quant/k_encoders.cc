// SPDX-License-Identifier: Apache-2.0
// The K types: each part of a block is fitted by itself, then the parts' scales are rounded to what the block can
// express, and the codes chosen anew for the rounded scales.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/quant/block_decoders.h"
#include "kernels/quant/block_encoders.h"

namespace coluber {
namespace {

// To the nearest whole number, ties to even, for magnitudes below 2^22: two additions, where a call could not be
// vectorised.
inline float nearest(float value) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
  return (value + kShift) - kShift;
}

inline float clamped(float value, float low, float high) { return std::min(std::max(value, low), high); }

// What a fit of x by scale * code + offset needs to know of the codes.
struct Sums {
  float c = 0, cc = 0, cx = 0;
};

// --- scale and minimum: Q4_K, Q5_K --------------------------------------------------------------------------------

constexpr int kPart = 32, kParts = 8;
constexpr float kMostScale = 63;

struct Affine {
  float scale = 0, offset = 0;  // offset <= 0
};

class AffineFit {
 public:
  AffineFit(const float* x, float most) : x_(x), most_(most) {
    for (int i = 0; i < kPart; ++i) {
      sum_ += x[i];
      squares_ += x[i] * x[i];
      low_ = std::min(low_, x[i]);
      high_ = std::max(high_, x[i]);
    }
  }

  // Tries grids that are a little finer and coarser than the range asks for, each moved to where it fits best.
  Affine best() const {
    if (high_ <= low_) return {0, low_};
    Affine best{(high_ - low_) / most_, low_};
    float least = error_of(best, sums_of(best));
    for (int step = 0; step <= 24; ++step) {
      Affine tried{(high_ - low_) / (most_ - 1.2f + 0.1f * static_cast<float>(step)), low_};
      for (int round = 0; round < 2; ++round) {
        const Sums sums = sums_of(tried);
        if (!refine(sums, tried)) break;
        const float error = error_of(tried, sums);
        if (error < least) {
          least = error;
          best = tried;
        }
      }
    }
    return best;
  }

  // Of the codes that are nearest for the grid.
  Sums sums_of(const Affine& grid) const {
    const float inverse = inverse_of(grid.scale);
    Sums sums;
    for (int i = 0; i < kPart; ++i) {
      const float code = clamped(nearest((x_[i] - grid.offset) * inverse), 0.0f, most_);
      sums.c += code;
      sums.cc += code * code;
      sums.cx += code * x_[i];
    }
    return sums;
  }
  float error_of(const Affine& grid, const Sums& s) const {
    return squares_ + grid.scale * (grid.scale * s.cc - 2 * s.cx) +
           grid.offset * (2 * (grid.scale * s.c - sum_) + static_cast<float>(kPart) * grid.offset);
  }
  float offset_for(float scale, const Sums& s) const { return (sum_ - scale * s.c) / static_cast<float>(kPart); }

 private:
  // The least squares of the codes' grid; false where the codes are all the same.
  bool refine(const Sums& s, Affine& grid) const {
    const float n = kPart, determinant = n * s.cc - s.c * s.c;
    if (determinant <= 0) return false;
    grid = {(n * s.cx - s.c * sum_) / determinant, (s.cc * sum_ - s.c * s.cx) / determinant};
    if (grid.offset > 0) grid = {s.cx / s.cc, 0};
    return grid.scale > 0;
  }

  const float* x_;
  float most_;
  float sum_ = 0, squares_ = 0, low_ = 0, high_ = 0;
};

struct KCodes {
  int scales[kParts] = {}, minima[kParts] = {};
  uint8_t codes[kSuperBlock] = {};
  float d = 0, d_minimum = 0;
};

// The rounded scale and its neighbours, each with the minimum that suits it.
void choose_rounded(const AffineFit& fit, const Affine& wanted, const KCodes& block, int& scale, int& minimum) {
  const int middle = block.d > 0 ? static_cast<int>(nearest(clamped(wanted.scale / block.d, 0, kMostScale))) : 0;
  const auto minimum_of = [&](float offset) {
    return block.d_minimum > 0 ? static_cast<int>(nearest(clamped(-offset / block.d_minimum, 0, kMostScale))) : 0;
  };
  float least = std::numeric_limits<float>::infinity();
  for (int tried = std::max(middle - 1, 0); tried <= std::min(middle + 1, static_cast<int>(kMostScale)); ++tried) {
    Affine grid{block.d * static_cast<float>(tried), wanted.offset};
    for (int round = 0; round < 2; ++round) {
      const int tried_minimum = minimum_of(grid.offset);
      grid.offset = -block.d_minimum * static_cast<float>(tried_minimum);
      const Sums sums = fit.sums_of(grid);
      const float error = fit.error_of(grid, sums);
      if (error < least) {
        least = error;
        scale = tried;
        minimum = tried_minimum;
      }
      grid.offset = std::min(fit.offset_for(grid.scale, sums), 0.0f);
    }
  }
}

// Writes d and d_minimum to the start of the block.
KCodes quantized_parts(const float* x, float most, std::byte* block) {
  Affine wanted[kParts];
  float largest = 0, lowest = 0;
  for (int part = 0; part < kParts; ++part) {
    wanted[part] = AffineFit(x + kPart * part, most).best();
    largest = std::max(largest, wanted[part].scale);
    lowest = std::min(lowest, wanted[part].offset);
  }
  KCodes out;
  out.d = put_half(block, 0, largest / kMostScale);
  out.d_minimum = put_half(block, 2, -lowest / kMostScale);
  for (int part = 0; part < kParts; ++part) {
    const float* values = x + kPart * part;
    choose_rounded(AffineFit(values, most), wanted[part], out, out.scales[part], out.minima[part]);
    const float scale = out.d * static_cast<float>(out.scales[part]);
    const float minimum = out.d_minimum * static_cast<float>(out.minima[part]);
    const float inverse = inverse_of(scale);
    for (int i = 0; i < kPart; ++i)
      out.codes[kPart * part + i] = static_cast<uint8_t>(clamped(nearest((values[i] + minimum) * inverse), 0.0f, most));
  }
  return out;
}

// Eight pairs of six bits in twelve bytes: k_scale_at reads them.
void put_k_scales(const KCodes& from, std::byte* to) {
  for (int j = 0; j < 4; ++j) {
    to[j] = static_cast<std::byte>(from.scales[j] | (from.scales[j + 4] >> 4) << 6);
    to[j + 4] = static_cast<std::byte>(from.minima[j] | (from.minima[j + 4] >> 4) << 6);
    to[j + 8] = static_cast<std::byte>((from.scales[j + 4] & 0xf) | (from.minima[j + 4] & 0xf) << 4);
  }
}

// Two successive runs of 32 share 32 bytes.
void put_low_nibbles(const uint8_t* codes, std::byte* to) {
  for (int half = 0; half < 4; ++half)
    for (int i = 0; i < 32; ++i)
      to[32 * half + i] = static_cast<std::byte>((codes[64 * half + i] & 0xf) | (codes[64 * half + 32 + i] & 0xf) << 4);
}

// --- scale alone: Q6_K ---------------------------------------------------------------------------------------------

constexpr int kSmallPart = 16, kSmallParts = 16;
constexpr float kLowest6 = -32, kHighest6 = 31;

Sums centred_sums(const float* x, float inverse) {
  Sums sums;
  for (int i = 0; i < kSmallPart; ++i) {
    const float code = clamped(nearest(x[i] * inverse), kLowest6, kHighest6);
    sums.cc += code * code;
    sums.cx += code * x[i];
  }
  return sums;
}

// Of either sign: the extreme value may take the code -32, which has no opposite.
float best_centred_scale(const float* x) {
  float extreme = 0;
  for (int i = 0; i < kSmallPart; ++i)
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  if (extreme == 0) return 0;
  float best = 0, most = 0;
  for (int step = -10; step <= 10; ++step) {
    float inverse = inverse_of(extreme / (kLowest6 + 0.12f * static_cast<float>(step)));
    for (int round = 0; round < 2; ++round) {
      const Sums sums = centred_sums(x, inverse);
      if (sums.cc <= 0 || sums.cx == 0) break;
      const float scale = sums.cx / sums.cc;
      // The error falls by this.
      if (scale * sums.cx > most) {
        most = scale * sums.cx;
        best = scale;
      }
      inverse = inverse_of(scale);
    }
  }
  return best;
}

int rounded_centred_scale(const float* x, float wanted, float d) {
  const int middle = static_cast<int>(nearest(clamped(wanted / d, -128, 127)));
  int best = 0;
  float least = 0;
  for (int tried = std::max(middle - 1, -128); tried <= std::min(middle + 1, 127); ++tried) {
    if (tried == 0) continue;
    const float scale = d * static_cast<float>(tried);
    const Sums sums = centred_sums(x, inverse_of(scale));
    const float error = scale * (scale * sums.cc - 2 * sums.cx);
    if (error < least) {
      least = error;
      best = tried;
    }
  }
  return best;
}

}  // namespace

void encode_q4_k(const float* values, int64_t count, std::byte* blocks) {
  for (int64_t b = 0; b < count; ++b, values += kSuperBlock, blocks += 144) {
    const KCodes parts = quantized_parts(values, 15, blocks);
    put_k_scales(parts, blocks + 4);
    put_low_nibbles(parts.codes, blocks + 16);
  }
}

void encode_q5_k(const float* values, int64_t count, std::byte* blocks) {
  for (int64_t b = 0; b < count; ++b, values += kSuperBlock, blocks += 176) {
    const KCodes parts = quantized_parts(values, 31, blocks);
    put_k_scales(parts, blocks + 4);
    for (int i = 0; i < 32; ++i) {
      int high = 0;
      for (int part = 0; part < kParts; ++part) high |= (parts.codes[32 * part + i] >> 4) << part;
      blocks[16 + i] = static_cast<std::byte>(high);
    }
    put_low_nibbles(parts.codes, blocks + 48);
  }
}

void encode_q6_k(const float* values, int64_t count, std::byte* blocks) {
  for (int64_t b = 0; b < count; ++b, values += kSuperBlock, blocks += 210) {
    std::memset(blocks, 0, 210);
    float wanted[kSmallParts], extreme = 0;
    for (int part = 0; part < kSmallParts; ++part) {
      wanted[part] = best_centred_scale(values + kSmallPart * part);
      if (std::fabs(wanted[part]) > std::fabs(extreme)) extreme = wanted[part];
    }
    const float d = put_half(blocks, 208, extreme / -128.0f);
    uint8_t codes[kSuperBlock];
    for (int part = 0; part < kSmallParts; ++part) {
      const float* x = values + kSmallPart * part;
      const int rounded = d != 0 && std::isfinite(d) ? rounded_centred_scale(x, wanted[part], d) : 0;
      put_word(blocks, 192 + part, static_cast<int8_t>(rounded));
      const float inverse = inverse_of(d * static_cast<float>(rounded));
      for (int i = 0; i < kSmallPart; ++i)
        codes[kSmallPart * part + i] =
            static_cast<uint8_t>(clamped(nearest(x[i] * inverse), kLowest6, kHighest6) - kLowest6);
    }
    for (int64_t i = 0; i < kSuperBlock; ++i) {
      blocks[i / 128 * 64 + i % 64] |= static_cast<std::byte>((codes[i] & 0xf) << (i / 64 % 2 * 4));
      blocks[128 + i / 128 * 32 + i % 32] |= static_cast<std::byte>((codes[i] >> 4) << (i / 32 % 4 * 2));
    }
  }
}

}  // namespace coluber
