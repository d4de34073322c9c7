// Forked children: the story through the real library, what our calls say there, fork storms, and
// the guard.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/console/log.h"
#include "comm/registered/backends/uring.h"
#include "comm/registered/child.h"
#include "comm/registered/copy_on_fork.h"
#include "comm/registered/fork_guard.h"
#include "comm/registered/pool.h"
#include "segfuse/error.h"
#include "segfuse/registered.h"
#include "segfuse/spawn.h"
#include "support/system/processes.h"
#include "support/system/real_pins.h"

extern char** environ;

namespace segfuse::comm {
namespace {

using test::forked;
using ::testing::HasSubstr;

constexpr std::uintptr_t kArena = std::uintptr_t{64} << 20;

/// libibverbs, which keeps ranges from children on request, without any device.
struct OldLibrary {
  int (*fork_init)() = nullptr;
  int (*keep)(void*, std::size_t) = nullptr;
  int (*give_back)(void*, std::size_t) = nullptr;

  OldLibrary() {
    void* const library = dlopen("libibverbs.so.1", RTLD_NOW);
    if (library == nullptr) return;
    fork_init = reinterpret_cast<int (*)()>(dlsym(library, "ibv_fork_init"));
    keep = reinterpret_cast<int (*)(void*, std::size_t)>(dlsym(library, "ibv_dontfork_range"));
    give_back = reinterpret_cast<int (*)(void*, std::size_t)>(dlsym(library, "ibv_dofork_range"));
  }
  explicit operator bool() const { return fork_init != nullptr && keep != nullptr; }
};

int exec_true() {
  char path[] = "/bin/true";
  char* arguments[] = {path, nullptr};
  execve(path, arguments, environ);
  return errno;
}

// What happens to children when the first page of an arena is kept from them.
TEST(Part, DISABLED_Story) {
  const OldLibrary library;
  ASSERT_TRUE(library);
  ASSERT_EQ(library.fork_init(), 0);
  std::thread([&] {
    // This thread's arena begins at a multiple of 64 MiB; its header is there, and somebody's 4
    // bytes could be.
    void* const block = std::malloc(64);
    const auto at = reinterpret_cast<std::uintptr_t>(block) / kArena * kArena;
    void* const header = reinterpret_cast<void*>(at + 2048);
    // Words of a program to start that lie in the same page.
    auto* const path = static_cast<char*>(std::malloc(16));
    std::strcpy(path, "/bin/true");
    const bool same_page = (reinterpret_cast<std::uintptr_t>(path) ^ at) < 4096;
    ASSERT_EQ(library.keep(header, 4), 0);
    EXPECT_TRUE(test::kept_from_children(header));
    EXPECT_EQ(WTERMSIG(forked([] { return 0; })), SIGSEGV) << "fork() itself touches the header";
    // A clone that runs no handlers of the C library gets further, to the kernel's refusal.
    const long child = syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
    if (child == 0) {
      char* arguments[] = {path, nullptr};
      syscall(SYS_execve, path, arguments, environ);
      syscall(SYS_exit_group, errno);
    }
    int status = 0;
    waitpid(static_cast<pid_t>(child), &status, 0);
    EXPECT_TRUE(same_page);
    EXPECT_EQ(WEXITSTATUS(status), EFAULT);
    for (int i = 0; i < 100; ++i) {
      ASSERT_EQ(WTERMSIG(forked([] { return 0; })), SIGSEGV);
      ASSERT_TRUE(spawn::run({.arguments = {path}}).ok());
    }
    EXPECT_EQ(library.give_back(header, 4), 0);
    EXPECT_EQ(forked(exec_true), 0);
    std::free(path);
    std::free(block);
  }).join();
}

// The same request for an object in a slab.
TEST(Part, DISABLED_StoryInASlab) {
  const OldLibrary library;
  ASSERT_TRUE(library);
  ASSERT_EQ(library.fork_init(), 0);
  Registry registry;
  SubAllocator objects(registry.make_slab({.owner = "flush", .bytes = 4096}));
  std::byte* const word = objects.allocate(4);
  std::thread([&] {
    for (int i = 0; i < 1000; ++i) {
      ASSERT_EQ(library.keep(word, 4), 0);
      ASSERT_EQ(forked(exec_true), 0);
      ASSERT_TRUE(i % 100 > 0 || spawn::run({.arguments = {"/bin/true"}}).ok());
    }
  }).join();
}

// T1.
TEST(Story, HappensThroughTheRealLibraryButNotInASlab) {
  if (test::kSanitized) GTEST_SKIP() << "the sanitizer's malloc has no arenas of the C library";
  if (!OldLibrary()) GTEST_SKIP() << "libibverbs.so.1 is not installed";
  const spawn::Result broken = test::run_part("Story");
  EXPECT_TRUE(broken.ok()) << broken.outcome() << "\n" << broken.out;
  const spawn::Result fine = test::run_part("StoryInASlab");
  EXPECT_TRUE(fine.ok()) << fine.outcome() << "\n" << fine.out;
}

// --- our calls in a child ------------------------------------------------------------------------

/// How many of our calls do not say ForkedChildError.
template <class... Calls>
int wrong_calls(const Calls&... calls) {
  const auto wrong = [](const auto& call) {
    try {
      call();
    } catch (const ForkedChildError&) {
      return 0;
    } catch (...) {
    }
    return 1;
  };
  return (wrong(calls) + ...);
}

// T15.
TEST(ForkedChild, EveryCallSaysSoAndDestructorsDoNothing) {
  SKIP_WITHOUT_PINS(4 << 20);
  auto backend = std::make_shared<UringBackend>();
  Registry registry(backend);
  auto slab = std::make_unique<Slab>(registry.make_slab({.owner = "x", .bytes = 8192}));
  auto registration = std::make_unique<Registration>(slab->register_range(0, 100));
  auto pool = std::make_unique<RegisteredPool>(registry);
  auto objects = std::make_unique<SubAllocator>(registry.make_slab({.owner = "y", .bytes = 4096}));
  std::byte* const buffer = pool->allocate(100);
  std::byte* const object = objects->allocate(4);
  auto bounce = std::make_unique<Bounce>(registry.bounce(environ, 8));
  const auto in_child = [&] {
    if (!in_forked_child()) return 100;
    const int wrong = wrong_calls(
        [] { Registry again; }, [&] { (void)registry.make_slab({.owner = "x", .bytes = 1}); },
        [&] { registry.counts(); }, [&] { (void)registry.register_address(object, 1); },
        [&] { registry.bounce(object, 1); }, [&] { slab->data(); },
        [&] { (void)slab->register_range(0, 1); }, [&] { slab->registrations(); },
        [&] { registration->address(); }, [&] { registration->release(); },
        [&] { registration->pin(); }, [&] { pool->allocate(1); }, [&] { pool->deallocate(buffer); },
        [&] { pool->bytes_of(buffer); }, [&] { pool->pin_of(buffer); },
        [&] { pool->offset_of(buffer); }, [&] { pool->live_bytes(); },
        [&] { objects->allocate(1); }, [&] { objects->deallocate(object); },
        [&] { objects->bytes_of(object); }, [&] { (void)objects->register_object(object); },
        [&] { bounce->to_device(); }, [] { UringBackend again; }, [] { fork_risk(); },
        [] { copy_on_fork(); }, [] { probe_copy_on_fork(); },
        [] { set_fork_guard(ForkGuard::kWarn); },
        [&] { backend->read(0, 0, *registration, 0, 1); });
    // They are destroyed here, after mappings of this child's own have taken the addresses.
    std::vector<void*> own;
    for (int i = 0; i < 200; ++i)
      own.push_back(
          mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    registration.reset();
    slab.reset();
    bounce.reset();
    pool.reset();
    objects.reset();
    for (void* one : own) std::memset(one, 1, 4096);
    return wrong;
  };
  EXPECT_FALSE(in_forked_child());
  const int status = forked(in_child);
  EXPECT_TRUE(WIFEXITED(status)) << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "calls that did not refuse";
  // A clone of which the C library knows nothing.
  const long child = syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (child == 0) _exit(in_child());
  int cloned = 0;
  waitpid(static_cast<pid_t>(child), &cloned, 0);
  EXPECT_TRUE(WIFEXITED(cloned)) << WTERMSIG(cloned);
  EXPECT_EQ(WEXITSTATUS(cloned), 0);
  // Here everything is as before.
  EXPECT_FALSE(in_forked_child());
  registration->address()[0] = std::byte{1};
  EXPECT_EQ(slab->registrations().size(), 1U);
  pool->deallocate(buffer);
}

Registry* registry_of_handler = nullptr;

TEST(Part, DISABLED_RegisteringInAForkHandler) {
  Registry registry(std::make_shared<UringBackend>());
  Slab slab = registry.make_slab({.owner = "x", .bytes = 65536});
  registry_of_handler = &registry;
  static Slab* in_handler = &slab;
  const auto handler = [] { in_handler->register_range(64, 64).release(); };
  pthread_atfork(handler, handler, nullptr);
  set_fork_guard(ForkGuard::kWarn);
  const auto again = [] { Slab more = registry_of_handler->make_slab({.owner = "y", .bytes = 1}); };
  pthread_atfork(again, again, nullptr);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(forked([] { return 0; }), 0);
}

TEST(ForkedChild, HandlersOfForkMayRegister) {
  SKIP_WITHOUT_PINS(4 << 20);
  const spawn::Result result = test::run_part("RegisteringInAForkHandler");
  EXPECT_TRUE(result.ok()) << result.outcome() << "\n" << result.out;
}

// T24, as long as tests may take.
TEST(Part, DISABLED_ForkStorm) {
  auto backend = std::make_shared<UringBackend>();
  Registry registry(backend);
  RegisteredPool pool(registry, {.slab_bytes = 256 << 10});
  set_fork_guard(ForkGuard::kWarn);
  std::atomic<bool> stop = false;
  std::atomic<int> registered = 0;
  std::atomic<int> bad_children = 0;
  std::atomic<int> children = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      while (!stop) {
        Slab slab = registry.make_slab({.owner = "storm", .bytes = 65536});
        const auto size = static_cast<std::size_t>(t);
        std::vector<Registration> some;
        for (std::size_t i = 0; i < 16; ++i)
          some.push_back(slab.register_range(i * (64 + size), 64));
        std::byte* const at = pool.allocate(1000 + 100 * size);
        std::memset(at, t, 1000);
        pool.deallocate(at);
        ++registered;
      }
    });
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      while (!stop) {
        const int status = forked([&] {
          return wrong_calls([&] { pool.allocate(1); },
                             [&] { (void)registry.make_slab({.owner = "x", .bytes = 1}); },
                             [&] { registry.counts(); });
        });
        if (status != 0) ++bad_children;
        ++children;
      }
    });
  const char* const seconds = std::getenv("SEGFUSE_STORM_SECONDS");
  std::this_thread::sleep_for(std::chrono::seconds(seconds != nullptr ? std::atoi(seconds) : 4));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bad_children, 0);
  EXPECT_GT(children, 20);
  EXPECT_GT(registered, 20);
}

TEST(ForkedChild, AStormOfForksHangsNobody) {
  SKIP_WITHOUT_PINS(4 << 20);
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow forks of threaded processes";
#endif
  const spawn::Result result = test::run_part("ForkStorm");
  EXPECT_TRUE(result.ok()) << result.outcome() << "\n" << result.out;
}

// --- the guard -----------------------------------------------------------------------------------

/// Memory that somebody else pins: private pages, known to the kernel alone.
class ForeignPin {
 public:
  explicit ForeignPin(std::size_t bytes) : bytes_(bytes) {
    memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pin_ = backend_.pin({static_cast<std::byte*>(memory_), bytes});
  }
  ~ForeignPin() {
    pin_.reset();
    munmap(memory_, bytes_);
  }
  ForeignPin(const ForeignPin&) = delete;
  ForeignPin& operator=(const ForeignPin&) = delete;

 private:
  std::size_t bytes_;
  void* memory_;
  UringBackend backend_;
  std::unique_ptr<Pin> pin_;
};

TEST(CopyOnFork, IsTriedAndLeavesNothingBehind) {
  SKIP_WITHOUT_PINS(4 << 20);
  static int handled = 0;
  pthread_atfork([] { ++handled; }, nullptr, nullptr);
  const auto files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = files();
  const CopyOnForkProof proof = probe_copy_on_fork();
  EXPECT_NE(proof.answer, CopyOnFork::kUnknown) << proof.reason;
  EXPECT_FALSE(proof.reason.empty());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(probe_copy_on_fork().answer, proof.answer);
  EXPECT_EQ(copy_on_fork().answer, proof.answer);
  EXPECT_EQ(files(), before);
  EXPECT_EQ(handled, 0) << "no fork handler runs: some end the process";
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG | __WALL), -1) << "a child is left";
  // A kernel that copies is this one, unless it is older than 5.12.
  int major = 0;
  int minor = 0;
  utsname name{};
  uname(&name);
  if (std::sscanf(name.release, "%d.%d", &major, &minor) == 2 && major >= 6) {
    EXPECT_EQ(proof.answer, CopyOnFork::kYes) << proof.reason;
  }
}

TEST(ForkRisk, MemoryThatPartsFromItsDeviceIsSaid) {
  ForkRisk risk;
  risk.pinned = std::size_t{1} << 20;
  EXPECT_FALSE(risk.any());
  risk.copies = CopyOnFork::kUnknown;
  EXPECT_TRUE(risk.any());
  EXPECT_THAT(risk.sentence(), HasSubstr("may leave this process and its devices with different"));
  risk.copies = CopyOnFork::kNo;
  EXPECT_THAT(risk.sentence(), HasSubstr("would leave this process"));
  risk.pinned = 0;
  EXPECT_EQ(risk.sentence(), "");
}

TEST(Part, DISABLED_GuardWarns) {
  std::string said;
  set_log_sink([&](LogLevel, std::string_view message) { said += std::string(message) + "\n"; });
  Registry registry(std::make_shared<UringBackend>());
  Slab slab = registry.make_slab({.owner = "x", .bytes = std::size_t{64} << 20});
  const Registration registration = slab.register_range(0, 1);
  set_fork_guard(ForkGuard::kWarn, std::chrono::milliseconds(0));
  EXPECT_EQ(forked([] { return 0; }), 0);
  EXPECT_EQ(said, "") << "slabs are no risk";
  EXPECT_FALSE(fork_risk().any());
  const ForeignPin other(std::size_t{256} << 20);
  EXPECT_EQ(forked([] { return 0; }), 0);
  EXPECT_THAT(said, HasSubstr("fork() would copy 0.25 GiB of pinned memory at once, about 0.10 s"));
  EXPECT_THAT(said, HasSubstr("; start children with spawn instead\n"));
  said.clear();
  // These create processes without a fork.
  EXPECT_EQ(std::system("true"), 0);
  std::FILE* const pipe = popen("true", "r");
  EXPECT_EQ(pclose(pipe), 0);
  EXPECT_TRUE(spawn::run({.arguments = {"true"}}).ok());
  EXPECT_EQ(said, "");
  set_fork_guard(ForkGuard::kOff);
  EXPECT_EQ(forked([] { return 0; }), 0);
  EXPECT_EQ(said, "");
  set_fork_guard(ForkGuard::kDeny, std::chrono::milliseconds(0));
  EXPECT_EQ(forked([] { return 0; }), 0) << "a stall of 0.1 s is not denied";
  set_log_sink({});
}

TEST(Part, DISABLED_GuardDenies) {
  set_fork_guard(ForkGuard::kDeny);
  std::thread([] {
    void* const block = std::malloc(64);
    const auto at = reinterpret_cast<std::uintptr_t>(block) / kArena * kArena;
    ASSERT_EQ(madvise(reinterpret_cast<void*>(at), 4096, MADV_DONTFORK), 0);
    EXPECT_EQ(std::system("true"), 0);
    const ForkRisk risk = fork_risk();
    EXPECT_TRUE(risk.certain_crash);
    EXPECT_EQ(risk.lost_pages, 1U);
    std::printf("%s\n", risk.sentence().c_str());
    std::fflush(stdout);
    forked([] { return 0; });
    std::puts("not reached");
  }).join();
}

// T22.
TEST(ForkGuard, WarnsOrDeniesBeforeForksAlone) {
  SKIP_WITHOUT_PINS(std::size_t{320} << 20);
  const spawn::Result warns = test::run_part("GuardWarns");
  EXPECT_TRUE(warns.ok()) << warns.outcome() << "\n" << warns.out;
  if (test::kSanitized)
    GTEST_SKIP() << "denial: the sanitizer's malloc has no arenas of the C library";
  const spawn::Result denies = test::run_part("GuardDenies");
  EXPECT_EQ(denies.signal, SIGABRT) << denies.outcome() << "\n" << denies.out;
  EXPECT_THAT(denies.out, HasSubstr("fork() would leave 1 page out of the child ("));
  EXPECT_THAT(denies.out,
              HasSubstr("the header of a malloc arena), so that it crashes; start "
                        "children with spawn instead (the fork guard ends this process)"));
  EXPECT_THAT(denies.out, ::testing::Not(HasSubstr("not reached")));
}

}  // namespace
}  // namespace segfuse::comm
