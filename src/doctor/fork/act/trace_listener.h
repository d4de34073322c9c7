#pragma once
// The end of the socket that preloaded libraries talk to.

#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace segfuse::doctor {

/// The sender: a program between its start and its end (or its exec of another).
struct TraceSender {
  int pid = 0;
  std::uint64_t number = 0;  ///< of the connection
};

/// Messages are handled one after the other, on a thread of the listener's; a sender goes on when
/// its message has been handled. Handlers do not throw.
class TraceListener {
 public:
  using OnMessage = std::function<void(const TraceSender&, std::string_view text)>;
  using OnEnd = std::function<void(const TraceSender&)>;

  /// DeviceError when the system has no socket for us.
  TraceListener(OnMessage on_message, OnEnd on_end);
  /// Handles what is there already, and hangs up.
  ~TraceListener();
  TraceListener(const TraceListener&) = delete;
  TraceListener& operator=(const TraceListener&) = delete;

  /// For SEGFUSE_FORK_TRACE.
  const std::string& name() const { return name_; }

 private:
  struct Connection {
    int socket = -1;
    TraceSender sender;
  };
  void serve();
  void accept_one();
  /// False once the other end has hung up.
  bool receive(const Connection& connection);

  OnMessage on_message_;
  OnEnd on_end_;
  std::string name_;
  int socket_ = -1;
  int stop_ = -1;
  std::uint64_t count_ = 0;
  std::vector<Connection> connections_;
  std::vector<char> buffer_;
  std::thread thread_;
};

}  // namespace segfuse::doctor
