#include "doctor/fork/act/trace_listener.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "segfuse/error.h"

namespace segfuse::doctor {

namespace {

constexpr std::size_t kLongestMessage = 16384;

/// Another name for each listener of each process.
std::string fresh_name() {
  static std::atomic<unsigned> count{0};
  return "segfuse-fork-trace-" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

}  // namespace

TraceListener::TraceListener(OnMessage on_message, OnEnd on_end)
    : on_message_(std::move(on_message)), on_end_(std::move(on_end)), buffer_(kLongestMessage) {
  const std::string name = fresh_name();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  socket_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  stop_ = eventfd(0, EFD_CLOEXEC);
  if (socket_ < 0 || stop_ < 0 ||
      bind(socket_, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(socket_, 128) != 0) {
    const int reason = errno;
    close(socket_);
    close(stop_);
    throw DeviceError(fmt::format("no socket to listen on: {}", std::strerror(reason)));
  }
  name_ = "@" + name;
  thread_ = std::thread([this] { serve(); });
}

TraceListener::~TraceListener() {
  const std::uint64_t one = 1;
  static_cast<void>(write(stop_, &one, sizeof one));
  thread_.join();
  for (const Connection& connection : connections_) {
    on_end_(connection.sender);
    close(connection.socket);
  }
  close(socket_);
  close(stop_);
}

void TraceListener::accept_one() {
  const int socket = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
  if (socket < 0) return;
  ucred who{};
  socklen_t size = sizeof who;
  // Anybody on the machine may connect to such a socket.
  const bool known = getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0;
  if (!known || (who.uid != geteuid() && geteuid() != 0)) {
    close(socket);
    return;
  }
  connections_.push_back({socket, {who.pid, ++count_}});
}

bool TraceListener::receive(const Connection& connection) {
  const ssize_t count = recv(connection.socket, buffer_.data(), buffer_.size(), 0);
  if (count < 0 && errno == EINTR) return true;
  if (count <= 0) return false;
  on_message_(connection.sender, {buffer_.data(), static_cast<std::size_t>(count)});
  return send(connection.socket, "", 1, MSG_NOSIGNAL) == 1;
}

void TraceListener::serve() {
  int rounds_left = 1000;  // once it is over: somebody may go on talking
  bool stopping = false;
  while (!stopping || rounds_left-- > 0) {
    std::vector<pollfd> all = {{stop_, POLLIN, 0}, {socket_, POLLIN, 0}};
    for (const Connection& connection : connections_) all.push_back({connection.socket, POLLIN, 0});
    const int ready = poll(all.data(), all.size(), stopping ? 0 : -1);
    if (ready < 0 && errno == EINTR) continue;
    stopping = stopping || all[0].revents != 0;
    bool heard = false;
    std::vector<Connection> kept;
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      const bool has = (all[i + 2].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
      if (!has || receive(connections_[i])) {
        kept.push_back(connections_[i]);
      } else {
        on_end_(connections_[i].sender);
        close(connections_[i].socket);
      }
      heard = heard || has;
    }
    connections_ = std::move(kept);
    if (all[1].revents != 0) {
      accept_one();
      heard = true;
    }
    if (stopping && !heard) return;
  }
}

}  // namespace segfuse::doctor
