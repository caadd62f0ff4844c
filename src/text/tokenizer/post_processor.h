// SPDX-License-Identifier: Apache-2.0
//
// The "post_processor" of a tokenizer.json, as far as it changes the ids of a single text: special tokens around it.
// Immutable after loading, thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "text/tokenizer/component.h"

namespace coluber {

class PostProcessor {
 public:
  // Adds what `component` says behind what is there.
  void load(const Component& component, int depth = 0);
  void set_bos_eos(std::vector<int32_t> before, std::vector<int32_t> after);
  // `ids` from `start` on are the text's; puts the special tokens around them. `special` false: only what a template
  // does with the text itself.
  void apply(size_t start, bool special, std::vector<int32_t>& ids) const;

 private:
  // One template: special ids, and the text where `is_text`.
  struct Part {
    bool is_text = false;
    std::vector<int32_t> ids;
  };
  void load_template(const Component& component);
  void load_pair(const Component& component);
  std::vector<std::vector<Part>> templates_;
};

}  // namespace coluber
