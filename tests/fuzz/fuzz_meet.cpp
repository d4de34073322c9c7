// What strangers and broken ranks send to a meeting: greetings, and messages behind the proof of
// the key; whole, and in pieces over a socket.

#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "comm/meet/wire/connection.h"
#include "comm/meet/wire/handshake.h"
#include "comm/meet/wire/message.h"
#include "segfuse/error.h"

namespace {

using namespace segfuse::comm::meet;

void check(bool holds) {
  if (!holds) std::abort();
}

/// What is understood means the same when it is said again.
void read_message(std::string_view bytes) {
  try {
    const Message message = decode(bytes);
    check(encode(message) == bytes);
  } catch (const segfuse::DataError&) {
  }
}

void read_greetings(std::string_view bytes) {
  const std::string nonce(32, 'n');
  if (const auto read = read_challenge(bytes)) check(challenge(*read) == bytes);
  if (const auto read = read_answer(bytes)) check(!proves_key(*read, "another key", nonce));
  if (const auto read = read_verdict(bytes, "another key", nonce, nonce))
    check(*read == Verdict::kWrongKey);
}

void read_frames(std::string_view bytes) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  const segfuse::Descriptor other(ends[0]);
  Connection connection{segfuse::Descriptor(ends[1])};
  std::size_t taken = 0;
  try {
    for (std::string_view left = bytes; !left.empty();) {
      const std::string_view piece = left.substr(0, 1 + left.size() / 3);
      left.remove_prefix(piece.size());
      if (::send(other.get(), piece.data(), piece.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
      check(connection.receive());
      while (const auto message = connection.next(kLongestMessage)) {
        taken += 4 + message->size();
        check(taken <= bytes.size());
        read_message(*message);
      }
    }
  } catch (const segfuse::DataError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  read_message(bytes);
  read_greetings(bytes);
  read_frames(bytes);
  return 0;
}
