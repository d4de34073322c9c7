// A process for `segfuse doctor fork` to look at. It plants what its arguments say, prints a line
// for each plant and "ready", and then obeys lines on its input: "fork N" makes N children, one
// after the other, that use malloc and run a program, and prints how many died and how long the
// longest call took of a processor ("fork on a thread N": a new one); "arena" keeps an arena's
// header from children, "no arena" gives it back; "keep" and "sums" are of the process that
// computes (busy).
//   plant NAME ADDRESS KIND(-: any) RISK NEIGHBOURS(-1: not told)

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "support/system/io_uring_pin.h"

namespace {

constexpr std::size_t kPage = 4096;

std::uintptr_t page_of(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) & ~(kPage - 1);
}

/// As the verbs library does it for a registration of a few bytes, and by that library if it is
/// here and `real` says so.
void keep_from_children(void* address, std::size_t bytes, bool real) {
  if (real) {
    static void* library = dlopen("libibverbs.so.1", RTLD_NOW);
    static auto init =
        reinterpret_cast<int (*)()>(library ? dlsym(library, "ibv_fork_init") : nullptr);
    static auto range = reinterpret_cast<int (*)(void*, std::size_t)>(
        library ? dlsym(library, "ibv_dontfork_range") : nullptr);
    static const bool ready = init != nullptr && range != nullptr && init() == 0;
    if (ready && range(address, bytes) == 0) return;
  }
  const std::uintptr_t begin = page_of(address);
  const std::uintptr_t end = page_of(static_cast<char*>(address) + bytes - 1) + kPage;
  if (madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTFORK) != 0) std::abort();
}

void plant(const char* name, const void* address, const char* kind, const char* risk,
           long neighbours = -1) {
  std::printf("plant\t%s\t%p\t%s\t%s\t%ld\n", name, address, kind, risk, neighbours);
}

/// Ends with the process.
template <class Work>
void on_a_thread(const Work& work) {
  bool done = false;
  std::thread([&done, work] {
    work();
    __atomic_store_n(&done, true, __ATOMIC_RELEASE);
    while (true) pause();
  }).detach();
  while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) usleep(100);
}

/// Blocks of 64 bytes over several pages; the page of the middle one and how many lie in it.
struct Blocks {
  char* middle = nullptr;
  long in_page = 0;
  explicit Blocks(int count) {
    std::vector<char*> all(static_cast<std::size_t>(count));
    for (char*& block : all) block = static_cast<char*>(std::malloc(64));
    middle = all[all.size() / 2];
    for (const char* block : all) {
      const auto begin = reinterpret_cast<std::uintptr_t>(block) - 16;
      if (begin < page_of(middle) + kPage && begin + 80 > page_of(middle)) ++in_page;
    }
  }
};

alignas(kPage) char variables[4 * kPage];

char* map(std::size_t bytes, int rights = PROT_READ | PROT_WRITE) {
  void* memory = mmap(nullptr, bytes, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<char*>(memory);
}

char* map_memfd(const char* name, std::size_t bytes) {
  const int descriptor = memfd_create(name, MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) std::abort();
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) std::abort();
  std::memset(memory, 1, bytes);
  return static_cast<char*>(memory);
}

void plant_arena(bool real) {
  on_a_thread([real] {
    char* block = static_cast<char*>(std::malloc(64));
    const auto base = reinterpret_cast<std::uintptr_t>(block) & ~((std::uintptr_t{64} << 20) - 1);
    if (page_of(block) == base) {
      keep_from_children(block, 4, real);
    } else {
      keep_from_children(reinterpret_cast<void*>(base), 4, real);
    }
    plant("arena", reinterpret_cast<void*>(base), "arena header", "crashes every fork");
  });
}

void plant_all(bool real) {
  const Blocks heap(400);
  keep_from_children(heap.middle, 4, real);
  plant("heap", heap.middle, "heap chunk", "loses data", heap.in_page - 1);
  plant_arena(real);
  on_a_thread([real] {
    const Blocks blocks(400);
    keep_from_children(blocks.middle, 4, real);
    plant("arena-chunk", blocks.middle, "arena chunk", "loses data", blocks.in_page - 1);
  });
  on_a_thread([] {
    const Blocks blocks(400);
    if (madvise(reinterpret_cast<void*>(page_of(blocks.middle)), kPage, MADV_WIPEONFORK) != 0)
      std::abort();
    plant("wiped", blocks.middle, "arena chunk", "silent zero", blocks.in_page - 1);
  });
  bool done = false;
  std::thread([&done, real] {
    char frame[16 * kPage];
    std::memset(frame, 1, sizeof frame);
    keep_from_children(frame + 8 * kPage, 4, real);
    plant("stack", frame + 8 * kPage, "thread stack", "crashes every fork");
    __atomic_store_n(&done, true, __ATOMIC_RELEASE);
    while (frame[0] == 1) pause();
  }).detach();
  while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) usleep(100);
  keep_from_children(variables + kPage, 4, real);
  plant("bss", variables + kPage, ".bss", "loses data");
  char* mapped = static_cast<char*>(std::malloc(1 << 20));
  std::memset(mapped, 1, 1 << 20);
  keep_from_children(mapped + 100000, 4, real);
  plant("mmapped", mapped + 100000, "mmapped chunk", "loses data", 0);
  char* slab = map(10 * kPage, PROT_NONE);
  if (mprotect(slab + kPage, 8 * kPage, PROT_READ | PROT_WRITE) != 0) std::abort();
  keep_from_children(slab + kPage, 8 * kPage, real);
  plant("slab", slab + kPage, "slab", "benign");
  char* shared = map_memfd("payload", 4 * kPage);
  keep_from_children(shared, 4 * kPage, real);
  plant("memfd", shared, "memfd", "benign");
  char* named = map_memfd("reg:prefetch", 4 * kPage);
  keep_from_children(named, 4 * kPage, real);
  plant("named-slab", named, "slab", "benign");
  char* sign = map(3 * kPage, PROT_NONE) + kPage;
  if (mprotect(sign, kPage, PROT_READ | PROT_WRITE) != 0 ||
      madvise(sign, kPage, MADV_WIPEONFORK) != 0)
    std::abort();
  plant("sentinel", sign, "slab", "benign");
}

// Memory that owns its pages, in the places where the kernel makes one mapping of it and what is
// another's.

/// Of its own pages, all of them kept from children.
char* own_pages(std::size_t bytes) {
  char* const memory = map(bytes);
  keep_from_children(memory, bytes, false);
  std::memset(memory, 1, bytes);
  return memory;
}

/// The kernel puts a stack of a thread right below what was mapped before it.
void plant_above_stack() {
  for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{16} << 20}) {
    char* const buffer = own_pages(bytes);
    on_a_thread([] {});
    plant("above-stack", buffer, "-", "benign");
  }
}

void plant_block_above_stack() {
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  char* const block = static_cast<char*>(std::malloc(kBytes));
  std::memset(block, 1, kBytes);
  on_a_thread([] {
    const Blocks blocks(400);
    keep_from_children(blocks.middle, 4, false);
    plant("arena-chunk", blocks.middle, "arena chunk", "loses data", blocks.in_page - 1);
  });
  keep_from_children(block + kBytes / 2, 4, false);
  plant("block", block + kBytes / 2, "mmapped chunk", "loses data", 0);
}

/// Ends of the variables of all that is loaded.
std::vector<char*> ends_of_variables() {
  std::vector<char*> ends;
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* found) {
        std::uintptr_t end = 0;
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const auto& part = object->dlpi_phdr[i];
          if (part.p_type == PT_LOAD && (part.p_flags & PF_W) != 0)
            end = object->dlpi_addr + part.p_vaddr + part.p_memsz;
        }
        end = (end + kPage - 1) / kPage * kPage;
        if (end != 0)
          static_cast<std::vector<char*>*>(found)->push_back(reinterpret_cast<char*>(end));
        return 0;
      },
      &ends);
  return ends;
}

/// Null where something is mapped already.
char* map_at(char* place, std::size_t bytes) {
  void* const memory = mmap(place, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

void plant_behind_variables() {
  for (char* const end : ends_of_variables())
    if (char* const buffer = map_at(end, 2 * kPage)) {
      keep_from_children(buffer, 2 * kPage, false);
      plant("behind-variables", buffer, "-", "benign");
    }
}

/// Threads and memory in an order that `seed` says; nothing of it harms a child.
void plant_layout(unsigned seed) {
  std::uint64_t state = seed + 1;
  const auto below = [&state](std::size_t count) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(state >> 33) % count;
  };
  for (int i = 0; i < 24; ++i) {
    const std::size_t bytes = (1 + below(200)) * kPage;
    switch (below(8)) {
      case 0: on_a_thread([] {}); break;
      case 1: on_a_thread([] { std::free(std::malloc(100)); }); break;
      case 2:
        // Computes all the time: its stack pointer is not told.
        std::thread([] {
          for (std::atomic<unsigned> spins{0};; ++spins)
            if (spins % 1000000 == 0) usleep(20000);
        }).detach();
        break;
      case 3: std::memset(std::malloc((1 << 20) + bytes), 1, 1 << 20); break;
      case 4: {
        const std::vector<char*> ends = ends_of_variables();
        if (char* const buffer = map_at(ends[below(ends.size())], bytes))
          keep_from_children(buffer, bytes, false);
        break;
      }
      case 5:
        if (char* const buffer = map_at(static_cast<char*>(sbrk(0)), bytes))
          keep_from_children(buffer, bytes, false);
        break;
      case 6: munmap(own_pages(bytes), bytes / 2 / kPage * kPage); break;
      default: own_pages(bytes); break;
    }
  }
}

/// Variables of the C library's own.
void plant_libc() {
  keep_from_children(stdin, 4, false);
  plant("libc", stdin, "-", "crashes every fork");
}

/// Alternating flags until the kernel keeps no more mappings.
void plant_many(std::size_t pairs) {
  char* memory = map(2 * pairs * kPage);
  std::size_t kept = 0;
  while (kept < pairs && madvise(memory + 2 * kept * kPage, kPage, MADV_DONTFORK) == 0) ++kept;
  std::printf("kept\t%zu\n", kept);
}

void plant_pinned(std::size_t bytes, const std::string& how) {
  int flags = MAP_ANONYMOUS | (how == "shared" ? MAP_SHARED : MAP_PRIVATE);
  if (how == "hugetlb") flags |= MAP_HUGETLB;
  // A huge page's alignment for how == "thp".
  void* memory =
      mmap(nullptr, bytes + (how == "thp" ? 2 << 20 : 0), PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) {
    std::printf("skip\t%s\n", std::strerror(errno));
    return;
  }
  if (how == "thp") {
    memory = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(memory) + (2 << 20) - 1) &
                                     ~((std::uintptr_t{2} << 20) - 1));
    madvise(memory, bytes, MADV_HUGEPAGE);
  } else if (how != "hugetlb") {
    madvise(memory, bytes, MADV_NOHUGEPAGE);
  }
  std::memset(memory, 1, bytes);
  if (how == "kept" && madvise(memory, bytes, MADV_DONTFORK) != 0) std::abort();
  if (how == "wiped" && madvise(memory, bytes, MADV_WIPEONFORK) != 0) std::abort();
  if (how == "free") return;
  if (const int error = segfuse::test::pin_with_io_uring(memory, bytes); error != 0)
    std::printf("skip\t%s\n", std::strerror(error));
  else
    std::printf("pinned\t%p\t%zu\n", memory, bytes);
}

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// What this process shares with no other: in a child, what fork() copied. In KiB.
long private_kib() {
  char text[4096] = {};
  const int file = open("/proc/self/smaps_rollup", O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  const ssize_t size = read(file, text, sizeof text - 1);
  close(file);
  const char* found = size > 0 ? std::strstr(text, "Private_Dirty:") : nullptr;
  return found != nullptr ? std::strtol(found + std::strlen("Private_Dirty:"), nullptr, 10) : -1;
}

void fork_children(int count) {
  int died = 0;
  int failed = 0;
  double longest = 0;
  long copied = -1;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  for (int i = 0; i < count; ++i) {
    const double start = processor_seconds();
    const pid_t child = fork();
    if (child == 0) {
      std::free(std::malloc(100));
      const long kib = private_kib();
      _exit(write(ends[1], &kib, sizeof kib) == sizeof kib ? 0 : 1);
    }
    const double seconds = processor_seconds() - start;
    longest = seconds > longest ? seconds : longest;
    if (child < 0) {
      failed = errno;
      continue;
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0)
      ++died;
    else if (read(ends[0], &copied, sizeof copied) != sizeof copied)
      std::abort();
  }
  close(ends[0]);
  close(ends[1]);
  std::printf("forked\t%d\t%d\t%d\t%.6f\t%ld\n", count, died, failed, longest, copied);
}

/// An arena's header, kept from children and given back on request.
char* arena_page = nullptr;

void make_arena() {
  on_a_thread([] {
    arena_page = reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(std::malloc(64)) &
                                         ~((std::uintptr_t{64} << 20) - 1));
  });
}

// Threads that compute, wait in calls with an end, and get signals.

char busy_pages[3 * kPage];
char* busy_page = nullptr;
std::atomic<long> wrong_sums{0};
std::atomic<long> failed_calls{0};

std::uint64_t sum() {
  std::uint64_t x = 1;
  double y = 1;
  for (int i = 0; i < 100000; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    y = y * 0.999 + static_cast<double>(x >> 40);
  }
  return x + static_cast<std::uint64_t>(y);
}

void compute() {
  for (const std::uint64_t right = sum();;)
    if (sum() != right) ++wrong_sums;
}

/// Calls of all kinds that wait: those that are begun again after a signal and those that are not.
void wait_in_calls() {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  while (true) {
    pollfd one{ends[0], POLLIN, 0};
    const int polled = poll(&one, 1, 1);
    if (polled != 0 && errno != EINTR) ++failed_calls;
    const auto start = std::chrono::steady_clock::now();
    timespec left{0, 2000000};
    while (nanosleep(&left, &left) != 0)
      if (errno != EINTR) ++failed_calls;
    if (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(2)) ++failed_calls;
  }
}

void be_busy() {
  busy_page = reinterpret_cast<char*>(page_of(busy_pages) + kPage);
  struct sigaction action{};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  for (int i = 0; i < 2; ++i) std::thread(compute).detach();
  for (int i = 0; i < 2; ++i) std::thread(wait_in_calls).detach();
  std::thread([] {
    while (true) {
      kill(getpid(), SIGUSR1);
      usleep(300);
    }
  }).detach();
  std::printf("page\t%p\n", static_cast<void*>(busy_page));
}

/// A child with a page that is kept from its children, which this process traces as a debugger.
void trace_a_child() {
  char* const page = variables + kPage;
  int ready[2];
  if (pipe(ready) != 0) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    keep_from_children(page, 4, false);
    if (write(ready[1], "x", 1) != 1) std::abort();
    while (true) pause();
  }
  char told = 0;
  if (read(ready[0], &told, 1) != 1) std::abort();
  if (ptrace(PTRACE_SEIZE, child, nullptr, nullptr) != 0)
    std::printf("skip\t%s\n", std::strerror(errno));
  else
    std::printf("traced\t%d\n", child);
  std::printf("page\t%p\n", static_cast<void*>(page));
}

// Registrations out of functions with names, by a verbs library opened at run time.

using KeepRange = int (*)(void*, std::size_t);
struct Verbs {
  void* library = nullptr;
  bool versioned = false;
  template <class Function>
  Function find(const char* name) const {
    void* found = versioned ? dlvsym(library, name, "IBVERBS_1.1") : dlsym(library, name);
    return reinterpret_cast<Function>(found);
  }
};

}  // namespace

extern "C" {
__attribute__((noinline)) int setup_flush_buffer(const Verbs* verbs, char* flag) {
  return verbs->find<KeepRange>("ibv_dontfork_range")(flag, 4) + (flag == nullptr);
}
__attribute__((noinline)) int setup_second_flag(const Verbs* verbs, char* flag) {
  return verbs->find<KeepRange>("ibv_dontfork_range")(flag, 4) + (flag == nullptr);
}
__attribute__((noinline)) int use_for_a_moment(const Verbs* verbs, char* buffer) {
  return verbs->find<KeepRange>("ibv_dontfork_range")(buffer, 100) +
         verbs->find<KeepRange>("ibv_dofork_range")(buffer, 100) + (buffer == nullptr);
}
__attribute__((noinline)) int register_with_a_domain(const Verbs* verbs, char* buffer) {
  using Register = void* (*)(void*, void*, std::size_t, int);
  using Deregister = int (*)(void*);
  void* const region = verbs->find<Register>("ibv_reg_mr")(nullptr, buffer, 8, 1);
  void* const second = verbs->find<Register>("ibv_reg_mr")(nullptr, buffer + 16, 8, 1);
  if (region == nullptr || second == nullptr) return 1;
  return verbs->find<Deregister>("ibv_dereg_mr")(second);
}
__attribute__((noinline)) int keep_by_hand(char* page) {
  return madvise(page, kPage, MADV_DONTFORK) + (page == nullptr);
}
__attribute__((noinline)) int map_and_unmap() {
  // With pages around it that are nobody's: beside a library's variables the kernel would make one
  // mapping of both, whose pages are theirs.
  char* const around =
      static_cast<char*>(mmap(nullptr, 66 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  char* const memory = around + kPage;
  mprotect(memory, 64 * kPage, PROT_READ | PROT_WRITE);
  const int kept = madvise(memory, 64 * kPage, MADV_DONTFORK);
  munmap(memory, 64 * kPage);
  // Somebody else's now: a registration in the middle of it is not what happened above.
  char* const again = static_cast<char*>(
      mmap(memory, 64 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  return kept + (again == memory ? keep_by_hand(again + 8 * kPage) : 1);
}
__attribute__((noinline)) int start_a_child() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  int status = 0;
  waitpid(child, &status, 0);
  return child < 0 ? 1 : 0;
}
}

namespace {

/// Threads that register while others fork children that register, too.
int storm(int rounds) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      char* const page = map(kPage);
      for (int i = 0; i < rounds; ++i) {
        wrong += keep_by_hand(page);
        wrong += madvise(page, kPage, MADV_DOFORK);
      }
    });
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < rounds / 10; ++i) {
        const pid_t child = fork();
        if (child == 0) {
          alarm(60);
          _exit(keep_by_hand(map(kPage)));
        }
        int status = 0;
        waitpid(child, &status, 0);
        if (status != 0) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  return wrong == 0 ? 3 : 12;
}

/// `what`: "real" or the path of another verbs library; `way`: dlsym or dlvsym.
int register_memory(const std::string& what, const std::string& way, bool close_all) {
  if (close_all) close_range(3, ~0U, 0);
  const Verbs verbs{dlopen(what == "real" ? "libibverbs.so.1" : what.c_str(), RTLD_NOW),
                    way == "dlvsym"};
  if (verbs.library == nullptr || verbs.find<int (*)()>("ibv_fork_init")() != 0) return 10;
  if (close_all) close_range(3, ~0U, 0);
  const Blocks heap(400);
  int wrong = 0;
  if (what == "real") {
    wrong += setup_flush_buffer(&verbs, heap.middle);
    wrong += setup_second_flag(&verbs, heap.middle + 80);
    wrong += use_for_a_moment(&verbs, variables + kPage);
    wrong += keep_by_hand(variables + 3 * kPage);
    wrong += map_and_unmap();
  } else {
    wrong += register_with_a_domain(&verbs, heap.middle);
  }
  if (close_all) close_range(3, ~0U, 0);
  wrong += start_a_child();
  return wrong == 0 ? 3 : 11;
}

void obey(const char* line) {
  int count = 0;
  if (std::sscanf(line, "fork %d", &count) == 1) fork_children(count);
  if (std::sscanf(line, "fork on a thread %d", &count) == 1)
    std::thread([count] { fork_children(count); }).join();
  const std::string order(line);
  if (order == "arena\n" || order == "no arena\n") {
    const bool give_back = order[0] == 'n';
    if (madvise(arena_page, kPage, give_back ? MADV_DOFORK : MADV_DONTFORK) != 0) std::abort();
    std::printf("done\n");
  }
  if (order == "keep\n") {
    keep_from_children(busy_page, 4, false);
    std::printf("kept\n");
  }
  if (order == "sums\n") std::printf("sums\t%ld\t%ld\n", wrong_sums.load(), failed_calls.load());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "clean";
  const std::string how = argc > 2 ? argv[2] : "";
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (mode == "register") return register_memory(how, argv[3], argc > 4);
  if (mode == "storm") return storm(200);
  if (mode == "planted") plant_all(how == "real");
  if (mode == "arena") plant_arena(how == "real");
  if (mode == "above-stack") plant_above_stack();
  if (mode == "block-above-stack") plant_block_above_stack();
  if (mode == "behind-variables") plant_behind_variables();
  if (mode == "libc") plant_libc();
  if (mode == "layout") plant_layout(static_cast<unsigned>(std::atoi(argv[2])));
  if (mode == "many") plant_many(static_cast<std::size_t>(std::atoi(argv[2])));
  if (mode == "pinned") plant_pinned(std::strtoul(argv[3], nullptr, 10), how);
  if (mode == "later") make_arena();
  if (mode == "busy") be_busy();
  if (mode == "traced") trace_a_child();
  if (mode == "zombie") {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    std::printf("zombie\t%d\n", child);
  }
  std::printf("ready\n");
  char line[256];
  while (std::fgets(line, sizeof line, stdin) != nullptr) obey(line);
  return 0;
}
