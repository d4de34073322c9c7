#include "doctor/hook/teller.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace segfuse::hook {
namespace {

constexpr int kPatience = 30000;  ///< milliseconds for an answer
constexpr int kFrames = 40;
constexpr int kHighDescriptor = 700;  ///< out of the way of programs that count on low numbers

enum class State { kUnknown, kSocket, kFile, kNobody };

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
std::atomic<State> state = State::kUnknown;
int connection = -1;
struct stat identity;
char path[4096];

/// The program may have closed our descriptor, and opened its own under the same number.
bool still_ours() {
  struct stat now;
  return connection >= 0 && fstat(connection, &now) == 0 && now.st_ino == identity.st_ino &&
         now.st_dev == identity.st_dev;
}

State open_socket(const char* name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::strlen(name);
  if (length + 1 > sizeof address.sun_path) return State::kNobody;
  std::memcpy(address.sun_path + 1, name, length);
  const int low = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (low < 0) return State::kNobody;
  connection = fcntl(low, F_DUPFD_CLOEXEC, kHighDescriptor);
  if (connection < 0) connection = low;
  if (connection != low) close(low);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      fstat(connection, &identity) != 0) {
    close(connection);
    connection = -1;
    return State::kNobody;
  }
  return State::kSocket;
}

State find_out() {
  const char* const where = std::getenv(kTraceVariable);
  if (where == nullptr || *where == '\0') return State::kNobody;
  if (*where == '@') return open_socket(where + 1);
  if (std::strlen(where) >= sizeof path) return State::kNobody;
  std::strcpy(path, where);
  return State::kFile;
}

/// A forked child is another process: it has its own connection.
void begin_again() {
  pthread_mutex_init(&mutex, nullptr);
  if (state == State::kSocket && still_ours()) close(connection);
  connection = -1;
  if (state == State::kSocket) state = State::kUnknown;
}

bool write_to_file(const Message& message) {
  const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return false;
  const bool written =
      write(file, message.text(), message.size()) == static_cast<ssize_t>(message.size());
  close(file);
  return written;
}

bool exchange(const Message& message) {
  if (!still_ours()) return false;
  if (send(connection, message.text(), message.size(), MSG_NOSIGNAL) < 0) return false;
  pollfd one{connection, POLLIN, 0};
  int polled = 0;
  do {
    polled = poll(&one, 1, kPatience);
  } while (polled < 0 && errno == EINTR);
  char answer = 0;
  return polled == 1 && recv(connection, &answer, 1, 0) == 1;
}

__attribute__((constructor)) void prepare() {
  // The first one asks for memory, and opens a library.
  void* frame = nullptr;
  backtrace(&frame, 1);
  pthread_atfork(nullptr, nullptr, begin_again);
}

}  // namespace

void Message::add(const char* text, std::size_t size) noexcept {
  if (size > kCapacity - size_) return;
  std::memcpy(text_ + size_, text, size);
  size_ += size;
}

void Message::line(const char* name, const char* value) noexcept {
  char text[5000];
  const int size = std::snprintf(text, sizeof text, "%s %s\n", name, value);
  if (size > 0 && static_cast<std::size_t>(size) < sizeof text)
    add(text, static_cast<std::size_t>(size));
}

void Message::number(const char* name, unsigned long long value) noexcept {
  char text[32];
  std::snprintf(text, sizeof text, "%llu", value);
  line(name, text);
}

void Message::address(const char* name, unsigned long long value) noexcept {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", value);
  line(name, text);
}

void Message::frames() noexcept {
  void* stack[kFrames];
  const int count = backtrace(stack, kFrames);
  Dl_info own{};
  dladdr(reinterpret_cast<void*>(&listening), &own);
  for (int i = 0; i < count; ++i) {
    Dl_info info{};
    link_map* map = nullptr;
    // The return address is behind the call.
    const char* const at = static_cast<const char*>(stack[i]) - 1;
    if (dladdr1(at, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0) {
      char text[64];
      std::snprintf(text, sizeof text, "0x%llx ? ?", reinterpret_cast<unsigned long long>(at));
      line("frame", text);
      continue;
    }
    if (info.dli_fbase == own.dli_fbase) continue;
    char text[4600];
    const auto offset = reinterpret_cast<unsigned long long>(at) - map->l_addr;
    if (info.dli_sname != nullptr)
      std::snprintf(text, sizeof text, "0x%llx %.500s+0x%llx %s", offset, info.dli_sname,
                    static_cast<unsigned long long>(at - static_cast<const char*>(info.dli_saddr)),
                    info.dli_fname);
    else
      std::snprintf(text, sizeof text, "0x%llx ? %s", offset, info.dli_fname);
    line("frame", text);
  }
}

bool listening() noexcept {
  if (state.load(std::memory_order_acquire) == State::kNobody) return false;
  pthread_mutex_lock(&mutex);
  if (state == State::kUnknown) state.store(find_out(), std::memory_order_release);
  const bool somebody = state != State::kNobody;
  pthread_mutex_unlock(&mutex);
  return somebody;
}

void tell(const Message& message) noexcept {
  const int error = errno;
  pthread_mutex_lock(&mutex);
  bool sent = false;
  if (state == State::kFile) sent = write_to_file(message);
  if (state == State::kSocket) sent = exchange(message);
  if (!sent) state.store(State::kNobody, std::memory_order_release);
  pthread_mutex_unlock(&mutex);
  errno = error;
}

}  // namespace segfuse::hook
