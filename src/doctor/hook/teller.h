#pragma once
// How the hook tells what it saw: as text, to the doctor over a socket, or to the end of a file.
//
// SEGFUSE_FORK_TRACE=@NAME is a socket of the abstract kind; the doctor answers each message with
// one byte, and may look at the process until then. Anything else is a file's path.

#include <cstddef>

namespace segfuse::hook {

inline constexpr const char* kTraceVariable = "SEGFUSE_FORK_TRACE";

/// A message of lines "NAME VALUE". What does not fit is dropped. No memory is requested: malloc
/// may be the one who called.
class Message {
 public:
  void line(const char* name, const char* value) noexcept;
  void number(const char* name, unsigned long long value) noexcept;
  void address(const char* name, unsigned long long value) noexcept;
  /// The stack of the caller, without this library: "frame OFFSET FUNCTION+0x1c LIBRARY".
  void frames() noexcept;
  const char* text() const noexcept { return text_; }
  std::size_t size() const noexcept { return size_; }

 private:
  void add(const char* text, std::size_t size) noexcept;
  static constexpr std::size_t kCapacity = 12000;
  char text_[kCapacity];
  std::size_t size_ = 0;
};

/// Does anybody listen? One that does not is asked once.
bool listening() noexcept;
/// Sends and waits for the answer; errno stays. After a failure nobody listens any more.
void tell(const Message& message) noexcept;

}  // namespace segfuse::hook
