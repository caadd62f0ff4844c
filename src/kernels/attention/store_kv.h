// SPDX-License-Identifier: Apache-2.0
//
// Writes the step's keys and values into their pages: row t goes to page slot_mapping[t] / block_size, place
// slot_mapping[t] % block_size; a negative slot writes nothing. Rounds to the pages' dtype, to nearest even; every
// candidate gives the same bits. Rows of int8 and float8_e4m3fn get their scale. The page layout is in
// paged_attention.h. Two rows never share a slot.
#pragma once

#include <cstdint>

#include "kernels/attention/paged_attention.h"

namespace coluber {

struct StoreKvArgs {
  const float* k = nullptr;  // [T, Hkv, D], token stride k_stride
  int64_t k_stride = 0;
  const float* v = nullptr;  // [T, Hkv, D], token stride v_stride; not read where the pages have shared values
  int64_t v_stride = 0;
  int64_t num_tokens = 0;
  const int64_t* slot_mapping = nullptr;  // [T]
  KvPages kv;
};

using StoreKvFunction = void (*)(const StoreKvArgs& args, ThreadPool& pool);
const Operation<StoreKvFunction>& store_kv();

void store_kv_ref(const StoreKvArgs& args, ThreadPool& pool);

}  // namespace coluber
