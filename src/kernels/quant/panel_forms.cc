// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/quant/block_decoders.h"
#include "kernels/quant/lattices.h"
#include "kernels/quant/panel_form.h"
#include "kernels/simd/nibble_table.h"
#include "kernels/simd/transpose_units.h"

namespace coluber {
namespace {

template <ScaledCode kCode>
const NibbleTable& nibble_table() {
  static const NibbleTable kTable = [] {
    NibbleTable table;
    std::memcpy(table.values, scaled_code_values(kCode), sizeof table.values);
    for (int i = 0; i < 64; ++i) {
      const auto bits = std::bit_cast<uint32_t>(table.values[i / 4]);
      table.bytes[i % 4][i / 4] = static_cast<uint8_t>(bits >> (8 * (i % 4)));
    }
    return table;
  }();
  return kTable;
}

}  // namespace
}  // namespace coluber

#define COLUBER_SIMD_SOURCE "kernels/quant/panel_codes_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {
namespace {

// Calls act(offset of a unit in a block, its bytes) in order.
template <typename Act>
void each_unit(const PanelForm& form, Act act) {
  int64_t offset = 0;
  for (const PanelForm::Units& units : form.units) {
    for (int64_t i = 0; i < units.count; ++i, offset += units.bytes) act(offset, units.bytes);
  }
}

bool regular_mxfp4(const std::byte* blocks, int64_t count) {
  for (int64_t b = 0; b < count; ++b, blocks += 17) {
    if (byte_at(blocks, 0) >= kLeastMxfp4Exponent) continue;
    for (int64_t i = 0; i < 16; ++i)
      if ((byte_at(blocks, 1 + i) & 0x77) != 0) return false;
  }
  return true;
}

// So far from the ends of float32 that a power of two more or less loses nothing.
bool regular_scale(float scale) { return scale == 0.0f || (std::fabs(scale) > 0x1p-90f && std::fabs(scale) < 0x1p90f); }

template <ScaledCode kCode>
bool regular_scaled(const std::byte* blocks, int64_t count, int64_t group) {
  const int64_t bytes = scaled_block_bytes({kCode, group});
  for (int64_t b = 0; b < count; ++b, blocks += bytes) {
    if (!regular_scale(word_at<float>(blocks, 0))) return false;
    // A difference that a signed byte holds.
    if (kCode == ScaledCode::kUInt4 && byte_at(blocks, 4) > 128) return false;
    if constexpr (kCode == ScaledCode::kFloat8E4M3) {
      int64_t nans = 0;
      for (int64_t i = 0; i < group; ++i) nans += (byte_at(blocks, 4 + i) & 0x7f) == 0x7f ? 1 : 0;
      if (nans > 0) return false;
    }
  }
  return true;
}

template <ScaledCode kCode, int64_t kGroup>
bool regular_group(const std::byte* blocks, int64_t count) {
  return regular_scaled<kCode>(blocks, count, kGroup);
}

template <ScaledCode kCode>
constexpr std::array<PanelForm::Units, 4> scaled_units(int64_t group) {
  constexpr bool kSingle = kCode == ScaledCode::kFloat8E4M3 || kCode == ScaledCode::kFloat8E5M2;
  const int64_t bytes = group * scaled_code_bits(kCode) / 8;
  return {{{4, 1}, {1, scaled_code_has_zero(kCode) ? 1 : 0}, {kSingle ? 1 : 4, kSingle ? bytes : bytes / 4}}};
}

template <ScaledCode kCode, int64_t kGroup>
constexpr PanelForm scaled_form(PanelFunctions avx2, PanelFunctions avx512) {
  constexpr bool kAny = kCode == ScaledCode::kNf4 || kCode == ScaledCode::kFp4 || kCode == ScaledCode::kFloat8E5M2;
  return {scaled_units<kCode>(kGroup), avx2, avx512, kAny ? nullptr : regular_group<kCode, kGroup>};
}

using FormsOfCode = std::array<PanelForm, 4>;  // groups of 16, 32, 64, 128
template <ScaledCode kCode>
constexpr FormsOfCode forms_of(PanelFunctions avx2, PanelFunctions avx512) {
  return {scaled_form<kCode, 16>(avx2, avx512), scaled_form<kCode, 32>(avx2, avx512),
          scaled_form<kCode, 64>(avx2, avx512), scaled_form<kCode, 128>(avx2, avx512)};
}

constexpr std::array<FormsOfCode, kNumScaledCodes> kScaledForms = {
    forms_of<ScaledCode::kFloat8E4M3>(avx2::functions_of<avx2::CodeE4M3>(), avx512::functions_of<avx512::CodeE4M3>()),
    forms_of<ScaledCode::kFloat8E5M2>(avx2::functions_of<avx2::CodeE5M2>(), avx512::functions_of<avx512::CodeE5M2>()),
    forms_of<ScaledCode::kInt8>(avx2::functions_of<avx2::CodeInt8>(), avx512::functions_of<avx512::CodeInt8>()),
    forms_of<ScaledCode::kUInt8>(avx2::functions_of<avx2::CodeUInt8>(), avx512::functions_of<avx512::CodeUInt8>()),
    forms_of<ScaledCode::kInt4>(avx2::functions_of<avx2::CodeInt4>(), avx512::functions_of<avx512::CodeInt4>()),
    forms_of<ScaledCode::kUInt4>(avx2::functions_of<avx2::CodeUInt4>(), avx512::functions_of<avx512::CodeUInt4>()),
    forms_of<ScaledCode::kNf4>(avx2::functions_of<avx2::CodeTable<ScaledCode::kNf4>>(),
                               avx512::functions_of<avx512::CodeTable<ScaledCode::kNf4>>()),
    forms_of<ScaledCode::kFp4>(avx2::functions_of<avx2::CodeTable<ScaledCode::kFp4>>(),
                               avx512::functions_of<avx512::CodeTable<ScaledCode::kFp4>>()),
    forms_of<ScaledCode::kFloat4E2M1>(avx2::functions_of<avx2::CodeE2M1>(), avx512::functions_of<avx512::CodeE2M1>())};

struct Named {
  std::string_view name;
  PanelForm form;
};
constexpr Named kForms[] = {
    {"Q4_0", {{{{2, 1}, {4, 4}}}, avx2::functions_of<avx2::CodeQ40>(), avx512::functions_of<avx512::CodeQ40>()}},
    {"Q4_1", {{{{2, 2}, {4, 4}}}, avx2::functions_of<avx2::CodeQ41>(), avx512::functions_of<avx512::CodeQ41>()}},
    {"Q5_0", {{{{2, 1}, {4, 5}}}, avx2::functions_of<avx2::CodeQ50>(), avx512::functions_of<avx512::CodeQ50>()}},
    {"Q5_1", {{{{2, 2}, {4, 5}}}, avx2::functions_of<avx2::CodeQ51>(), avx512::functions_of<avx512::CodeQ51>()}},
    {"Q8_0", {{{{2, 1}, {4, 8}}}, avx2::functions_of<avx2::CodeQ80>(), avx512::functions_of<avx512::CodeQ80>()}},
    {"Q2_K", {{{{4, 20}, {2, 2}}}, avx2::functions_of<avx2::CodeQ2K>(), avx512::functions_of<avx512::CodeQ2K>()}},
    {"Q3_K", {{{{4, 27}, {2, 1}}}, avx2::functions_of<avx2::CodeQ3K>(), avx512::functions_of<avx512::CodeQ3K>()}},
    {"Q4_K", {{{{2, 2}, {4, 35}}}, avx2::functions_of<avx2::CodeQ4K>(), avx512::functions_of<avx512::CodeQ4K>()}},
    {"Q5_K", {{{{2, 2}, {4, 43}}}, avx2::functions_of<avx2::CodeQ5K>(), avx512::functions_of<avx512::CodeQ5K>()}},
    {"Q6_K", {{{{4, 52}, {2, 1}}}, avx2::functions_of<avx2::CodeQ6K>(), avx512::functions_of<avx512::CodeQ6K>()}},
    {"IQ4_NL", {{{{2, 1}, {4, 4}}}, avx2::functions_of<avx2::CodeIq4Nl>(), avx512::functions_of<avx512::CodeIq4Nl>()}},
    {"IQ4_XS", {{{{2, 2}, {4, 33}}}, avx2::functions_of<avx2::CodeIq4Xs>(), avx512::functions_of<avx512::CodeIq4Xs>()}},
    {"IQ1_S",
     {{{{2, 1}, {4, 8}, {2, 8}}}, avx2::functions_of<avx2::CodeIq1S>(), avx512::functions_of<avx512::CodeIq1S>()}},
    {"IQ1_M",
     {{{{4, 8}, {2, 8}, {2, 4}}}, avx2::functions_of<avx2::CodeIq1M>(), avx512::functions_of<avx512::CodeIq1M>()}},
    {"IQ2_XXS",
     {{{{2, 1}, {4, 16}}}, avx2::functions_of<avx2::CodeIq2Xxs>(), avx512::functions_of<avx512::CodeIq2Xxs>()}},
    {"IQ2_XS", {{{{2, 1}, {4, 18}}}, avx2::functions_of<avx2::CodeIq2Xs>(), avx512::functions_of<avx512::CodeIq2Xs>()}},
    {"IQ2_S", {{{{2, 1}, {4, 20}}}, avx2::functions_of<avx2::CodeIq2S>(), avx512::functions_of<avx512::CodeIq2S>()}},
    {"IQ3_XXS",
     {{{{2, 1}, {4, 24}}}, avx2::functions_of<avx2::CodeIq3Xxs>(), avx512::functions_of<avx512::CodeIq3Xxs>()}},
    {"IQ3_S", {{{{2, 1}, {4, 27}}}, avx2::functions_of<avx2::CodeIq3S>(), avx512::functions_of<avx512::CodeIq3S>()}},
    {"TQ2_0", {{{{4, 16}, {2, 1}}}, avx2::functions_of<avx2::CodeTq20>(), avx512::functions_of<avx512::CodeTq20>()}},
    {"MXFP4",
     {{{{1, 1}, {4, 4}}},
      avx2::functions_of<avx2::CodeMxfp4>(),
      avx512::functions_of<avx512::CodeMxfp4>(),
      regular_mxfp4}},
};

}  // namespace

void put_into_group(const PanelForm& form, const std::byte* block, int64_t lane, std::byte* group) {
  each_unit(form, [&](int64_t offset, int64_t bytes) {
    std::byte* to = group + PanelForm::kRows * offset + lane * bytes;
    // Lengths that the compiler knows: a call each would bound the speed of loading.
    if (bytes == 4) {
      std::memcpy(to, block + offset, 4);
    } else if (bytes == 2) {
      std::memcpy(to, block + offset, 2);
    } else {
      *to = block[offset];
    }
  });
}

namespace {

// `count` units at `from` of each of kRows rows to `to`, unit by unit.
template <typename Unit>
void put_units(const std::byte* from, int64_t row_stride, int64_t count, std::byte* to) {
  using Square = UnitSquare<Unit>;
  constexpr int64_t kBytes = sizeof(Unit), kColumn = PanelForm::kRows * kBytes;
  if (count < Square::kSide) {
    for (int64_t i = 0; i < count; ++i, from += kBytes, to += kColumn)
      for (int64_t r = 0; r < PanelForm::kRows; ++r) std::memcpy(to + r * kBytes, from + r * row_stride, kBytes);
    return;
  }
  for (int64_t i = 0; i < count; i += Square::kSide) {
    const int64_t at = std::min(i, count - Square::kSide);  // the last square overlaps the one before
    for (int64_t r = 0; r < PanelForm::kRows; r += Square::kSide)
      Square::transpose(from + r * row_stride + at * kBytes, row_stride, to + at * kColumn + r * kBytes, kColumn);
  }
}

}  // namespace

void put_into_groups(const PanelForm& form, const RowsOfBlocks& rows, std::byte* groups, int64_t group_stride) {
  const std::byte* from = rows.first;
  for (int64_t b = 0; b < rows.count; ++b, groups += group_stride) {
    std::byte* to = groups;
    for (const PanelForm::Units& units : form.units) {
      if (units.bytes == 4) {
        put_units<uint32_t>(from, rows.row_stride, units.count, to);
      } else if (units.bytes == 2) {
        put_units<uint16_t>(from, rows.row_stride, units.count, to);
      } else {
        put_units<uint8_t>(from, rows.row_stride, units.count, to);
      }
      from += units.bytes * units.count;
      to += units.bytes * units.count * PanelForm::kRows;
    }
  }
}

void take_from_group(const PanelForm& form, const std::byte* group, int64_t lane, std::byte* block) {
  each_unit(form, [&](int64_t offset, int64_t bytes) {
    std::memcpy(block + offset, group + PanelForm::kRows * offset + lane * bytes, static_cast<size_t>(bytes));
  });
}

const PanelForm* ggml_panel_form(std::string_view ggml_name) {
  for (const Named& named : kForms) {
    if (named.name == ggml_name) return &named.form;
  }
  return nullptr;
}

const PanelForm* scaled_panel_form(const ScaledType& type) {
  const int index = std::countr_zero(static_cast<uint64_t>(type.group)) - 4;
  return &kScaledForms[static_cast<size_t>(type.code)][static_cast<size_t>(index)];
}

}  // namespace coluber
