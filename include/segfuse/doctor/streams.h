#pragma once
// segfuse doctor streams, and --report-kernels: what this process does while it is watched.
//
// docs/doctor.md explains the output.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "segfuse/doctor/kernel.h"

namespace segfuse {

struct StreamRace {
  std::string sentence;
  std::string missing;  ///< the missing wait
  std::string picture;  ///< SVG
  // Of a traced program only.
  std::string kind = "race";  ///< or "freed while in use", "event too early", "host"
  /// What happened where in the program, in this order: "allocated", "used", "freed", "reused", ...
  std::vector<std::pair<std::string, std::string>> places = {};
  std::string remedy = {};  ///< the line that fixes it
};

struct StreamReport {
  std::string command;
  std::uint64_t operations = 0;  ///< launches, copies and fills that race checkers looked at
  std::vector<StreamRace> races;
  std::vector<std::string> notes = {};
};
std::string stream_report_text(const StreamReport& report);
std::string stream_report_json(const StreamReport& report);

class Watch {
 public:
  Watch();
  ~Watch();
  /// Kernels that were made or loaded: a report for the CPU's and one for each kind of GPU, of each
  /// text once, in the order of their first use. Further kernels of a name get a number behind it.
  std::vector<KernelReport> kernels() const;
  /// The races that were found with the option check-streams.
  StreamReport streams(std::string command) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A use of memory by an operation: bytes of an allocation, which is known by its first byte.
struct TracedUse {
  std::uintptr_t block = 0;
  std::uintptr_t first = 0;
  std::size_t bytes = 0;
  bool write = false;
};

/// The race checker for a program that uses a GPU through another library. The caller reports what
/// the program enqueues, allocates and frees, in the order of the calls. Streams and events are
/// distinct numbers. A `place` is a line of the program, and below it the lines that called it.
/// Freed memory may be reused at once by the stream for which it was allocated; only the order of
/// the streams and record_stream() protect it. Any thread may call.
class StreamTrace {
 public:
  StreamTrace();
  ~StreamTrace();
  void name_stream(std::uintptr_t stream, const std::string& name);
  void operation(std::uintptr_t stream, const std::string& name, const std::string& place,
                 std::span<const TracedUse> uses);
  /// The host reads or writes memory that streams use.
  void host_use(const std::string& place, const TracedUse& use);
  void record(std::uintptr_t stream, std::uintptr_t event, const std::string& place);
  /// An event that was never recorded orders nothing; the report says so.
  void wait(std::uintptr_t stream, std::uintptr_t event, const std::string& place);
  void destroy_event(std::uintptr_t event);
  void synchronize_stream(std::uintptr_t stream);
  void synchronize_event(std::uintptr_t event);
  void synchronize_device();
  void allocate(std::uintptr_t block, const std::string& what, const std::string& place);
  void record_stream(std::uintptr_t block, std::uintptr_t stream);
  void release(std::uintptr_t block, const std::string& place);

  /// Races found so far.
  std::uint64_t count() const;
  /// Each pair of lines once.
  StreamReport report(std::string command) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Largest magnitudes of numbers on a GPU, many tensors in one launch, to find numbers of other
// libraries that are not finite.

enum class MagnitudeType : int { kHalf, kBfloat16, kFloat, kDouble };

/// `count` contiguous numbers. `largest` is device memory that holds a number of at least
/// 0 and is raised to their largest magnitude; NaN is larger than all. A double beyond all floats
/// counts as the largest float. `most` is a guess of the magnitude (NaN: there is none).
struct MagnitudeOf {
  const void* data = nullptr;
  std::uint64_t count = 0;
  float* largest = nullptr;
  MagnitudeType type = MagnitudeType::kFloat;
  float most = std::numeric_limits<float>::quiet_NaN();
};

/// A number on the device, 0 at first, that becomes 1 when a magnitude is beyond its guess.
struct BrokenGuess {
  float* flag = nullptr;  ///< null: there are no guesses
  bool required = false;  ///< reads the tensors only if the number is 1
};

/// Enqueues on the stream of a CUDA device (null: the legacy default stream), and does not wait.
/// Throws DeviceError where there is no device, driver or NVRTC.
void enqueue_magnitudes(int device, void* stream, std::span<const MagnitudeOf> tensors,
                        BrokenGuess broken = {});

}  // namespace segfuse
