// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/norm.h"

#include "base/error.h"
#include "kernels/norm/norm_cpu.h"
#include "kernels/op_registry.h"

namespace coluber {
namespace {

void check(const RmsNormArgs& args) {
  COLUBER_CHECK(args.rows >= 0 && args.cols > 0, "norm of {} rows of {} columns", args.rows, args.cols);
  COLUBER_CHECK(args.rows == 0 || (args.x != nullptr && args.y != nullptr), "norm of {} rows without x or y",
                args.rows);
}
void check(const LayerNormArgs& args) { check(args.norm); }
void check(const GatedRmsNormArgs& args) {
  check(args.norm);
  COLUBER_CHECK(args.norm.rows == 0 || args.z != nullptr, "gated norm without a gate");
  COLUBER_CHECK(args.groups > 0 && args.norm.cols % args.groups == 0, "{} columns in {} groups", args.norm.cols,
                args.groups);
}

template <const NormFunctions& kTier, auto kMember, typename Args>
void checked(const Args& args, ThreadPool& pool) {
  check(args);
  (kTier.*kMember)(args, pool);
}

template <auto kMember, typename Args>
Operation<void (*)(const Args&, ThreadPool&)> make_operation(const char* name) {
  return {name,
          {{"avx512", Isa::kAvx512, checked<kNormAvx512, kMember, Args>},
           {"avx2", Isa::kAvx2, checked<kNormAvx2, kMember, Args>},
           {"ref", Isa::kRef, checked<kNormRef, kMember, Args>}}};
}

}  // namespace

const Operation<RmsNormFunction>& rms_norm() {
  static const auto operation = make_operation<&NormFunctions::rms_norm, RmsNormArgs>("rms_norm");
  return operation;
}
const Operation<GatedRmsNormFunction>& gate_then_rms_norm() {
  static const auto operation =
      make_operation<&NormFunctions::gate_then_rms_norm, GatedRmsNormArgs>("gate_then_rms_norm");
  return operation;
}
const Operation<GatedRmsNormFunction>& rms_norm_then_gate() {
  static const auto operation =
      make_operation<&NormFunctions::rms_norm_then_gate, GatedRmsNormArgs>("rms_norm_then_gate");
  return operation;
}
const Operation<LayerNormFunction>& layer_norm() {
  static const auto operation = make_operation<&NormFunctions::layer_norm, LayerNormArgs>("layer_norm");
  return operation;
}

namespace {
const RegisterOperations kEntered(rms_norm, gate_then_rms_norm, rms_norm_then_gate, layer_norm);
}

}  // namespace coluber
