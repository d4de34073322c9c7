#pragma once
// Programs as children: the only way the product creates a process. The child is never a copy of
// this process: it borrows its memory until it has become another program (posix_spawn), so it
// costs the same however much memory is pinned here, no fork handler runs, and a page that
// registered memory keeps from children cannot hurt it. The calling thread, and only it, stands
// still until the program has started.

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace segfuse::spawn {

/// What a standard stream of the child is.
struct Null {};     ///< reads nothing, loses what is written
struct Inherit {};  ///< this process's own; Null where that is closed
struct Bytes {      ///< stdin: this content
  std::string content;
};
struct Descriptor {  ///< an open descriptor of this process, which keeps it
  int number = -1;
};
/// stdin: read from the start. stdout, stderr: created or emptied. A FIFO is never waited for:
/// without a writer it reads as empty, without a reader it is refused (ENXIO).
struct File {
  std::filesystem::path path;
  bool append = false;
};
struct Capture {};  ///< into Result::out or Result::err
struct Merge {};    ///< stderr: to where stdout goes
/// Each line when it is there, without its end; a line beyond 64 KiB comes in pieces of that size,
/// and a last one may lack its end. Called by the thread that waits in run().
struct Lines {
  std::function<void(std::string_view line)> take;
};

using Input = std::variant<Null, Bytes, Descriptor, File, Inherit>;
using Output = std::variant<Inherit, Null, Capture, Descriptor, File, Lines>;
using ErrorOutput = std::variant<Inherit, Null, Capture, Descriptor, File, Lines, Merge>;

struct Environment {
  bool inherit = true;  ///< start from this process's variables
  std::map<std::string, std::optional<std::string>> change;  ///< set, or remove

  static Environment exact(const std::map<std::string, std::string>& variables) {
    return {false, {variables.begin(), variables.end()}};
  }
  static Environment patch(std::map<std::string, std::optional<std::string>> change) {
    return {true, std::move(change)};
  }
};

/// A descriptor that the child gets under another number.
struct Passed {
  int parent = -1;
  int child = -1;  ///< 3 to 1023
};

struct Request {
  /// The program and its arguments. A name without a slash is sought in PATH of this process; one
  /// with a slash that is not absolute is relative to `directory`.
  std::vector<std::string> arguments;
  Environment environment{};
  std::filesystem::path directory{};  ///< where it runs; empty: here
  Input in = Null{};
  Output out = Capture{};
  ErrorOutput err = Capture{};
  std::vector<Passed> passed{};  ///< everything else is closed
  /// When it is over, the child's process group is asked to end (SIGTERM) and `grace` later killed.
  std::optional<std::chrono::milliseconds> timeout{};
  std::chrono::milliseconds grace{500};
  /// What is left of the child's process group when it has ended is killed, after `grace` if it
  /// holds a captured stream.
  bool end_group = false;
  /// Asked ten times a second; true ends the child as a timeout does.
  std::function<bool()> stop{};
  /// Asked ten times a second; what is not 0 is a signal, which the child's process group gets.
  std::function<int()> signal{};
  /// Called once with the child's number, which is its process group's too.
  std::function<void(int pid)> started{};
  /// Of each captured stream the first bytes are kept; the rest is read and dropped.
  std::size_t output_cap = std::size_t{64} << 20;
};

/// A line for the shell.
Request shell(std::string line);

/// What was being done when the child could not be started, or its end was lost.
enum class Stage { kNone, kRequest, kInput, kOutput, kError, kPassed, kDirectory, kStart, kWait };
std::string_view name_of(Stage stage) noexcept;

struct Usage {
  double user_seconds = 0;
  double system_seconds = 0;
  long max_resident_kib = 0;
};

struct Result {
  Stage failed = Stage::kNone;
  int error_number = 0;  ///< the errno of what failed
  std::string detail{};  ///< what it was about: a path, a rule that was broken
  std::optional<int> exit_code{};
  std::optional<int> signal{};
  bool core_dumped = false;
  bool timed_out = false;
  bool stopped = false;  ///< Request::stop said so
  bool cut_off = false;  ///< others still held a captured stream when the child had ended
  std::string out{};
  std::string err{};
  bool out_cut = false;  ///< more than output_cap
  bool err_cut = false;
  Usage usage{};
  std::chrono::microseconds start_time{};  ///< how long this thread stood still for the start

  bool ok() const { return failed == Stage::kNone && exit_code == 0 && !timed_out && !stopped; }
  /// "exit status 3", "killed by signal 11 (Segmentation fault)", "cannot be started: No such file
  /// or directory".
  std::string outcome() const;
};

/// Starts the program, waits for its end, and tells how it went: every failure is in the result.
/// The child begins with default signal handling, nothing blocked, in a process group of its own.
/// May be called from any thread, but not from one that others wait for.
Result run(const Request& request);

/// The last line of a text that is not blank, without blanks at its ends.
std::string_view last_line(std::string_view text) noexcept;

}  // namespace segfuse::spawn
