#include "runtime/check/finding.h"

#include <fmt/format.h>

namespace segfuse::runtime {
namespace {

std::string ordinal(std::uint64_t n) {
  const bool teen = n % 100 >= 11 && n % 100 <= 13;
  const char* const ending = teen          ? "th"
                             : n % 10 == 1 ? "st"
                             : n % 10 == 2 ? "nd"
                             : n % 10 == 3 ? "rd"
                                           : "th";
  return fmt::format("{}{}", n, ending);
}

std::string stream_text(const Finding::Use& use) {
  if (use.stream == 0) return "the host";
  if (use.stream_name.empty()) return fmt::format("stream {}", use.stream);
  return fmt::format("stream {} ({})", use.stream, use.stream_name);
}

std::string work_text(const Finding::Use& use) {
  return fmt::format("'{}' ({} operation of {})", use.work, ordinal(use.operation),
                     stream_text(use));
}

std::string memory_text(const Finding& finding, const std::string& buffer) {
  if (!buffer.empty()) return fmt::format("'{}'", buffer);
  return fmt::format("memory at {:#x}", finding.address);
}

}  // namespace

std::string Finding::missing() const {
  const char* const waits = later.stream == 0 ? "for stream" : "for an event recorded on stream";
  const std::string name =
      earlier.stream_name.empty() ? "" : fmt::format(" ({})", earlier.stream_name);
  return fmt::format("{} has to wait {} {}{} after '{}' (its {} operation)", stream_text(later),
                     waits, earlier.stream, name, earlier.work, ordinal(earlier.operation));
}

std::string Finding::describe() const {
  const char* const uses = later.write ? "writes" : "reads";
  const char* const may = earlier.write ? "may still be writing" : "may still be reading";
  switch (kind) {
    case Kind::kNoMemory:
      return fmt::format(
          "{} {} {} bytes of {} that have no memory; they were unmapped too early, or never mapped",
          work_text(later), uses, bytes, memory_text(*this, later.buffer));
    case Kind::kReleased:
      return fmt::format("{} of {} are released while {} {} them; {}",
                         fmt::format("{} bytes", bytes), memory_text(*this, earlier.buffer),
                         work_text(earlier), may, missing());
    case Kind::kHost:
      return fmt::format("the host {} {} while {} {} it; {}", uses,
                         memory_text(*this, later.buffer), work_text(earlier), may, missing());
    case Kind::kRace: break;
  }
  const std::string same = earlier.buffer == later.buffer
                               ? std::string("it")
                               : memory_text(*this, earlier.buffer) + " there";
  return fmt::format("{} {} {} while {} {} {} ({} bytes in common); {}", work_text(later), uses,
                     memory_text(*this, later.buffer), work_text(earlier), may, same, bytes,
                     missing());
}

}  // namespace segfuse::runtime
