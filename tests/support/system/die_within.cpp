// A rank that is killed within a message: part of it goes out, and then the process ends by
// SIGKILL. Preloaded, or linked into the program of a rank.
//
//   SEGFUSE_DIE_WITHIN=RANK:KIND:N:BYTES   rank RANK ends when BYTES of its N-th message are sent
//
// KIND is "data" for what ranks exchange, or "words" for what they say to rank 0 in the meeting.
// Words count from when the rank listens for the others: before that ranks have not met.

#include <dlfcn.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Plan {
  bool data = false;
  bool words = false;
  long number = 0;
  std::size_t bytes = 0;
};

Plan read_plan() {
  const char* const text = std::getenv("SEGFUSE_DIE_WITHIN");
  const char* const rank = std::getenv("RANK");
  long who = -1;
  long bytes = 0;
  char kind[8] = "";
  Plan plan;
  if (text == nullptr || rank == nullptr ||
      std::sscanf(text, "%ld:%7[a-z]:%ld:%ld", &who, kind, &plan.number, &bytes) != 4 ||
      who != std::atol(rank))
    return {};
  plan.data = std::strcmp(kind, "data") == 0;
  plan.words = std::strcmp(kind, "words") == 0;
  plan.bytes = static_cast<std::size_t>(bytes);
  return plan;
}

const Plan& plan() {
  static const Plan the_plan = read_plan();
  return the_plan;
}

std::atomic<bool> listens{false};
std::atomic<long> data_sent{0};
std::atomic<long> words_sent{0};

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

}  // namespace

extern "C" {

int listen(int socket, int waiting) {
  static const auto function = next<int (*)(int, int)>("listen");
  listens = true;
  return function(socket, waiting);
}

ssize_t send(int socket, const void* bytes, std::size_t size, int flags) {
  if (plan().words && listens && ++words_sent == plan().number) {
    std::size_t left = plan().bytes;
    send_part(socket, bytes, size, left);
    ::raise(SIGKILL);
  }
  return real_send(socket, bytes, size, flags);
}

ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  if (++data_sent == plan().number && plan().data) {
    std::size_t left = plan().bytes;
    for (std::size_t i = 0; i < message->msg_iovlen; ++i)
      send_part(socket, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len, left);
    ::raise(SIGKILL);
  }
  return real_sendmsg(socket, message, flags);
}

}  // extern "C"
