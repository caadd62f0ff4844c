// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/lookup_rows.h"

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/op_registry.h"

namespace coluber {
namespace {

void lookup(const LookupRowsArgs& args, ThreadPool& pool) {
  COLUBER_CHECK(args.packed == nullptr || args.packed->k() == args.cols, "rows of {} columns of a weight of {}",
                args.cols, args.packed->k());
  const auto* table = static_cast<const std::byte*>(args.table);
  const int64_t row_bytes = args.packed == nullptr ? dtype_bytes(args.dtype, args.cols) : 0;
  pool.parallel_for(args.rows, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float* y = args.y + i * args.cols;
      if (args.packed != nullptr) {
        args.packed->unpack_row(args.ids[i], y);
      } else {
        convert_to_float(table + args.ids[i] * row_bytes, args.dtype, args.cols, y);
      }
    }
  });
}

}  // namespace

const Operation<LookupRowsFunction>& lookup_rows() {
  static const Operation<LookupRowsFunction> operation("lookup_rows", {{"loop", Isa::kRef, lookup}});
  return operation;
}

namespace {
const RegisterOperations kEntered(lookup_rows);
}

}  // namespace coluber
