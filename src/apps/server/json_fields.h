// SPDX-License-Identifier: Apache-2.0
//
// The members of a client's JSON object, each asked for by name and checked. What nobody asks for is refused by name,
// so that no field is ever ignored. Keeps the first problem. A null is a field that is not there. Borrows the object.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace coluber::server {

class JsonFields {
 public:
  explicit JsonFields(const Json& object) : object_(object) {}

  const Json* find(std::string_view name);
  bool has(std::string_view name) const;
  void wrong(std::string_view name, std::string_view expected, const Json& found);
  void problem(std::string_view name, std::string message, ErrorCode code = ErrorCode::kInvalidArgument);

  // Each leaves `value` alone where the field is not there or not right; true where it was taken.
  bool integer(std::string_view name, int64_t low, int64_t high, int64_t* value);
  bool number(std::string_view name, double low, double high, double* value);
  bool boolean(std::string_view name, bool* value);
  bool text(std::string_view name, std::string* value, size_t max_bytes);
  bool ids(std::string_view name, int64_t vocab_size, std::vector<int32_t>* value);

  // A field that is known and cannot be served: fine where it is absent, null or `neutral`, else refused with `why`.
  void refuse(std::string_view name, std::string_view why, const Json& neutral = Json());
  // A field that says something about the request and changes nothing, whatever it holds.
  void note(std::string_view name) { (void)find(name); }

  // The first problem; a field that nobody asked for is one.
  std::optional<Failure> finish();

 private:
  const Json& object_;
  std::vector<std::string_view> known_;
  std::optional<Failure> failure_;
};

// A list of token ids in [0, vocab_size); false where it is none.
bool take_token_ids(const Json& list, int64_t vocab_size, std::vector<int32_t>* ids);

}  // namespace coluber::server
