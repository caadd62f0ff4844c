// SPDX-License-Identifier: Apache-2.0
//
// What llama.cpp's converter makes of a checkpoint, as data: by architecture, its tensors' names on both sides and what
// was done to shape, values and rows between. GgufWeights reads in one direction; each step can be taken backwards,
// too. The only code here makes a config.json from the metadata. The tables are constant: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf_file.h"

namespace coluber {

// "Ours" is the tensor that a checkpoint of Hugging Face has, "stored" the one in the file. Of one dimension each
// element is a row; else the last dimension is.
enum class GgufShape {
  kAsStored,
  kFlat,     // ours [n]
  kConv,     // ours [C, 1, W]
  kPerHead,  // ours [1, 1, n, 1]
  kRow,      // ours [1, n]
  kLast,     // ours [1, 1, n]
};

enum class GgufValues {
  kAsStored,
  kLogOfMinus,  // stored -exp(x)
  kMinusOne,    // stored x + 1
  kRescaled     // stored x / 2^(layer / rescale_every)
};

enum class GgufRows {
  kAll,
  kPart,            // ours is part `part` of `parts` equal runs
  kAppended,        // ours is this behind what the rules before it gave under the same name
  kExperts,         // stored [E, N, K]: ours, "{}" in its name standing for the expert, is part `part` of its N
  kQueryPairs,      // in each head, ours i and i + dim / 2 are stored as neighbours
  kKeyPairs,        // the same with the heads of keys
  kPartOfKeyHeads,  // ours is part `part` of `parts` of the rows of each key head
  kTiledHeads,      // a row a value head; ours has those of a key head together, stored one of each key head in turn
  kTiledRows,       // head_v_dim rows a value head
  kTiledTail,       // the same behind the rows of the queries and keys
  kTiledColumns,    // the same of columns
  kTransposed,      // the last two dimensions
  kLatentKeys,      // stored [H, R, N]: the first N of the rows [R] of each head, turned
  kLatentValues     // stored [H, V, R]: the V behind them
};

struct GgufTensorRule {
  std::string_view stored;  // behind "blk.N.", or a whole name
  std::string_view name;    // behind the layer's prefix, or a whole name; empty: known and not needed
  GgufShape shape = GgufShape::kAsStored;
  GgufValues values = GgufValues::kAsStored;
  GgufRows rows = GgufRows::kAll;
  int part = 0, parts = 1;
  std::string_view beside = {};     // only in layers that store this, too; empty: in all
  bool not_in_first_layer = false;  // stored there and not needed
};

// What rules ask for; 0 where the metadata does not say.
struct GgufSizes {
  int64_t num_layers = 0;  // without those behind that predict further tokens
  int64_t num_heads = 0, num_kv_heads = 0;
  int64_t num_k_heads = 0, num_v_heads = 0, head_k_dim = 0, head_v_dim = 0;  // of linear attention
  int64_t rescale_every = 0;
};

struct GgufArchitecture {
  std::string_view name;          // general.architecture
  std::string_view layer_prefix;  // "model.layers."
  std::vector<GgufTensorRule> whole, layer;
  std::string (*config)(const GgufFile& file);      // text of config.json
  bool (*applies)(const GgufFile& file) = nullptr;  // of several rows with one name; null: always
};

// All rows, several with one name where files of it differ.
const std::vector<GgufArchitecture>& gguf_architectures();
// Throws Error(kUnsupported) naming the known ones.
const GgufArchitecture& gguf_architecture(const GgufFile& file);
GgufSizes gguf_sizes(const GgufFile& file);

// The groups of rows, for gguf_architectures().
std::vector<GgufArchitecture> gguf_mamba_architectures();
std::vector<GgufArchitecture> gguf_hybrid_architectures();
std::vector<GgufArchitecture> gguf_delta_architectures();
std::vector<GgufArchitecture> gguf_rwkv_architectures();

}  // namespace coluber
