// SPDX-License-Identifier: Apache-2.0
//
// Preloaded into a program under test (LD_PRELOAD): its n-th call of a function that writes a file fails, as a full or
// a broken disk would make it fail. FAILING_CALL is "function:n:errno" (n from 1; "write:1:28"), or "short:0:0": every
// write takes at most half of what it is given. Regular files only, so that the program can still say what happened.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Plan {
  char function[16] = {};
  int number = 0;
  int error = 0;
};

const Plan& plan() {
  static const Plan kPlan = [] {
    Plan read;
    if (const char* text = std::getenv("FAILING_CALL"))
      std::sscanf(text, "%15[a-z]:%d:%d", read.function, &read.number, &read.error);
    return read;
  }();
  return kPlan;
}

bool is_file(int fd) {
  struct stat status{};
  return fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

// Whether this call is the one that fails; errno is set then.
bool fails(const char* function) {
  static std::atomic<int> calls{0};
  if (std::strcmp(plan().function, function) != 0 || calls.fetch_add(1) + 1 != plan().number) return false;
  errno = plan().error;
  return true;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t bytes) {
  static auto* const kNext = next<ssize_t(int, const void*, size_t)>("write");
  if (!is_file(fd)) return kNext(fd, data, bytes);
  if (fails("write")) return -1;
  if (std::strcmp(plan().function, "short") == 0) bytes = (bytes + 1) / 2;
  return kNext(fd, data, bytes);
}

int fsync(int fd) {
  static auto* const kNext = next<int(int)>("fsync");
  return is_file(fd) && fails("fsync") ? -1 : kNext(fd);
}

int close(int fd) {
  static auto* const kNext = next<int(int)>("close");
  const bool writes = is_file(fd) && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
  if (!writes || !fails("close")) return kNext(fd);
  kNext(fd);
  errno = plan().error;
  return -1;
}

int rename(const char* from, const char* to) {
  static auto* const kNext = next<int(const char*, const char*)>("rename");
  return fails("rename") ? -1 : kNext(from, to);
}

}  // extern "C"
