// SPDX-License-Identifier: Apache-2.0
//
// The names under which a server may be asked for. A web page can have its own name resolve to 127.0.0.1 (DNS
// rebinding) and is then of the same origin as a server there, whatever CORS says; only the Host of its requests, which
// no page can choose, still tells.
#pragma once

#include <string>
#include <string_view>

namespace coluber::server {

// The host of "NAME", "NAME:PORT", "ADDRESS:PORT" or "[IPV6]:PORT" in lower case, without port, brackets and the dot
// that may end a name. Empty where it is none of these.
std::string host_name(std::string_view authority);

// What no page but one of this machine's can be called: localhost and names below it, 127.0.0.0/8, ::1. Takes what
// `host_name` gives.
bool is_loopback_name(std::string_view name);

}  // namespace coluber::server
