#include "segfuse/spawn.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "base/os/spawn_plumbing.h"

namespace segfuse::spawn {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Times are added to clocks; longer ones mean "forever".
constexpr milliseconds kLongest = std::chrono::hours(24 * 365);
/// Blocks of a stream that are read before the clock is looked at again.
constexpr int kBlocksAtOnce = 16;
constexpr std::size_t kLongestLine = std::size_t{64} << 10;

std::string words_of(int error_number) { return std::generic_category().message(error_number); }

void check_request(const Request& request) {
  const auto refuse = [](std::string detail) {
    throw Failure{Stage::kRequest, EINVAL, std::move(detail)};
  };
  if (request.arguments.empty() || request.arguments[0].empty()) refuse("no program was named");
  for (const std::string& argument : request.arguments)
    if (argument.find('\0') != std::string::npos)
      refuse(fmt::format("a NUL byte in the argument \"{}\"", argument.c_str()));
  for (const auto& [name, value] : request.environment.change)
    if (name.empty() || name.find('=') != std::string::npos ||
        name.find('\0') != std::string::npos || (value && value->find('\0') != std::string::npos))
      refuse(
          fmt::format("the environment variable \"{}\" has no legal name or value", name.c_str()));
  const auto check_path = [&](const std::filesystem::path& path) {
    if (path.native().find('\0') != std::string::npos)
      refuse(fmt::format("a NUL byte in the path \"{}\"", path.c_str()));
  };
  check_path(request.directory);
  if (const auto* file = std::get_if<File>(&request.in)) check_path(file->path);
  if (const auto* file = std::get_if<File>(&request.out)) check_path(file->path);
  if (const auto* file = std::get_if<File>(&request.err)) check_path(file->path);
}

std::vector<std::string> variables_of(const Environment& environment) {
  std::vector<std::string> out;
  if (environment.inherit)
    for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
      const std::string_view variable(*at);
      if (!environment.change.contains(std::string(variable.substr(0, variable.find('=')))))
        out.emplace_back(variable);
    }
  for (const auto& [name, value] : environment.change)
    if (value) out.push_back(name + "=" + *value);
  return out;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& one : strings) out.push_back(one.data());
  out.push_back(nullptr);
  return out;
}

/// The C library's description of what the child does before it becomes the program.
class Setup {
 public:
  explicit Setup(const Plumbing& plumbing) {
    check(posix_spawn_file_actions_init(&actions_));
    check(posix_spawnattr_init(&attributes_));
    sigset_t signals;
    sigfillset(&signals);
    check(posix_spawnattr_setsigdefault(&attributes_, &signals));
    sigemptyset(&signals);
    check(posix_spawnattr_setsigmask(&attributes_, &signals));
    check(posix_spawnattr_setpgroup(&attributes_, 0));
    check(posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP));
    if (plumbing.directory() >= 0) {
      if (const LibraryCalls::Call call = library_calls().change_directory)
        check(call(&actions_, plumbing.directory()));
      else
        directory_ = plumbing.directory();
    }
    for (const Plumbing::Given& one : plumbing.given())
      check(posix_spawn_file_actions_adddup2(&actions_, one.handle.get(), one.child));
    for (int number = 3; number < plumbing.first_closed(); ++number)
      if (std::none_of(plumbing.given().begin(), plumbing.given().end(),
                       [&](const Plumbing::Given& one) { return one.child == number; }))
        check(posix_spawn_file_actions_addclose(&actions_, number));
    check(add_close_from(&actions_, plumbing.first_closed()));
  }
  ~Setup() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;

  pid_t start(const Request& request) {
    std::vector<std::string> words = request.arguments;
    std::vector<std::string> variables = variables_of(request.environment);
    pid_t child = 0;
    const auto spawn = [&] {
      return posix_spawnp(&child, words[0].c_str(), &actions_, &attributes_,
                          pointers_to(words).data(), pointers_to(variables).data());
    };
    check(directory_ < 0 ? spawn() : there(spawn), request.arguments[0]);
    return child;
  }

 private:
  static void check(int error_number, const std::string& detail = "the set-up of the child") {
    if (error_number != 0) throw Failure{Stage::kStart, error_number, detail};
  }

  /// Calls spawn() in a thread that has left the process's working directory for the child's.
  template <class Spawn>
  int there(const Spawn& spawn) {
    int error_number = 0;
    std::thread([&] {
      const bool moved = unshare(CLONE_FS) == 0 && fchdir(directory_) == 0;
      error_number = moved ? spawn() : errno;
    }).join();
    return error_number;
  }

  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
  int directory_ = -1;  ///< where the child begins, where the library lacks the call
};

/// Where one stream's bytes go.
class Sink {
 public:
  Sink(const Lines* lines, std::string& text, bool& cut, std::size_t cap)
      : lines_(lines), text_(&text), cut_(&cut), cap_(cap) {}

  void take(std::string_view bytes) {
    if (lines_ == nullptr) {
      const std::size_t room = cap_ - text_->size();
      text_->append(bytes.substr(0, room));
      if (bytes.size() > room) *cut_ = true;
      return;
    }
    for (std::size_t end = bytes.find('\n'); end != bytes.npos; end = bytes.find('\n')) {
      add_to_line(bytes.substr(0, end));
      give_line();
      bytes.remove_prefix(end + 1);
    }
    add_to_line(bytes);
  }
  void finish() {
    if (!line_.empty()) give_line();
  }

 private:
  void add_to_line(std::string_view bytes) {
    while (line_.size() + bytes.size() > kLongestLine) {
      const std::size_t room = kLongestLine - line_.size();
      line_.append(bytes.substr(0, room));
      bytes.remove_prefix(room);
      give_line();
    }
    line_.append(bytes);
  }
  void give_line() {
    if (lines_->take) lines_->take(line_);
    line_.clear();
  }

  const Lines* lines_;
  std::string* text_;
  bool* cut_;
  std::size_t cap_;
  std::string line_;
};

/// A child from its start until its status was collected. Until then its number names nobody else.
class Child {
 public:
  Child(pid_t pid, const Request& request, Plumbing& plumbing, Result& result)
      : pid_(pid),
        request_(request),
        streams_(plumbing.captured()),
        sinks_{
            Sink(std::get_if<Lines>(&request.out), result.out, result.out_cut, request.output_cap),
            Sink(std::get_if<Lines>(&request.err), result.err, result.err_cut, request.output_cap)},
        result_(result),
        begin_(Clock::now()),
        handle_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}
  /// Only when something was thrown is the child still there.
  ~Child() {
    if (collected_) return;
    kill(-pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void wait() {
    bool killed = false;
    while (!over()) {
      const Clock::time_point now = Clock::now();
      if (!ended_ && request_.signal)
        if (const int signal = request_.signal(); signal != 0) kill(-pid_, signal);
      if (!ending_ && should_end(now)) {
        ending_ = true;
        limit_ = now + grace();
        kill(-pid_, SIGTERM);
      }
      if (limit_ && now >= *limit_) {
        if (ended_) break;
        if (!killed) kill(-pid_, SIGKILL);
        killed = true;
      }
      poll_once(killed);
    }
    // What is left of the group; the number is the group's as long as the child was not collected.
    if ((ending_ || request_.end_group) && still_ours()) kill(-pid_, SIGKILL);
    drain();
    for (Sink& sink : sinks_) sink.finish();
    result_.cut_off = streams_[0] || streams_[1];
    collect();
  }

 private:
  milliseconds grace() const { return std::clamp(request_.grace, milliseconds(0), kLongest); }
  bool still_ours() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
  }
  bool over() const { return ended_ && !streams_[0] && !streams_[1]; }

  bool should_end(Clock::time_point now) {
    if (ended_) return false;
    if (request_.timeout && now - begin_ >= std::min(*request_.timeout, kLongest))
      result_.timed_out = true;
    if (request_.stop && request_.stop()) result_.stopped = true;
    return result_.timed_out || result_.stopped;
  }

  /// Until something happens, or the next moment at which something has to be done.
  void poll_once(bool killed) {
    std::array<pollfd, 3> watched = {pollfd{ended_ ? -1 : handle_.get(), POLLIN, 0},
                                     pollfd{streams_[0].get(), POLLIN, 0},
                                     pollfd{streams_[1].get(), POLLIN, 0}};
    milliseconds patience{60'000};
    const auto until = [&](Clock::time_point when) {
      const auto left = std::chrono::ceil<milliseconds>(when - Clock::now());
      patience = std::clamp(left, milliseconds(0), patience);
    };
    if (limit_ && !killed) until(*limit_);
    if (!ending_ && !ended_ && request_.timeout)
      until(begin_ + std::min(*request_.timeout, kLongest));
    if (request_.stop || request_.signal) patience = std::min(patience, milliseconds(100));
    if (!handle_) patience = std::min(patience, milliseconds(5));
    ::poll(watched.data(), watched.size(), static_cast<int>(patience.count()));
    drain();
    if (!ended_ && has_ended(watched[0].revents != 0)) {
      ended_ = true;
      // A process that still holds our pipes gets a little time, no more.
      if (!limit_) limit_ = Clock::now() + grace();
    }
  }

  bool has_ended(bool announced) const {
    if (handle_) return announced;
    siginfo_t info{};
    const int status = waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
    return status != 0 || info.si_pid != 0;
  }

  void drain() {
    std::vector<char> buffer(65536);  // a stack may be small
    for (std::size_t i = 0; i < streams_.size(); ++i)
      for (int block = 0; streams_[i] && block < kBlocksAtOnce; ++block) {
        const ssize_t count = read(streams_[i].get(), buffer.data(), buffer.size());
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && errno == EAGAIN) break;
        if (count <= 0) {
          streams_[i].close();
          break;
        }
        sinks_[i].take({buffer.data(), static_cast<std::size_t>(count)});
      }
  }

  void collect() {
    int status = 0;
    rusage usage{};
    pid_t found = 0;
    do found = wait4(pid_, &status, 0, &usage);
    while (found < 0 && errno == EINTR);
    collected_ = true;
    if (found != pid_) {
      result_.failed = Stage::kWait;
      result_.error_number = errno;
      result_.detail =
          "SIGCHLD is ignored in this process, or somebody else waits for its children";
      return;
    }
    if (WIFEXITED(status)) result_.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) {
      result_.signal = WTERMSIG(status);
      result_.core_dumped = WCOREDUMP(status);
    }
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    result_.usage = {seconds(usage.ru_utime), seconds(usage.ru_stime), usage.ru_maxrss};
  }

  pid_t pid_;
  const Request& request_;
  std::array<Handle, 2>& streams_;
  std::array<Sink, 2> sinks_;
  Result& result_;
  Clock::time_point begin_;
  Handle handle_;  ///< without one (an old kernel, a sandbox) the child is asked after every 5 ms
  bool ended_ = false;
  bool ending_ = false;
  bool collected_ = false;
  std::optional<Clock::time_point> limit_;
};

}  // namespace

Request shell(std::string line) { return {.arguments = {"/bin/sh", "-c", std::move(line)}}; }

std::string_view name_of(Stage stage) noexcept {
  constexpr std::string_view kNames[] = {"none",   "request",   "stdin", "stdout", "stderr",
                                         "passed", "directory", "start", "wait"};
  return kNames[static_cast<std::size_t>(stage)];
}

std::string Result::outcome() const {
  if (failed == Stage::kWait) return fmt::format("its end is unknown: {}", detail);
  if (failed == Stage::kRequest) return fmt::format("cannot be started: {}", detail);
  if (failed != Stage::kNone)
    return fmt::format("cannot be started: {} ({}: {})", words_of(error_number), name_of(failed),
                       detail);
  const std::string end = exit_code ? fmt::format("exit status {}", *exit_code)
                                    : fmt::format("killed by signal {} ({})", signal.value_or(0),
                                                  strsignal(signal.value_or(0)));
  if (timed_out) return fmt::format("it took too long; {}", end);
  if (stopped) return fmt::format("it was stopped; {}", end);
  return end;
}

Result run(const Request& request) {
  Result result;
  try {
    check_request(request);
    Plumbing plumbing(request);
    Setup setup(plumbing);
    const Clock::time_point begin = Clock::now();
    const pid_t child = setup.start(request);
    result.start_time = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
    plumbing.keep_ours();
    Child ours(child, request, plumbing, result);
    if (request.started) request.started(child);
    ours.wait();
  } catch (const Failure& failure) {
    result.failed = failure.stage;
    result.error_number = failure.error_number;
    result.detail = failure.detail;
  }
  return result;
}

std::string_view last_line(std::string_view text) noexcept {
  constexpr std::string_view kBlanks = " \t\r\n\v\f";
  const std::size_t end = text.find_last_not_of(kBlanks);
  if (end == std::string_view::npos) return {};
  const std::size_t line_end = text.find_last_of('\n', end);
  text = text.substr(line_end + 1, end - line_end);
  return text.substr(text.find_first_not_of(kBlanks));
}

}  // namespace segfuse::spawn
