#include "doctor/fork/act/remote_call.h"

#include <fmt/core.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/text.h"
#include "segfuse/error.h"

namespace segfuse::doctor {

#if defined(__x86_64__)

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint64_t kUserCode = 0x33;  ///< the code segment of 64-bit programs

/// The two bytes of the processor's instruction for system calls.
bool is_system_call(const Process& process, std::uint64_t address) {
  std::byte bytes[2] = {};
  return process.read(address, bytes) == 2 && bytes[0] == std::byte{0x0f} &&
         bytes[1] == std::byte{0x05};
}

/// A process that ends has no memory any more, for a moment before it is a zombie or has ended.
void refuse_ended(const Process& process) {
  const std::string status = process.try_read("status").value_or("");
  if (status.find("\nVmSize:") == std::string::npos)
    throw UsageError(fmt::format("process {} ended meanwhile", process.pid()));
}

/// Where in executable memory such an instruction stands; the kernel's own page has some.
std::uint64_t find_system_call(const Process& process) {
  for (const char* const name : {"[vdso]", "libc.so", "libc-2", ""}) {
    const std::string maps = process.read_text("maps");
    for (const std::string_view line : split_lines(maps)) {
      const std::vector<Field> fields = split_fields(line);
      if (fields.size() < 2 || !fields[1].text.starts_with("r-x")) continue;
      if (line.find(name) == std::string_view::npos) continue;
      const std::size_t dash = fields[0].text.find('-');
      const auto begin = std::stoull(std::string(fields[0].text.substr(0, dash)), nullptr, 16);
      const auto end = std::stoull(std::string(fields[0].text.substr(dash + 1)), nullptr, 16);
      std::vector<std::byte> bytes(std::min<std::uint64_t>(end - begin, 4U << 20));
      bytes.resize(process.read(begin, bytes));
      for (std::size_t i = 0; i + 1 < bytes.size(); ++i)
        if (bytes[i] == std::byte{0x0f} && bytes[i + 1] == std::byte{0x05}) return begin + i;
    }
  }
  refuse_ended(process);
  throw DeviceError(
      fmt::format("process {}: no instruction for system calls was found in it", process.pid()));
}

/// A thread of the process, stopped; on destruction it goes on where it was.
class StoppedThread {
 public:
  StoppedThread(const Process& process, int thread) : process_(process), thread_(thread) {}
  void stop() {
    start_ = Clock::now();
    if (ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) != 0) refuse(errno);
    if (ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) != 0) refuse(errno);
    wait_for_stop();
    seized_ = ptrace(PTRACE_GETREGS, thread_, nullptr, &before_) == 0;
    if (!seized_) refuse(errno);
    if (before_.cs != kUserCode)
      throw DeviceError(
          fmt::format("process {} is not a 64-bit program; nothing was changed", process_.pid()));
  }
  ~StoppedThread() {
    if (!seized_) return;
    ptrace(PTRACE_SETREGS, thread_, nullptr, &before_);
    ptrace(PTRACE_DETACH, thread_, nullptr, nullptr);
    for (const int signal : held_back_) syscall(SYS_tgkill, process_.pid(), thread_, signal);
  }
  StoppedThread(const StoppedThread&) = delete;
  StoppedThread& operator=(const StoppedThread&) = delete;

  /// The result as the kernel gives it: -errno for a failure.
  long call(long number, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
    user_regs_struct there = before_;
    // A thread that waits in a call stands behind the instruction.
    there.rip =
        is_system_call(process_, before_.rip - 2) ? before_.rip - 2 : find_system_call(process_);
    there.rax = static_cast<unsigned long long>(number);
    there.orig_rax = ~0ULL;  // the call it waited in is not begun again on the way
    there.rdi = a;
    there.rsi = b;
    there.rdx = c;
    if (ptrace(PTRACE_SETREGS, thread_, nullptr, &there) != 0) refuse(errno);
    const std::uint64_t behind = there.rip + 2;
    // A signal stops it before the step: it is sent again afterwards.
    for (int attempt = 0; attempt < 100; ++attempt) {
      if (ptrace(PTRACE_SINGLESTEP, thread_, nullptr, nullptr) != 0) refuse(errno);
      const int stop = wait_once();
      if (ptrace(PTRACE_GETREGS, thread_, nullptr, &there) != 0) refuse(errno);
      if (there.rip == behind) return static_cast<long>(there.rax);
      if (stop != SIGTRAP && stop >> 8 == 0) held_back_.push_back(stop);
    }
    refuse_ended(process_);
    throw DeviceError(fmt::format("process {}: thread {} does not get to a system call",
                                  process_.pid(), thread_));
  }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  [[noreturn]] void refuse(int error) const {
    if (error == ESRCH) throw UsageError(fmt::format("process {} ended meanwhile", process_.pid()));
    const auto tracer =
        status_value(process_.try_read("status").value_or(""), "TracerPid").value_or(0);
    if (tracer != 0)
      throw UsageError(
          fmt::format("process {} is under a debugger already (process {}); end that one first",
                      process_.pid(), tracer));
    throw UsageError(fmt::format(
        "process {} may not be changed: {}; run this as root, with CAP_SYS_PTRACE in a container",
        process_.pid(), std::generic_category().message(error)));
  }

  /// The stop as waitpid tells it, without its lowest byte. Gives up after ten seconds.
  int wait_once() {
    const auto until = Clock::now() + std::chrono::seconds(10);
    int status = 0;
    for (int attempt = 0;; ++attempt) {
      const pid_t found = waitpid(thread_, &status, __WALL | WNOHANG);
      if (found < 0 && errno != EINTR) refuse(ESRCH);
      if (found == thread_) break;
      if (Clock::now() > until)
        throw DeviceError(fmt::format(
            "process {}: thread {} does not stop; it waits in the kernel for something that cannot "
            "be interrupted",
            process_.pid(), thread_));
      if (attempt > 1000) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (!WIFSTOPPED(status)) {
      seized_ = false;
      throw UsageError(fmt::format("process {} ended meanwhile", process_.pid()));
    }
    return status >> 8;
  }

  /// Signals on the way are delivered as they would have been.
  void wait_for_stop() {
    for (int stop = wait_once(); (stop >> 8) != PTRACE_EVENT_STOP; stop = wait_once())
      ptrace(PTRACE_CONT, thread_, nullptr, static_cast<long>(stop & 0xff));
  }

  const Process& process_;
  int thread_;
  bool seized_ = false;
  Clock::time_point start_;
  user_regs_struct before_{};
  std::vector<int> held_back_;
};

/// One that waits in a system call, if there is one: such a thread is nowhere in particular.
int choose_thread(const Process& process) {
  int first = 0;
  for (const std::string& name : process.list("task")) {
    const auto number = parse_int(name);
    if (!number) continue;
    if (first == 0) first = static_cast<int>(*number);
    const std::string call = process.try_read("task/" + name + "/syscall").value_or("running");
    if (!call.starts_with("running") && !call.starts_with("-1")) return static_cast<int>(*number);
  }
  if (first == 0) throw UsageError(fmt::format("process {} ended meanwhile", process.pid()));
  return first;
}

}  // namespace

RemoteResult remote_madvise(const Process& process, std::uint64_t begin, std::uint64_t end,
                            int advice) {
  RemoteResult result;
  StoppedThread thread(process, choose_thread(process));
  thread.stop();
  const long answer = thread.call(SYS_madvise, begin, end - begin, static_cast<unsigned>(advice));
  result.error = answer < 0 ? static_cast<int>(-answer) : 0;
  result.stopped_seconds = thread.seconds();
  return result;
}

#else

RemoteResult remote_madvise(const Process& process, std::uint64_t begin, std::uint64_t end,
                            int advice) {
  throw DeviceError(
      fmt::format("repair is made for x86-64; here a debugger does it: gdb -p {} -batch -ex 'call "
                  "(int)madvise({:#x}, {}, {})'",
                  process.pid(), begin, end - begin, advice));
}

#endif

}  // namespace segfuse::doctor
