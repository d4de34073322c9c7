// A library that is preloaded and lets the system fail: the N-th allocation, thread, write, ... of
// a process. It also writes down what happens to files, so that a power loss can be replayed.
//
//   SEGFUSE_FAULT=KIND:N     the N-th call fails; KIND:N+ the N-th and all that follow
//   SEGFUSE_FAULT_COUNTS=F   at the end of main(), "KIND NUMBER" lines go to the file F
//   SEGFUSE_FAULT_LOG=F      each change of a regular file goes to F as text: "open FD PATH" (for
//                            writing), "unnamed FD" (O_TMPFILE), "folder FD PATH", "write FD OFFSET
//                            HEX", "truncate FD SIZE", "sync FD", "close FD", "rename FROM\tTO",
//                            "link FROM\tTO", "unlink PATH". Paths are absolute; FROM of a link is
//                            a number when it is a descriptor.
//
// Kinds: alloc, thread, open (for writing), unnamed (opening with O_TMPFILE: it fails as on a file
// system that has no such files), write, fsync, rename, link, mmap. Calls count from the beginning
// of main() to its end: what comes before and after belongs to the system's loader.

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
}

namespace {

enum Kind { kAlloc, kThread, kOpen, kUnnamed, kWrite, kSync, kRename, kLink, kMap, kKinds };
constexpr const char* kNames[kKinds] = {"alloc", "thread", "open", "unnamed", "write",
                                        "fsync", "rename", "link", "mmap"};

std::atomic<bool> armed{false};
std::atomic<long> counts[kKinds];
int failing_kind = -1;
long failing_call = 0;
bool failing_on = false;
int log_file = -1;
char counts_path[PATH_MAX];

/// Whether this call is to fail.
bool fails(Kind kind) {
  if (!armed.load(std::memory_order_relaxed)) return false;
  const long call = 1 + counts[kind].fetch_add(1, std::memory_order_relaxed);
  if (kind != failing_kind) return false;
  return failing_on ? call >= failing_call : call == failing_call;
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;

ssize_t real_write(int descriptor, const void* data, std::size_t size) {
  static const auto function = next<ssize_t (*)(int, const void*, std::size_t)>("write");
  return function(descriptor, data, size);
}

void put(const char* text) { (void)!real_write(log_file, text, std::strlen(text)); }

template <class... Args>
void note(const char* format, Args... args) {
  if (log_file < 0 || !armed) return;
  char line[2 * PATH_MAX + 64];
  std::snprintf(line, sizeof line, format, args...);
  pthread_mutex_lock(&log_mutex);
  put(line);
  pthread_mutex_unlock(&log_mutex);
}

/// Of files and folders on a disk.
bool on_disk(int descriptor) {
  struct stat status{};
  if (fstat(descriptor, &status) != 0) return false;
  return S_ISREG(status.st_mode) || S_ISDIR(status.st_mode);
}

bool is_unnamed(int flags) { return (flags & O_TMPFILE) == O_TMPFILE; }

/// The path that an open file or folder has now.
void path_of(int descriptor, char* out) {
  char link[64];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, out, PATH_MAX - 1);
  out[length < 0 ? 0 : length] = '\0';
}

void note_open(int descriptor, int flags) {
  struct stat status{};
  if (log_file < 0 || descriptor < 0 || fstat(descriptor, &status) != 0) return;
  char path[PATH_MAX];
  path_of(descriptor, path);
  if (S_ISDIR(status.st_mode)) return note("folder %d %s\n", descriptor, path);
  if ((flags & O_ACCMODE) == O_RDONLY || !S_ISREG(status.st_mode)) return;
  if (is_unnamed(flags)) return note("unnamed %d\n", descriptor);
  note("open %d %s\n", descriptor, path);
  if ((flags & O_TRUNC) != 0) note("truncate %d 0\n", descriptor);
}

void note_write(int descriptor, const char* data, ssize_t size) {
  if (log_file < 0 || !armed || size <= 0 || !on_disk(descriptor)) return;
  const off_t end = lseek(descriptor, 0, SEEK_CUR);
  pthread_mutex_lock(&log_mutex);
  char text[4096];
  std::snprintf(text, sizeof text, "write %d %ld ", descriptor, static_cast<long>(end - size));
  put(text);
  for (ssize_t at = 0; at < size;) {
    std::size_t filled = 0;
    for (; at < size && filled + 2 < sizeof text; ++at, filled += 2)
      std::snprintf(text + filled, 3, "%02x", static_cast<unsigned char>(data[at]));
    text[filled] = '\0';
    put(text);
  }
  put("\n");
  pthread_mutex_unlock(&log_mutex);
}

/// The path of a name in an open folder, or in the current one (AT_FDCWD).
void absolute_name(int folder, const char* path, char* out) {
  out[0] = '\0';
  if (path[0] != '/' && folder != AT_FDCWD) {
    path_of(folder, out);
  } else if (path[0] != '/' && getcwd(out, PATH_MAX) == nullptr) {
    out[0] = '\0';
  }
  const std::size_t length = std::strlen(out);
  std::snprintf(out + length, PATH_MAX - length, "%s%s", path[0] == '/' ? "" : "/", path);
}

int refuse(int reason) {
  errno = reason;
  return -1;
}

__attribute__((constructor)) void read_environment() {
  if (const char* path = std::getenv("SEGFUSE_FAULT_COUNTS"))
    std::snprintf(counts_path, sizeof counts_path, "%s", path);
  if (const char* path = std::getenv("SEGFUSE_FAULT_LOG")) {
    static const auto function = next<int (*)(const char*, int, ...)>("open");
    log_file = function(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  }
  const char* fault = std::getenv("SEGFUSE_FAULT");
  const char* colon = fault == nullptr ? nullptr : std::strchr(fault, ':');
  for (int kind = 0; colon != nullptr && kind < kKinds; ++kind)
    if (std::strncmp(fault, kNames[kind], static_cast<std::size_t>(colon - fault)) == 0 &&
        std::strlen(kNames[kind]) == static_cast<std::size_t>(colon - fault))
      failing_kind = kind;
  if (colon != nullptr) {
    failing_call = std::atol(colon + 1);
    failing_on = fault[std::strlen(fault) - 1] == '+';
  }
  unsetenv("LD_PRELOAD");  // not in children
}

int (*real_main)(int, char**, char**);

int counted_main(int argc, char** argv, char** environment) {
  armed = true;
  const int status = real_main(argc, argv, environment);
  armed = false;
  if (counts_path[0] == '\0') return status;
  std::FILE* file = std::fopen(counts_path, "w");
  for (int kind = 0; file != nullptr && kind < kKinds; ++kind)
    std::fprintf(file, "%s %ld\n", kNames[kind], counts[kind].load());
  if (file != nullptr) std::fclose(file);
  return status;
}

/// Opens by the system's function of that name. `Folder` is nothing, or a descriptor.
template <class... Folder>
int open_by(const char* function_name, const char* path, int flags, mode_t mode, Folder... folder) {
  const auto function = next<int (*)(Folder..., const char*, int, ...)>(function_name);
  if ((flags & O_ACCMODE) != O_RDONLY && fails(kOpen)) return refuse(EMFILE);
  if (is_unnamed(flags) && fails(kUnnamed)) return refuse(EOPNOTSUPP);
  const int descriptor = function(folder..., path, flags, mode);
  note_open(descriptor, flags);
  return descriptor;
}

/// Whether what a link is made from is an open file, and which.
bool is_descriptor(int folder, const char* path, int flags, int& descriptor) {
  descriptor = folder;
  if ((flags & AT_EMPTY_PATH) != 0 && path[0] == '\0') return true;
  if ((flags & AT_SYMLINK_FOLLOW) == 0) return false;
  return std::sscanf(path, "/proc/self/fd/%d", &descriptor) == 1;
}

}  // namespace

extern "C" {

int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, void (*init)(),
                      void (*fini)(), void (*loader_fini)(), void* stack_end) {
  using Start =
      int (*)(int (*)(int, char**, char**), int, char**, void (*)(), void (*)(), void (*)(), void*);
  real_main = main;
  return next<Start>("__libc_start_main")(counted_main, argc, argv, init, fini, loader_fini,
                                          stack_end);
}

void* malloc(std::size_t size) {
  if (!fails(kAlloc)) return __libc_malloc(size);
  errno = ENOMEM;
  return nullptr;
}

void* calloc(std::size_t count, std::size_t size) {
  if (!fails(kAlloc)) return __libc_calloc(count, size);
  errno = ENOMEM;
  return nullptr;
}

void* realloc(void* block, std::size_t size) {
  if (!fails(kAlloc)) return __libc_realloc(block, size);
  errno = ENOMEM;
  return nullptr;
}

void* memalign(std::size_t alignment, std::size_t size) {
  if (!fails(kAlloc)) return __libc_memalign(alignment, size);
  errno = ENOMEM;
  return nullptr;
}

void* aligned_alloc(std::size_t alignment, std::size_t size) { return memalign(alignment, size); }

int posix_memalign(void** block, std::size_t alignment, std::size_t size) {
  *block = memalign(alignment, size);
  return *block == nullptr ? ENOMEM : 0;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  if (fails(kThread)) return EAGAIN;
  return next<Create>("pthread_create")(thread, attributes, run, argument);
}

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const auto mode = va_arg(rest, mode_t);
  va_end(rest);
  return open_by("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const auto mode = va_arg(rest, mode_t);
  va_end(rest);
  return open_by("open64", path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const auto mode = va_arg(rest, mode_t);
  va_end(rest);
  return open_by("openat", path, flags, mode, folder);
}

int openat64(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const auto mode = va_arg(rest, mode_t);
  va_end(rest);
  return open_by("openat64", path, flags, mode, folder);
}

ssize_t write(int descriptor, const void* data, std::size_t size) {
  if (descriptor > 2 && fails(kWrite)) return refuse(ENOSPC);
  const ssize_t count = real_write(descriptor, data, size);
  note_write(descriptor, static_cast<const char*>(data), count);
  return count;
}

int ftruncate(int descriptor, off_t size) {
  const int result = next<int (*)(int, off_t)>("ftruncate")(descriptor, size);
  if (result == 0) note("truncate %d %ld\n", descriptor, static_cast<long>(size));
  return result;
}

int fsync(int descriptor) {
  if (fails(kSync)) return refuse(EIO);
  const int result = next<int (*)(int)>("fsync")(descriptor);
  if (result == 0) note("sync %d\n", descriptor);
  return result;
}

int close(int descriptor) {
  if (log_file >= 0 && descriptor > 2 && on_disk(descriptor)) note("close %d\n", descriptor);
  return next<int (*)(int)>("close")(descriptor);
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  using Rename = int (*)(int, const char*, int, const char*);
  if (fails(kRename)) return refuse(EIO);
  const int result = next<Rename>("renameat")(from_folder, from, to_folder, to);
  if (result != 0) return result;
  char first[PATH_MAX], second[PATH_MAX];
  absolute_name(from_folder, from, first);
  absolute_name(to_folder, to, second);
  note("rename %s\t%s\n", first, second);
  return result;
}

int rename(const char* from, const char* to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  using Link = int (*)(int, const char*, int, const char*, int);
  if (fails(kLink)) return refuse(EIO);
  const int result = next<Link>("linkat")(from_folder, from, to_folder, to, flags);
  if (result != 0) return result;
  char first[PATH_MAX], second[PATH_MAX];
  int descriptor = -1;
  if (is_descriptor(from_folder, from, flags, descriptor))
    std::snprintf(first, sizeof first, "%d", descriptor);
  else
    absolute_name(from_folder, from, first);
  absolute_name(to_folder, to, second);
  note("link %s\t%s\n", first, second);
  return result;
}

int unlinkat(int folder, const char* path, int flags) {
  const int result = next<int (*)(int, const char*, int)>("unlinkat")(folder, path, flags);
  if (result != 0) return result;
  char name[PATH_MAX];
  absolute_name(folder, path, name);
  note("unlink %s\n", name);
  return result;
}

int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }

void* mmap(void* address, std::size_t size, int protection, int flags, int descriptor,
           off_t offset) {
  using Map = void* (*)(void*, std::size_t, int, int, int, off_t);
  if (fails(kMap)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return next<Map>("mmap")(address, size, protection, flags, descriptor, offset);
}

}  // extern "C"
