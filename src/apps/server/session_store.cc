// SPDX-License-Identifier: Apache-2.0
#include "apps/server/session_store.h"

#include <algorithm>
#include <random>
#include <utility>

#include "apps/server/session_entry.h"
#include "base/log.h"

namespace coluber::server {
namespace {

// Of the places for states that an engine has beside those of running sequences (kSessionSlots, kCachedSlots in
// engine_requests.cc), so many that requests never lack one.
constexpr int64_t kSlotsAlone = 192, kSlotsBesideCache = 8192;

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

}  // namespace

SessionStore::SessionStore(SessionOptions options, AsyncEngine& engine, std::function<void()> on_change,
                           std::function<void()> on_lack)
    : options_(std::move(options)),
      engine_(engine),
      on_change_(std::move(on_change)),
      on_lack_(std::move(on_lack)),
      files_(options_.dir) {
  engine_.on_lack_of_memory([this] { return ask_for_way(); });
  const bool caches = engine_.engine().config().cache.enable_prefix_caching;
  max_slots_ = caches ? kSlotsBesideCache : kSlotsAlone;
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
    nothing_idle_ = false;
    entry->used = Clock::now();
    entry->last_used = std::time(nullptr);
    is_due = !std::exchange(is_due_, true);
    changed_.notify_all();
  }
  if (is_due) on_change_();
}

ApiResult<SessionStore::EntryPtr> SessionStore::add(const std::string& owner, SessionKind kind) {
  make_room();
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
      with_room(entry, [&](Engine&) {
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
    with_room(entry, [&](Engine&) { put(*entry.session); });
    return made;
  } catch (const Error& error) {
    discard(**made);
    return tl::unexpected(told_without_path(error, path, name));
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
    return tl::unexpected(told_without_path(error, path, name));
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

}  // namespace coluber::server
