// SPDX-License-Identifier: Apache-2.0
//
// Doubly linked lists through the elements of an array, by index: oldest first, constant time, no memory of their own.
// `links` gives an element's links. Not thread-safe.
#pragma once

#include <cstdint>

namespace coluber {

struct ListLinks {
  int32_t before = -1;
  int32_t after = -1;
  bool listed = false;
};

struct ArrayList {
  int32_t first = -1;
  int32_t last = -1;
  int64_t size = 0;
};

template <typename Links>
void list_push_back(ArrayList& list, int32_t id, Links&& links) {
  links(id) = {list.last, -1, true};
  if (list.last >= 0) links(list.last).after = id;
  if (list.first < 0) list.first = id;
  list.last = id;
  ++list.size;
}

template <typename Links>
void list_push_front(ArrayList& list, int32_t id, Links&& links) {
  links(id) = {-1, list.first, true};
  if (list.first >= 0) links(list.first).before = id;
  if (list.last < 0) list.last = id;
  list.first = id;
  ++list.size;
}

template <typename Links>
void list_remove(ArrayList& list, int32_t id, Links&& links) {
  const ListLinks here = links(id);
  if (here.before >= 0) links(here.before).after = here.after;
  if (here.after >= 0) links(here.after).before = here.before;
  if (list.first == id) list.first = here.after;
  if (list.last == id) list.last = here.before;
  links(id) = {};
  --list.size;
}

}  // namespace coluber
