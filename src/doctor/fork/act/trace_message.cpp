#include "doctor/fork/act/trace_message.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/text.h"

namespace segfuse::doctor {

namespace {

constexpr std::size_t kMaxFrames = 64;
/// Libraries that call on behalf of others.
constexpr std::array<std::string_view, 8> kBetween = {"libibverbs.so", "libmlx4",      "libmlx5",
                                                      "libefa.so",     "librdmacm.so", "libc.so",
                                                      "libc-2.",       "libpthread"};

struct KindName {
  std::string_view name;
  TraceKind kind;
};
constexpr std::array<KindName, 6> kKinds = {{{"keep", TraceKind::kKeep},
                                             {"release", TraceKind::kRelease},
                                             {"wipe", TraceKind::kWipe},
                                             {"unwipe", TraceKind::kUnwipe},
                                             {"fork", TraceKind::kFork},
                                             {"exit", TraceKind::kExit}}};

bool read_number(std::string_view text, std::uint64_t& value) {
  const bool hex = text.starts_with("0x");
  if (hex) text.remove_prefix(2);
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, hex ? 16 : 10);
  return error == std::errc{} && end == text.data() + text.size();
}

/// "OFFSET FUNCTION LIBRARY"; "?" for what is not known. A library's name may have blanks.
bool read_frame(std::string_view text, ForkFrame& frame) {
  const std::size_t first = text.find(' ');
  if (first == std::string_view::npos || !read_number(text.substr(0, first), frame.offset))
    return false;
  const std::size_t second = text.find(' ', first + 1);
  if (second == std::string_view::npos) return false;
  frame.function = text.substr(first + 1, second - first - 1);
  frame.library = text.substr(second + 1);
  if (frame.function == "?") frame.function.clear();
  if (frame.library == "?") frame.library.clear();
  return true;
}

bool read_line(std::string_view name, std::string_view value, TraceMessage& message, bool& kind) {
  std::uint64_t number = 0;
  if (name == "call") {
    message.call = value;
  } else if (name == "kind") {
    for (const KindName& one : kKinds)
      if (one.name == value) {
        message.kind = one.kind;
        kind = true;
      }
    return kind;
  } else if (name == "address") {
    return read_number(value, message.address);
  } else if (name == "bytes") {
    return read_number(value, message.bytes);
  } else if (name == "error") {
    if (!read_number(value, number) || number > 4096) return false;
    message.error = static_cast<int>(number);
  } else if (name == "frame") {
    ForkFrame frame;
    if (!read_frame(value, frame)) return false;
    if (message.stack.size() < kMaxFrames) message.stack.push_back(std::move(frame));
  }
  return true;
}

}  // namespace

std::optional<TraceMessage> parse_trace_message(std::string_view text) {
  TraceMessage message;
  bool kind = false;
  bool ended = false;
  for (const std::string_view line : split_lines(text)) {
    if (ended) return std::nullopt;
    const std::size_t blank = line.find(' ');
    if (blank == std::string_view::npos) return std::nullopt;
    const std::string_view name = line.substr(0, blank);
    if (name == "end") ended = true;
    if (!read_line(name, line.substr(blank + 1), message, kind)) return std::nullopt;
  }
  if (!kind || !ended || message.call.empty()) return std::nullopt;
  if (message.address + message.bytes < message.address) return std::nullopt;
  return message;
}

std::size_t caller_in(const std::vector<ForkFrame>& stack) {
  for (std::size_t i = 0; i < stack.size(); ++i) {
    const std::string_view path = stack[i].library;
    const std::string_view file = path.substr(path.rfind('/') + 1);
    if (std::none_of(kBetween.begin(), kBetween.end(),
                     [&](std::string_view prefix) { return file.starts_with(prefix); }))
      return i;
  }
  return stack.empty() ? 0 : stack.size() - 1;
}

}  // namespace segfuse::doctor
