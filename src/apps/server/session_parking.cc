// SPDX-License-Identifier: Apache-2.0
//
// Sessions on the way to files and back, and the limits that send them there.
#include <algorithm>
#include <utility>

#include "apps/server/session_entry.h"
#include "base/log.h"

namespace coluber::server {

ApiError told_without_path(const Error& error, const std::string& path, const std::string& called) {
  std::string message = error.what();
  for (size_t at = message.find(path); at != std::string::npos; at = message.find(path))
    message.replace(at, path.size(), called);
  return api_error(Failure{error.code(), message, {}});
}

// ---- files -----------------------------------------------------------------------------------------------------

// A session that was parked without states has tokens only; they are computed when it is gone on with.
ApiResult<void> SessionStore::fill(Entry& entry, const std::string& id, const std::string& called) {
  const std::string path = files_.parked_path(id);
  try {
    std::function<void(Session&)> put;
    if (files_.has_states(id)) {
      put = Session::load_later(path);
    } else {
      std::vector<int32_t> tokens;
      const Json facts = files_.read_facts(id);
      for (const Json& token : facts.at("tokens").as_array()) tokens.push_back(static_cast<int32_t>(token.as_int()));
      put = [tokens = std::move(tokens)](Session& session) { session.set_pending(tokens); };
    }
    with_room(entry, [&](Engine& engine) {
      std::shared_ptr<Session> session = engine.open_session();
      put(*session);
      entry.session = std::move(session);
    });
    return {};
  } catch (const Error& error) {
    log_warn("the parked session {} cannot be had back: {}", id, error.what());
    ApiError told = told_without_path(error, path, called);
    if (told.status < 500) told.status = 500;  // nothing that the client could have asked otherwise
    return tl::unexpected(std::move(told));
  }
}

ApiResult<void> SessionStore::bring_back(Entry& entry) {
  make_room();
  {
    const Lock lock(mutex_);
    entry.moving = true;
  }
  const ApiResult<void> filled = fill(entry, entry.id, "the session's file");
  if (filled) files_.remove_parked(entry.id);
  const Lock lock(mutex_);
  entry.moving = false;
  if (filled) ++restored_total_;
  changed_.notify_all();
  return filled;
}

// Of an entry that is the caller's. False where it could not be written; it is as it was then.
bool SessionStore::park(Entry& entry) {
  try {
    std::function<void()> write;
    Json facts(Json::Object{{"owner", entry.owner},
                            {"kind", entry.kind == SessionKind::kResponse ? "response" : "session"},
                            {"created", entry.created},
                            {"last_used", entry.last_used},
                            {"note", entry.note}});
    with(entry, [&](Engine&) {
      if (!entry.session->tokens().empty()) {
        write = entry.session->save_later(files_.parked_path(entry.id));
      } else {
        Json::Array tokens;
        for (const int32_t token : entry.session->pending()) tokens.emplace_back(token);
        facts.set("tokens", std::move(tokens));
      }
    });
    facts.set("num_tokens", entry.facts.num_tokens);
    facts.set("position", entry.facts.position);
    if (write) write();
    files_.write_facts(entry.id, facts);
  } catch (const std::exception& error) {
    log_warn("a session could not be parked: {}", error.what());
    files_.remove_parked(entry.id);
    return false;
  }
  empty(entry);
  const Lock lock(mutex_);
  ++parked_total_;
  return true;
}

// ---- limits ----------------------------------------------------------------------------------------------------

// Of an entry that is the caller's. Its memory goes back while nobody else is in the engine.
void SessionStore::empty(Entry& entry) {
  std::shared_ptr<Session> session = std::move(entry.session);
  std::vector<SessionCheckpoint> checkpoints = std::move(entry.checkpoints);
  engine_.with_engine([&](Engine&) {
    checkpoints.clear();
    session = nullptr;
  });
  const Lock lock(mutex_);
  entry.in_memory = false;
  entry.facts.bytes = 0;
  entry.facts.checkpoints.clear();
}

// Of an entry that is the caller's.
void SessionStore::forget(const EntryPtr& entry) {
  {
    const Lock lock(mutex_);
    entries_.erase(entry->id);
    entry->busy = entry->moving = true;  // who waits for it finds nothing
    changed_.notify_all();
  }
  const bool was_parked = entry->session == nullptr;
  empty(*entry);
  if (was_parked && files_.is_there()) files_.remove_parked(entry->id);
}

SessionStore::EntryPtr SessionStore::oldest_idle(const std::function<bool(const Entry& entry)>& is_wanted) {
  const Lock lock(mutex_);
  EntryPtr oldest;
  for (const auto& [id, entry] : entries_)
    if (!entry->busy && is_wanted(*entry) && (!oldest || entry->used < oldest->used)) oldest = entry;
  if (oldest) oldest->busy = oldest->moving = true;
  return oldest;
}

SessionStore::Weight SessionStore::weight_of(const Entry& entry) {
  return entry.in_memory ? Weight{entry.facts.bytes, 1 + std::ssize(entry.facts.checkpoints)} : Weight{};
}

// Parked, ended, or without its checkpoints: whatever makes room. False where that could not be.
bool SessionStore::make_lighter(const EntryPtr& entry, bool is_late) {
  if (files_.is_there()) return park(*entry);
  if (is_late || entry->kind == SessionKind::kResponse)
    forget(entry);
  else
    with(*entry, [&](Engine&) { entry->checkpoints.clear(); });
  return true;
}

// Of an entry that is the caller's; it is nobody's then, and as old as before.
bool SessionStore::lighten(const EntryPtr& entry, bool is_late) {
  const Clock::time_point used = entry->used;
  bool done = false;
  try {
    done = make_lighter(entry, is_late);
  } catch (const std::exception& error) {
    log_warn("sessions stay in memory: {}", error.what());
  }
  const Lock lock(mutex_);
  entry->busy = entry->moving = false;
  entry->used = used;
  changed_.notify_all();
  return done;
}

bool SessionStore::can_give(const Entry& entry) const {
  return entry.in_memory &&
         (files_.is_there() || entry.kind == SessionKind::kResponse || !entry.facts.checkpoints.empty());
}

SessionStore::Weight SessionStore::excess() const {
  Weight excess{-max_bytes_, -max_slots_};
  for (const auto& [id, entry] : entries_) excess += weight_of(*entry);
  return excess;
}

void SessionStore::make_room() {
  {
    Lock lock(mutex_);
    changed_.wait(lock, [this] { return !enforcing_; });
    const Weight over = excess();
    if (over.bytes <= 0 && over.slots <= 0) return;
  }
  enforce_limits();
}

void SessionStore::enforce_limits() {
  {
    const Lock lock(mutex_);
    is_due_ = false;
    if (std::exchange(enforcing_, true)) return;
  }
  const auto limit = std::chrono::duration<double>(options_.idle_timeout_s);
  const auto is_late = [&](const Entry& entry) {
    return options_.idle_timeout_s > 0.0 && Clock::now() - entry.used > limit;
  };
  for (bool goes_on = true; goes_on;) {
    Weight over;
    {
      const Lock lock(mutex_);
      over = excess();
    }
    const EntryPtr entry = oldest_idle([&](const Entry& e) {
      const bool is_heavy = (over.bytes > 0 && e.facts.bytes > 0) || over.slots > 0;
      return e.in_memory && (is_late(e) || (is_heavy && can_give(e)));
    });
    goes_on = entry && lighten(entry, is_late(*entry));
  }
  const Lock lock(mutex_);
  enforcing_ = false;
  changed_.notify_all();
}

// ---- for requests that lack memory -----------------------------------------------------------------------------

// On the engine's thread, in a step.
bool SessionStore::ask_for_way() {
  {
    const Lock lock(mutex_);
    if (giving_way_) return true;
    if (nothing_idle_) return false;
    giving_way_ = true;
  }
  on_lack_();
  return true;
}

void SessionStore::give_way() {
  const bool gave = one_gives_way();
  {
    const Lock lock(mutex_);
    giving_way_ = false;
    nothing_idle_ = !gave;
  }
  engine_.with_engine([](Engine&) {});  // which lets requests try again
}

bool SessionStore::one_gives_way() {
  if (const EntryPtr entry = oldest_idle([this](const Entry& e) { return can_give(e); })) return lighten(entry, false);
  Lock lock(mutex_);
  const auto is_leaving = [](const auto& named) {
    const Entry& entry = *named.second;
    return entry.busy && entry.moving && entry.in_memory;
  };
  if (std::none_of(entries_.begin(), entries_.end(), is_leaving)) return false;
  changed_.wait(lock);
  return true;
}

void SessionStore::with_room(Entry& entry, const std::function<void(Engine& engine)>& work) {
  for (;;) {
    try {
      return with(entry, work);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kResourceExhausted || !one_gives_way()) throw;
    }
  }
}

void SessionStore::park_all() {
  if (!files_.is_there()) return;
  int64_t lost = 0;
  while (const EntryPtr entry = oldest_idle([](const Entry& e) { return e.in_memory; })) {
    const bool parked = park(*entry);
    if (!parked) ++lost;
    const Lock lock(mutex_);
    entry->busy = !parked;  // looked at once
  }
  if (lost > 0) log_warn("sessions that could not be parked end with the server: {}", lost);
}

void SessionStore::close() {
  std::vector<std::shared_ptr<Session>> sessions;
  std::vector<SessionCheckpoint> checkpoints;
  {
    const Lock lock(mutex_);
    for (auto& [id, entry] : entries_) {
      checkpoints.insert(checkpoints.end(), entry->checkpoints.begin(), entry->checkpoints.end());
      entry->checkpoints.clear();
      sessions.push_back(std::move(entry->session));
    }
  }
  engine_.with_engine([&](Engine&) {
    checkpoints.clear();
    sessions.clear();
  });
}

}  // namespace coluber::server
