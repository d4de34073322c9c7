#pragma once
// A socket that carries whole messages: four bytes of length, the least significant first, and the
// message. Never waits.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/os/descriptor.h"

namespace segfuse::comm::meet {

/// The wire format of one message; it may be sent to many.
using Frame = std::shared_ptr<const std::string>;
Frame frame_of(std::string_view message);

class Connection {
 public:
  explicit Connection(Descriptor socket) : socket_(std::move(socket)) {}

  int descriptor() const noexcept { return socket_.get(); }
  /// Takes what has come, up to a bound; false once the other side has closed.
  bool receive();
  /// Drops what has come.
  void forget();
  /// The next whole message. Throws DataError for a length beyond `most`, which strangers send.
  std::optional<std::string> next(std::size_t most);

  void send(Frame frame) { waiting_.push_back(std::move(frame)); }
  void send(std::string_view message) { send(frame_of(message)); }
  /// Sends what can be sent now; false when the other side has closed.
  bool flush();
  bool all_sent() const noexcept { return waiting_.empty(); }
  /// Nothing more will be sent.
  void end();
  /// The socket alone: the caller that takes it has received all that it wants of whole messages.
  Descriptor take() && { return std::move(socket_); }

 private:
  Descriptor socket_;
  std::string come_;
  std::size_t taken_ = 0;  ///< of what has come
  std::deque<Frame> waiting_;
  std::size_t sent_ = 0;  ///< of the first that waits
};

}  // namespace segfuse::comm::meet
