// SPDX-License-Identifier: Apache-2.0
//
// What a SessionStore keeps of one session. Private to its files; session_store.h says who may touch what.
#pragma once

#include <chrono>
#include <ctime>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "apps/server/session_store.h"

namespace coluber::server {

using Clock = std::chrono::steady_clock;

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

// Paths are the operator's business: the client hears what it called the file.
ApiError told_without_path(const Error& error, const std::string& path, const std::string& called);

}  // namespace coluber::server
