#include "comm/registered/mapping.h"

#include <fmt/core.h>
#include <linux/memfd.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/sizes.h"
#include "comm/registered/child.h"
#include "segfuse/error.h"

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

namespace segfuse::comm {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kMaxBytes = std::size_t{1} << 46;  // more than any address space has
constexpr int kMaxNodes = 64;
constexpr std::size_t kLongestOwner = 200;  // of 249 bytes for a name of such a file

std::byte* reserve(std::size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw DeviceError(
        fmt::format("slab of {} bytes: no addresses for it: {}; the process has too many mappings "
                    "(vm.max_map_count) or a limit on its address space",
                    bytes, std::strerror(errno)));
  return static_cast<std::byte*>(memory);
}

void check(const SlabOptions& options) {
  if (options.bytes == 0)
    throw UsageError(fmt::format("slab '{}': 0 bytes; expected at least 1", options.owner));
  if (options.bytes > kMaxBytes)
    throw UsageError(fmt::format("slab '{}': {} bytes; expected at most {}", options.owner,
                                 options.bytes, kMaxBytes));
  if (options.owner.empty() || options.owner.size() > kLongestOwner ||
      options.owner.find_first_of(std::string_view("\n\0", 2)) != std::string::npos)
    throw UsageError(
        fmt::format("slab: the owner's name has {} bytes; expected 1 to {}, in one line",
                    options.owner.size(), kLongestOwner));
  if (options.numa < -1 || options.numa >= kMaxNodes)
    throw UsageError(fmt::format("slab '{}': node {}; expected 0 to {}, or -1 for any",
                                 options.owner, options.numa, kMaxNodes - 1));
}

}  // namespace

std::size_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::string_view name_of(Backing backing) noexcept {
  constexpr std::string_view kNames[] = {"pages of a memory file", "huge pages of a memory file",
                                         "transparent huge pages", "private pages"};
  return kNames[static_cast<std::size_t>(backing)];
}

Mapping::Mapping(const SlabOptions& options) {
  refuse_in_child("Slab");
  check(options);
  const std::size_t unit = options.huge ? kHugePage : page_bytes();
  const std::size_t bytes = round_up(options.bytes, unit);
  // Enough addresses for a payload at a multiple of its unit; what is too much goes back.
  const std::size_t slack = options.huge ? kHugePage : 0;
  const std::size_t reserved = bytes + 2 * page_bytes() + slack;
  std::byte* const begin = reserve(reserved);
  const std::size_t first = reinterpret_cast<std::size_t>(begin) + page_bytes();
  std::byte* const at = begin + page_bytes() + (round_up(first, unit) - first);
  whole_ = {at - page_bytes(), bytes + 2 * page_bytes()};
  if (whole_.data() > begin) munmap(begin, static_cast<std::size_t>(whole_.data() - begin));
  std::byte* const end = whole_.data() + whole_.size();
  if (end < begin + reserved) munmap(end, static_cast<std::size_t>(begin + reserved - end));
  payload_ = {at, bytes};
  try {
    map_payload(options, at);
  } catch (...) {
    munmap(whole_.data(), whole_.size());
    throw;
  }
}

Mapping::~Mapping() {
  // In a child the addresses are a hole, or already somebody else's.
  if (!in_forked_child()) munmap(whole_.data(), whole_.size());
}

bool Mapping::map_file(const SlabOptions& options, std::byte* at, unsigned flags) {
  const int file = memfd_create(("reg:" + options.owner).c_str(), MFD_CLOEXEC | flags);
  if (file < 0) return false;
  // First somewhere: when a mapping in place fails, the kernel may have removed what was there, and
  // others could map into the gap. What this one reserves of a pool is the file's, so the second
  // has it.
  const std::size_t bytes = payload_.size();
  constexpr int kAccess = PROT_READ | PROT_WRITE;
  void* memory = MAP_FAILED;
  void* somewhere = MAP_FAILED;
  if (ftruncate(file, static_cast<off_t>(bytes)) == 0)
    somewhere = mmap(nullptr, bytes, kAccess, MAP_SHARED, file, 0);
  if (somewhere != MAP_FAILED) memory = mmap(at, bytes, kAccess, MAP_SHARED | MAP_FIXED, file, 0);
  const int reason = errno;
  if (somewhere != MAP_FAILED) munmap(somewhere, bytes);
  close(file);
  errno = reason;
  backing_ = (flags & MFD_HUGETLB) != 0 ? Backing::kHugeFile : Backing::kFile;
  return memory != MAP_FAILED;
}

bool Mapping::map_private(std::byte* at, bool huge) {
  if (mprotect(at, payload_.size(), PROT_READ | PROT_WRITE) != 0) return false;
  backing_ = Backing::kPrivate;
  if (huge && madvise(at, payload_.size(), MADV_HUGEPAGE) == 0)
    backing_ = Backing::kTransparentHuge;
  return true;
}

void Mapping::place_near(const SlabOptions& options) const {
  // Preferred, not bound: a full node makes it slower, not impossible.
  const unsigned long nodes = 1UL << options.numa;
  if (syscall(SYS_mbind, payload_.data(), payload_.size(), MPOL_PREFERRED, &nodes, kMaxNodes + 1,
              0U) == 0)
    return;
  throw DeviceError(fmt::format("slab '{}': its memory cannot come from node {}: {}", options.owner,
                                options.numa,
                                errno == ENOSYS   ? "this kernel knows no nodes (CONFIG_NUMA)"
                                : errno == EINVAL ? "there is no such node with memory"
                                                  : std::strerror(errno)));
}

void Mapping::map_payload(const SlabOptions& options, std::byte* at) {
  bool mapped = false;
  if (options.fork == ForkPolicy::kCopied) {
    mapped = map_private(at, options.huge);
  } else {
    if (options.huge) mapped = map_file(options, at, MFD_HUGETLB | MFD_HUGE_2MB);
    if (!mapped && options.huge && options.fork == ForkPolicy::kAbsent)
      mapped = map_private(at, true);
    if (!mapped) mapped = map_file(options, at, 0);
  }
  if (!mapped)
    throw DeviceError(fmt::format("slab '{}': {} bytes cannot be mapped: {}", options.owner,
                                  payload_.size(), std::strerror(errno)));
  if (backing_ == Backing::kTransparentHuge || backing_ == Backing::kPrivate)
    prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, at, payload_.size(), ("reg:" + options.owner).c_str());
  if (options.numa >= 0) place_near(options);
  if (options.fork == ForkPolicy::kAbsent && madvise(at, payload_.size(), MADV_DONTFORK) != 0)
    throw DeviceError(fmt::format("slab '{}': its memory cannot be kept from forked children: {}",
                                  options.owner, std::strerror(errno)));
}

}  // namespace segfuse::comm
