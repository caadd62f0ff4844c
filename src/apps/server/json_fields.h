// SPDX-License-Identifier: Apache-2.0
//
// The members of a client's JSON object, each asked for by name and checked. What nobody asks for is refused by name,
// so that no field is ever ignored. Keeps the first problem. A null is a field that is not there. Borrows the object.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace coluber::server {

// What a reader asks for, noted as it asks: a body is described by letting its reader read an empty one.
class FieldList {
 public:
  struct Field {
    std::string name;
    Json schema = Json(Json::Object{});     // JSON schema of what it holds; empty: told elsewhere
    std::string refused = {};               // why it cannot be served; empty: it can
    std::string passed_as = {};             // the field of another body that it becomes
    std::shared_ptr<FieldList> inner = {};  // an object's own
    bool changes_nothing = false;
  };
  void add(Field field);  // the first of a name stays
  const std::vector<Field>& all() const noexcept { return fields_; }
  // The object's schema. `passed`: the body that fields are passed on to; null where none are.
  Json schema(const FieldList* passed = nullptr) const;

 private:
  std::vector<Field> fields_;
};

class JsonFields {
 public:
  // `list`, where not null, hears of every field that is asked for.
  explicit JsonFields(const Json& object, FieldList* list = nullptr) : object_(object), list_(list) {}

  // `schema`: what it may hold, as JSON, for the list.
  const Json* find(std::string_view name, std::string_view schema = "{}");
  // An object's own fields; what is wrong with them is told as 'name.field'.
  void object(std::string_view name, const std::function<void(JsonFields& inner)>& read);
  // Moves a field under another name into the body that is made; what it may hold is told where that is read.
  void pass_on(std::string_view name, Json& to, std::string_view new_name = {});
  bool has(std::string_view name) const;
  // Nothing is there, and whatever could be shall be asked for.
  bool is_described() const noexcept { return list_ != nullptr; }
  void wrong(std::string_view name, std::string_view expected, const Json& found);
  void problem(std::string_view name, std::string message, ErrorCode code = ErrorCode::kInvalidArgument);

  // Each leaves `value` alone where the field is not there or not right; true where it was taken.
  // 1.0 is a whole number, 1.5 is none.
  bool integer(std::string_view name, int64_t low, int64_t high, int64_t* value);
  bool number(std::string_view name, double low, double high, double* value);
  bool boolean(std::string_view name, bool* value);
  bool text(std::string_view name, std::string* value, size_t max_bytes);
  bool choice(std::string_view name, const std::vector<std::string_view>& choices, std::string* value);
  bool ids(std::string_view name, int64_t vocab_size, std::vector<int32_t>* value);

  // A field that is known and cannot be served: fine where it is absent, null or `neutral`, else refused with `why`.
  void refuse(std::string_view name, std::string_view why, const Json& neutral = Json());
  // A field that says something about the request and changes nothing, whatever it holds.
  void note(std::string_view name);

  // The first problem; a field that nobody asked for is one.
  std::optional<Failure> finish();

 private:
  const Json* look(std::string_view name);
  void list(FieldList::Field field);

  const Json& object_;
  FieldList* list_;
  std::vector<std::string_view> known_;
  std::optional<Failure> failure_;
};

// A list of token ids in [0, vocab_size); false where it is none.
bool take_token_ids(const Json& list, int64_t vocab_size, std::vector<int32_t>* ids);

}  // namespace coluber::server
