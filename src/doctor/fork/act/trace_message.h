#pragma once
// What the preloaded library says, as values. The other end is src/doctor/hook/teller.h.

#include <optional>
#include <string>
#include <string_view>

#include "doctor/fork/act/trace.h"

namespace segfuse::doctor {

enum class TraceKind { kKeep, kRelease, kWipe, kUnwipe, kFork, kExit };

struct TraceMessage {
  TraceKind kind = TraceKind::kExit;
  std::string call;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  int error = 0;
  std::vector<ForkFrame> stack;
};

/// Nothing for a text that is not one whole message: programs can write anything to a socket.
std::optional<TraceMessage> parse_trace_message(std::string_view text);

/// The first frame outside of the C library and those that do the registering; the last one if
/// there is none.
std::size_t caller_in(const std::vector<ForkFrame>& stack);

}  // namespace segfuse::doctor
