#include "runtime/memory/adaptors.h"

#include <execinfo.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <sstream>

#include "base/code/demangle.h"

namespace segfuse::runtime {

namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

/// "program(_ZN3foo3barEv+0x12) [0x...]" with the name as it was written.
std::string readable(std::string_view frame) {
  const std::size_t open = frame.find('(');
  const std::size_t plus = frame.find('+', open);
  if (open == std::string_view::npos || plus == std::string_view::npos) return std::string(frame);
  const std::string name(frame.substr(open + 1, plus - open - 1));
  std::string plain = demangled(name);
  return plain != name ? plain : std::string(frame);
}

}  // namespace

std::string_view log_header() { return "Thread,Time,Action,Pointer,Size,Stream"; }

std::string log_line(const ResourceCall& call) {
  using Kind = ResourceCall::Kind;
  const auto since = std::chrono::duration_cast<std::chrono::microseconds>(
      call.time.time_since_epoch() % std::chrono::hours(24));
  const auto seconds = since.count() / 1'000'000;
  std::ostringstream thread;
  thread << call.thread;
  const char* const action = call.kind == Kind::kAllocate ? "allocate"
                             : call.kind == Kind::kFree   ? "free"
                                                          : "allocate failure";
  return fmt::format("{},{:02}:{:02}:{:02}.{:06},{},0x{:x},{},0x{:x}", thread.str(), seconds / 3600,
                     seconds / 60 % 60, seconds % 60, since.count() % 1'000'000, action,
                     reinterpret_cast<std::uintptr_t>(call.address), call.bytes, call.stream.index);
}

Stack capture_stack(std::size_t frames) {
  std::array<void*, 128> found{};
  const int count = backtrace(found.data(), static_cast<int>(found.size()));
  // Without this function.
  const std::size_t end = std::min(static_cast<std::size_t>(std::max(count, 1)), frames + 1);
  return Stack(found.begin() + 1, found.begin() + static_cast<std::ptrdiff_t>(end));
}

std::string describe_stack(const Stack& stack) {
  const std::unique_ptr<char*, Free> frames(
      backtrace_symbols(stack.data(), static_cast<int>(stack.size())));
  std::string text;
  for (std::size_t i = 0; i < stack.size(); ++i)
    text +=
        fmt::format("    {}\n", frames ? readable(frames.get()[i]) : fmt::format("{}", stack[i]));
  return text;
}

}  // namespace segfuse::runtime
