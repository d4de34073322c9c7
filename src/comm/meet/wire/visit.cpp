#include "comm/meet/wire/visit.h"

#include <fmt/core.h>
#include <poll.h>

#include <cerrno>
#include <system_error>

#include "segfuse/error.h"

namespace segfuse::comm::meet {
namespace {

constexpr std::chrono::milliseconds kAsk{100};

std::string words_of(Verdict verdict, const Visitor& visitor) {
  switch (verdict) {
    case Verdict::kWelcome: return {};
    case Verdict::kWrongKey:
      return "rank 0 of the meeting there has another key (SEGFUSE_JOB_KEY): another job, or a key "
             "that is not the same on all ranks";
    case Verdict::kWrongCount:
      return fmt::format("rank 0 there does not expect a rank {} of {}", visitor.rank,
                         visitor.count);
    case Verdict::kTaken:
      return fmt::format("another process has joined as rank {} there already", visitor.rank);
    case Verdict::kClosed: return "all ranks of the meeting there have joined already";
    case Verdict::kOver: return "the work of the ranks there is done";
  }
  return {};
}

/// The next message; nothing when the time is over or the other side closes.
std::optional<std::string> await(Connection& connection, Time until, const Clock& clock,
                                 const std::function<void()>& ask) {
  for (;;) {
    if (auto message = connection.next(kLongestGreeting)) return message;
    if (!wait_for(connection.descriptor(), POLLIN, until, clock, ask)) return {};
    if (!connection.receive()) return connection.next(kLongestGreeting);
  }
}

Visit greet(Connection connection, const std::string& key, const Visitor& visitor, Time until,
            const Clock& clock, const std::function<void()>& ask) {
  constexpr const char* kStranger =
      "what listens there is not a meeting of this version of segfuse";
  const auto first = await(connection, until, clock, ask);
  if (!first) return {{}, "what listens there does not speak or closed the connection"};
  const auto nonce = read_challenge(*first);
  if (!nonce) return {{}, kStranger};
  const std::string own = new_nonce();
  connection.send(answer(key, *nonce, visitor, own));
  // It is short: the socket takes it at once or is no use.
  if (!connection.flush() || !connection.all_sent()) return {{}, "the connection closed"};
  const auto reply = await(connection, until, clock, ask);
  if (!reply) return {{}, "rank 0 did not answer in time or closed the connection"};
  const auto said = read_verdict(*reply, key, *nonce, own);
  if (!said) return {{}, "what listens there does not know the key"};
  if (*said != Verdict::kWelcome) return {{}, words_of(*said, visitor), *said == Verdict::kOver};
  return {std::move(connection), {}};
}

}  // namespace

bool wait_for(int descriptor, short events, Time until, const Clock& clock,
              const std::function<void()>& ask) {
  for (;;) {
    if (ask) ask();
    pollfd watched{descriptor, events, 0};
    const auto patience = std::min(clock.patience(until), kAsk);
    if (::poll(&watched, descriptor < 0 ? 0 : 1, static_cast<int>(patience.count())) > 0)
      return true;
    if (clock.now() >= until) return false;
  }
}

Visit visit(const Address& address, const std::string& key, const Visitor& visitor, Time until,
            const Clock& clock, const std::function<void()>& ask) {
  Descriptor socket = begin_connect(address);
  if (socket.get() < 0) return {{}, std::generic_category().message(errno)};
  if (!wait_for(socket.get(), POLLOUT, until, clock, ask)) return {{}, "nobody answers there"};
  if (const int error = error_of(socket.get()); error != 0)
    return {
        {},
        error == ECONNREFUSED ? "nobody listens there" : std::generic_category().message(error)};
  try {
    return greet(Connection(std::move(socket)), key, visitor, until, clock, ask);
  } catch (const DataError&) {
    return {{}, "what listens there is not a meeting of segfuse"};
  }
}

Guest admit(Descriptor socket, const std::string& key,
            const std::function<Verdict(const Visitor&)>& judge, Time until, const Clock& clock,
            const std::function<void()>& ask) {
  Connection connection(std::move(socket));
  const std::string nonce = new_nonce();
  connection.send(challenge(nonce));
  try {
    if (!connection.flush() || !connection.all_sent()) return {};
    const auto bytes = await(connection, until, clock, ask);
    const auto said = bytes ? read_answer(*bytes) : std::nullopt;
    if (!said) return {};
    const Verdict judged =
        proves_key(*said, key, nonce) ? judge(said->visitor) : Verdict::kWrongKey;
    connection.send(verdict(key, judged, nonce, said->nonce));
    if (!connection.flush() || !connection.all_sent() || judged != Verdict::kWelcome) return {};
    return {std::move(connection), said->visitor};
  } catch (const DataError&) {
    return {};
  }
}

}  // namespace segfuse::comm::meet
