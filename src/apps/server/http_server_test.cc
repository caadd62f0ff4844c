// SPDX-License-Identifier: Apache-2.0
#include "apps/server/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/error.h"

namespace coluber::server {
namespace {

// A server on its own thread, whose handler the test gives.
class Running {
 public:
  explicit Running(HttpServer::Handler handler, HttpServerOptions options = {}) {
    options.port = 0;
    server_ = std::make_unique<HttpServer>(std::move(options), std::move(handler),
                                           [](int status, const std::string&) { return std::to_string(status); });
    thread_ = std::thread([this] { server_->run(); });
  }
  ~Running() {
    server_->stop();
    thread_.join();
    server_->settle();
  }
  HttpServer& server() { return *server_; }

  // Sends, closes its side where `close_after`, and reads to the end.
  std::string ask(const std::string& bytes) {
    const int peer = connect();
    EXPECT_EQ(send(peer, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    std::string answer(1 << 16, '\0');
    size_t size = 0;
    for (ssize_t got = 0; (got = recv(peer, answer.data() + size, answer.size() - size, 0)) > 0;)
      size += static_cast<size_t>(got);
    close(peer);
    answer.resize(size);
    return answer;
  }
  int connect() {
    const std::string address = server_->address();
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    const int peer = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(::connect(peer, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    return peer;
  }

 private:
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

void say_path(HttpRequest request, std::shared_ptr<HttpStream> stream) {
  stream->respond(200, {}, request.method + " " + request.path + "?" + request.query + " " + request.body);
}

TEST(HttpServer, PathQueryAndBodyArriveAsSent) {
  Running running(say_path);
  const std::string answer =
      running.ask("POST /a/b?x=1&y HTTP/1.1\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_TRUE(answer.ends_with("\r\n\r\nPOST /a/b?x=1&y body")) << answer;
}

TEST(HttpServer, PipelinedRequestsAreAnsweredInOrder) {
  Running running(say_path);
  std::string all;
  for (int i = 0; i < 100; ++i) all += "GET /" + std::to_string(i) + " HTTP/1.1\r\n\r\n";
  const std::string answer = running.ask(all + "GET /end HTTP/1.0\r\n\r\n");
  size_t at = 0;
  for (int i = 0; i < 100; ++i) {
    at = answer.find("GET /" + std::to_string(i) + "? ", at);
    ASSERT_NE(at, std::string::npos) << i;
  }
  EXPECT_TRUE(answer.ends_with("GET /end? "));
}

TEST(HttpServer, StreamsAreChunkedAndPlainForOldClients) {
  Running running([](HttpRequest, std::shared_ptr<HttpStream> stream) {
    stream->start(200, {});
    stream->write("one");
    stream->write("twelve bytes");
    stream->end();
  });
  EXPECT_TRUE(running.ask("GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
                  .ends_with("\r\n\r\n3\r\none\r\nc\r\ntwelve bytes\r\n0\r\n\r\n"));
  EXPECT_TRUE(running.ask("GET / HTTP/1.0\r\n\r\n").ends_with("\r\n\r\nonetwelve bytes"));
}

TEST(HttpServer, AHandlerThatThrowsEndsItsRequestAlone) {
  Running running([](HttpRequest request, std::shared_ptr<HttpStream> stream) {
    if (request.path == "/bad") throw Error(ErrorCode::kInternal, "no");
    say_path(std::move(request), std::move(stream));
  });
  const std::string answer = running.ask("GET /bad HTTP/1.1\r\n\r\nGET /good HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 500 ")) << answer;
  EXPECT_NE(answer.find("GET /good? "), std::string::npos) << answer;
}

TEST(HttpServer, ARequestThatNobodyAnswersIsClosed) {
  Running running([](HttpRequest, std::shared_ptr<HttpStream>) {});
  EXPECT_EQ(running.ask("GET / HTTP/1.1\r\n\r\n"), "");
}

TEST(HttpServer, APeerThatGoesAwayIsNoticedInMidAnswer) {
  std::atomic<int> gone{0};
  std::shared_ptr<HttpStream> held;
  Running running([&](HttpRequest, std::shared_ptr<HttpStream> stream) {
    stream->on_close([&] { ++gone; });
    stream->start(200, {});
    held = std::move(stream);
  });
  const int peer = running.connect();
  send(peer, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
  char byte = 0;
  EXPECT_EQ(recv(peer, &byte, 1, 0), 1);
  close(peer);
  for (int i = 0; i < 1000 && gone == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(gone, 1);
}

TEST(HttpServer, LimitsAreTold) {
  HttpServerOptions options;
  options.max_body_bytes = 100;
  options.max_header_bytes = 1000;
  options.header_timeout_s = options.body_timeout_s = 0.1;
  Running running(say_path, options);
  const auto status = [&](const std::string& bytes) { return running.ask(bytes).substr(9, 3); };
  EXPECT_EQ(status("POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n"), "413");
  EXPECT_EQ(status("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab"), "408");
  EXPECT_EQ(status("GET / HT"), "408");
  EXPECT_EQ(status("GET / HTTP/1.1\r\nX: " + std::string(2000, 'x') + "\r\n\r\n"), "431");
  EXPECT_EQ(status("nonsense\r\n\r\n"), "400");
  EXPECT_EQ(status("POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 100\r\n\r\n" + std::string(100, 'x')),
            "200");
}

TEST(HttpServer, WhatStandsAroundChunksIsBoundedToo) {
  HttpServerOptions options;
  options.max_header_bytes = 1000;
  Running running(say_path, options);
  const std::string head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", much(60000, 'x');
  // None of them is whole, so that the server would wait for more.
  for (const std::string& rest : {"1;" + much, "1\r\na\r\n0\r\nX: " + much, "1\r\na\r\n" + std::string(60000, '0')})
    EXPECT_EQ(running.ask(head + rest).substr(9, 3), "431") << rest.substr(0, 20);
  EXPECT_NE(running
                .ask("POST /a HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
                     "1;note=x\r\na\r\n0\r\nX: y\r\n\r\n")
                .find("POST /a? a"),
            std::string::npos);
}

TEST(HttpServer, WhereABodyEndsIsNeverGuessed) {
  Running running(say_path);
  const std::string body = "1\r\na\r\n0\r\n\r\n";
  for (const std::string coding : {"xchunked", "identity", "gzip, chunked", "chunked, chunked", "gzip", ""}) {
    const std::string answer = running.ask("POST / HTTP/1.1\r\nTransfer-Encoding: " + coding + "\r\n\r\n" + body);
    EXPECT_EQ(answer.substr(9, 3), "400") << coding;
    // One answer: what followed was not taken for a second request.
    EXPECT_EQ(answer.find("HTTP/1.1", 1), std::string::npos) << coding;
  }
  EXPECT_EQ(running.ask("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + body).substr(9, 3), "400");
  EXPECT_EQ(running.ask("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").substr(9, 3), "400");
  EXPECT_NE(running.ask("POST /a HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: Chunked\r\n\r\n" + body)
                .find("POST /a? a"),
            std::string::npos);
}

TEST(HttpServer, AProxysFormOfATargetIsTheSameRequest) {
  Running running(say_path);
  const auto path = [&](const std::string& target) {
    const std::string answer = running.ask("GET " + target + " HTTP/1.1\r\nConnection: close\r\n\r\n");
    return answer.substr(answer.find("\r\n\r\n") + 4);
  };
  EXPECT_EQ(path("http://host:80/a/b?c=d"), "GET /a/b?c=d ");
  EXPECT_EQ(path("/a?to=http://host/b"), "GET /a?to=http://host/b ");
}

TEST(HttpServer, AnAddressThatIsTakenIsTold) {
  Running running(say_path);
  HttpServerOptions options;
  const std::string address = running.server().address();
  options.port = std::stoi(address.substr(address.rfind(':') + 1));
  try {
    HttpServer second(options, say_path, {});
    ADD_FAILURE() << "two servers listen at " << address;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(std::string(error.what()).find("--port"), std::string::npos);
  }
}

}  // namespace
}  // namespace coluber::server
