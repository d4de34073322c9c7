#include "base/os/spawn_plumbing.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <set>

namespace segfuse::spawn {
namespace {

constexpr int kLastPassed = 1023;

int retry(auto call) {
  int result = 0;
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

/// The content as a file in memory that is read from its start: no pipe that may fill up, no
/// signal when the child does not read.
Handle file_of(const std::string& content) {
  Handle file(memfd_create("spawn:stdin", MFD_CLOEXEC));
  if (!file) throw Failure{Stage::kInput, errno, "a file in memory for stdin"};
  for (std::size_t done = 0; done < content.size();) {
    const ssize_t count = write(file.get(), content.data() + done, content.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw Failure{Stage::kInput, errno, "the content for stdin"};
    done += static_cast<std::size_t>(count);
  }
  if (lseek(file.get(), 0, SEEK_SET) != 0)
    throw Failure{Stage::kInput, errno, "the content for stdin"};
  return file;
}

void check_passed(const std::vector<Passed>& passed) {
  std::set<int> numbers;
  for (const Passed& one : passed) {
    if (one.child < 3 || one.child > kLastPassed)
      throw Failure{
          Stage::kPassed, EBADF,
          fmt::format("descriptor {} for the child; expected 3 to {}", one.child, kLastPassed)};
    if (!numbers.insert(one.child).second)
      throw Failure{Stage::kPassed, EINVAL,
                    fmt::format("descriptor {} of the child is given twice", one.child)};
  }
}

}  // namespace

Plumbing::Plumbing(const Request& request) {
  check_passed(request.passed);
  for (const Passed& one : request.passed) first_closed_ = std::max(first_closed_, one.child + 1);
  // Our own standard streams first: a pipe made below may get the number of one that is closed.
  if (std::holds_alternative<Inherit>(request.in)) give_own(0, Stage::kInput);
  if (std::holds_alternative<Inherit>(request.out)) give_own(1, Stage::kOutput);
  if (std::holds_alternative<Inherit>(request.err)) give_own(2, Stage::kError);
  for (const Passed& one : request.passed)
    give(one.parent, one.child, Stage::kPassed, fmt::format("descriptor {}", one.parent));
  if (!request.directory.empty()) {
    directory_ = Handle(open(request.directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!directory_) throw Failure{Stage::kDirectory, errno, request.directory.string()};
  }
  open_input(request.in);
  open_output(request.out, 1, Stage::kOutput);
  open_output(request.err, 2, Stage::kError);
}

void Plumbing::keep_ours() {
  given_.clear();
  directory_.close();
}

/// A copy above all numbers of the child, so that no step of its set-up overwrites another's.
void Plumbing::give(int source, int child, Stage stage, const std::string& detail) {
  Handle copy(fcntl(source, F_DUPFD_CLOEXEC, first_closed_));
  if (!copy) throw Failure{stage, errno, detail};
  given_.push_back({std::move(copy), child});
}

void Plumbing::give(Handle source, int child, Stage stage, const std::string& detail) {
  give(source.get(), child, stage, detail);
}

void Plumbing::give_own(int child, Stage stage) {
  if (fcntl(child, F_GETFD) >= 0)
    give(child, child, stage, fmt::format("descriptor {}", child));
  else
    give(open_file({"/dev/null"}, child != 0, stage), child, stage, "/dev/null");
}

Handle Plumbing::open_file(const File& file, bool write, Stage stage) {
  const int how = write ? O_WRONLY | O_CREAT | (file.append ? O_APPEND : O_TRUNC) : O_RDONLY;
  Handle opened(retry(
      [&] { return open(file.path.c_str(), how | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0666); }));
  if (!opened) throw Failure{stage, errno, file.path.string()};
  // Only the opening must not block; the child expects an ordinary descriptor.
  const int flags = fcntl(opened.get(), F_GETFL);
  if (flags < 0 || fcntl(opened.get(), F_SETFL, flags & ~O_NONBLOCK) != 0)
    throw Failure{stage, errno, file.path.string()};
  return opened;
}

Handle Plumbing::make_pipe(int child, Stage stage) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Failure{stage, errno, "a pipe"};
  Handle ours(ends[0]);
  Handle theirs(ends[1]);
  if (fcntl(ours.get(), F_SETFL, O_NONBLOCK) != 0) throw Failure{stage, errno, "a pipe"};
  captured_[static_cast<std::size_t>(child - 1)] = std::move(ours);
  return theirs;
}

void Plumbing::open_input(const Input& in) {
  constexpr Stage kStage = Stage::kInput;
  if (std::holds_alternative<Null>(in))
    give(open_file({"/dev/null"}, false, kStage), 0, kStage, "/dev/null");
  if (const auto* bytes = std::get_if<Bytes>(&in))
    give(file_of(bytes->content), 0, kStage, "stdin");
  if (const auto* own = std::get_if<Descriptor>(&in))
    give(own->number, 0, kStage, fmt::format("descriptor {}", own->number));
  if (const auto* file = std::get_if<File>(&in))
    give(open_file(*file, false, kStage), 0, kStage, file->path.string());
}

template <class Out>
void Plumbing::open_output(const Out& out, int child, Stage stage) {
  if (std::holds_alternative<Null>(out))
    give(open_file({"/dev/null"}, true, stage), child, stage, "/dev/null");
  if (std::holds_alternative<Capture>(out) || std::holds_alternative<Lines>(out))
    give(make_pipe(child, stage), child, stage, "a pipe");
  if (const auto* own = std::get_if<Descriptor>(&out))
    give(own->number, child, stage, fmt::format("descriptor {}", own->number));
  if (const auto* file = std::get_if<File>(&out))
    give(open_file(*file, true, stage), child, stage, file->path.string());
  if constexpr (std::is_same_v<Out, ErrorOutput>) {
    if (!std::holds_alternative<Merge>(out)) return;
    const auto first =
        std::find_if(given_.begin(), given_.end(), [](const Given& one) { return one.child == 1; });
    give(first->handle.get(), child, stage, "stdout");
  }
}

LibraryCalls& library_calls() {
  static LibraryCalls calls = [] {
    const auto find = [](const char* name) {
      return reinterpret_cast<LibraryCalls::Call>(dlsym(RTLD_DEFAULT, name));
    };
    return LibraryCalls{find("posix_spawn_file_actions_addfchdir_np"),
                        find("posix_spawn_file_actions_addclosefrom_np")};
  }();
  return calls;
}

int add_close_from(posix_spawn_file_actions_t* actions, int first) {
  if (const LibraryCalls::Call call = library_calls().close_from) return call(actions, first);
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end;
       at.increment(error)) {
    const int number = std::atoi(at->path().filename().c_str());
    if (number < first) continue;
    if (const int failed = posix_spawn_file_actions_addclose(actions, number)) return failed;
  }
  return error.value();
}

}  // namespace segfuse::spawn
