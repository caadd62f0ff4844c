// SPDX-License-Identifier: Apache-2.0
//
// Where sessions lie in --session-dir: what clients saved as NAME.session, each owner's in a folder of its own (an
// operator's files, for all to load, in the folder itself); what the server has parked as parked/ID.session, with an
// ID.json of what is known of it. The latter is written last and removed first: a session is there where it is. One
// process has the folder. Any thread; different ids at once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace coluber::server {

// Letters, digits, '-', '_' and '.', not at the beginning: no path can be made of them.
bool is_plain_name(std::string_view name) noexcept;

class SessionFiles {
 public:
  // Empty: there is no folder, and only `is_there` may be called. Throws Error where it cannot be used, or another
  // process has it. Removes what a killed process was writing.
  explicit SessionFiles(std::string dir);
  ~SessionFiles();
  SessionFiles(const SessionFiles&) = delete;
  SessionFiles& operator=(const SessionFiles&) = delete;

  bool is_there() const noexcept { return !dir_.empty(); }
  // Makes the folder of the owner.
  std::string saved_path(const std::string& owner, const std::string& name) const;
  // The owner's file of that name, or the operator's; empty where there is none.
  std::string find_saved(const std::string& owner, const std::string& name) const;

  std::string parked_path(const std::string& id) const;
  void write_facts(const std::string& id, const Json& facts) const;
  Json read_facts(const std::string& id) const;
  bool has_states(const std::string& id) const;
  int64_t bytes(const std::string& id) const;
  void remove_parked(const std::string& id) const noexcept;
  // Ids of what is parked. Removes states whose facts a killed process has not come to.
  std::vector<std::string> parked() const;

 private:
  std::string facts_path(const std::string& id) const;

  std::string dir_;
  int lock_ = -1;
};

}  // namespace coluber::server
