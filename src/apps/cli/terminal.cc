// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "apps/cli/cli.h"
#include "base/error.h"
#include "base/printable.h"

namespace coluber::cli {
namespace {

constexpr int kInterruptedStatus = 130;
constexpr int kLookAgainMs = 100;  // for an interrupt between the look at the flag and the wait

constexpr char kStopped[] = "coluber: stopped by Ctrl-C\n";
constexpr char kUnreadable[] =
    "coluber: a file that is in use can no longer be read: it became shorter, or its disk or its connection failed\n";
constexpr int kUnreadableStatus = 10;  // exit_code(ErrorCode::kIo)

std::atomic<bool> g_interrupted{false};
std::atomic<bool> g_end_at_interrupt{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

void on_interrupt(int) {
  const bool again = g_interrupted.exchange(true);
  if (!again && !g_end_at_interrupt.load()) return;
  // The message of main's, which is not reached; that nobody reads it is no reason to go on.
  if (!again && write(STDERR_FILENO, kStopped, sizeof kStopped - 1) < 0) _exit(kInterruptedStatus);
  _exit(kInterruptedStatus);
}

// Files are read as memory, and there is nobody to return an error to where a page of one is gone.
void on_unreadable(int) {
  if (write(STDERR_FILENO, kUnreadable, sizeof kUnreadable - 1) < 0) _exit(kUnreadableStatus);
  _exit(kUnreadableStatus);
}

}  // namespace

bool stdin_is_terminal() noexcept { return isatty(STDIN_FILENO) == 1; }
bool stdout_is_terminal() noexcept { return isatty(STDOUT_FILENO) == 1; }
bool stderr_is_terminal() noexcept { return isatty(STDERR_FILENO) == 1; }

int terminal_columns() noexcept {
  winsize size{};
  for (int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
    if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  }
  return 80;
}

void notice(std::string_view message) {
  // Names of tensors and texts of files stand in messages.
  std::fprintf(stderr, "coluber: %s\n", printable(message).c_str());
}

void install_signal_handlers() {
  struct sigaction action{};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  // No SA_RESTART: a read that waits for the user ends, so that Ctrl-C is noticed.
  sigaction(SIGINT, &action, nullptr);
  action.sa_handler = on_unreadable;
  sigaction(SIGBUS, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  // A limit on file sizes is told like a full disk, and the unfinished file is removed.
  sigaction(SIGXFSZ, &action, nullptr);
}

bool interrupted() noexcept { return g_interrupted.load(std::memory_order_relaxed); }
void clear_interrupt() noexcept { g_interrupted.store(false); }

void check_interrupt() {
  if (interrupted()) throw Error(ErrorCode::kCancelled, "stopped by Ctrl-C");
}

EndAtInterrupt::EndAtInterrupt() {
  g_end_at_interrupt.store(true);
  if (!interrupted()) return;
  g_end_at_interrupt.store(false);
  check_interrupt();
}

EndAtInterrupt::~EndAtInterrupt() { g_end_at_interrupt.store(false); }

bool wait_for_input() noexcept {
  while (!interrupted()) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    const int ready = poll(&input, 1, kLookAgainMs);
    if (ready > 0 || (ready < 0 && errno != EINTR)) return true;  // the read tells what is wrong
  }
  return false;
}

}  // namespace coluber::cli
