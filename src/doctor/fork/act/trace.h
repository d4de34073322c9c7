#pragma once
// `segfuse doctor fork --trace`: who in a program registers memory, and what that does to children.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "segfuse/doctor/fork.h"

namespace segfuse::doctor {

struct ForkFrame {
  std::string library;       ///< its file; empty: memory that belongs to none
  std::uint64_t offset = 0;  ///< in the library, of the call
  std::string function;      ///< "setup+0x1c"; empty: not known
  std::string line;          ///< "file.cpp:12"; empty: not known
};

/// Calls of one kind out of one place in the program.
struct ForkSite {
  std::string call;  ///< "ibv_reg_mr", "ibv_dontfork_range", "madvise", "fork"
  std::vector<ForkFrame> stack;
  std::size_t caller = 0;  ///< which of them is the first outside of libc and verbs
  std::uint64_t calls = 0;
  std::uint64_t failed = 0;
  std::uint64_t bytes = 0;  ///< of all calls
  std::uint64_t live = 0;   ///< not released when its process ended
  std::uint64_t first_address = 0;
  std::optional<ForkRegion> worst;  ///< what children did not get, seen while the call was going on
  std::string forecast;             ///< of forks: what the worst of them was foretold to do
  ForkRisk risk = ForkRisk::kBenign;
};

struct ForkTrace {
  std::string command;
  std::string outcome;  ///< "exit status 0"
  double seconds = 0;
  std::uint64_t processes = 0;  ///< that were heard of
  std::vector<ForkSite> sites;  ///< worst first
  std::vector<ForkSite> forks;  ///< of processes that had registered memory
  std::vector<std::string> notes;

  bool at_risk() const;
};

/// Runs a command with a library before it that tells of registrations, and looks at its processes
/// as they make them. What the command prints goes to our stderr. UsageError when it cannot be
/// started, DeviceError when the library is not there.
ForkTrace trace_command(const std::vector<std::string>& command);

std::string fork_trace_text(const ForkTrace& trace);
std::string fork_trace_json(const ForkTrace& trace);

}  // namespace segfuse::doctor
