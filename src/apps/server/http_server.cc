// SPDX-License-Identifier: Apache-2.0
//
// Beast parses heads and bodies from bytes that this file reads itself: its composed reads and writes would cost most
// of a minute of compile time, and a read must be outstanding at all times anyhow, for that alone tells that a peer
// went.
#include "apps/server/http_server.h"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <ctime>
#include <cstring>
#include <deque>
#include <optional>
#include <unordered_set>

#include "base/ascii.h"
#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"

namespace coluber::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using Code = boost::system::error_code;
using Socket = asio::generic::stream_protocol::socket;
using TlsSocket = asio::ssl::stream<Socket>;
using Clock = std::chrono::steady_clock;
using Parser = http::request_parser<http::string_body>;
using Done = std::function<void(Code, size_t)>;

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kMaxPipelinedBytes = 64 << 10;  // read ahead while a request is being answered
constexpr double kAcceptAgainS = 0.1;            // after running out of descriptors
constexpr double kLingerS = 1.0;                 // for a peer to take an error before the connection is reset
constexpr int64_t kSpareDescriptors = 64;        // for models, sessions and logs

std::chrono::nanoseconds span_of(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(std::min(seconds, 1e9) * 1e9));
}

std::string_view reason_of(int status) {
  const auto text = http::obsolete_reason(static_cast<http::status>(status));
  return {text.data(), text.size()};
}

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[40];
  return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts)};
}

// Bytes in and out, plain or encrypted.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual void open(std::function<void(Code)> done) = 0;
  virtual void read(asio::mutable_buffer into, Done done) = 0;
  virtual void write(asio::const_buffer from, Done done) = 0;
  virtual void finish(std::function<void()> done) = 0;  // says that no more comes
  virtual Socket& socket() = 0;
};

class PlainChannel final : public Channel {
 public:
  explicit PlainChannel(Socket socket) : socket_(std::move(socket)) {}
  void open(std::function<void(Code)> done) override { done({}); }
  void read(asio::mutable_buffer into, Done done) override { socket_.async_read_some(into, std::move(done)); }
  void write(asio::const_buffer from, Done done) override { socket_.async_write_some(from, std::move(done)); }
  void finish(std::function<void()> done) override {
    Code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
    done();
  }
  Socket& socket() override { return socket_; }

 private:
  Socket socket_;
};

class TlsChannel final : public Channel {
 public:
  TlsChannel(Socket socket, asio::ssl::context& context) : stream_(std::move(socket), context) {}
  void open(std::function<void(Code)> done) override {
    stream_.async_handshake(asio::ssl::stream_base::server, std::move(done));
  }
  void read(asio::mutable_buffer into, Done done) override { stream_.async_read_some(into, std::move(done)); }
  void write(asio::const_buffer from, Done done) override { stream_.async_write_some(from, std::move(done)); }
  void finish(std::function<void()> done) override {
    stream_.async_shutdown([done = std::move(done)](Code) { done(); });
  }
  Socket& socket() override { return stream_.next_layer(); }

 private:
  TlsSocket stream_;
};

}  // namespace

const std::string* HttpRequest::header(std::string_view lower_case_name) const noexcept {
  for (const auto& [name, value] : headers)
    if (name == lower_case_name) return &value;
  return nullptr;
}

class Connection;

struct HttpServer::Impl {
  Impl(HttpServerOptions given, Handler on_request, ErrorBody body)
      : options(std::move(given)), handler(std::move(on_request)), error_body(std::move(body)) {}

  void listen();
  void listen_unix();
  void listen_tcp();
  void use_certificate();
  void accept();
  void take(Socket socket);
  void wait_for_signal();

  HttpServerOptions options;
  Handler handler;
  ErrorBody error_body;
  HttpServerStats stats;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::optional<asio::ssl::context> tls;
  asio::basic_socket_acceptor<asio::generic::stream_protocol> acceptor{io};
  asio::steady_timer accept_again{io};
  asio::signal_set signals{io};
  std::function<void(int)> signal_callback;
  std::unordered_set<std::shared_ptr<Connection>> connections;
  std::string address;
  bool draining = false;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer::Impl& server, std::unique_ptr<Channel> channel)
      : server_(server), channel_(std::move(channel)), timer_(server.io) {}

  void begin() {
    expire_after(server_.options.header_timeout_s);
    channel_->open([self = shared_from_this()](Code error) {
      if (self->closed_) return;
      if (error) return self->close();
      self->await_request();
      self->read();
    });
  }
  void drain() {
    keep_alive_ = false;
    if (state_ == State::kIdle) close();
  }
  void close();

 private:
  friend class Stream;
  enum class State { kIdle, kHead, kBody, kAnswering, kEnding };

  void await_request();
  void read();
  void on_read(Code error, size_t count);
  void parse();
  void give_to_handler();
  void refuse(int status, const std::string& message);
  void refuse_parse(Code error);
  std::string problem_of_head() const;
  void expire_after(double seconds);
  void on_expired();

  void send(std::string data);
  void write_some();
  void on_written(Code error, size_t count);
  void end_answer();
  void after_answer();
  std::string head(int status, const HttpHeaders& headers, std::string_view framing);

  HttpServer::Impl& server_;
  std::unique_ptr<Channel> channel_;
  asio::steady_timer timer_;
  Clock::time_point deadline_ = Clock::time_point::max();
  bool timer_runs_ = false;

  State state_ = State::kIdle;
  std::optional<Parser> parser_;
  std::string in_;  // read and not yet parsed
  std::array<char, kReadBytes> chunk_;
  bool reading_ = false;
  bool keep_alive_ = true;
  bool http10_ = false;
  bool head_only_ = false;  // a HEAD request: its answer has no body
  bool continued_ = false;

  std::deque<std::string> out_;
  size_t out_offset_ = 0, out_bytes_ = 0;
  bool writing_ = false;
  bool answered_ = false;  // the answer is whole, not all of it sent
  bool closed_ = false;
  std::function<void()> on_close_, on_drain_;
};

class Stream final : public HttpStream {
 public:
  explicit Stream(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  ~Stream() override {
    // Whoever had to answer forgot, or threw; the last hold may have been another thread's.
    if (ended_) return;
    asio::io_context& io = connection_->server_.io;
    asio::post(io, [connection = std::move(connection_)] { connection->close(); });
  }

  void respond(int status, const HttpHeaders& headers, std::string body) override {
    if (!may_write() || started_) return;
    started_ = true;
    const bool has_body = status != 204 && status != 304;  // of which a length would say something else
    const std::string framing = has_body ? fmt::format("Content-Length: {}\r\n", body.size()) : std::string();
    std::string text = connection_->head(status, headers, framing);
    if (!connection_->head_only_) text += body;
    connection_->send(std::move(text));
    finish();
  }
  void start(int status, const HttpHeaders& headers) override {
    if (!may_write() || started_) return;
    started_ = true;
    if (connection_->http10_) connection_->keep_alive_ = false;  // the end of the connection ends the answer
    connection_->send(connection_->head(status, headers, connection_->http10_ ? "" : "Transfer-Encoding: chunked\r\n"));
  }
  bool write(std::string_view data) override {
    if (!may_write()) return false;
    if (data.empty() || connection_->head_only_) return true;
    connection_->send(connection_->http10_ ? std::string(data) : fmt::format("{:x}\r\n{}\r\n", data.size(), data));
    return !connection_->closed_;
  }
  void end() override {
    if (!may_write()) return;
    if (!connection_->http10_ && !connection_->head_only_) connection_->send("0\r\n\r\n");
    finish();
  }
  void cut() override {
    if (may_write()) connection_->close();
  }
  bool started() const noexcept override { return started_; }
  bool closed() const noexcept override { return ended_ || connection_->closed_; }
  size_t queued_bytes() const noexcept override { return ended_ ? 0 : connection_->out_bytes_; }
  void on_close(std::function<void()> callback) override {
    if (may_write()) connection_->on_close_ = std::move(callback);
  }
  void on_drain(std::function<void()> callback) override {
    if (may_write()) connection_->on_drain_ = std::move(callback);
  }

 private:
  bool may_write() const noexcept { return !ended_ && !connection_->closed_; }
  void finish() {
    ended_ = true;
    connection_->end_answer();
  }

  std::shared_ptr<Connection> connection_;
  bool started_ = false, ended_ = false;
};

// ---- reading ---------------------------------------------------------------------------------------------------

void Connection::await_request() {
  state_ = State::kIdle;
  parser_.emplace();
  parser_->eager(true);
  parser_->header_limit(static_cast<uint32_t>(server_.options.max_header_bytes));
  parser_->body_limit(static_cast<uint64_t>(server_.options.max_body_bytes));
  continued_ = false;
  answered_ = false;
  if (server_.draining && in_.empty()) return close();
  expire_after(server_.options.idle_timeout_s);
  if (!in_.empty()) parse();
}

void Connection::read() {
  const bool enough = state_ == State::kAnswering && in_.size() >= kMaxPipelinedBytes;
  if (reading_ || closed_ || enough) return;
  reading_ = true;
  channel_->read(asio::buffer(chunk_), [self = shared_from_this()](Code error, size_t count) {
    self->reading_ = false;
    if (!self->closed_) self->on_read(error, count);
  });
}

void Connection::on_read(Code error, size_t count) {
  // The end of what a peer sends is taken as its going: nothing else would tell that one went in mid-answer.
  if (error) return close();
  if (state_ == State::kEnding) return read();  // what comes after a refusal is thrown away
  in_.append(chunk_.data(), count);
  if (state_ != State::kAnswering) parse();
  if (!closed_) read();
}

void Connection::parse() {
  if (state_ == State::kIdle) {
    // Empty lines between requests are allowed.
    in_.erase(0, std::min(in_.find_first_not_of("\r\n"), in_.size()));
    if (in_.empty()) return;
    state_ = State::kHead;
    expire_after(server_.options.header_timeout_s);
  }
  Code error;
  const size_t used = parser_->put(asio::buffer(in_), error);
  in_.erase(0, used);
  if (error == http::error::need_more) error = {};
  if (error) return refuse_parse(error);
  // What the parser leaves is not whole: a head, or lengths, extensions and trailers around the chunks of a body, which
  // would else grow as long as a peer likes.
  if (!parser_->is_done() && in_.size() > static_cast<size_t>(server_.options.max_header_bytes))
    return refuse(431, state_ == State::kHead ? "the head of the request is too long"
                                              : "what stands around the chunks of the body is too long");
  if (state_ == State::kHead && parser_->is_header_done()) {
    if (const std::string problem = problem_of_head(); !problem.empty()) return refuse(400, problem);
    state_ = State::kBody;
    expire_after(server_.options.body_timeout_s);
    if (!parser_->is_done() && !continued_ && parser_->get()[http::field::expect] == "100-continue") {
      continued_ = true;
      send("HTTP/1.1 100 Continue\r\n\r\n");
    }
  }
  if (parser_->is_done()) give_to_handler();
}

// Where this server and a proxy before it could take the end of a request for different places, it is no request.
std::string Connection::problem_of_head() const {
  const auto& message = parser_->get();
  if (message.count(http::field::host) > 1)
    return "this is no HTTP request: one Host header was expected, found several";
  if (message.count(http::field::transfer_encoding) == 0) return {};
  const std::string coding(message[http::field::transfer_encoding]);
  const bool is_known = message.count(http::field::transfer_encoding) == 1 && boost::beast::iequals(coding, "chunked");
  if (is_known && message.version() >= 11) return {};
  return fmt::format("the body's transfer coding must be 'chunked' in HTTP/1.1, found '{}'", printable(coding));
}

void Connection::give_to_handler() {
  const auto& message = parser_->get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  std::string target(message.target());
  // A proxy's form, "http://host/path", is the same request.
  if (const size_t scheme = target.find("://"); !target.starts_with('/') && scheme != std::string::npos)
    target.erase(0, std::min(target.find('/', scheme + 3), target.size()));
  const size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != std::string::npos) request.query = target.substr(question + 1);
  for (const auto& field : message) {
    request.headers.emplace_back(ascii::lower(field.name_string()), std::string(field.value()));
  }
  http10_ = message.version() < 11;
  keep_alive_ = message.keep_alive() && !server_.draining;
  head_only_ = request.method == "HEAD";
  request.body = std::move(parser_->get().body());
  state_ = State::kAnswering;
  deadline_ = Clock::time_point::max();
  on_close_ = on_drain_ = nullptr;
  const auto stream = std::make_shared<Stream>(shared_from_this());
  try {
    server_.handler(std::move(request), stream);
  } catch (const std::exception& error) {
    log_warn("a request could not be handled: {}", error.what());
    if (!stream->started()) {
      stream->respond(500, {{"Content-Type", "application/json"}}, server_.error_body(500, "internal error"));
    } else {
      stream->cut();
    }
  }
}

void Connection::refuse_parse(Code error) {
  if (error == http::error::body_limit)
    return refuse(413, fmt::format("the body is longer than the {} bytes that are allowed (--max-request-bytes)",
                                   server_.options.max_body_bytes));
  if (error == http::error::header_limit)
    return refuse(431, fmt::format("the head of the request is longer than the {} bytes that are allowed",
                                   server_.options.max_header_bytes));
  refuse(400, fmt::format("this is no HTTP request: {}", error.message()));
}

void Connection::refuse(int status, const std::string& message) {
  ++server_.stats.malformed;
  keep_alive_ = false;
  state_ = State::kAnswering;
  in_.clear();
  head_only_ = http10_ = false;
  on_close_ = on_drain_ = nullptr;
  const std::string body = server_.error_body(status, message);
  send(head(status, {{"Content-Type", "application/json"}}, fmt::format("Content-Length: {}\r\n", body.size())) + body);
  end_answer();
}

// ---- writing ---------------------------------------------------------------------------------------------------

std::string Connection::head(int status, const HttpHeaders& headers, std::string_view framing) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\nServer: coluber\r\n{}", status, reason_of(status),
                                 http_date(), framing);
  for (const auto& [name, value] : headers) text += fmt::format("{}: {}\r\n", name, value);
  text += keep_alive_ ? (http10_ ? "Connection: keep-alive\r\n" : "") : "Connection: close\r\n";
  return text + "\r\n";
}

void Connection::send(std::string data) {
  if (closed_) return;
  out_bytes_ += data.size();
  out_.push_back(std::move(data));
  if (!writing_) write_some();
}

void Connection::write_some() {
  writing_ = true;
  expire_after(server_.options.write_timeout_s);
  const std::string& front = out_.front();
  channel_->write(asio::buffer(front.data() + out_offset_, front.size() - out_offset_),
                  [self = shared_from_this()](Code error, size_t count) {
                    self->writing_ = false;
                    if (!self->closed_) self->on_written(error, count);
                  });
}

void Connection::on_written(Code error, size_t count) {
  if (error) return close();
  out_offset_ += count;
  out_bytes_ -= count;
  if (out_offset_ == out_.front().size()) {
    out_.pop_front();
    out_offset_ = 0;
  }
  if (!out_.empty()) return write_some();
  if (state_ == State::kBody) return expire_after(server_.options.body_timeout_s);  // "100 Continue" was sent
  deadline_ = Clock::time_point::max();
  if (answered_) return after_answer();
  if (on_drain_) {
    const auto callback = on_drain_;
    callback();
  }
}

void Connection::end_answer() {
  answered_ = true;
  on_close_ = on_drain_ = nullptr;
  // Not at once: the caller may be in the middle of `parse`, and pipelined requests would nest in one another.
  if (out_.empty())
    asio::post(server_.io, [self = shared_from_this()] {
      if (!self->closed_ && self->answered_ && self->out_.empty() && self->state_ == State::kAnswering)
        self->after_answer();
    });
}

void Connection::after_answer() {
  if (keep_alive_ && !server_.draining) {
    await_request();
    return read();
  }
  // What the peer still sends must be read for a while, or the answer would be lost in a reset.
  answered_ = false;
  state_ = State::kEnding;
  in_.clear();
  expire_after(kLingerS);
  channel_->finish([] {});
  read();
}

// ---- time and end ----------------------------------------------------------------------------------------------

// One timer a connection, moved only where the new end is earlier: most deadlines never come.
void Connection::expire_after(double seconds) {
  deadline_ = Clock::now() + span_of(seconds);
  if (timer_runs_ && timer_.expiry() <= deadline_) return;
  timer_runs_ = true;
  timer_.expires_at(deadline_);
  timer_.async_wait([self = shared_from_this()](Code error) {
    if (error == asio::error::operation_aborted) return;
    self->timer_runs_ = false;
    if (!self->closed_) self->on_expired();
  });
}

void Connection::on_expired() {
  if (Clock::now() < deadline_) {
    if (deadline_ != Clock::time_point::max())
      expire_after(std::chrono::duration<double>(deadline_ - Clock::now()).count());
    return;
  }
  if (state_ == State::kIdle || state_ == State::kEnding) return close();
  ++server_.stats.timed_out;
  if (writing_) return close();
  if (state_ == State::kHead) return refuse(408, "the head of the request did not come in time");
  if (state_ == State::kBody) return refuse(408, "the body of the request did not come in time");
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  Code ignored;
  timer_.cancel();
  channel_->socket().close(ignored);
  if (state_ == State::kAnswering && on_close_) {
    ++server_.stats.peers_gone;
    const auto callback = std::move(on_close_);
    on_close_ = nullptr;
    callback();
  }
  on_close_ = on_drain_ = nullptr;
  --server_.stats.connections;
  server_.connections.erase(shared_from_this());
}

// ---- the server ------------------------------------------------------------------------------------------------

void HttpServer::Impl::use_certificate() {
  if (options.ssl_certfile.empty() && options.ssl_keyfile.empty()) return;
  if (options.ssl_certfile.empty() || options.ssl_keyfile.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "--ssl-certfile and --ssl-keyfile belong together; one of them is missing");
  tls.emplace(asio::ssl::context::tls_server);
  tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                   asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
  Code error;
  tls->use_certificate_chain_file(options.ssl_certfile, error);
  if (error)
    throw make_error(ErrorCode::kInvalidData, "--ssl-certfile {}: no certificate in PEM form could be read: {}",
                     options.ssl_certfile, error.message());
  tls->use_private_key_file(options.ssl_keyfile, asio::ssl::context::pem, error);
  if (error)
    throw make_error(ErrorCode::kInvalidData, "--ssl-keyfile {}: no key in PEM form that fits the certificate: {}",
                     options.ssl_keyfile, error.message());
}

void HttpServer::Impl::listen_unix() {
  namespace local = asio::local;
  const std::string& path = options.unix_socket;
  Code error;
  if (path.size() > 100)
    throw make_error(ErrorCode::kInvalidArgument,
                     "--unix-socket {}: a path of at most 100 characters was expected, found {}", path, path.size());
  const local::stream_protocol::endpoint endpoint(path);
  acceptor.open(asio::generic::stream_protocol(endpoint.protocol()), error);
  if (!error) acceptor.bind(endpoint, error);
  if (error == asio::error::address_in_use) {
    // A socket that nobody listens on was left by a server that was killed.
    local::stream_protocol::socket probe(io);
    Code refused;
    probe.connect(endpoint, refused);
    if (refused == asio::error::connection_refused && ::unlink(path.c_str()) == 0) acceptor.bind(endpoint, error);
  }
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error)
    throw make_error(ErrorCode::kIo, "cannot listen at --unix-socket {}: {}; is another server running there?", path,
                     error.message());
  address = "unix:" + path;
}

void HttpServer::Impl::listen_tcp() {
  Code error;
  asio::ip::tcp::resolver resolver(io);
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port),
                       asio::ip::tcp::resolver::passive | asio::ip::tcp::resolver::numeric_service, error);
  if (error || found.empty())
    throw make_error(ErrorCode::kInvalidArgument, "--host {}: no such address on this machine: {}", options.host,
                     error.message());
  const asio::ip::tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(asio::generic::stream_protocol(endpoint.protocol()), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error)
    throw make_error(ErrorCode::kIo, "cannot listen at {}:{}: {}; name another one with --host and --port",
                     options.host, options.port, error.message());
  asio::ip::tcp::endpoint bound;
  const auto local_end = acceptor.local_endpoint();
  bound.resize(local_end.size());
  std::memcpy(bound.data(), local_end.data(), local_end.size());
  const std::string name = bound.address().to_string();
  address = fmt::format("{}://{}:{}", tls ? "https" : "http", bound.address().is_v6() ? "[" + name + "]" : name,
                        bound.port());
}

void HttpServer::Impl::listen() {
  use_certificate();
  if (options.unix_socket.empty()) {
    listen_tcp();
  } else {
    listen_unix();
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur != RLIM_INFINITY)
      options.max_connections = std::max<int64_t>(
          1, std::min(options.max_connections, static_cast<int64_t>(limit.rlim_cur) - kSpareDescriptors));
  }
  accept();
}

void HttpServer::Impl::accept() {
  acceptor.async_accept([this](Code error, Socket socket) {
    if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
    if (!error) {
      take(std::move(socket));
      return accept();
    }
    // Out of descriptors or memory: those who wait keep their place, and get in once somebody leaves.
    accept_again.expires_after(span_of(kAcceptAgainS));
    accept_again.async_wait([this](Code cancelled) {
      if (!cancelled) accept();
    });
  });
}

void HttpServer::Impl::take(Socket socket) {
  ++stats.accepted;
  Code ignored;
  if (stats.connections >= options.max_connections) {
    ++stats.refused;
    socket.close(ignored);
    return;
  }
  if (options.unix_socket.empty()) socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  ++stats.connections;
  std::unique_ptr<Channel> channel;
  if (tls) {
    channel = std::make_unique<TlsChannel>(std::move(socket), *tls);
  } else {
    channel = std::make_unique<PlainChannel>(std::move(socket));
  }
  const auto connection = std::make_shared<Connection>(*this, std::move(channel));
  connections.insert(connection);
  connection->begin();
}

void HttpServer::Impl::wait_for_signal() {
  signals.async_wait([this](Code error, int number) {
    if (error) return;
    if (signal_callback) signal_callback(number);
    wait_for_signal();
  });
}

HttpServer::HttpServer(HttpServerOptions options, Handler handler, ErrorBody error_body)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(handler), std::move(error_body))) {
  impl_->listen();
}

HttpServer::~HttpServer() {
  if (!impl_->options.unix_socket.empty()) ::unlink(impl_->options.unix_socket.c_str());
}

std::string HttpServer::address() const { return impl_->address; }

void HttpServer::on_signal(std::function<void(int)> callback) {
  impl_->signal_callback = std::move(callback);
  Code error;
  impl_->signals.add(SIGTERM, error);
  impl_->signals.add(SIGINT, error);
  impl_->wait_for_signal();
}

void HttpServer::run() {
  for (;;) {
    try {
      impl_->io.run();
      return;
    } catch (const std::exception& error) {
      log_warn("a connection was given up: {}", error.what());
    }
  }
}

void HttpServer::post(std::function<void()> work) { asio::post(impl_->io, std::move(work)); }

void HttpServer::post_after(double seconds, std::function<void()> work) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->io, span_of(seconds));
  timer->async_wait([timer, work = std::move(work)](Code error) {
    if (!error) work();
  });
}

void HttpServer::stop() { impl_->io.stop(); }

void HttpServer::drain() {
  impl_->draining = true;
  Code ignored;
  impl_->acceptor.close(ignored);
  const auto open = impl_->connections;
  for (const auto& connection : open) connection->drain();
}

void HttpServer::settle() {
  const auto open = impl_->connections;
  for (const auto& connection : open) connection->close();
  impl_->io.restart();
  impl_->io.poll();
}

const HttpServerStats& HttpServer::stats() const noexcept { return impl_->stats; }

}  // namespace coluber::server
