#pragma once
// A bound for tests with processes of a launcher: where they do not end, the test says which of
// them waits for what, and fails.

#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "comm/meet/job.h"
#include "comm/meet/roster.h"
#include "segfuse/error.h"

namespace segfuse::test {

namespace meet = comm::meet;

/// While alive, it watches the processes of which it is told. Those that are there when the time is
/// over are killed, so that their launcher returns.
class Bound {
 public:
  /// Far more than any test takes under any load.
  static constexpr std::chrono::seconds kTime{180};

  Bound() : thread_([this] { watch(); }) {}
  ~Bound() { stop(); }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

  void started(std::int64_t rank, int pid) {
    const std::lock_guard lock(mutex_);
    pids_[pid] = rank;
  }
  /// After the launcher's return: who waited for what when the time was over; empty: they ended.
  std::string stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
    return text_;
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, kTime, [this] { return stopped_; })) return;
    text_ = fmt::format("the processes have not ended within {} s", kTime.count());
    for (const auto& [pid, rank] : pids_)
      if (const auto variables = variables_of(pid); is_ours(variables)) {
        text_ += fmt::format("; rank {} (pid {}) is there, {}", rank, pid, state_of(pid));
        if (rank == 0) text_ += seen_by(variables);
      }
    for (const auto& [pid, rank] : pids_)
      if (is_ours(variables_of(pid))) ::kill(pid, SIGKILL);
  }

  using Variables = std::map<std::string, std::string>;
  static Variables variables_of(int pid) {
    std::ifstream in(fmt::format("/proc/{}/environ", pid), std::ios::binary);
    Variables out;
    for (std::string one; std::getline(in, one, '\0');)
      if (const std::size_t equal = one.find('='); equal != one.npos)
        out[one.substr(0, equal)] = one.substr(equal + 1);
    return out;
  }
  /// And not one that has its number now.
  static bool is_ours(const Variables& variables) {
    const auto found = variables.find(meet::kLauncherVariable);
    return found != variables.end() && found->second == std::to_string(::getpid());
  }
  static std::string state_of(int pid) {
    std::ifstream in(fmt::format("/proc/{}/stat", pid));
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const std::size_t end = text.rfind(") ");
    return end == text.npos ? "gone" : text[end + 2] == 'T' ? "stopped" : "not stopped";
  }
  static std::string place_of(const meet::Row& row) {
    if (row.lost) return "is lost";
    if (row.left) return "has left";
    return fmt::format("has been in {} for {:.1f} s{}", meet::place_of(row.state),
                       row.state.seconds, row.awaited ? ", and others wait for it" : "");
  }
  /// What rank 0 tells of all.
  static std::string seen_by(const Variables& variables) {
    try {
      const meet::Rows all =
          meet::look({variables.at("MASTER_ADDR"), std::stoi(variables.at("MASTER_PORT")),
                      meet::key_of(variables.at(meet::kKeyVariable)),
                      std::stoll(variables.at("WORLD_SIZE")), 1},
                     meet::SteadyClock(), {});
      std::string text = fmt::format("; by its word, in generation {}", all.generation);
      for (const meet::Row& row : all.rows)
        text +=
            fmt::format(", {} {}", meet::name_of_rank(row.rank, row.host, row.pid), place_of(row));
      return text + all.failure;
    } catch (const std::exception& error) {
      return fmt::format("; it does not answer: {}", error.what());
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<int, std::int64_t> pids_;
  bool stopped_ = false;
  std::string text_;
  std::thread thread_;
};

}  // namespace segfuse::test
