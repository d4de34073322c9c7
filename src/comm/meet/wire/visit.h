#pragma once
// How one gets in: connecting to rank 0 and proving the key.

#include <functional>
#include <optional>
#include <string>

#include "comm/meet/clock.h"
#include "comm/meet/wire/connection.h"
#include "comm/meet/wire/handshake.h"
#include "comm/meet/wire/socket.h"

namespace segfuse::comm::meet {

/// Sleeps until the descriptor (-1: none) is ready or the time has come; true when it is ready.
/// `ask` is called ten times a second and may throw.
bool wait_for(int descriptor, short events, Time until, const Clock& clock,
              const std::function<void()>& ask);

struct Visit {
  std::optional<Connection> connection;  ///< none: see why
  std::string why;
  bool in_vain = false;  ///< another attempt would be, too
};
/// One attempt.
Visit visit(const Address& address, const std::string& key, const Visitor& visitor, Time until,
            const Clock& clock, const std::function<void()>& ask);

/// Who came, and the connection if the key was proved and `judge` said that the visitor is welcome.
struct Guest {
  std::optional<Connection> connection;
  Visitor visitor;
};
/// The other side of an attempt.
Guest admit(Descriptor socket, const std::string& key,
            const std::function<Verdict(const Visitor&)>& judge, Time until, const Clock& clock,
            const std::function<void()>& ask);

}  // namespace segfuse::comm::meet
