// SPDX-License-Identifier: Apache-2.0
//
// The reference of mLSTM: token by token, in double. Not for the main path.
#pragma once

#include "kernels/wkv/mlstm.h"

namespace coluber::ref {

void mlstm(const MlstmArgs& args, ThreadPool& pool, Workspace& workspace);

}  // namespace coluber::ref
