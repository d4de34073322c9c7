#pragma once
// What fork() would do to this process now, because of memory that others registered; and a watch
// that says so, or ends the process, before each fork(). It sees fork() alone: posix_spawn, vfork,
// system() and popen() run no fork handlers, and need none.

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "comm/registered/copy_on_fork.h"

namespace segfuse::comm {

struct ForkRisk {
  std::size_t pinned = 0;  ///< bytes pinned by others, which fork() copies at once
  double stall = 0;        ///< seconds that this takes, roughly, in which no thread may fault
  std::optional<std::size_t> head_room;  ///< bytes until the control group's limit
  bool exceeds = false;                  ///< the copy does not fit: somebody here will be killed
  CopyOnFork copies = CopyOnFork::kYes;  ///< asked for where something is pinned
  std::size_t lost_pages = 0;  ///< of heaps, stacks and static data that children do not get
  bool certain_crash = false;  ///< one of them begins a malloc arena: every forked child dies
  std::string lost_where;      ///< the first of them

  bool any() const { return exceeds || certain_crash || lost_pages > 0 || stall > 0.05 || parts(); }
  /// This process and its devices may see different bytes after a fork().
  bool parts() const { return pinned > 0 && copies != CopyOnFork::kYes; }
  /// "fork() would copy 1.0 GiB ..."; empty without risk.
  std::string sentence() const;
};

/// Reads /proc/self; 1 ms for a small process, 50 ms for 2 GiB of small pages.
ForkRisk fork_risk();

enum class ForkGuard {
  kOff,
  kWarn,  ///< logs the sentence
  kDeny,  ///< logs it and aborts: fork() cannot be made to fail
};

/// For the whole process, from now on. Denied is only what breaks something for certain: a crash of
/// every child, memory that parts from its device, or a copy beyond the limit or longer than a
/// second. The process is looked at once
/// in `interval` at most; what was found counts until then.
void set_fork_guard(ForkGuard guard,
                    std::chrono::milliseconds interval = std::chrono::milliseconds(5000));

}  // namespace segfuse::comm
