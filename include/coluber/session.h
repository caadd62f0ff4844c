// SPDX-License-Identifier: Apache-2.0
//
// One sequence whose recurrent state and attention pages stay between calls. Belongs to its engine, which must outlive
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coluber/engine.h"

namespace coluber {

// A place in a session that it can go back to. Holds one copy of the recurrent states; freed when the last copy goes.
class SessionCheckpoint {
 public:
  int64_t num_tokens() const noexcept;
  bool valid() const noexcept { return impl_ != nullptr; }

 private:
  friend class Session;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

struct ExportedState {
  std::string name;  // "state.0.conv", "state.0.recurrent", "state.2.key", "state.2.value"
  std::vector<int64_t> shape;
  std::vector<float> values;  // row-major in the contract's shape
};

class Session {
 public:
  ~Session();

  std::span<const int32_t> tokens() const noexcept;  // tokens whose effect the state holds
  // Feeds tokens in chunks of at most `chunk` (0: max_num_batched_tokens), each one engine step. With `on_logits`,
  // every step's logits are handed over as [rows, V]; without, only the last row is computed and kept for `generate`.
  void extend(std::span<const int32_t> ids, int64_t chunk = 0,
              const std::function<void(const float* logits, int64_t rows)>& on_logits = {});
  // Called with hidden.i of every later step: index, values [rows, cols].
  void set_hidden_sink(std::function<void(int index, const float* values, int64_t rows, int64_t cols)> sink);
  // Logits [V] after the last token. Throws Error(kInvalidArgument) before any token was fed.
  std::span<const float> last_logits() const;

  // Samples until a stop, max_tokens, or `on_token` returns false. The last sampled token is in the result but not in
  // the state: `extend` with it to go on from there. Throws Error(kContextLength) where the session is full.
  RequestOutput generate(const SamplingParams& sampling,
                         const std::function<bool(const TokenOutput& token, const std::string& text)>& on_token = {});

  SessionCheckpoint checkpoint();
  void rollback(const SessionCheckpoint& checkpoint);
  void reset();

  std::vector<ExportedState> export_states() const;

 private:
  friend class Engine;
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace coluber
