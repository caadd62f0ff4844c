// SPDX-License-Identifier: Apache-2.0
//
// One sequence whose recurrent state and attention pages stay between calls. Belongs to its engine, which must outlive
// it. While a request has it (Request::session) it is empty, and every call but those that only look throws
// Error(kInvalidArgument).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coluber/engine.h"

namespace coluber {

// A place that sessions of its engine can go back to. Holds one copy of the recurrent states and shares the attention
// pages; freed when the last copy goes.
class SessionCheckpoint {
 public:
  int64_t num_tokens() const noexcept;
  int64_t memory_bytes() const noexcept;  // of its states; the pages are shared
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
  // Tokens that belong to the session and are not in the state yet: the one that was sampled last, or what of a prompt
  // was not computed when something threw. Saved with the session; `extend` takes what it is given in their place.
  std::span<const int32_t> pending() const noexcept;
  void set_pending(std::span<const int32_t> ids);
  int64_t memory_bytes() const noexcept;  // of its states and pages, shared ones too
  // Feeds tokens in chunks of at most `chunk` (0: max_num_batched_tokens), each one engine step. With `on_logits`,
  // every step's logits are handed over as [rows, V]; without, only the last row is computed and kept for `generate`.
  void extend(std::span<const int32_t> ids, int64_t chunk = 0,
              const std::function<void(const float* logits, int64_t rows)>& on_logits = {});
  // Called with hidden.i of every later step: index, values [rows, cols].
  void set_hidden_sink(std::function<void(int index, const float* values, int64_t rows, int64_t cols)> sink);
  // Logits [V] after the last token. Throws Error(kInvalidArgument) before any token was fed.
  std::span<const float> last_logits() const;

  // Samples until a stop, max_tokens, or `on_token` returns false. The last sampled token is in the result but not in
  // the state: `extend` with it to go on from there; a `generate` after that goes on with the same answer, which is
  // what penalties count. Without a seed the session draws from a stream of its own, which saved sessions go on with.
  // `cached_tokens` are those that were held before the latest calls of `extend`. Throws Error(kContextLength) where
  // the session is full.
  RequestOutput generate(const SamplingParams& sampling,
                         const std::function<bool(const TokenOutput& token, const std::string& text)>& on_token = {});

  SessionCheckpoint checkpoint();
  // To a checkpoint of any session of this engine, whatever the session holds now.
  void rollback(const SessionCheckpoint& checkpoint);
  // A second session at the same place: one copy of the states, pages shared until one of the two writes into them. It
  // draws random numbers of its own.
  std::unique_ptr<Session> fork() const;
  void reset();

  // The whole session in a file (docs/sessions.md), written beside the old one and renamed: a crash leaves the old or
  // the new one. Throws Error(kIo) where it cannot be written, Error(kInvalidArgument) before a token was read.
  void save(const std::string& path) const;
  // The same in two steps: copies what is to be saved, and returns what writes it, later and on any thread.
  std::function<void()> save_later(std::string path) const;
  // Replaces what the session holds. Throws Error saying why where the file is damaged (kInvalidData), of another model
  // (kInvalidData), of states that this engine does not keep (kInvalidConfig) or too long (kContextLength); the session
  // is then as it was. Files of other layouts are converted.
  void load(const std::string& path);
  // The same in two steps: reads the file, on any thread, and returns what puts it into a session.
  static std::function<void(Session& session)> load_later(std::string path);

  std::vector<ExportedState> export_states() const;

 private:
  friend class Engine;
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace coluber
