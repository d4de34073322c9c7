#include "base/console/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/console/printable.h"
#include "base/mutex.h"

namespace segfuse {
namespace {

constexpr int kBarCells = 24;
constexpr std::string_view kClearLine = "\r\033[K";

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ProgressOptions completed(ProgressOptions options) {
  if (!options.clock) options.clock = steady_seconds;
  return options;
}

bool use_bar(const ProgressOptions& options) {
  if (options.style != ProgressOptions::Style::kAuto)
    return options.style == ProgressOptions::Style::kBar;
  return !options.write && ::isatty(STDERR_FILENO) == 1;
}

int columns_of(const ProgressOptions& options) {
  if (options.columns > 0) return options.columns;
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{}:{:02} h", whole / 3600, whole / 60 % 60);
}

/// At most `columns` characters of UTF-8 text, never cutting one in two.
std::string clipped(const std::string& text, int columns) {
  std::size_t end = 0;
  for (int used = 0; end < text.size() && used < columns; ++used) do
      ++end;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U);
  return text.substr(0, end);
}

}  // namespace

Progress::Progress(std::string what, std::int64_t total, ProgressOptions options)
    : what_(std::move(what)),
      total_(total),
      options_(completed(std::move(options))),
      on_terminal_(use_bar(options_)) {
  start_ = options_.clock();
}

Progress::~Progress() { finish(); }

void Progress::advance(std::int64_t units) {
  const MutexLock lock(mutex_);
  done_ += units;
  update(options_.clock(), false);
}

void Progress::set(std::int64_t done) {
  const MutexLock lock(mutex_);
  done_ = done;
  update(options_.clock(), false);
}

void Progress::note(std::string text) {
  const MutexLock lock(mutex_);
  note_ = std::move(text);
}

void Progress::print(std::string_view line) {
  const MutexLock lock(mutex_);
  if (options_.quiet) return;
  const bool redraw = on_terminal_ && drawn_ && !finished_;
  if (redraw) write(kClearLine);
  write(fmt::format("{}\n", printable(line)));
  if (redraw) write(bar(options_.clock()));
}

void Progress::finish() {
  const MutexLock lock(mutex_);
  if (finished_) return;
  if (drawn_) update(options_.clock(), true);
  finished_ = true;
}

void Progress::update(double now, bool last) {
  if (options_.quiet || finished_ || now - start_ < options_.silent_seconds) return;
  const double pause = on_terminal_ ? options_.redraw_seconds : options_.line_seconds;
  if (drawn_ && !last && now - drawn_at_ < pause) return;
  drawn_ = true;
  drawn_at_ = now;
  if (on_terminal_) {
    write(fmt::format("{}{}", bar(now), last ? "\n" : ""));
  } else {
    write(fmt::format("{}\n", state(now)));
  }
}

std::string Progress::state(double now) const {
  const double elapsed = now - start_;
  std::string text = what_ + ": ";
  if (total_ > 0) {
    const std::int64_t done = std::clamp<std::int64_t>(done_, 0, total_);
    text +=
        fmt::format("{}/{} ({} %), {}", done, total_, 100 * done / total_, duration_text(elapsed));
    if (done > 0 && done < total_)
      text += fmt::format(", {} left", duration_text(elapsed * static_cast<double>(total_ - done) /
                                                     static_cast<double>(done)));
  } else {
    text += fmt::format("{}, {}", done_, duration_text(elapsed));
  }
  return printable(note_.empty() ? text : text + ", " + note_);
}

std::string Progress::bar(double now) const {
  std::string cells;
  if (total_ > 0) {
    const auto full =
        static_cast<std::size_t>(std::clamp<std::int64_t>(done_, 0, total_) * kBarCells / total_);
    cells = "[" + std::string(full, '#') + std::string(kBarCells - full, '.') + "] ";
  }
  // The last column stays free: filling it wraps the line on some terminals.
  return std::string(kClearLine) + clipped(cells + state(now), columns_of(options_) - 1);
}

void Progress::write(std::string_view text) const {
  if (options_.write) return options_.write(text);
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace segfuse
