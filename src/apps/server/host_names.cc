// SPDX-License-Identifier: Apache-2.0
#include "apps/server/host_names.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

#include "base/ascii.h"

namespace coluber::server {
namespace {

constexpr size_t kMaxNameBytes = 253;  // of the DNS
constexpr size_t kMaxPortDigits = 5;

bool is_port(std::string_view text) {
  return text.size() <= kMaxPortDigits && std::all_of(text.begin(), text.end(), ascii::is_digit);
}

bool parse_ipv6(std::string_view text, in6_addr* address) {
  return ::inet_pton(AF_INET6, std::string(text).c_str(), address) == 1;
}

}  // namespace

std::string host_name(std::string_view authority) {
  std::string_view name = authority, port;
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    if (end == std::string_view::npos) return {};
    name = authority.substr(1, end - 1);
    port = authority.substr(end + 1);
    in6_addr address;
    if (!parse_ipv6(name, &address)) return {};
  } else if (const size_t colon = authority.find(':'); colon != std::string_view::npos) {
    name = authority.substr(0, colon);
    port = authority.substr(colon);
  }
  if (!port.empty() && (port.front() != ':' || !is_port(port.substr(1)))) return {};
  if (name.ends_with('.')) name.remove_suffix(1);
  if (name.empty() || name.size() > kMaxNameBytes) return {};
  const bool is_known = std::all_of(name.begin(), name.end(), [](char c) {
    return ascii::is_letter(c) || ascii::is_digit(c) || c == '.' || c == '-' || c == '_' ||
           c == ':';  // of an IPv6 address alone: others were cut there
  });
  return is_known ? ascii::lower(name) : std::string();
}

bool is_loopback_name(std::string_view name) {
  if (name == "localhost" || name.ends_with(".localhost")) return true;
  in_addr v4;
  if (::inet_pton(AF_INET, std::string(name).c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  if (!parse_ipv6(name, &v6)) return false;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

}  // namespace coluber::server
