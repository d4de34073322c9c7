// A rank that is killed within a message, or while it gives a file its name: part of it is done,
// and then the process ends by SIGKILL. Preloaded, or linked into the program of a rank.
//
//   SEGFUSE_DIE_WITHIN=RANK:KIND:N:BYTES   rank RANK ends when BYTES of its N-th message are sent;
//                                          several of them between commas
//   SEGFUSE_DIE_ONCE=PATH                  each RANK only once: then PATH.RANK is there
//
// KIND is "data" for what ranks exchange, or "words" for what they say to rank 0 in the meeting.
// Words count from when the rank listens for the others: before that ranks have not met. "files"
// are calls of linkat() and renameat(): 0 BYTES end the process before the N-th, others after it.

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Plan {
  bool data = false;
  bool words = false;
  bool files = false;
  long number = 0;
  std::size_t bytes = 0;
};

Plan read_plan() {
  const char* text = std::getenv("SEGFUSE_DIE_WITHIN");
  const char* const rank = std::getenv("RANK");
  for (; text != nullptr && rank != nullptr; text = std::strchr(text, ',')) {
    if (*text == ',') ++text;
    long who = -1;
    long bytes = 0;
    char kind[8] = "";
    Plan plan;
    if (std::sscanf(text, "%ld:%7[a-z]:%ld:%ld", &who, kind, &plan.number, &bytes) != 4 ||
        who != std::atol(rank))
      continue;
    plan.data = std::strcmp(kind, "data") == 0;
    plan.words = std::strcmp(kind, "words") == 0;
    plan.files = std::strcmp(kind, "files") == 0;
    plan.bytes = static_cast<std::size_t>(bytes);
    return plan;
  }
  return {};
}

const Plan& plan() {
  static const Plan the_plan = read_plan();
  return the_plan;
}

std::atomic<bool> listens{false};
std::atomic<long> data_sent{0};
std::atomic<long> words_sent{0};
std::atomic<long> files_named{0};

/// Whether this rank has not died before.
bool first_death() {
  const char* const path = std::getenv("SEGFUSE_DIE_ONCE");
  if (path == nullptr) return true;
  char name[4096];
  std::snprintf(name, sizeof name, "%s.%s", path, std::getenv("RANK"));
  const int file = ::open(name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
  if (file >= 0) ::close(file);
  return file >= 0;
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

ssize_t real_send(int socket, const void* bytes, std::size_t size, int flags) {
  static const auto function = next<ssize_t (*)(int, const void*, std::size_t, int)>("send");
  return function(socket, bytes, size, flags);
}

ssize_t real_sendmsg(int socket, const msghdr* message, int flags) {
  static const auto function = next<ssize_t (*)(int, const msghdr*, int)>("sendmsg");
  return function(socket, message, flags);
}

/// Sends a part of what is left to go out.
void send_part(int socket, const void* bytes, std::size_t size, std::size_t& left) {
  const std::size_t part = std::min(size, left);
  if (part > 0) (void)!real_send(socket, bytes, part, MSG_NOSIGNAL);
  left -= part;
}

template <class Call>
int name_file(const Call& call) {
  const bool dies = plan().files && ++files_named == plan().number && first_death();
  if (dies && plan().bytes == 0) ::raise(SIGKILL);
  const int result = call();
  if (dies) ::raise(SIGKILL);
  return result;
}

}  // namespace

extern "C" {

int listen(int socket, int waiting) {
  static const auto function = next<int (*)(int, int)>("listen");
  listens = true;
  return function(socket, waiting);
}

ssize_t send(int socket, const void* bytes, std::size_t size, int flags) {
  if (plan().words && listens && ++words_sent == plan().number && first_death()) {
    std::size_t left = plan().bytes;
    send_part(socket, bytes, size, left);
    ::raise(SIGKILL);
  }
  return real_send(socket, bytes, size, flags);
}

ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  if (++data_sent == plan().number && plan().data && first_death()) {
    std::size_t left = plan().bytes;
    for (std::size_t i = 0; i < message->msg_iovlen; ++i)
      send_part(socket, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len, left);
    ::raise(SIGKILL);
  }
  return real_sendmsg(socket, message, flags);
}

int linkat(int from, const char* name, int to, const char* target, int flags) {
  static const auto function = next<int (*)(int, const char*, int, const char*, int)>("linkat");
  return name_file([&] { return function(from, name, to, target, flags); });
}

int renameat(int from, const char* name, int to, const char* target) {
  static const auto function = next<int (*)(int, const char*, int, const char*)>("renameat");
  return name_file([&] { return function(from, name, to, target); });
}

}  // extern "C"
