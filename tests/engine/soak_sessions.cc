// SPDX-License-Identifier: Apache-2.0
//
// Sessions of the random traffic: extended, answered, forked, marked, rolled back, saved, converted, loaded, by this
// engine or the next one.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "cache/session_file.h"
#include "soak_traffic.h"

namespace coluber::soak {

template <typename Work>
bool Traffic::unless_full(Talk& talk, Work work) {
  try {
    work();
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResourceExhausted) throw;
  }
  if (talk.session->tokens().empty()) {
    talk.tokens.clear();
    talk.pending.clear();
    talk.logits.clear();
  }
  check_talk(talk);
  return false;
}

void Traffic::talk(const std::string& operation) {
  if (operation == "unmark") {
    if (!marks_.empty()) marks_.erase(marks_.begin() + upto("which", std::ssize(marks_)));
    return;
  }
  if (talks_.empty() || (operation == "open" && talks_.size() < 3)) return open_talk();
  Talk& chosen = some_talk();
  if (operation == "load") return load(chosen);
  if (operation == "go_back") return go_back(chosen);
  if (operation == "close") return void(talks_.erase(talks_.begin() + (&chosen - talks_.data())));
  if (chosen.tokens.empty()) return extend_talk(chosen);
  if (operation == "cut_short") return cut_short(chosen);
  if (operation == "answer") return answer_in(chosen);
  if (operation == "fork") return fork_talk(chosen);
  if (operation == "mark") return mark(chosen);
  if (operation == "save") return save(chosen);
  extend_talk(chosen);
}

void Traffic::open_talk() {
  talks_.push_back({engine_->open_session(), {}, {}, {}});
  extend_talk(talks_.back());
}

// After `ids` were read.
void Traffic::read(Talk& talk, std::span<const int32_t> ids) {
  talk.tokens.insert(talk.tokens.end(), ids.begin(), ids.end());
  talk.pending.clear();
  check_logits(talk.tokens, talk.session->last_logits());
  talk.logits.assign(talk.session->last_logits().begin(), talk.session->last_logits().end());
  check_talk(talk);
}

void Traffic::extend_talk(Talk& talk) {
  const int64_t room = kLongest - kMostNew - std::ssize(talk.tokens) - std::ssize(talk.pending);
  Ids ids = talk.pending;
  if (ids.empty() || once_in("on", 2)) {
    if (room < 4) return talk.session->reset(), void(talk = {std::move(talk.session), {}, {}, {}});
    const Ids more = prompt(std::min<int64_t>(room, 90));
    ids.insert(ids.end(), more.begin(), more.end());
  }
  const int64_t chunk = one_of<int64_t>("chunk", {0, 1, 2, 7, 1 + upto("chunks", 64)});
  if (unless_full(talk, [&] { talk.session->extend(ids, chunk); })) read(talk, ids);
}

// A prompt of which only a part was read: the rest is pending.
void Traffic::cut_short(Talk& talk) {
  extend_talk(talk);
  if (talk.tokens.empty() || kLongest - kMostNew - std::ssize(talk.tokens) < 8) return;
  talk.pending = prompt(kLongest - kMostNew - std::ssize(talk.tokens));
  talk.session->set_pending(talk.pending);
  if (once_in("kept", 2)) save(talk);
}

void Traffic::answer_in(Talk& talk) {
  if (talk.pending.size() > 1) return extend_talk(talk);
  if (!talk.pending.empty()) {
    const Ids ids = talk.pending;
    if (!unless_full(talk, [&] { talk.session->extend(ids); })) return;
    read(talk, ids);
  }
  if (std::ssize(talk.tokens) > kLongest - kMostNew) return;
  SamplingParams sampling = families::greedy(1 + upto("answer", 6));
  sampling.logprobs = 0;
  if (once_in("drawn", 2)) sampling.temperature = 1.5f;
  if (once_in("seeded", 2)) sampling.seed = static_cast<uint64_t>(upto("seed", int64_t{1} << 62));
  std::vector<TokenOutput> tokens;
  const auto heard = [&](const TokenOutput& token, const std::string&) {
    tokens.push_back(token);
    return true;
  };
  const Ids before = talk.tokens;
  const bool whole = unless_full(talk, [&] {
    try {
      talk.session->generate(sampling, heard);
    } catch (...) {  // what was said before there was no memory is said
      for (const TokenOutput& token : tokens) talk.tokens.push_back(token.id);
      if (!tokens.empty()) talk.tokens.pop_back(), talk.pending = {tokens.back().id};
      talk.logits.clear();
      throw;
    }
  });
  if (!tokens.empty()) check_tokens(before, tokens, {before, sampling});
  if (!whole) return;
  for (const TokenOutput& token : tokens) talk.tokens.push_back(token.id);
  talk.tokens.pop_back();
  talk.pending = {tokens.back().id};
  talk.logits.assign(talk.session->last_logits().begin(), talk.session->last_logits().end());
  check_logits(talk.tokens, talk.logits);
  check_talk(talk);
  Ids ids = talk.tokens;
  ids.push_back(tokens.back().id);
  said_.push_back(std::move(ids));
}

void Traffic::fork_talk(Talk& talk) {
  if (talks_.size() > 3) return extend_talk(talk);
  std::unique_ptr<Session> fork;
  if (!unless_full(talk, [&] { fork = talk.session->fork(); })) return;
  Talk copy{std::move(fork), talk.tokens, {}, talk.logits};
  copy.pending.assign(copy.session->pending().begin(), copy.session->pending().end());
  if (!copy.pending.empty() && copy.pending != talk.pending) fail("a fork has other tokens pending");
  check_talk(copy);
  talks_.push_back(std::move(copy));  // invalidates `talk`
}

void Traffic::mark(Talk& talk) {
  SessionCheckpoint checkpoint;
  if (marks_.size() > 3 || !unless_full(talk, [&] { checkpoint = talk.session->checkpoint(); })) return;
  if (checkpoint.num_tokens() != std::ssize(talk.tokens)) fail("a checkpoint at another place");
  marks_.push_back({std::move(checkpoint), talk.tokens, talk.logits});
}

void Traffic::go_back(Talk& talk) {
  if (marks_.empty()) return;
  const Mark& to = marks_[static_cast<size_t>(upto("mark", std::ssize(marks_)))];
  if (!unless_full(talk, [&] { talk.session->rollback(to.checkpoint); })) return;
  talk.tokens = to.tokens;
  talk.pending.assign(talk.session->pending().begin(), talk.session->pending().end());
  talk.logits = to.logits;
  check_talk(talk);
  extend_talk(talk);
}

// In this engine's layout, or in another one that may come in.
void Traffic::save(Talk& talk) {
  const std::filesystem::path folder =
      std::filesystem::path(std::filesystem::is_directory("/dev/shm") ? "/dev/shm"
                                                                      : std::filesystem::temp_directory_path()) /
      ("coluber_soak_" + std::to_string(::getpid()));
  Saved saved{(folder / std::to_string(files_++ % 6)).string(), talk.tokens, talk.pending, talk.logits};
  talk.session->save(saved.path);
  if (once_in("converted", 3)) {
    LayoutChange change;
    if (once_in("packing", 2)) change.packing = one_of("packed", {StatePacking::kAligned, StatePacking::kContract});
    if (once_in("conv", 2)) change.conv = one_of("layout", {ConvLayout::kSd, ConvLayout::kDs});
    if (once_in("blocks", 2)) change.block_size = 1 + upto("block", 20);
    const SessionImage image = read_session_file(saved.path);
    write_session_file(saved.path + "x", convert_session_image({&image, 1}, change));
    std::filesystem::rename(saved.path + "x", saved.path);
  }
  std::erase_if(saved_, [&](const Saved& old) { return old.path == saved.path; });
  saved_.push_back(std::move(saved));
}

void Traffic::load(Talk& talk) {
  if (saved_.empty()) return;
  const Saved& from = saved_[static_cast<size_t>(upto("file", std::ssize(saved_)))];
  if (!unless_full(talk, [&] { talk.session->load(from.path); })) return;
  talk.tokens = from.tokens;
  talk.pending = from.pending;
  talk.logits = from.logits;
  check_talk(talk);
  extend_talk(talk);
}

void Traffic::check_talk(Talk& talk) {
  if (!std::ranges::equal(talk.session->tokens(), talk.tokens)) {
    std::ostringstream text;
    text << "a session holds " << talk.session->tokens().size() << " tokens, expected its " << talk.tokens.size();
    return fail(text.str());
  }
  if (!std::ranges::equal(talk.session->pending(), talk.pending)) return fail("other tokens are pending in a session");
  if (!talk.logits.empty() && !std::ranges::equal(talk.session->last_logits(), talk.logits))
    fail("a session's logits are not those that it had here");
}

void Traffic::check_logits(std::span<const int32_t> tokens, std::span<const float> found) {
  const std::vector<float> logits = logits_alone(tokens);
  Bound near = bound(tokens);
  ++compared_;
  const std::span<const float> expected = std::span(logits).last(found.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const double apart = std::fabs(static_cast<double>(found[i]) - static_cast<double>(expected[i]));
    if (numerics_.deterministic ? found[i] == expected[i] : is_within(apart, near)) continue;
    std::ostringstream text;
    text.precision(9);
    text << "logit " << i << " of a session of " << tokens.size() << " tokens is " << found[i] << ", expected "
         << expected[i] << " within " << near.most;
    return fail_number(text.str());
  }
}

}  // namespace coluber::soak
