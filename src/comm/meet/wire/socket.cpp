#include "comm/meet/wire/socket.h"

#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "segfuse/error.h"

namespace segfuse::comm::meet {
namespace {

namespace fs = std::filesystem;

std::string reason(int error_number) { return std::generic_category().message(error_number); }

template <class T>
const T& as(const Address& address) {
  return reinterpret_cast<const T&>(address.bytes);
}

bool is_loopback(const Address& address) {
  if (address.bytes.ss_family == AF_INET)
    return ntohl(as<sockaddr_in>(address).sin_addr.s_addr) >> 24 == 127;
  return address.bytes.ss_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&as<sockaddr_in6>(address).sin6_addr);
}

Address any_of(int family, int port, bool loopback = false) {
  Address address;
  if (family == AF_INET) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address.bytes);
    v4.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
    v4.sin_port = htons(static_cast<std::uint16_t>(port));
    address.size = sizeof v4;
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address.bytes);
    v6.sin6_addr = loopback ? in6addr_loopback : in6addr_any;
    v6.sin6_port = htons(static_cast<std::uint16_t>(port));
    address.size = sizeof v6;
  }
  address.bytes.ss_family = static_cast<sa_family_t>(family);
  return address;
}

Descriptor new_socket(int family) {
  return Descriptor(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

void set(int socket, int level, int option, int value) {
  ::setsockopt(socket, level, option, &value, sizeof value);
}

/// -1 with errno where this address cannot be had.
Descriptor try_listen(const Address& address) {
  Descriptor socket = new_socket(address.bytes.ss_family);
  if (socket.get() < 0) return socket;
  set(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.bytes.ss_family == AF_INET6) set(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  const auto* const bytes = reinterpret_cast<const sockaddr*>(&address.bytes);
  if (::bind(socket.get(), bytes, address.size) != 0 || ::listen(socket.get(), 1024) != 0) {
    const int error = errno;
    socket = Descriptor();
    errno = error;
  }
  return socket;
}

std::string process_with(const std::string& link) {
  std::error_code ignored;
  for (const fs::directory_entry& process : fs::directory_iterator("/proc", ignored)) {
    const std::string pid = process.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    for (const fs::directory_entry& file : fs::directory_iterator(process.path() / "fd", ignored)) {
      if (fs::read_symlink(file.path(), ignored) != link) continue;
      std::string name;
      std::getline(std::ifstream(process.path() / "comm"), name);
      return fmt::format("pid {} ({})", pid, name);
    }
  }
  return {};
}

}  // namespace

std::vector<Address> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0)
    throw CommError(fmt::format("the machine '{}' of the meeting is not known here: {}", host,
                                error == EAI_SYSTEM ? reason(errno) : ::gai_strerror(error)));
  std::vector<Address> out;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    Address address;
    std::memcpy(&address.bytes, at->ai_addr, at->ai_addrlen);
    address.size = at->ai_addrlen;
    out.push_back(address);
  }
  ::freeaddrinfo(list);
  return out;
}

Descriptor listen_at(const std::string& host, int port) {
  std::vector<Address> places = resolve(host, port);
  // The name of a machine may stand for its loopback there, and for its network elsewhere.
  const bool name =
      host != "localhost" && host.find_first_not_of("0123456789abcdef.:") != host.npos;
  if (name || !std::all_of(places.begin(), places.end(), is_loopback))
    places = {any_of(AF_INET6, port), any_of(AF_INET, port)};
  int error = 0;
  for (const Address& place : places) {
    Descriptor socket = try_listen(place);
    if (socket.get() >= 0) return socket;
    error = errno;
    if (error == EADDRINUSE) break;
  }
  const std::string who = error == EADDRINUSE ? listener_at(port) : "";
  throw CommError(fmt::format(
      "rank 0 cannot listen at port {} of {}: {}{}; set MASTER_PORT to a "
      "free one, the same on all ranks",
      port, own_host(), reason(error), who.empty() ? "" : fmt::format(", {} listens there", who)));
}

int port_of(int socket) {
  Address address;
  address.size = sizeof address.bytes;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address.bytes), &address.size) != 0)
    return 0;
  return ntohs(address.bytes.ss_family == AF_INET ? as<sockaddr_in>(address).sin_port
                                                  : as<sockaddr_in6>(address).sin6_port);
}

std::vector<Address> ways_to(int listening) {
  Address address;
  address.size = sizeof address.bytes;
  if (::getsockname(listening, reinterpret_cast<sockaddr*>(&address.bytes), &address.size) != 0)
    return {};
  if (is_loopback(address)) return {address};
  const int port = port_of(listening);
  return {any_of(AF_INET, port, true), any_of(AF_INET6, port, true)};
}

Descriptor begin_connect(const Address& address) {
  Descriptor socket = new_socket(address.bytes.ss_family);
  if (socket.get() < 0) return socket;
  set(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  const auto* const bytes = reinterpret_cast<const sockaddr*>(&address.bytes);
  if (::connect(socket.get(), bytes, address.size) != 0 && errno != EINPROGRESS)
    return Descriptor();
  return socket;
}

int error_of(int socket) {
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

Descriptor accept_one(int listening) {
  Descriptor socket(::accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.get() >= 0) set(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  return socket;
}

void allow_descriptors(std::int64_t count) {
  rlimit limit{};
  const auto wanted = static_cast<rlim_t>(count);
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string own_host() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "this machine";
  return name;
}

std::string own_address_for(const std::string& host, int port) {
  for (const Address& there : resolve(host, port)) {
    // Connecting a datagram socket sends nothing; the system chooses the way.
    const Descriptor socket(::socket(there.bytes.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    Address own;
    own.size = sizeof own.bytes;
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&there.bytes), there.size) != 0 ||
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own.bytes), &own.size) != 0)
      continue;
    if (is_loopback(own)) return {};
    std::array<char, NI_MAXHOST> digits{};
    if (::getnameinfo(reinterpret_cast<const sockaddr*>(&own.bytes), own.size, digits.data(),
                      digits.size(), nullptr, 0, NI_NUMERICHOST) == 0)
      return digits.data();
  }
  return {};
}

std::string listener_at(int port) {
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    while (std::getline(in, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      words >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
          timeout >> inode;
      if (state != "0A" || !local.ends_with(fmt::format(":{:04X}", port))) continue;
      const std::string process = process_with(fmt::format("socket:[{}]", inode));
      return process.empty() ? fmt::format("a process of user {}", user) : process;
    }
  }
  return {};
}

}  // namespace segfuse::comm::meet
