#include "base/console/log.h"

#include <fmt/core.h>

#include <atomic>
#include <cstdio>
#include <utility>

#include "base/console/printable.h"
#include "base/mutex.h"

namespace segfuse {
namespace {

std::atomic<LogLevel> level_now{LogLevel::kInfo};

struct SinkSlot {
  Mutex mutex;
  LogSink sink SEGFUSE_GUARDED_BY(mutex);
};

SinkSlot& sink_slot() {
  static auto& slot = *new SinkSlot();
  return slot;
}

constexpr std::string_view kPrefix[] = {"debug: ", "", "warning: ", "error: "};

}  // namespace

LogSink set_log_sink(LogSink sink) {
  SinkSlot& slot = sink_slot();
  const MutexLock lock(slot.mutex);
  return std::exchange(slot.sink, std::move(sink));
}

void set_log_level(LogLevel level) { level_now = level; }
LogLevel log_level() noexcept { return level_now; }

void log_message(LogLevel level, std::string_view message) {
  SinkSlot& slot = sink_slot();
  const MutexLock lock(slot.mutex);
  if (slot.sink) return slot.sink(level, message);
  const std::string line =
      fmt::format("segfuse: {}{}\n", kPrefix[static_cast<int>(level)], printable(message));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace segfuse
