// SPDX-License-Identifier: Apache-2.0
#include "apps/server/host_names.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace coluber::server {
namespace {

struct Case {
  std::string authority, name;
  bool is_loopback;
};

TEST(HostNames, AreReadAsBrowsersSendThemAndNothingElseIsAName) {
  const std::vector<Case> cases = {
      {"localhost", "localhost", true},
      {"LocalHost:8000", "localhost", true},
      {"localhost.:8000", "localhost", true},
      {"a.localhost", "a.localhost", true},
      {"127.0.0.1:8000", "127.0.0.1", true},
      {"127.255.3.4", "127.255.3.4", true},
      {"[::1]:8000", "::1", true},
      {"[::1]", "::1", true},
      {"[0:0:0:0:0:0:0:1]", "0:0:0:0:0:0:0:1", true},
      {"[::FFFF:127.0.0.1]", "::ffff:127.0.0.1", true},
      {"[::ffff:10.0.0.1]", "::ffff:10.0.0.1", false},
      {"[fe80::1]", "fe80::1", false},
      {"128.0.0.1", "128.0.0.1", false},
      {"127.0.0.1.evil.example", "127.0.0.1.evil.example", false},
      {"localhost.evil.example:8000", "localhost.evil.example", false},
      {"evillocalhost", "evillocalhost", false},
      {"127.1", "127.1", false},
      {"0.0.0.0", "0.0.0.0", false},
      {"my_box-2.lan", "my_box-2.lan", false},
      {"", "", false},
      {".", "", false},
      {":8000", "", false},
      {"::1", "", false},
      {"[::1", "", false},
      {"[localhost]", "", false},
      {"[::1]evil", "", false},
      {"localhost:80x", "", false},
      {"localhost:123456", "", false},
      {"localhost@evil.example", "", false},
      {"http://localhost", "", false},
      {"evil.example, localhost", "", false},
      {std::string("localhost\0", 10), "", false},
      {"\xff.example", "", false},
      {std::string(254, 'a'), "", false},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(host_name(one.authority), one.name) << one.authority;
    EXPECT_EQ(is_loopback_name(host_name(one.authority)), one.is_loopback) << one.authority;
  }
}

}  // namespace
}  // namespace coluber::server
