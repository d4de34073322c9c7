#pragma once
// segfuse doctor streams, and --report-kernels: what this process does while it is watched.
//
// How to read what it says: docs/doctor.md.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "segfuse/doctor/kernel.h"

namespace segfuse {

struct StreamRace {
  std::string sentence;
  std::string missing;  ///< the wait that would help
  std::string picture;  ///< SVG
};

struct StreamReport {
  std::string command;
  std::uint64_t operations = 0;  ///< launches, copies and fills that race checkers looked at
  std::vector<StreamRace> races;
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
  /// What race checkers found, which are there with the option check-streams.
  StreamReport streams(std::string command) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace segfuse
