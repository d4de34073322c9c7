// libsegfuse_forktrace: preloaded by `segfuse doctor fork --trace`, it stands before the calls that
// register memory and tells who makes them. Calls do what they always do; nothing is changed.
//
// Programs reach the verbs library in three ways: linked with it, by dlsym, and by dlvsym (NCCL).
// The first finds the functions below, since this library comes first; for the others dlsym and
// dlvsym give out the same functions instead of the library's. What registers by a way of its own
// is seen by its madvise.

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "doctor/hook/symbols.h"
#include "doctor/hook/teller.h"

#define SEGFUSE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using segfuse::hook::find_symbol;
using segfuse::hook::listening;
using segfuse::hook::Message;
using segfuse::hook::tell;

constexpr const char* kVerbs[] = {"libibverbs.so"};
constexpr const char* kLibc[] = {"libc.so.6", "libc-2.", "libdl.so.2", "libdl-2."};

/// The beginning of the library's struct ibv_mr (version 1.1 of its functions).
struct MemoryRegion {
  void* context;
  void* domain;
  void* address;
  std::size_t bytes;
};

/// How deep this thread is in calls that are reported, and what the inner ones did.
struct Inside {
  int depth;
  unsigned long long madvised;
  bool silent;  ///< a library that tries what the kernel can do, on a page of its own
};
__thread Inside inside __attribute__((tls_model("initial-exec")));

void* real_function(const char* name) { return find_symbol(name, kVerbs, 1); }

/// The functions behind ours; set when they are first needed, or when dlsym gave one out.
template <class Function>
struct Real {
  const char* name;
  Function function;
  Function get() {
    Function found = __atomic_load_n(&function, __ATOMIC_ACQUIRE);
    if (found != nullptr) return found;
    found = reinterpret_cast<Function>(real_function(name));
    if (found != nullptr) __atomic_store_n(&function, found, __ATOMIC_RELEASE);
    return found;
  }
};

using Init = int (*)();
using Range = int (*)(void*, std::size_t);
using Register = MemoryRegion* (*)(void*, void*, std::size_t, int);
using RegisterAt = MemoryRegion* (*)(void*, void*, std::size_t, std::uint64_t, int);
using RegisterAt2 = MemoryRegion* (*)(void*, void*, std::size_t, std::uint64_t, unsigned);
using Deregister = int (*)(MemoryRegion*);
using Advise = int (*)(void*, std::size_t, int);

Real<Init> real_init{"ibv_fork_init", nullptr};
Real<Range> real_keep{"ibv_dontfork_range", nullptr};
Real<Range> real_give_back{"ibv_dofork_range", nullptr};
Real<Register> real_register{"ibv_reg_mr", nullptr};
Real<RegisterAt> real_register_at{"ibv_reg_mr_iova", nullptr};
Real<RegisterAt2> real_register_at2{"ibv_reg_mr_iova2", nullptr};
Real<Deregister> real_deregister{"ibv_dereg_mr", nullptr};

/// One call, from its beginning to what it returned.
class Call {
 public:
  Call() { ++inside.depth; }
  ~Call() { --inside.depth; }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// `kind` is "keep", "release", "wipe" or "unwipe".
  void report(const char* function, const char* kind, const void* address, std::size_t bytes,
              bool worked) const {
    if (inside.depth != 1 || inside.silent || !listening()) return;
    const int error = errno;
    Message message;
    message.line("call", function);
    message.line("kind", kind);
    message.number("pid", static_cast<unsigned>(getpid()));
    message.address("address", reinterpret_cast<std::uintptr_t>(address));
    message.number("bytes", bytes);
    message.number("error", worked ? 0 : static_cast<unsigned>(error));
    message.number("madvised", inside.madvised);
    message.frames();
    message.line("end", "");
    tell(message);
    inside.madvised = 0;
    errno = error;
  }
};

/// What a caller without the library gets, as from any function that does not exist there.
int missing() {
  errno = ENOSYS;
  return ENOSYS;
}

template <class Function, class... Arguments>
MemoryRegion* registered(const char* name, Real<Function>& real, void* domain, void* address,
                         std::size_t bytes, Arguments... rest) {
  const Function function = real.get();
  if (function == nullptr) {
    missing();
    return nullptr;
  }
  const Call call;
  MemoryRegion* const region = function(domain, address, bytes, rest...);
  call.report(name, "keep", address, bytes, region != nullptr);
  return region;
}

void before_fork() {
  if (inside.depth > 0 || !listening()) return;
  Message message;
  message.line("call", "fork");
  message.line("kind", "fork");
  message.number("pid", static_cast<unsigned>(getpid()));
  message.frames();
  message.line("end", "");
  tell(message);
}

__attribute__((constructor)) void watch_forks() { pthread_atfork(before_fork, nullptr, nullptr); }

/// The last word of a process that ends by itself: it can still be looked at.
__attribute__((destructor)) void last_word() {
  if (!listening()) return;
  Message message;
  message.line("call", "exit");
  message.line("kind", "exit");
  message.number("pid", static_cast<unsigned>(getpid()));
  message.line("end", "");
  tell(message);
}

}  // namespace

// --- the calls -----------------------------------------------------------------------------------

SEGFUSE_EXPORT int madvise(void* address, std::size_t bytes, int advice) noexcept {
  static Advise real = nullptr;
  Advise function = __atomic_load_n(&real, __ATOMIC_ACQUIRE);
  if (function == nullptr) {
    function = reinterpret_cast<Advise>(find_symbol("madvise", kLibc, 2));
    if (function == nullptr) return missing(), -1;
    __atomic_store_n(&real, function, __ATOMIC_RELEASE);
  }
  const char* const kind = advice == MADV_DONTFORK     ? "keep"
                           : advice == MADV_DOFORK     ? "release"
                           : advice == MADV_WIPEONFORK ? "wipe"
                           : advice == MADV_KEEPONFORK ? "unwipe"
                                                       : nullptr;
  if (kind == nullptr) return function(address, bytes, advice);
  const Call call;
  const int result = function(address, bytes, advice);
  if (inside.depth > 1) ++inside.madvised;
  call.report("madvise", kind, address, bytes, result == 0);
  return result;
}

SEGFUSE_EXPORT int ibv_fork_init() {
  const Init function = real_init.get();
  if (function == nullptr) return missing();
  // It tries madvise on a page of its own.
  const Call call;
  inside.silent = true;
  const int result = function();
  inside.silent = false;
  inside.madvised = 0;
  return result;
}

SEGFUSE_EXPORT int ibv_dontfork_range(void* address, std::size_t bytes) {
  const Range function = real_keep.get();
  if (function == nullptr) return missing();
  const Call call;
  const int result = function(address, bytes);
  call.report("ibv_dontfork_range", "keep", address, bytes, result == 0);
  return result;
}

SEGFUSE_EXPORT int ibv_dofork_range(void* address, std::size_t bytes) {
  const Range function = real_give_back.get();
  if (function == nullptr) return missing();
  const Call call;
  const int result = function(address, bytes);
  call.report("ibv_dofork_range", "release", address, bytes, result == 0);
  return result;
}

SEGFUSE_EXPORT MemoryRegion* ibv_reg_mr(void* domain, void* address, std::size_t bytes,
                                        int access) {
  return registered("ibv_reg_mr", real_register, domain, address, bytes, access);
}

SEGFUSE_EXPORT MemoryRegion* ibv_reg_mr_iova(void* domain, void* address, std::size_t bytes,
                                             std::uint64_t place, int access) {
  return registered("ibv_reg_mr_iova", real_register_at, domain, address, bytes, place, access);
}

SEGFUSE_EXPORT MemoryRegion* ibv_reg_mr_iova2(void* domain, void* address, std::size_t bytes,
                                              std::uint64_t place, unsigned access) {
  return registered("ibv_reg_mr_iova2", real_register_at2, domain, address, bytes, place, access);
}

SEGFUSE_EXPORT int ibv_dereg_mr(MemoryRegion* region) {
  const Deregister function = real_deregister.get();
  if (function == nullptr) return missing();
  void* const address = region->address;
  const std::size_t bytes = region->bytes;
  const Call call;
  const int result = function(region);
  call.report("ibv_dereg_mr", "release", address, bytes, result == 0);
  return result;
}

// --- those who ask for addresses -----------------------------------------------------------------

#if defined(__x86_64__)

namespace {

struct Replaced {
  const char* name;
  void* ours;
  void** real;
};

template <class Function>
Replaced replaced(Real<Function>& real, Function ours) {
  return {real.name, reinterpret_cast<void*>(ours), reinterpret_cast<void**>(&real.function)};
}

/// Ours in place of `found`, which is remembered; null: the caller gets what dlsym gives it.
void* replacement(const char* name, void* found) {
  const Replaced all[] = {replaced<Init>(real_init, ibv_fork_init),
                          replaced<Range>(real_keep, ibv_dontfork_range),
                          replaced<Range>(real_give_back, ibv_dofork_range),
                          replaced<Register>(real_register, ibv_reg_mr),
                          replaced<RegisterAt>(real_register_at, ibv_reg_mr_iova),
                          replaced<RegisterAt2>(real_register_at2, ibv_reg_mr_iova2),
                          replaced<Deregister>(real_deregister, ibv_dereg_mr)};
  for (const Replaced& one : all) {
    if (std::strcmp(one.name, name) != 0 || found == nullptr || found == one.ours) continue;
    __atomic_store_n(one.real, found, __ATOMIC_RELEASE);
    return one.ours;
  }
  return nullptr;
}

bool concerns_us(void* handle, const char* name) {
  // RTLD_NEXT depends on who asks.
  return name != nullptr && handle != RTLD_NEXT && std::strncmp(name, "ibv_", 4) == 0;
}

}  // namespace

using Dlsym = void* (*)(void*, const char*);
using Dlvsym = void* (*)(void*, const char*, const char*);

// Reached from the code below. The real functions are jumped to with everything as it was, since
// they look at who called them.
extern "C" {
__attribute__((visibility("hidden"))) Dlsym segfuse_real_dlsym = nullptr;
__attribute__((visibility("hidden"))) Dlvsym segfuse_real_dlvsym = nullptr;

__attribute__((visibility("hidden"), used)) void* segfuse_for_dlsym(void* handle,
                                                                    const char* name) noexcept {
  if (segfuse_real_dlsym == nullptr)
    segfuse_real_dlsym = reinterpret_cast<Dlsym>(find_symbol("dlsym", kLibc, 4));
  if (!concerns_us(handle, name)) return nullptr;
  return replacement(name, segfuse_real_dlsym(handle, name));
}

__attribute__((visibility("hidden"), used)) void* segfuse_for_dlvsym(void* handle, const char* name,
                                                                     const char* version) noexcept {
  if (segfuse_real_dlvsym == nullptr)
    segfuse_real_dlvsym = reinterpret_cast<Dlvsym>(find_symbol("dlvsym", kLibc, 4));
  // Version 1.0 has other structures.
  if (!concerns_us(handle, name) || version == nullptr || std::strcmp(version, "IBVERBS_1.0") == 0)
    return nullptr;
  return replacement(name, segfuse_real_dlvsym(handle, name, version));
}
}

#define SEGFUSE_TRAMPOLINE(NAME)                                               \
  asm(".text\n.p2align 4\n.globl " #NAME "\n.type " #NAME ",@function\n" #NAME \
      ":\n"                                                                    \
      ".cfi_startproc\nendbr64\n"                                              \
      "push %rdi\n.cfi_adjust_cfa_offset 8\n"                                  \
      "push %rsi\n.cfi_adjust_cfa_offset 8\n"                                  \
      "push %rdx\n.cfi_adjust_cfa_offset 8\n"                                  \
      "call segfuse_for_" #NAME                                                \
      "\n"                                                                     \
      "pop %rdx\n.cfi_adjust_cfa_offset -8\n"                                  \
      "pop %rsi\n.cfi_adjust_cfa_offset -8\n"                                  \
      "pop %rdi\n.cfi_adjust_cfa_offset -8\n"                                  \
      "test %rax, %rax\njz 1f\nret\n1:\n"                                      \
      "jmp *segfuse_real_" #NAME "(%rip)\n.cfi_endproc\n.size " #NAME ", .-" #NAME "\n")
SEGFUSE_TRAMPOLINE(dlsym);
SEGFUSE_TRAMPOLINE(dlvsym);

#endif
