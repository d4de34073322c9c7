#include "comm/meet/wire/connection.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "segfuse/error.h"

namespace segfuse::comm::meet {
namespace {

/// So that one who sends without end does not keep the others waiting.
constexpr int kBlocksAtOnce = 4;

}  // namespace

Frame frame_of(std::string_view message) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8)
    bytes += static_cast<char>(message.size() >> shift & 0xff);
  bytes += message;
  return std::make_shared<const std::string>(std::move(bytes));
}

bool Connection::receive() {
  std::array<char, 16384> buffer;
  for (int block = 0; block < kBlocksAtOnce; ++block) {
    const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (count == 0) return false;
    come_.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return true;
}

void Connection::forget() {
  come_.clear();
  taken_ = 0;
}

std::optional<std::string> Connection::next(std::size_t most) {
  const std::string_view left = std::string_view(come_).substr(taken_);
  if (left.size() < 4) return {};
  std::size_t size = 0;
  for (std::size_t i = 0; i < 4; ++i)
    size |= std::size_t{static_cast<unsigned char>(left[i])} << 8 * i;
  if (size > most) throw DataError("a message of the meeting is too long");
  if (left.size() < 4 + size) return {};
  std::string message(left.substr(4, size));
  taken_ += 4 + size;
  // What has been taken goes when it is the larger part.
  if (2 * taken_ >= come_.size()) {
    come_.erase(0, taken_);
    taken_ = 0;
  }
  return message;
}

bool Connection::flush() {
  while (!waiting_.empty()) {
    const std::string& first = *waiting_.front();
    const ssize_t count = ::send(socket_.get(), first.data() + sent_, first.size() - sent_,
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    sent_ += static_cast<std::size_t>(count);
    if (sent_ < first.size()) continue;
    waiting_.pop_front();
    sent_ = 0;
  }
  return true;
}

void Connection::end() { ::shutdown(socket_.get(), SHUT_WR); }

}  // namespace segfuse::comm::meet
