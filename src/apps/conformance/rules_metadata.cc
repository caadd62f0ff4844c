// SPDX-License-Identifier: Apache-2.0
//
// Rules about a step's batch: its order, its split, and what the builders make of it.
#include <algorithm>
#include <array>
#include <numeric>

#include "attention/batch_order.h"
#include "attention/mamba2_attention.h"
#include "attention/mamba_attention.h"
#include "coluber/linear_attention.h"
#include "apps/conformance/rules.h"
#include "tensor/device.h"

namespace coluber::conformance {
namespace {

// Rows of a case and the arrays that CommonAttentionMetadata borrows.
struct Batch {
  std::vector<int32_t> query_start_loc;
  std::vector<int32_t> seq_lens;
  std::vector<uint8_t> is_prefilling;
  std::vector<int32_t> table;
  int64_t table_rows = 0;
  CommonAttentionMetadata common;

  explicit Batch(const std::vector<int32_t>& query_lens) : query_start_loc(1, 0) {
    int64_t total = 0;
    for (const int32_t len : query_lens) {
      total += len;
      if (len < 0 || total > (int64_t{1} << 30))
        throw CaseError("the case's query lengths are no batch of at most 2^30 tokens");
      query_start_loc.push_back(static_cast<int32_t>(total));
      common.max_query_len = std::max<int64_t>(common.max_query_len, len);
    }
    seq_lens = query_lens;
    common.num_reqs = static_cast<int64_t>(query_lens.size());
    common.num_actual_tokens = total;
  }
  void read_table(const Input& input) {
    size_t cols = 0;
    for (const Json& row : input.array("block_table")) {
      if (!row.is_array() || (table_rows > 0 && row.as_array().size() != cols))
        throw CaseError("the case's 'block_table' is no table");
      cols = row.as_array().size();
      for (const Json& block : row.as_array()) table.push_back(static_cast<int32_t>(to_integer(block, "block_table")));
      ++table_rows;
    }
    common.block_table = {table.data(), table_rows, static_cast<int64_t>(cols), static_cast<int64_t>(cols)};
  }
  const CommonAttentionMetadata& view() {
    common.query_start_loc = query_start_loc;
    common.seq_lens = seq_lens;
    common.is_prefilling = is_prefilling;
    for (const int32_t len : seq_lens) common.max_seq_len = std::max<int64_t>(common.max_seq_len, len);
    return common;
  }
};

Json::Object split_json(int64_t decodes, int64_t prefills, int64_t decode_tokens, int64_t prefill_tokens) {
  return {{"num_decodes", Json(decodes)},
          {"num_prefills", Json(prefills)},
          {"num_decode_tokens", Json(decode_tokens)},
          {"num_prefill_tokens", Json(prefill_tokens)}};
}

Json split(const Input& input) {
  Batch batch(input.ints("query_lens"));
  batch.is_prefilling = input.flags("is_prefilling");
  batch.common.num_actual_tokens = input.integer("num_actual_tokens", batch.common.num_actual_tokens);
  SplitOptions options;
  options.decode_threshold = input.integer("decode_threshold");
  options.require_uniform = input.boolean("require_uniform", false);
  options.treat_short_extends_as_decodes = input.boolean("treat_short_extends_as_decodes", true);
  const BatchSplit result = split_decodes_and_prefills(batch.view(), options);
  return Json(split_json(result.num_decodes, result.num_prefills, result.num_decode_tokens, result.num_prefill_tokens));
}

Json linear_attention_metadata(const Input& input) {
  Batch batch(input.ints("query_lens"));
  batch.seq_lens = input.ints("seq_lens");
  batch.read_table(input);
  batch.common.num_actual_tokens = input.integer("num_actual_tokens", batch.common.num_actual_tokens);
  const std::string kind = input.text("spec", "mamba");
  if (kind != "mamba" && kind != "full_attention")
    throw CaseError("the case's 'spec' is neither mamba nor full_attention");
  MambaSpec mamba;
  mamba.block_size = 1 << 20;
  mamba.mamba_type = MambaAttentionBackendEnum::kLinear;
  const KVCacheSpec spec = kind == "mamba" ? KVCacheSpec(mamba) : KVCacheSpec(FullAttentionSpec{});
  const EngineConfig config;
  LinearAttentionMetadataBuilder builder(spec, {"layer"}, config, cpu_device());
  const LinearAttentionMetadata& result = builder.build(0, batch.view());
  Json::Object object =
      split_json(result.num_decodes, result.num_prefills, result.num_decode_tokens, result.num_prefill_tokens);
  object.emplace_back("query_start_loc", to_json(result.query_start_loc));
  object.emplace_back("seq_lens", to_json(result.seq_lens));
  object.emplace_back("state_indices", to_json(result.state_indices_tensor));
  return Json(std::move(object));
}

Json reorder_batch(const Input& input) {
  std::vector<ScheduledRow> rows;
  for (const Json& entry : input.array("requests")) {
    if (!entry.is_array() || entry.as_array().size() != 3)
      throw CaseError("a row of 'requests' is no [scheduled, computed, prompt]");
    const Json::Array& row = entry.as_array();
    rows.push_back({to_integer(row[0], "requests"), to_integer(row[1], "requests"), to_integer(row[2], "requests")});
  }
  std::vector<int32_t> order;
  const bool modified = reorder_batch_to_split_decodes_and_prefills(rows, input.integer("decode_threshold"), order);
  return Json(Json::Object{{"order", to_json(order)}, {"modified", Json(modified)}});
}

Json align_state_indices(const Input& input) {
  const std::vector<int32_t> seq_lens = input.ints("seq_lens");
  Batch batch{std::vector<int32_t>(seq_lens.size(), 0)};
  batch.read_table(input);
  std::vector<int32_t> storage;
  const BlockTableView states =
      mamba_get_block_table_tensor(batch.common.block_table, seq_lens, input.integer("block_size"),
                                   input.integer("num_speculative_blocks", 0), MambaCacheMode::kAlign, storage);
  Json::Array rows;
  for (int64_t row = 0; row < states.rows; ++row) {
    std::vector<int32_t> blocks;
    for (int64_t col = 0; col < states.cols; ++col) blocks.push_back(states.at(row, col));
    rows.push_back(to_json(blocks));
  }
  return Json(Json::Object{{"state_indices", Json(std::move(rows))}});
}

Json causal_conv1d_metadata(const Input& input) {
  const Batch batch(input.ints("query_lens"));
  CausalConv1dMetadata result;
  compute_causal_conv1d_metadata(batch.query_start_loc, result);
  return Json(Json::Object{{"programs_per_sequence", to_json(result.programs_per_sequence)},
                           {"sequence_of_program", to_json(result.sequence_of_program)},
                           {"chunk_of_program", to_json(result.chunk_of_program)}});
}

Json chunk_metadata(const Input& input) {
  ChunkMetadata result;
  compute_chunk_metadata(input.integer("chunk_size"), input.ints("num_computed"), input.ints("num_new"),
                         input.has("checkpoint_offsets") ? input.ints("checkpoint_offsets") : std::vector<int32_t>{},
                         result);
  return Json(Json::Object{{"cu_chunk_seqlen", to_json(result.cu_chunk_seqlen)},
                           {"seq_idx", to_json(result.seq_idx)},
                           {"last_chunk_indices", to_json(result.last_chunk_indices)},
                           {"checkpoint_chunk_indices", to_json(result.checkpoint_chunk_indices)}});
}

Json replay_positions(const Input& input) {
  const std::optional<MambaCacheMode> mode = parse_mamba_cache_mode(input.text("mamba_cache_mode"));
  if (!mode) throw CaseError("the case's 'mamba_cache_mode' is none of none, all, align");
  std::vector<int32_t> write_pos;
  std::vector<uint8_t> is_flush;
  compute_replay_positions(input.ints("seq_lens"), input.ints("query_lens"), input.ints("decode_base"),
                           {input.integer("buffer_len"), *mode, input.integer("block_size")}, write_pos, is_flush);
  return Json(Json::Object{{"write_pos", to_json(write_pos)}, {"is_flush", to_json(is_flush)}});
}

}  // namespace

std::span<const NamedRule> metadata_rules() {
  static constexpr std::array<NamedRule, 7> kRules = {{{"split_decodes_and_prefills", split},
                                                       {"linear_attention_metadata", linear_attention_metadata},
                                                       {"reorder_batch", reorder_batch},
                                                       {"align_state_indices", align_state_indices},
                                                       {"causal_conv1d_metadata", causal_conv1d_metadata},
                                                       {"chunk_metadata", chunk_metadata},
                                                       {"replay_positions", replay_positions}}};
  return kRules;
}

}  // namespace coluber::conformance
