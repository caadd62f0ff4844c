// SPDX-License-Identifier: Apache-2.0
//
// Many answers at once from an engine with a thread of its own: text as it comes, a constraint on what may be said, and
// an end from another thread.
#include <atomic>
#include <chrono>
#include <exception>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coluber/async_engine.h"

namespace {

// Allows tokens without a digit, for at most `most` tokens.
class NoDigits : public coluber::TokenConstraint {
 public:
  NoDigits(const coluber::Engine& engine, int64_t most) : most_(most) {
    auto words = std::make_shared<std::vector<uint32_t>>();
    for (int64_t id = 0; id < engine.model_info().vocab_size; ++id) {
      if (id % 32 == 0) words->push_back(0);
      const std::string bytes = engine.token_bytes(static_cast<int32_t>(id));
      if (bytes.find_first_of("0123456789") == std::string::npos) words->back() |= uint32_t{1} << (id % 32);
    }
    allowed_ = std::move(words);
  }
  std::unique_ptr<coluber::TokenConstraint> clone() const override { return std::make_unique<NoDigits>(*this); }
  void fill_mask(std::span<uint32_t> bitmask) override {
    for (size_t i = 0; i < bitmask.size(); ++i) bitmask[i] &= (*allowed_)[i];
  }
  bool accept(int32_t) override { return ++accepted_ <= most_; }
  bool is_terminated() const override { return accepted_ >= most_; }

 private:
  std::shared_ptr<const std::vector<uint32_t>> allowed_;  // shared by all clones, never changed
  int64_t most_, accepted_ = 0;
};

}  // namespace

int main(int argc, char** argv) try {
  coluber::EngineOptions options;
  options.model = argc > 1 ? argv[1] : "models/asp-7m";
  coluber::AsyncEngine engine(coluber::Engine::load(options));

  coluber::Request request;
  request.prompt_ids = engine.engine().encode("Once upon a time there was a small");
  request.sampling = engine.engine().default_sampling();
  request.sampling.max_tokens = 1000;
  request.sampling.ignore_eos = true;
  request.sampling.seed = 1;

  // Callbacks come on the engine's thread, one at a time.
  std::atomic<int64_t> tokens = 0;
  const auto endless = engine.add_request(request, [&](const coluber::RequestOutput& output) {
    tokens += static_cast<int64_t>(output.tokens.size());
    if (output.finish_reason == coluber::FinishReason::kAbort) std::cout << "the first was stopped\n";
  });
  request.constraint = std::make_shared<NoDigits>(engine.engine(), 30);
  std::string text;
  const auto constrained = engine.add_request(request, [&](const coluber::RequestOutput& output) {
    text += output.text;
    if (!output.error.empty()) std::cerr << output.error << '\n';
  });
  engine.wait(constrained);
  while (tokens < 10) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  engine.abort(endless);
  engine.wait(endless);
  std::cout << text << '\n';
  return text.empty() || text.find_first_of("0123456789") != std::string::npos ? 1 : 0;
} catch (const std::exception& error) {
  std::cerr << "streaming: " << error.what() << '\n';
  return 1;
}
