// SPDX-License-Identifier: Apache-2.0
//
// Rules about the cache: blocks and bytes of a request, equal pages, granularities, checkpoints.
#include <array>

#include "cache/checkpoint_position.h"
#include "cache/kv_cache_groups.h"
#include "coluber/kv_cache_spec.h"
#include "apps/conformance/rules.h"

namespace coluber::conformance {
namespace {

Json optional_json(std::optional<int64_t> value) { return value ? Json(*value) : Json(); }

MambaCacheMode read_mode(const Input& input, std::string_view key) {
  const std::optional<MambaCacheMode> mode = parse_mamba_cache_mode(input.text(key));
  if (!mode) throw CaseError("the case's cache mode is none of none, all, align");
  return *mode;
}

Json max_blocks_per_request(const Input& input) {
  MambaSpec spec;
  spec.block_size = input.integer("block_size");
  spec.mamba_cache_mode = read_mode(input, "mamba_cache_mode");
  spec.num_speculative_blocks = input.integer("num_speculative_blocks");
  spec.num_prefill_checkpoint_blocks = input.integer("num_prefill_checkpoint_blocks", 0);
  spec.page_size_padded = input.integer("page_size_bytes");
  const int64_t max_model_len = input.integer("max_model_len");
  return Json(Json::Object{{"max_blocks_per_request", Json(spec.max_num_blocks_per_req(max_model_len))},
                           {"max_memory_usage_bytes", Json(spec.max_memory_usage_bytes(max_model_len))}});
}

Json unify(const Input& input) {
  UnifyPageSizeInput in;
  in.attention_bytes_per_token = input.integer("attention_bytes_per_token");
  in.mamba_page_bytes = input.integer("mamba_page_bytes");
  in.kernel_block_multiple = input.integer("kernel_block_multiple");
  in.block_size = input.integer("block_size");
  in.chunk_size = input.integer("chunk_size");
  in.mamba_cache_mode = read_mode(input, "mamba_cache_mode");
  in.user_mamba_block_size = input.optional_integer("user_mamba_block_size");
  in.prefill_checkpoint_alignment = input.optional_integer("prefill_checkpoint_alignment");
  const UnifiedPageSize out = unify_page_size(in);
  return Json(Json::Object{{"attention_block_size", Json(out.attention_block_size)},
                           {"mamba_block_size", optional_json(out.mamba_block_size)},
                           {"page_size_bytes", Json(out.page_size_bytes)},
                           {"mamba_page_size_padded", optional_json(out.mamba_page_size_padded)}});
}

Json block_sizes(const Input& input) {
  std::vector<GroupBlockSize> groups;
  for (const Json& entry : input.array("groups")) {
    const Input group(entry);
    const std::string kind = group.text("kind");
    if (kind != "attention" && kind != "mamba") throw CaseError("the kind of a group is neither attention nor mamba");
    GroupBlockSize size{kind == "mamba", group.integer("block_size"), MambaCacheMode::kNone};
    if (size.is_mamba) size.mamba_cache_mode = read_mode(group, "mode");
    groups.push_back(size);
  }
  BlockSizeOptions options;
  options.decode_context_parallel_size = input.integer("dcp", 1);
  options.enable_prefix_caching = input.boolean("prefix_caching", false);
  options.has_kv_connector = input.boolean("kv_connector", false);
  options.prefix_match_unit = input.optional_integer("prefix_match_unit");
  const BlockSizes sizes = resolve_block_sizes(groups, options);
  return Json(Json::Object{{"scheduler_block_size", Json(sizes.scheduler_block_size)},
                           {"hash_block_size", Json(sizes.hash_block_size)}});
}

Json checkpoint_position(const Input& input) {
  PrefillCheckpointRule rule;
  rule.hash_block_size = input.integer("hash_block_size");
  rule.block_size = input.integer("block_size");
  rule.alignment = input.optional_integer("alignment");
  rule.drop_last_block = input.boolean("drop_last_block", false);
  const PrefillCheckpoint checkpoint =
      prefill_checkpoint(input.integer("query_start"), input.integer("query_end"), rule);
  return Json(Json::Object{{"position", Json(checkpoint.position)},
                           {"valid", Json(checkpoint.valid)},
                           {"offset", Json(checkpoint.offset)},
                           {"column", Json(checkpoint.column)}});
}

}  // namespace

std::span<const NamedRule> cache_rules() {
  static constexpr std::array<NamedRule, 4> kRules = {{{"max_blocks_per_request", max_blocks_per_request},
                                                       {"unify_page_size", unify},
                                                       {"block_sizes", block_sizes},
                                                       {"prefill_checkpoint_position", checkpoint_position}}};
  return kRules;
}

}  // namespace coluber::conformance
