// SPDX-License-Identifier: Apache-2.0
//
// HTTP/1.1 for many connections on one thread: TCP, TLS or a Unix socket, keep-alive, pipelining, whole answers and
// streams. It knows nothing of routes. http_server.cc is the only file that sees Boost and OpenSSL.
//
// Everything but `post`, `post_after` and `stop` belongs to the thread that is in `run`: the handler is called there
// and streams are used there; work that takes long goes elsewhere and comes back with `post`. A peer is never trusted:
// heads and bodies are bounded in bytes and time, a peer that goes away is noticed at once (`on_close`), and one that
// does not read is cut after a while.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coluber::server {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // "GET"
  std::string path;     // without the query, as sent
  std::string query;    // without '?'
  HttpHeaders headers;  // names in lower case
  std::string body;

  const std::string* header(std::string_view lower_case_name) const noexcept;  // the first one; null where none
};

// The answer to one request. Held by whoever answers; safe to use after the peer has gone, to no effect.
class HttpStream {
 public:
  virtual ~HttpStream() = default;
  // A whole answer. Content-Length, Date and Connection are added.
  virtual void respond(int status, const HttpHeaders& headers, std::string body) = 0;
  // A stream: head, parts, end. `write` returns false once the peer is gone.
  virtual void start(int status, const HttpHeaders& headers) = 0;
  virtual bool write(std::string_view data) = 0;
  virtual void end() = 0;
  virtual void cut() = 0;  // closes the connection in mid-answer, so that nobody takes it for a whole one

  virtual bool started() const noexcept = 0;
  virtual bool closed() const noexcept = 0;
  virtual size_t queued_bytes() const noexcept = 0;  // written and not yet taken by the peer's end of the connection
  // Called once where the peer goes away, or is cut, before the answer has ended.
  virtual void on_close(std::function<void()> callback) = 0;
  // Called each time that everything written has been sent.
  virtual void on_drain(std::function<void()> callback) = 0;
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;          // 0: any free one
  std::string unix_socket;  // path; instead of host and port
  std::string ssl_certfile, ssl_keyfile;
  int64_t max_body_bytes = int64_t{8} << 20;
  int64_t max_header_bytes = 32 << 10;
  int64_t max_connections = 10000;
  double header_timeout_s = 10.0;  // from the first byte of a head to its end
  double body_timeout_s = 60.0;
  double idle_timeout_s = 75.0;   // between two requests
  double write_timeout_s = 30.0;  // in which a peer takes nothing of what is written
};

struct HttpServerStats {
  int64_t connections = 0;  // open now
  int64_t accepted = 0;
  int64_t refused = 0;     // beyond max_connections
  int64_t malformed = 0;   // answered with 400, 413 or 431 before any handler
  int64_t timed_out = 0;   // heads and bodies that did not come, answers that were not read
  int64_t peers_gone = 0;  // in mid-answer
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest request, std::shared_ptr<HttpStream> stream)>;
  // What is answered before a request is whole (400, 408, 413, 431): the body of an error answer.
  using ErrorBody = std::function<std::string(int status, const std::string& message)>;

  // Listens. Throws Error where the address cannot be had or the certificate cannot be used; says what is wrong.
  HttpServer(HttpServerOptions options, Handler handler, ErrorBody error_body);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::string address() const;  // "http://127.0.0.1:8000", "https://[::1]:8000", "unix:/run/coluber.sock"
  // Called on the thread of `run` for SIGINT and SIGTERM, each time.
  void on_signal(std::function<void(int number)> callback);
  // Serves until `stop`. An exception of the handler ends its connection alone.
  void run();
  // From any thread.
  void post(std::function<void()> work);
  void post_after(double seconds, std::function<void()> work);
  void stop();

  // No new connections; those without a request are closed, the others after their answer.
  void drain();
  // After `run`: closes every connection and does what that leaves to do, while all that is called back still lives.
  void settle();
  const HttpServerStats& stats() const noexcept;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace coluber::server
