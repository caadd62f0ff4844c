// SPDX-License-Identifier: Apache-2.0
//
// The sessions that clients keep over HTTP: found by id, lent to one request at a time, held within limits of count,
// memory and idle time. Beyond those they are parked in files and come back when they are asked for, also after a
// restart. Names of files are made of ids and checked names, never of a client's path. Owns the sessions; the engine
// must outlive `close`. Any thread but that of the connections, for files are read and written here.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "apps/server/api_error.h"
#include "apps/server/session_files.h"
#include "coluber/async_engine.h"
#include "coluber/session.h"

namespace coluber::server {

struct SessionOptions {
  std::string dir;                // empty: nothing is parked, saved or loaded
  int64_t max_sessions = 1024;    // parked ones too
  int64_t max_bytes = 0;          // of those in memory; 0: a quarter of the cache
  int64_t max_checkpoints = 4;    // of each session, to go back to without computing
  double idle_timeout_s = 600.0;  // then it is parked or, without a folder, ended; 0: never
};

// What a client asked for by its own name, or what an answer of /v1/responses left behind to be gone on from.
enum class SessionKind { kSession, kResponse };

class SessionStore {
 public:
  class Lease;
  using LeaseResult = ApiResult<std::shared_ptr<Lease>>;

  // Finds what an earlier server has parked. Throws Error where the folder cannot be used. The callbacks are called on
  // any thread and must return at once: where it may be time for `enforce_limits`, and where it is for `give_way`.
  SessionStore(SessionOptions options, AsyncEngine& engine, std::function<void()> on_change,
               std::function<void()> on_lack);
  ~SessionStore();
  SessionStore(const SessionStore&) = delete;
  SessionStore& operator=(const SessionStore&) = delete;

  // An empty one, lent at once.
  LeaseResult create(const std::string& owner, SessionKind kind);
  // Back from its file where it was parked, with a checkpoint where it stands. 404, 409 where a request has it.
  LeaseResult lend(const std::string& owner, const std::string& id);
  // Another one at the same place, lent at once.
  LeaseResult fork(const std::string& owner, const std::string& id, SessionKind kind);
  // Another one from a file that was saved under this name.
  LeaseResult load(const std::string& owner, const std::string& name);

  // Of a lent session.
  ApiResult<Json> roll_back(Lease& lease, int64_t num_tokens);
  ApiResult<Json> save(Lease& lease, const std::string& name);
  // The session has read all but its last token, which is the next one to be computed.
  void set_pending(Lease& lease, int32_t token);
  // After the engine has given it back: how it stands now.
  void refresh(Lease& lease);
  // Ends the lent session.
  void discard(Lease& lease);

  ApiResult<Json> describe(const std::string& owner, const std::string& id);
  Json describe(const Lease& lease);
  Json list(const std::string& owner);
  // The note of a session that nobody has now.
  ApiResult<Json> note(const std::string& owner, const std::string& id);
  ApiResult<Json> end(const std::string& owner, const std::string& id);

  // Parks, or ends, what is beyond the limits.
  void enforce_limits();
  // A request lacks memory: the session that has been idle longest is parked or, as the limits would have it, ended or
  // without its checkpoints.
  void give_way();
  // Everything that no request has, into files; before the end.
  void park_all();
  // No session holds memory of the engine any more.
  void close();

  struct Counts {
    int64_t in_memory = 0, parked = 0, bytes = 0;
    int64_t parked_total = 0, restored_total = 0;
  };
  Counts counts() const;

 private:
  struct Entry;
  struct Facts {
    int64_t num_tokens = 0, position = 0;
    int64_t bytes = 0;        // in memory
    int32_t last_token = -1;  // -1: none
    std::vector<int64_t> checkpoints;
  };
  static Facts facts_of(const Entry& entry);  // in the engine
  // What sessions take of what there is: memory, and places for states.
  struct Weight {
    int64_t bytes = 0, slots = 0;
    Weight& operator+=(const Weight& other) noexcept {
      bytes += other.bytes;
      slots += other.slots;
      return *this;
    }
    Weight& operator-=(const Weight& other) noexcept { return *this += Weight{-other.bytes, -other.slots}; }
  };
  static Weight weight_of(const Entry& entry);
  Weight excess() const;  // with the mutex
  // Before another one comes to memory: whoever wants it makes the room itself, so that none can come faster than
  // others are parked.
  void make_room();
  using EntryPtr = std::shared_ptr<Entry>;
  using Lock = std::unique_lock<std::mutex>;

  // Made busy for the caller.
  ApiResult<EntryPtr> take(const std::string& owner, const std::string& id);
  ApiResult<EntryPtr> add(const std::string& owner, SessionKind kind);
  void give_back(const EntryPtr& entry);
  ApiResult<void> bring_back(Entry& entry);
  ApiResult<void> fill(Entry& entry, const std::string& path, const std::string& called);
  bool park(Entry& entry);
  bool make_lighter(const EntryPtr& entry, bool is_late);
  bool lighten(const EntryPtr& entry, bool is_late);
  bool can_give(const Entry& entry) const;
  bool one_gives_way();
  // Whether the engine's requests may wait for `give_way`.
  bool ask_for_way();
  // Does what takes memory of the engine; while there is none, idle sessions give way.
  void with_room(Entry& entry, const std::function<void(Engine& engine)>& work);
  // Does something with the entry's session, in the engine, and notes how it stands then.
  void with(Entry& entry, const std::function<void(Engine& engine)>& work);
  void empty(Entry& entry);
  void forget(const EntryPtr& entry);
  EntryPtr oldest_idle(const std::function<bool(const Entry& entry)>& is_wanted);
  void take_checkpoint(Entry& entry);
  static Json json_of(const Entry& entry);

  const SessionOptions options_;
  AsyncEngine& engine_;
  const std::function<void()> on_change_, on_lack_;
  SessionFiles files_;
  // Guards entries_ and what entries say of themselves; nobody waits for the engine or a file with it. The session and
  // checkpoints of an entry belong to who has made it busy, and are touched in the engine.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, EntryPtr> entries_;
  int64_t max_bytes_ = 0, max_slots_ = 0;
  int64_t parked_total_ = 0, restored_total_ = 0;
  bool enforcing_ = false;
  bool is_due_ = false;        // enforce_limits has been asked for
  bool giving_way_ = false;    // give_way has been asked for
  bool nothing_idle_ = false;  // it found nothing, and no session has been given back since
};

// One request's use of a session. Whoever has it may hand `session` to the engine; nobody else touches it meanwhile.
class SessionStore::Lease {
 public:
  Lease(SessionStore& store, EntryPtr entry);
  ~Lease() { release(); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  // Others may have it from now on. To be called when the engine has given the session back; again to no effect.
  void release();
  const std::string& id() const noexcept;
  std::shared_ptr<Session> session() const;
  // As it was found, or as a call of the store's has left it.
  int64_t num_tokens() const noexcept;
  int32_t last_token() const noexcept;  // -1: none
  // What is remembered with the session, in its file too.
  Json& note() noexcept;

 private:
  friend class SessionStore;
  SessionStore& store_;
  EntryPtr entry_;
  std::once_flag released_;
};

}  // namespace coluber::server
