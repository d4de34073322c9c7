#pragma once
// Progress of one piece of work: a bar on a terminal, a line every few seconds elsewhere, nothing
// for work that ends within two seconds. Written to stderr, never to stdout.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/mutex.h"

namespace segfuse {

struct ProgressOptions {
  bool quiet = false;           ///< write nothing at all
  double silent_seconds = 2;    ///< nothing is written before
  double redraw_seconds = 0.1;  ///< between two states of the bar
  double line_seconds = 5;      ///< between two lines when there is no terminal
  enum class Style {
    kAuto,
    kBar,
    kLines
  } style = Style::kAuto;  ///< auto: bar if stderr is a terminal
  int columns = 0;         ///< width of the bar's line; 0 asks the terminal
  std::function<void(std::string_view)> write = {};  ///< in place of stderr
  std::function<double()> clock = {};                ///< seconds, in place of the steady clock
};

/// Thread-safe. A call costs a clock read unless something is drawn.
class Progress {
 public:
  /// `what` names the work ("training"); `total` counts its units, 0 when unknown.
  explicit Progress(std::string what, std::int64_t total = 0, ProgressOptions options = {});
  /// Like finish().
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(std::int64_t units = 1);
  void set(std::int64_t done);
  /// A short text shown behind the numbers ("loss 1.234"), from the next drawing on.
  void note(std::string text);
  /// A whole line of its own above the bar, at once and whatever the time (not when quiet).
  void print(std::string_view line);
  /// Draws the last state (if anything was drawn) and ends the line. Later calls do nothing.
  void finish();

 private:
  void update(double now, bool last) SEGFUSE_REQUIRES(mutex_);
  std::string state(double now) const SEGFUSE_REQUIRES(mutex_);
  std::string bar(double now) const SEGFUSE_REQUIRES(mutex_);
  void write(std::string_view text) const;

  const std::string what_;
  const std::int64_t total_;
  const ProgressOptions options_;
  const bool on_terminal_;
  mutable Mutex mutex_;  // guards all below
  std::int64_t done_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  std::string note_ SEGFUSE_GUARDED_BY(mutex_);
  double start_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  double drawn_at_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  bool drawn_ SEGFUSE_GUARDED_BY(mutex_) = false;
  bool finished_ SEGFUSE_GUARDED_BY(mutex_) = false;
};

}  // namespace segfuse
