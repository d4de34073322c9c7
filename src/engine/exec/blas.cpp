#include "engine/exec/blas.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <semaphore>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/os/shared_library.h"
#include "segfuse/error.h"

namespace segfuse::engine {
namespace {

const std::string kLibraries[] = {"libopenblas.so.0", "libopenblas.so"};

/// The environment that the library reads while it is loaded. The Python package leaves it alone:
/// other threads may be reading it.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) {
    if (kOurs && value != nullptr)
      set_ = std::getenv(name) == nullptr && ::setenv(name, value, 0) == 0;
  }
  ~Setting() {
    if (set_) ::unsetenv(name_);
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

#if SEGFUSE_PYTHON_PACKAGE
  static constexpr bool kOurs = false;
#else
  static constexpr bool kOurs = true;
#endif

 private:
  const char* name_;
  bool set_ = false;
};

std::string_view core_of(const SharedLibrary& library) {
  const char* (*core)() = nullptr;
  try {
    library.load("openblas_get_corename", core);
    return core();
  } catch (const DeviceError&) {  // it keeps that to itself
    return {};
  }
}

/// Kernels that this processor can run, in place of those that the library chose: for a
/// processor that came after it, it takes ones without AVX. Null where its choice is good.
const char* better_core(std::string_view chosen) {
#if defined(__x86_64__)
  const std::string_view old[] = {"Prescott", "Core2", "Penryn", "Dunnington", "Nehalem"};
  if (std::ranges::find(old, chosen) == std::end(old)) return nullptr;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return "SkylakeX";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
  return nullptr;
}

void load_buffers(const SharedLibrary& library, Blas& found) {
  try {
    library.load("blas_memory_free", found.give_buffer);
    library.load("blas_memory_alloc", found.take_buffer);
  } catch (const DeviceError&) {  // it keeps them to itself
    found.take_buffer = nullptr;
  }
}

/// Of the library that would be opened; it is closed again.
const char* core_to_ask_for() {
  const char* (*core)() = nullptr;
  const char* better = nullptr;
  for (const std::string& name : kLibraries) {
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    core = reinterpret_cast<const char* (*)()>(dlsym(library, "openblas_get_corename"));
    if (core != nullptr) better = better_core(core());
    dlclose(library);
    break;
  }
  return better;
}

Blas find() {
  // The library starts its workers when it is loaded, each with a buffer, and hangs or ends the
  // process where there is no room for them. They are never used.
  const Setting no_workers("OPENBLAS_NUM_THREADS", "1");
  // It chooses its kernels when it is loaded, once.
  const Setting core("OPENBLAS_CORETYPE", Setting::kOurs ? core_to_ask_for() : nullptr);
  const SharedLibrary library = SharedLibrary::open_first(kLibraries);
  if (!library) return {};
  try {
    Blas found;
    library.load("cblas_sgemm", found.sgemm);
    library.load("cblas_dgemm", found.dgemm);
    library.load("openblas_set_num_threads", found.set_threads);
    found.name = "OpenBLAS";
    found.core = core_of(library);
    load_buffers(library, found);
    return found;
  } catch (const DeviceError&) {  // a library of that name, but not that library
    return {};
  }
}

/// The buffers that the library has got, as permissions to run a product.
class Buffers {
 public:
  void reserve(int wanted) {
    if (wanted <= tried_.load()) return;
    const MutexLock lock(mutex_);
    if (wanted <= tried_.load()) return;
    if (blas().take_buffer == nullptr) {
      add(wanted - tried_.load());
    } else {
      fill(std::min(wanted, kMax));
    }
    tried_ = wanted;
  }
  void take() { free_.acquire(); }
  void give() { free_.release(); }

 private:
  static constexpr int kMax = 128;  // the library has places for so many, at the least
  // 128 MiB on x86-64, less elsewhere.
  static constexpr std::size_t kBytes = std::size_t{136} << 20;

  static bool there_is_room() {
    void* address =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return address != MAP_FAILED && ::munmap(address, kBytes) == 0;
  }
  void add(int count) SEGFUSE_REQUIRES(mutex_) {
    held_ += count;
    free_.release(count);
  }
  /// All at the same time: the library hands out again what was given back.
  void fill(int wanted) SEGFUSE_REQUIRES(mutex_) {
    for (int i = 0; i < held_; ++i) free_.acquire();
    std::vector<void*> buffers;
    const int held = std::exchange(held_, 0);
    for (int i = 0; i < wanted && (i < held || there_is_room()); ++i)
      buffers.push_back(blas().take_buffer(0));
    for (void* buffer : buffers) blas().give_buffer(buffer);
    add(static_cast<int>(buffers.size()));
    if (buffers.empty())
      throw DeviceError(fmt::format(
          "out of memory: {} needs {} MiB for its buffers, and the system gives no more; raise the "
          "limit of this process (ulimit -v, or the job's memory)",
          blas().name, kBytes >> 20));
  }

  Mutex mutex_;
  std::atomic<int> tried_{0};
  int held_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  std::counting_semaphore<> free_{0};
};

Buffers& buffers() {
  static Buffers all;
  return all;
}

}  // namespace

const Blas& blas() {
  static const Blas found = find();
  return found;
}

void prepare_blas(int threads) {
  if (blas().sgemm == nullptr) return;
  if (blas().set_threads != nullptr) blas().set_threads(1);
  buffers().reserve(threads);
}

BlasCall::BlasCall() { buffers().take(); }
BlasCall::~BlasCall() { buffers().give(); }

}  // namespace segfuse::engine
