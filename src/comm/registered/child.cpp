#include "comm/registered/child.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include "segfuse/error.h"

namespace segfuse::comm {
namespace {

/// One page with a mark that a forked child finds wiped. It lasts as long as the process.
class Sentinel {
 public:
  Sentinel() noexcept : home_(getpid()) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* memory = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    if (madvise(memory, page, MADV_WIPEONFORK) != 0) {
      munmap(memory, page);
      return;
    }
    mark_ = static_cast<volatile unsigned char*>(memory);
    *mark_ = 1;
  }
  bool wiped() const noexcept { return mark_ != nullptr ? *mark_ == 0 : getpid() != home_; }

 private:
  volatile unsigned char* mark_ = nullptr;
  pid_t home_;  ///< where the kernel cannot wipe
};

}  // namespace

bool in_forked_child() noexcept {
  static const Sentinel sentinel;
  return sentinel.wiped();
}

void refuse_in_child(const char* what) {
  if (in_forked_child())
    throw ForkedChildError(fmt::format(
        "{}: called in a forked child, where registered memory does not exist; start the child "
        "with "
        "spawn (or let it exec) and pass it what it needs",
        what));
}

}  // namespace segfuse::comm
