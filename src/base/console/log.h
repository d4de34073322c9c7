#pragma once
// The log sink. One per process; messages go to stderr unless a sink is set.

#include <fmt/core.h>

#include <functional>
#include <string_view>

namespace segfuse {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

using LogSink = std::function<void(LogLevel, std::string_view message)>;

/// Replaces the sink and returns the former one; an empty sink restores stderr. Thread-safe.
LogSink set_log_sink(LogSink sink);
/// Messages under `level` are dropped. Default: info (environment: SEGFUSE_LOG).
void set_log_level(LogLevel level);
LogLevel log_level() noexcept;
void log_message(LogLevel level, std::string_view message);

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level >= log_level()) log_message(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace segfuse
