// SPDX-License-Identifier: Apache-2.0
#include "apps/server/session_store.h"

#include <algorithm>
#include <ctime>
#include <random>
#include <utility>

#include "base/log.h"

namespace coluber::server {
namespace {

using Clock = std::chrono::steady_clock;

std::string new_id(SessionKind kind) {
  std::random_device random;
  return fmt::format("{}_{:08x}{:08x}{:08x}{:08x}", kind == SessionKind::kResponse ? "resp" : "sess", random(),
                     random(), random(), random());
}

ApiError not_there() { return api_error(404, "there is no such session; it may have ended", "session_not_found"); }

ApiError no_folder() {
  return api_error(Failure{ErrorCode::kUnsupported,
                           "this server keeps no sessions in files; its operator can start it with --session-dir",
                           "file"});
}

ApiError no_name() {
  return api_error(Failure{ErrorCode::kInvalidArgument,
                           "'file' must be 1 to 64 letters, digits, '-', '_' and '.', and must not begin with '.'",
                           "file"});
}

// Paths are the operator's business.
ApiError without_path(const Error& error, const std::string& path, const std::string& called) {
  std::string message = error.what();
  for (size_t at = message.find(path); at != std::string::npos; at = message.find(path))
    message.replace(at, path.size(), called);
  return api_error(Failure{error.code(), message, {}});
}

}  // namespace

struct SessionStore::Entry {
  std::string id, owner;
  SessionKind kind = SessionKind::kSession;
  int64_t created = std::time(nullptr), last_used = created;
  Clock::time_point used = Clock::now();
  Json note;
  bool busy = false;                           // somebody has it
  bool moving = false;                         // that is this store, on the way to or from a file: worth waiting for
  std::shared_ptr<Session> session;            // null: parked
  std::vector<SessionCheckpoint> checkpoints;  // ascending
  bool in_memory = false;
  Facts facts;  // as last looked at
};

SessionStore::SessionStore(SessionOptions options, AsyncEngine& engine, std::function<void()> on_change)
    : options_(std::move(options)), engine_(engine), on_change_(std::move(on_change)), files_(options_.dir) {
  max_bytes_ = options_.max_bytes > 0 ? options_.max_bytes : engine_.stats().memory_bytes / 4;
  for (const std::string& id : files_.parked()) {
    try {
      const Json facts = files_.read_facts(id);
      auto entry = std::make_shared<Entry>();
      entry->id = id;
      entry->owner = facts.at("owner").as_string();
      entry->kind = facts.at("kind").as_string() == "response" ? SessionKind::kResponse : SessionKind::kSession;
      entry->created = facts.at("created").as_int();
      entry->last_used = facts.at("last_used").as_int();
      entry->facts.num_tokens = facts.at("num_tokens").as_int();
      entry->facts.position = facts.at("position").as_int();
      entry->note = facts.at("note");
      entries_.emplace(id, std::move(entry));
    } catch (const Error& error) {
      log_warn("the parked session {} is left alone: {}", id, error.what());
    }
  }
}

SessionStore::~SessionStore() = default;

// ---- lending ---------------------------------------------------------------------------------------------------

SessionStore::Lease::Lease(SessionStore& store, EntryPtr entry) : store_(store), entry_(std::move(entry)) {}

void SessionStore::Lease::release() {
  std::call_once(released_, [this] { store_.give_back(entry_); });
}

const std::string& SessionStore::Lease::id() const noexcept { return entry_->id; }
std::shared_ptr<Session> SessionStore::Lease::session() const { return entry_->session; }
Json& SessionStore::Lease::note() noexcept { return entry_->note; }
int64_t SessionStore::Lease::num_tokens() const noexcept { return entry_->facts.num_tokens; }
int32_t SessionStore::Lease::last_token() const noexcept { return entry_->facts.last_token; }

SessionStore::Facts SessionStore::facts_of(const Entry& entry) {
  Facts facts;
  const std::span<const int32_t> held = entry.session->tokens(), pending = entry.session->pending();
  facts.position = std::ssize(held);
  facts.num_tokens = facts.position + std::ssize(pending);
  facts.last_token = !pending.empty() ? pending.back() : held.empty() ? -1 : held.back();
  facts.bytes = entry.session->memory_bytes();
  for (const SessionCheckpoint& checkpoint : entry.checkpoints) {
    facts.bytes += checkpoint.memory_bytes();
    facts.checkpoints.push_back(checkpoint.num_tokens());
  }
  return facts;
}

void SessionStore::with(Entry& entry, const std::function<void(Engine& engine)>& work) {
  Facts facts;
  engine_.with_engine([&](Engine& engine) {
    work(engine);
    facts = facts_of(entry);
  });
  const Lock lock(mutex_);
  entry.facts = std::move(facts);
  entry.in_memory = true;
}

ApiResult<SessionStore::EntryPtr> SessionStore::take(const std::string& owner, const std::string& id) {
  Lock lock(mutex_);
  for (;;) {
    const auto found = entries_.find(id);
    if (found == entries_.end() || found->second->owner != owner) return tl::unexpected(not_there());
    const EntryPtr entry = found->second;
    if (!entry->busy) {
      entry->busy = true;
      return entry;
    }
    if (!entry->moving)
      return tl::unexpected(
          api_error(409, "another request goes on with this session now; wait for its end, or fork the session before",
                    "session_busy"));
    changed_.wait(lock);
  }
}

void SessionStore::give_back(const EntryPtr& entry) {
  bool is_due = false;
  {
    const Lock lock(mutex_);
    entry->busy = entry->moving = false;
    entry->used = Clock::now();
    entry->last_used = std::time(nullptr);
    is_due = !std::exchange(is_due_, true);
    changed_.notify_all();
  }
  if (is_due) on_change_();
}

ApiResult<SessionStore::EntryPtr> SessionStore::add(const std::string& owner, SessionKind kind) {
  while (true) {
    {
      const Lock lock(mutex_);
      const bool has_room = std::ssize(entries_) < options_.max_sessions;
      if (has_room) {
        auto entry = std::make_shared<Entry>();
        entry->id = new_id(kind);
        entry->owner = owner;
        entry->kind = kind;
        entry->busy = true;
        entries_.emplace(entry->id, entry);
        return entry;
      }
    }
    // What answers have left behind gives way to what somebody asked for.
    const EntryPtr oldest = oldest_idle([](const Entry& entry) { return entry.kind == SessionKind::kResponse; });
    if (!oldest)
      return tl::unexpected(api_error(
          429, fmt::format("there are {} sessions; end one (DELETE), or come back later", options_.max_sessions),
          "too_many_sessions"));
    forget(oldest);
  }
}

SessionStore::LeaseResult SessionStore::create(const std::string& owner, SessionKind kind) {
  ApiResult<EntryPtr> entry = add(owner, kind);
  if (!entry) return tl::unexpected(std::move(entry.error()));
  auto lease = std::make_shared<Lease>(*this, *entry);
  with(**entry, [&](Engine& engine) { (*entry)->session = engine.open_session(); });
  return lease;
}

SessionStore::LeaseResult SessionStore::lend(const std::string& owner, const std::string& id) {
  ApiResult<EntryPtr> taken = take(owner, id);
  if (!taken) return tl::unexpected(std::move(taken.error()));
  Entry& entry = **taken;
  auto lease = std::make_shared<Lease>(*this, *taken);
  if (!entry.session)
    if (const ApiResult<void> there = bring_back(entry); !there) return tl::unexpected(there.error());
  with(entry, [&](Engine&) { take_checkpoint(entry); });
  return lease;
}

// The session that is forked stays parked where it is.
SessionStore::LeaseResult SessionStore::fork(const std::string& owner, const std::string& id, SessionKind kind) {
  ApiResult<EntryPtr> from = take(owner, id);
  if (!from) return tl::unexpected(std::move(from.error()));
  const Lease source(*this, *from);
  Entry& original = **from;
  LeaseResult made = create(owner, kind);
  if (!made) return made;
  Entry& entry = *(*made)->entry_;
  ApiResult<void> filled;
  if (original.session) {
    try {
      with(entry, [&](Engine&) {
        std::shared_ptr<Session> fork = original.session->fork();
        fork->set_pending(original.session->pending());
        entry.session = std::move(fork);
        entry.checkpoints = original.checkpoints;
      });
    } catch (const std::exception& thrown) {
      filled = tl::unexpected(api_error(thrown));
    }
  } else {
    filled = fill(entry, original.id, "the session");
  }
  if (!filled) {
    discard(**made);
    return tl::unexpected(filled.error());
  }
  entry.note = original.note;
  return made;
}

SessionStore::LeaseResult SessionStore::load(const std::string& owner, const std::string& name) {
  if (!files_.is_there()) return tl::unexpected(no_folder());
  if (!is_plain_name(name)) return tl::unexpected(no_name());
  const std::string path = files_.find_saved(owner, name);
  if (path.empty())
    return tl::unexpected(api_error(Failure{ErrorCode::kNotFound, "no session was saved under this name", "file"}));
  LeaseResult made = create(owner, SessionKind::kSession);
  if (!made) return made;
  Entry& entry = *(*made)->entry_;
  try {
    const auto put = Session::load_later(path);
    with(entry, [&](Engine&) { put(*entry.session); });
    return made;
  } catch (const Error& error) {
    discard(**made);
    return tl::unexpected(without_path(error, path, name));
  }
}

// ---- of a lent session -----------------------------------------------------------------------------------------

// With the engine. Where no slot is free there is none: going back computes then.
void SessionStore::take_checkpoint(Entry& entry) {
  const int64_t position = std::ssize(entry.session->tokens());
  const bool is_new = entry.checkpoints.empty() || entry.checkpoints.back().num_tokens() < position;
  if (options_.max_checkpoints == 0 || position == 0 || !is_new) return;
  try {
    entry.checkpoints.push_back(entry.session->checkpoint());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResourceExhausted) throw;
  }
  if (std::ssize(entry.checkpoints) > options_.max_checkpoints) entry.checkpoints.erase(entry.checkpoints.begin());
}

ApiResult<Json> SessionStore::roll_back(Lease& lease, int64_t num_tokens) {
  Entry& entry = *lease.entry_;
  if (num_tokens > lease.num_tokens())
    return tl::unexpected(api_error(Failure{
        ErrorCode::kInvalidArgument,
        fmt::format("'tokens' must be at most the session's {}, found {}", lease.num_tokens(), num_tokens), "tokens"}));
  try {
    with(entry, [&](Engine&) {
      Session& session = *entry.session;
      std::vector<int32_t> all(session.tokens().begin(), session.tokens().end());
      all.insert(all.end(), session.pending().begin(), session.pending().end());
      // The last of the tokens is computed with the next request, which begins there.
      const auto is_later = [&](const SessionCheckpoint& c) { return c.num_tokens() >= num_tokens; };
      entry.checkpoints.erase(std::find_if(entry.checkpoints.begin(), entry.checkpoints.end(), is_later),
                              entry.checkpoints.end());
      if (std::ssize(session.tokens()) >= num_tokens) {
        if (entry.checkpoints.empty())
          session.reset();
        else
          session.rollback(entry.checkpoints.back());
      }
      session.set_pending(std::span(all).first(static_cast<size_t>(num_tokens)).subspan(session.tokens().size()));
    });
  } catch (const std::exception& thrown) {
    return tl::unexpected(api_error(thrown));
  }
  return describe(lease);
}

ApiResult<Json> SessionStore::save(Lease& lease, const std::string& name) {
  if (!files_.is_there()) return tl::unexpected(no_folder());
  if (!is_plain_name(name)) return tl::unexpected(no_name());
  const Entry& entry = *lease.entry_;
  const std::string path = files_.saved_path(entry.owner, name);
  try {
    std::function<void()> write;
    engine_.with_engine([&](Engine&) { write = entry.session->save_later(path); });
    write();
  } catch (const Error& error) {
    return tl::unexpected(without_path(error, path, name));
  }
  return Json(
      Json::Object{{"id", entry.id}, {"object", "session.file"}, {"file", name}, {"tokens", lease.num_tokens()}});
}

void SessionStore::set_pending(Lease& lease, int32_t token) {
  with(*lease.entry_, [&](Engine&) { lease.entry_->session->set_pending(std::span(&token, 1)); });
}

void SessionStore::discard(Lease& lease) {
  forget(lease.entry_);
  lease.release();
}

// ---- looking ---------------------------------------------------------------------------------------------------

Json SessionStore::json_of(const Entry& entry) {
  Json::Array checkpoints(entry.facts.checkpoints.begin(), entry.facts.checkpoints.end());
  const bool in_use = entry.busy && !entry.moving;
  return Json(Json::Object{{"id", entry.id},
                           {"object", "session"},
                           {"state", in_use            ? "busy"
                                     : entry.in_memory ? "idle"
                                                       : "parked"},
                           {"tokens", entry.facts.num_tokens},
                           {"position", entry.facts.position},
                           {"bytes", entry.facts.bytes},
                           {"created_at", entry.created},
                           {"last_used_at", entry.last_used},
                           {"checkpoints", std::move(checkpoints)}});
}

void SessionStore::refresh(Lease& lease) {
  with(*lease.entry_, [](Engine&) {});
}

Json SessionStore::describe(const Lease& lease) {
  const Lock lock(mutex_);
  Json json = json_of(*lease.entry_);
  json.set("state", "idle");  // as soon as the answer is read
  return json;
}

ApiResult<Json> SessionStore::describe(const std::string& owner, const std::string& id) {
  const Lock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second->owner != owner) return tl::unexpected(not_there());
  return json_of(*found->second);
}

Json SessionStore::list(const std::string& owner) {
  const Lock lock(mutex_);
  Json::Array all;
  for (const auto& [id, entry] : entries_)
    if (entry->owner == owner && entry->kind == SessionKind::kSession) all.push_back(json_of(*entry));
  return Json(Json::Object{{"object", "list"}, {"data", std::move(all)}});
}

ApiResult<Json> SessionStore::note(const std::string& owner, const std::string& id) {
  ApiResult<EntryPtr> taken = take(owner, id);
  if (!taken) return tl::unexpected(std::move(taken.error()));
  const Lease lease(*this, *taken);
  return (*taken)->note;
}

ApiResult<Json> SessionStore::end(const std::string& owner, const std::string& id) {
  ApiResult<EntryPtr> taken = take(owner, id);
  if (!taken) return tl::unexpected(std::move(taken.error()));
  Lease lease(*this, *taken);
  discard(lease);
  return Json(Json::Object{{"id", id}, {"object", "session.deleted"}, {"deleted", true}});
}

SessionStore::Counts SessionStore::counts() const {
  const Lock lock(mutex_);
  Counts counts;
  for (const auto& [id, entry] : entries_) {
    ++(entry->in_memory ? counts.in_memory : counts.parked);
    counts.bytes += entry->facts.bytes;
  }
  counts.parked_total = parked_total_;
  counts.restored_total = restored_total_;
  return counts;
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
    with(entry, [&](Engine& engine) {
      std::shared_ptr<Session> session = engine.open_session();
      put(*session);
      entry.session = std::move(session);
    });
    return {};
  } catch (const Error& error) {
    log_warn("the parked session {} cannot be had back: {}", id, error.what());
    ApiError told = without_path(error, path, called);
    if (told.status < 500) told.status = 500;  // nothing that the client could have asked otherwise
    return tl::unexpected(std::move(told));
  }
}

ApiResult<void> SessionStore::bring_back(Entry& entry) {
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
    log_warn("a session stays in memory: {}", error.what());
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

void SessionStore::enforce_limits() {
  int64_t excess = -max_bytes_;
  {
    const Lock lock(mutex_);
    is_due_ = false;
    if (std::exchange(enforcing_, true)) return;
    for (const auto& [id, entry] : entries_) excess += entry->facts.bytes;
  }
  const bool parks = files_.is_there();
  const auto limit = std::chrono::duration<double>(options_.idle_timeout_s);
  const auto is_late = [&](const Entry& entry) {
    return options_.idle_timeout_s > 0.0 && Clock::now() - entry.used > limit;
  };
  for (;;) {
    const EntryPtr entry = oldest_idle([&](const Entry& e) {
      const bool gives = parks || e.kind == SessionKind::kResponse || !e.facts.checkpoints.empty();
      return e.in_memory && (is_late(e) || (excess > 0 && e.facts.bytes > 0 && gives));
    });
    if (!entry) break;
    const Clock::time_point used = entry->used;
    const int64_t bytes = entry->facts.bytes;
    bool goes_on = true;
    if (parks) {
      goes_on = park(*entry);
    } else if (is_late(*entry) || entry->kind == SessionKind::kResponse) {
      forget(entry);
    } else {
      with(*entry, [&](Engine&) { entry->checkpoints.clear(); });
    }
    excess -= bytes - (entry->in_memory ? entry->facts.bytes : 0);
    const Lock lock(mutex_);
    entry->busy = entry->moving = false;
    entry->used = used;
    changed_.notify_all();
    if (!goes_on) break;
  }
  const Lock lock(mutex_);
  enforcing_ = false;
}

void SessionStore::park_all() {
  if (!files_.is_there()) return;
  while (const EntryPtr entry = oldest_idle([](const Entry& e) { return e.in_memory; })) {
    const bool parked = park(*entry);
    const Lock lock(mutex_);
    entry->busy = !parked;  // looked at once
  }
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
