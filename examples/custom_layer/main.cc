// SPDX-License-Identifier: Apache-2.0
//
// tide_check FOLDER: writes a tide checkpoint of random weights into FOLDER, loads it as any model is loaded, and
// checks that chunks, company and recycled slots do not change what the model says. Prints what the engine knows about
// the layers.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "coluber/engine.h"
#include "coluber/mamba_base.h"
#include "coluber/session.h"
#include "tide_layer.h"

namespace {

constexpr int64_t kVocab = 64;
constexpr int64_t kHidden = 24;
constexpr int64_t kLayers = 2;

// safetensors: a length, a JSON header, the bytes.
class CheckpointWriter {
 public:
  void add(const std::string& name, const std::string& shape, int64_t count, float low, float high) {
    header_ += std::string(header_.empty() ? "{" : ",") + "\"" + name + "\":{\"dtype\":\"F32\",\"shape\":" + shape +
               ",\"data_offsets\":[" + std::to_string(values_.size() * 4) + "," +
               std::to_string((values_.size() + static_cast<size_t>(count)) * 4) + "]}";
    for (int64_t i = 0; i < count; ++i) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      values_.push_back(low + (high - low) * static_cast<float>(state_ >> 40) / static_cast<float>(1 << 24));
    }
  }
  void write(const std::filesystem::path& file) {
    std::string header = header_ + "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t length = header.size();
    std::ofstream out(file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), 8);
    out.write(header.data(), static_cast<std::streamsize>(header.size()));
    out.write(reinterpret_cast<const char*>(values_.data()), static_cast<std::streamsize>(values_.size() * 4));
    if (!out.flush()) throw std::runtime_error("cannot write " + file.string());
  }

 private:
  std::string header_;
  std::vector<float> values_;
  uint64_t state_ = 7;
};

void write_checkpoint(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json")
      << "{\"model_type\": \"tide\", \"architectures\": [\"TideForCausalLM\"], \"vocab_size\": " << kVocab << "}\n";
  const std::string hidden = "[" + std::to_string(kHidden) + "]";
  CheckpointWriter writer;
  writer.add("embedding", "[" + std::to_string(kVocab) + "," + std::to_string(kHidden) + "]", kVocab * kHidden, -1.0f,
             1.0f);
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string prefix = "layers." + std::to_string(i) + ".";
    writer.add(prefix + "gate_weight", hidden, kHidden, -2.0f, 2.0f);
    writer.add(prefix + "gate_bias", hidden, kHidden, -1.0f, 1.0f);
    writer.add(prefix + "decay", hidden, kHidden, 0.2f, 0.98f);
    writer.add(prefix + "table",
               "[" + std::to_string(tide::TideLayer::kTableRows) + "," + std::to_string(kHidden) + "]",
               tide::TideLayer::kTableRows * kHidden, -0.7f, 0.7f);
  }
  writer.write(folder / "model.safetensors");
}

int failures = 0;
void check(bool holds, const char* what) {
  std::printf("%s  %s\n", holds ? "ok  " : "FAIL", what);
  failures += holds ? 0 : 1;
}

void print_layers(const coluber::Engine& engine) {
  std::printf("%-16s %-6s %-7s %-12s %10s  %s\n", "layer", "kind", "type", "backend", "page bytes", "states");
  for (const coluber::LayerInfo& layer : engine.model_info().layers) {
    const auto& recurrent = dynamic_cast<const coluber::MambaBase&>(*layer.cache);
    const auto spec = std::get<coluber::MambaSpec>(recurrent.get_kv_cache_spec(engine.config()));
    std::string states;
    for (size_t i = 0; i < spec.shapes.size(); ++i)
      states +=
          (i > 0 ? ", " : "") + spec.shapes[i].to_string() + " " + std::string(coluber::dtype_name(spec.dtypes[i]));
    std::printf("%-16s %-6s %-7s %-12s %10lld  %s\n", layer.name.c_str(), layer.kind.c_str(),
                std::string(coluber::mamba_type_name(recurrent.mamba_type())).c_str(),
                std::string(recurrent.get_attn_backend().name()).c_str(),
                static_cast<long long>(spec.page_size_bytes()), states.c_str());
  }
}

std::vector<float> logits_in_chunks(coluber::Engine& engine, const std::vector<int32_t>& prompt, int64_t chunk) {
  std::vector<float> all;
  const auto session = engine.open_session();
  session->extend(prompt, chunk,
                  [&](const float* logits, int64_t rows) { all.insert(all.end(), logits, logits + rows * kVocab); });
  return all;
}

coluber::Request greedy(const std::vector<int32_t>& prompt) {
  coluber::Request request;
  request.prompt_ids = prompt;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 20;
  request.sampling.ignore_eos = true;
  return request;
}

// Token ids of each prompt, all in flight together.
std::vector<std::vector<int32_t>> generate(coluber::Engine& engine, const std::vector<std::vector<int32_t>>& prompts) {
  std::vector<coluber::RequestId> ids;
  for (const auto& prompt : prompts) ids.push_back(engine.add_request(greedy(prompt)));
  std::vector<std::vector<int32_t>> result(prompts.size());
  while (engine.has_unfinished_requests())
    for (const coluber::RequestOutput& output : engine.step())
      for (size_t i = 0; i < ids.size(); ++i)
        if (output.id == ids[i])
          for (const coluber::TokenOutput& token : output.tokens) result[i].push_back(token.id);
  return result;
}

int run(const std::filesystem::path& folder) {
  write_checkpoint(folder);
  coluber::EngineOptions options;
  options.model = folder.string();
  options.num_threads = 1;
  options.max_model_len = 256;
  options.poison_pools = true;  // pages begin as NaN: a layer that reads before it wrote would show
  const auto engine = coluber::Engine::load(options);
  print_layers(*engine);

  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 41; ++i) prompt.push_back(i * i % kVocab);
  const std::vector<int32_t> other{5, 4, 3};
  const std::vector<float> whole = logits_in_chunks(*engine, prompt, 0);
  check(whole.size() == prompt.size() * kVocab, "a logit for every token of the prompt");
  for (const int64_t chunk : {1, 2, 7, 64})
    check(logits_in_chunks(*engine, prompt, chunk) == whole,
          ("the same bits in chunks of " + std::to_string(chunk)).c_str());

  const std::vector<int32_t> first = generate(*engine, {prompt})[0];
  const std::vector<int32_t> second = generate(*engine, {other})[0];
  check(first.size() == 20 && second.size() == 20, "twenty tokens each");
  check(first != second, "the prompt matters");
  check(generate(*engine, {prompt, other}) == std::vector<std::vector<int32_t>>{first, second},
        "company changes nothing");
  check(generate(*engine, {prompt})[0] == first, "a recycled slot is as good as a new one");
  const auto session = engine->open_session();
  session->extend(other);
  const coluber::SessionCheckpoint checkpoint = session->checkpoint();
  const std::vector<float> before(session->last_logits().begin(), session->last_logits().end());
  session->extend(prompt);
  session->rollback(checkpoint);
  session->extend(std::vector<int32_t>{9});
  const auto fresh = engine->open_session();
  fresh->extend(std::vector<int32_t>{5, 4, 3, 9});
  check(std::vector<float>(session->last_logits().begin(), session->last_logits().end()) ==
            std::vector<float>(fresh->last_logits().begin(), fresh->last_logits().end()),
        "going back to a checkpoint forgets what came after");
  check(before != std::vector<float>(fresh->last_logits().begin(), fresh->last_logits().end()),
        "and each token counts");
  std::printf("%s\n", failures == 0 ? "all checks passed" : "some checks failed");
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: tide_check FOLDER\nWrites a checkpoint into FOLDER, runs it and checks it.\n");
    return 2;
  }
  try {
    return run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tide_check: %s\n", error.what());
    return 1;
  }
}
