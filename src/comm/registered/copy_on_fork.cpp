#include "comm/registered/copy_on_fork.h"

#include <fmt/core.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "comm/registered/backends/uring.h"
#include "comm/registered/child.h"
#include "comm/registered/mapping.h"
#include "segfuse/error.h"

namespace segfuse::comm {
namespace {

constexpr std::byte kBefore{'A'};
constexpr std::byte kAfter{'B'};
constexpr std::byte kByDevice{'C'};

/// A private page that children get, unlike a slab's.
class Page {
 public:
  Page() {
    void* memory =
        mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      throw DeviceError(fmt::format("no memory for a page: {}", std::strerror(errno)));
    bytes_ = static_cast<std::byte*>(memory);
  }
  ~Page() { munmap(bytes_, page_bytes()); }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  std::span<std::byte> span() const { return {bytes_, page_bytes()}; }
  /// As the processor sees it now, however often it was read before.
  std::byte first() const { return *const_cast<const volatile std::byte*>(bytes_); }
  void set(std::byte value) { std::memset(bytes_, std::to_integer<int>(value), page_bytes()); }

 private:
  std::byte* bytes_;
};

class OpenFile {
 public:
  explicit OpenFile(int number) : number_(number) {}
  ~OpenFile() {
    if (number_ >= 0) close(number_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

/// A child that keeps its half of the memory until it has to look at it. It is made by a bare
/// clone, so no fork handler runs (some end the process), and it makes system calls alone. Nobody
/// hears of its end.
class Child {
 public:
  explicit Child(const Page& page) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw DeviceError(fmt::format("no pair of sockets: {}", std::strerror(errno)));
    pid_ = static_cast<pid_t>(syscall(SYS_clone, 0, nullptr, nullptr, nullptr, nullptr));
    if (pid_ == 0) {
      char word = 0;
      syscall(SYS_close, ends[1]);
      const long count = syscall(SYS_read, ends[0], &word, 1);
      syscall(SYS_exit_group, count == 1 && page.first() == kBefore ? 0 : 1);
    }
    const int reason = errno;
    close(ends[0]);
    go_ = ends[1];
    if (pid_ < 0) {
      close(go_);
      throw DeviceError(fmt::format("no child: {}", std::strerror(reason)));
    }
  }
  ~Child() { saw_what_was_before(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool saw_what_was_before() {
    if (pid_ <= 0) return false;
    const bool sent = send(go_, "x", 1, MSG_NOSIGNAL) == 1;
    close(go_);
    int status = -1;
    while (waitpid(pid_, &status, __WALL) < 0 && errno == EINTR) continue;
    pid_ = 0;
    return sent && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_ = 0;
  int go_ = -1;
};

CopyOnForkProof try_it() {
  UringBackend device;
  Page page;
  page.set(kBefore);
  // The pin goes before the page does.
  const std::unique_ptr<Pin> pin = device.pin(page.span());
  const OpenFile file(memfd_create("copy-on-fork", MFD_CLOEXEC));
  if (file.number() < 0) throw DeviceError(fmt::format("no memory file: {}", std::strerror(errno)));
  Child child(page);
  page.set(kAfter);
  std::byte seen{};
  if (device.write(file.number(), 0, *pin, 0, 1) != 1 || pread(file.number(), &seen, 1, 0) != 1)
    throw DeviceError("nothing could be read through the pin");
  const bool device_reads = seen == kAfter;
  if (pwrite(file.number(), &kByDevice, 1, 0) != 1 ||
      device.read(file.number(), 0, *pin, 0, 1) != 1)
    throw DeviceError("nothing could be written through the pin");
  const bool device_writes = page.first() == kByDevice;
  const bool child_kept = child.saw_what_was_before();
  if (device_reads && device_writes && child_kept)
    return {CopyOnFork::kYes, "after a fork the kernel saw this process's memory through a pin"};
  return {CopyOnFork::kNo,
          device_reads && device_writes
              ? "a forked child saw what its parent wrote to pinned memory"
              : "after a fork the kernel did not see this process's memory through a pin"};
}

}  // namespace

CopyOnForkProof probe_copy_on_fork() {
  refuse_in_child("probe_copy_on_fork");
  try {
    return try_it();
  } catch (const DeviceError& error) {
    return {CopyOnFork::kUnknown, error.what()};
  }
}

const CopyOnForkProof& copy_on_fork() {
  refuse_in_child("copy_on_fork");
  static const auto& proof = *new CopyOnForkProof(probe_copy_on_fork());
  return proof;
}

}  // namespace segfuse::comm
