// SPDX-License-Identifier: Apache-2.0
// RWKV-5.0 and 5.1, which have a decay and a bonus a head, and 5.0 no gate: the logits are those of the package `rwkv`
// (tests/data/rwkv5).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model_copy.h"

namespace coluber {
namespace {

// One head of 64 channels becomes four of 16, each with its first channel's value.
StoredTensor one_a_head(const StoredTensor& tensor) {
  const int64_t element = dtype_size(tensor.dtype);
  StoredTensor out{tensor.dtype, Shape{tensor.shape.count() / 16}, {}};
  for (int64_t i = 0; i < tensor.shape.count(); i += 16)
    out.bytes.insert(out.bytes.end(), tensor.bytes.begin() + i * element, tensor.bytes.begin() + (i + 1) * element);
  return out;
}

void make_older(ModelCopy& copy, bool gate, bool log_bonus) {
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, tensor] : copy.tensors()) {
    if (name.ends_with("att.gate.weight") || name.ends_with("att.time_mix_g")) {
      if (gate) tensors.emplace(name, tensor);
    } else if (name.ends_with("time_decay")) {
      tensors.emplace(name, one_a_head(tensor));
    } else if (name.ends_with("time_faaaa")) {
      const std::string scope = name.substr(0, name.size() - std::string("time_faaaa").size());
      tensors.emplace(log_bonus ? scope + "time_first" : name, one_a_head(tensor));
    } else {
      tensors.emplace(name, tensor);
    }
  }
  copy.tensors() = std::move(tensors);
}

TEST(OlderRwkv5, GivesTheLogitsOfThePackage) {
  const Json golden = read_json_file(std::string(COLUBER_SOURCE_DIR) + "/tests/data/rwkv5/rwkv5.json");
  std::vector<int32_t> ids;
  for (const Json& id : golden.at("ids").as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  for (const Json& model : golden.at("models").as_array()) {
    ModelCopy copy("rwkv5_2");
    make_older(copy, model.at("gate").as_bool(), model.at("log_bonus").as_bool());
    copy.write_all();
    const auto engine = Engine::load(copy.options());
    EXPECT_EQ(engine->model_info().architecture, "rwkv5");
    for (int64_t chunk : {17, 4, 1}) {
      const auto session = engine->open_session();
      session->extend(ids, chunk);
      const std::span<const float> got = session->last_logits();
      const Json::Array& want = model.at("logits").as_array();
      ASSERT_EQ(got.size(), want.size());
      double worst = 0;
      for (size_t i = 0; i < want.size(); ++i)
        worst = std::max(worst, std::isfinite(got[i]) ? std::fabs(got[i] - want[i].as_double()) : INFINITY);
      EXPECT_LE(worst, 1e-4) << model.at("version").dump() << ", chunks of " << chunk;
    }
  }
}

}  // namespace
}  // namespace coluber
