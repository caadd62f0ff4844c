// SPDX-License-Identifier: Apache-2.0
//
// Many requests at once to one HTTP server, each answer kept as the pieces it came in, with the time of each.
// Connections are used again. stream_client.cc alone sees libcurl here. Used on one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace coluber::bench_serve {

struct Piece {
  double at_s = 0.0;
  std::string bytes;
};

// One request and what became of it. Times are seconds since the client was made.
struct Transfer {
  size_t id = 0;
  double begun_s = 0.0, ended_s = 0.0;
  int status = 0;     // 0: there was no answer
  std::string error;  // of the transport; empty where a whole answer came, whatever its status
  std::vector<Piece> pieces;

  std::string body() const;
};

class StreamClient {
 public:
  // `url`: "http://127.0.0.1:8000", with or without "/v1". `key` may be empty.
  StreamClient(std::string url, const std::string& key, double timeout_s);
  ~StreamClient();
  StreamClient(const StreamClient&) = delete;
  StreamClient& operator=(const StreamClient&) = delete;

  double now_s() const;
  // Sends a request whose answer `wait` gives under `id`. `path` goes behind /v1.
  void post(size_t id, std::string_view path, std::string body);
  // What has ended; waits until something has, or until `until_s`.
  std::vector<Transfer> wait(double until_s);
  Transfer get(std::string_view path);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coluber::bench_serve
