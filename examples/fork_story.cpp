// A library registers four bytes for a network adapter, and children of the process die. Shows it
// with the real libibverbs (no adapter is needed), then the same four bytes in a slab, and what
// pinned memory costs each fork().
//
//   fork_story            tells the story
//   fork_story --wait     breaks itself and waits, for `segfuse doctor fork PID`

#include <dlfcn.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string_view>
#include <thread>

#include "base/os/spawn.h"
#include "comm/registered/backends/uring.h"
#include "comm/registered/registry.h"
#include "comm/registered/sub_allocator.h"
#include "segfuse/error.h"

namespace {

using namespace segfuse;

constexpr int kChildren = 200;

/// What a library does that "registers" memory in the old way. libibverbs does it by itself behind
/// ibv_reg_mr(); here it is asked directly, or, where it is not installed, the kernel is.
void register_the_old_way(void* address, std::size_t bytes) {
  void* const library = dlopen("libibverbs.so.1", RTLD_NOW);
  if (library != nullptr) {
    reinterpret_cast<int (*)()>(dlsym(library, "ibv_fork_init"))();
    reinterpret_cast<int (*)(void*, std::size_t)>(dlsym(library, "ibv_dontfork_range"))(address,
                                                                                        bytes);
    return;
  }
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<std::uintptr_t>(address) / page * page;
  madvise(reinterpret_cast<void*>(at), page, MADV_DONTFORK);
}

struct Ends {
  int well = 0;
  int killed = 0;       ///< by a signal
  int bad_address = 0;  ///< execve said so
  int otherwise = 0;
};

void count(Ends& ends, pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status))
    ++ends.killed;
  else if (WEXITSTATUS(status) == EFAULT)
    ++ends.bad_address;
  else
    ++(WEXITSTATUS(status) == 0 ? ends.well : ends.otherwise);
}

/// Starts `program` in the way of a shell, or of a language without posix_spawn.
Ends fork_and_exec(char* program) {
  Ends ends;
  for (int i = 0; i < kChildren; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      char* arguments[] = {program, nullptr};
      execv(program, arguments);
      _exit(errno);
    }
    count(ends, child);
  }
  return ends;
}

/// The same without the C library's fork(), which touches the arena itself and so dies first.
Ends clone_and_exec(char* program) {
  Ends ends;
  for (int i = 0; i < kChildren; ++i) {
    const long child = syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
    if (child == 0) {
      char* arguments[] = {program, nullptr};
      syscall(SYS_execve, program, arguments, environ);
      syscall(SYS_exit_group, errno);
    }
    count(ends, static_cast<pid_t>(child));
  }
  return ends;
}

Ends spawn_all(const char* program) {
  Ends ends;
  for (int i = 0; i < kChildren; ++i)
    ++(spawn::run({.arguments = {program}}).ok() ? ends.well : ends.otherwise);
  return ends;
}

void tell(const char* what, const Ends& ends) {
  fmt::print("  {:<24} {:>3} well, {:>3} killed by SIGSEGV, {:>3} with \"Bad address\" (EFAULT)\n",
             what, ends.well, ends.killed, ends.bad_address);
}

/// All in a thread of its own: such threads have a malloc arena, whose first page holds both its
/// header and the first blocks.
bool break_and_tell(bool wait) {
  auto* const program = static_cast<char*>(std::malloc(16));
  std::strcpy(program, "/bin/true");
  auto* const flag = static_cast<char*>(std::malloc(64));  // a field of some object
  fmt::print("registering 4 bytes at {}, in the middle of a malloc block, the old way\n",
             static_cast<void*>(flag));
  register_the_old_way(flag, 4);
  if (wait) {
    fmt::print("now run: segfuse doctor fork {}\n", getpid());
    std::fflush(stdout);
    pause();
  }
  const Ends forked = fork_and_exec(program);
  const Ends cloned = clone_and_exec(program);
  const Ends spawned = spawn_all(program);
  tell("fork and exec", forked);
  tell("bare clone and exec", cloned);
  tell("spawn", spawned);
  return forked.well == 0 && cloned.well == 0 && spawned.well == kChildren;
}

bool tell_of_slabs() {
  comm::Registry registry;
  comm::SubAllocator objects(registry.make_slab({.owner = "flags", .bytes = 4096}));
  std::byte* const flag = objects.allocate(4);
  const comm::Registration registration = objects.register_object(flag);
  fmt::print("registering 4 bytes at {}, in a slab\n", static_cast<void*>(flag));
  char program[] = "/bin/true";
  const Ends ends = fork_and_exec(program);
  tell("fork and exec", ends);
  return ends.well == kChildren;
}

double milliseconds_of_fork() {
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child == 0) _exit(0);
  const auto end = std::chrono::steady_clock::now();
  waitpid(child, nullptr, 0);
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

void tell_of_pins() {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  auto backend = std::make_shared<comm::UringBackend>();
  comm::Registry registry(backend);
  comm::Slab slab = registry.make_slab({.owner = "buffers", .bytes = kBytes});
  const comm::Registration registration = slab.register_range(0, kBytes);
  fmt::print("256 MiB pinned in a slab: fork() takes {:.2f} ms\n", milliseconds_of_fork());
  void* const plain =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto pin = backend->pin({static_cast<std::byte*>(plain), kBytes});
  fmt::print("256 MiB pinned in a plain mapping: fork() takes {:.2f} ms\n", milliseconds_of_fork());
}

}  // namespace

int main(int count, char** arguments) {
  try {
    const rlimit no_dumps{1, 1};  // of the many children that die; 1 counts for dump programs, too
    setrlimit(RLIMIT_CORE, &no_dumps);
    const bool wait = count > 1 && std::string_view(arguments[1]) == "--wait";
    bool as_told = false;
    // First the part that needs a process that is whole.
    const bool slabs_are_fine = wait || tell_of_slabs();
    try {
      if (!wait) tell_of_pins();
    } catch (const DeviceError& error) {
      fmt::print("no memory can be pinned here: {}\n", error.what());
    }
    std::fflush(stdout);
    std::thread([&] { as_told = break_and_tell(wait); }).join();
    return slabs_are_fine && as_told ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "fork_story: {}\n", error.what());
    return 70;
  }
}
