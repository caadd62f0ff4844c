// SPDX-License-Identifier: Apache-2.0
//
// The tensors of Inkling's first release ("model.llm.layers.0.attn.wq_du.weight") under the names of transformers, with
// rows of gates and of what they gate, which alternate there, apart. Owns what it has put in order until it is
// released; everything else is the source's own, which must live longer. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coluber/model.h"

namespace coluber {

class InklingFirstRelease final : public WeightSource {
 public:
  static bool is_it(const WeightSource& weights);
  explicit InklingFirstRelease(const WeightSource& weights);

  bool contains(std::string_view name) const override { return parts_.find(name) != parts_.end(); }
  TensorView get(std::string_view name) const override;
  TensorView peek(std::string_view name) const override;
  void release(const TensorView& view) const noexcept override;
  std::vector<std::string> names() const override;
  std::string describe() const override { return weights_.describe(); }

 private:
  enum class Rows { kAsStored, kApart, kGates, kGated };
  struct Part {
    std::string name;  // as stored
    Rows rows = Rows::kAsStored;
  };
  void enter(const std::string& name);
  const Part& part(std::string_view name) const;
  TensorView view_of(const Part& part, const TensorView& whole) const;

  const WeightSource& weights_;
  std::map<std::string, Part, std::less<>> parts_;
  mutable std::map<const std::byte*, std::vector<std::byte>> ordered_;
};

}  // namespace coluber
