#include "doctor/fork/judge/risk.h"

#include <fmt/core.h>

#include "doctor/record.h"

namespace segfuse::doctor {

namespace {

/// Stalls shorter than this are nobody's problem.
constexpr double kNoticeable = 0.005;

constexpr const char* kRegisterOwnPages =
    "register memory that owns its pages (mmap, or segfuse's registered memory), not part of a "
    "malloc block; start processes with posix_spawn; on kernels from 5.12 on, use rdma-core 51 or "
    "later and leave RDMAV_FORK_SAFE unset";

void set(ForkRegion& region, ForkRisk risk, std::string why, std::string remedy) {
  region.risk = risk;
  region.why = std::move(why);
  region.remedy = std::move(remedy);
}

void judge_kept_chunks(ForkRegion& region, const Owner& owner) {
  if (owner.whole_chunk)
    return set(region, ForkRisk::kBenign, "children lack one block and nothing beside it", "");
  if (owner.live.value_or(1) == 0 && owner.headers == 0 && !owner.unused_heap)
    return set(region, ForkRisk::kBenign, "children lack memory that nobody uses now", "");
  std::string why = "children lack these pages";
  if (region.live_neighbours.value_or(0) > 0)
    why += fmt::format(
        ", and with them {} block{} of others: touching one is a segmentation "
        "fault, and an argument of execve there gives EFAULT (Bad address)",
        *region.live_neighbours, *region.live_neighbours == 1 ? "" : "s");
  else
    why += ", and part of a block or of malloc's own records with them";
  if (owner.unused_heap) why += "; malloc in a child takes new blocks from here and faults";
  set(region, ForkRisk::kLosesData, std::move(why), kRegisterOwnPages);
}

void judge_kept(ForkRegion& region, const Owner& owner, const Software& software) {
  switch (owner.kind) {
    case OwnerKind::kArenaHeader:
      return set(region, ForkRisk::kCrash,
                 "every fork() unlocks this arena in the child and faults there "
                 "(__malloc_fork_unlock_child)",
                 kRegisterOwnPages);
    case OwnerKind::kHeapChunk:
    case OwnerKind::kArenaChunk:
    case OwnerKind::kPythonPool:
    case OwnerKind::kMmappedChunk: return judge_kept_chunks(region, owner);
    case OwnerKind::kThreadStack:
    case OwnerKind::kMainStack:
      if (owner.live_stack)
        return set(region, ForkRisk::kCrash,
                   "a child that this thread forks has no stack to return to", kRegisterOwnPages);
      return set(region, ForkRisk::kLosesData,
                 "a child that this thread forks faults when its stack grows to here",
                 kRegisterOwnPages);
    case OwnerKind::kBss:
    case OwnerKind::kData:
      if (owner.of_libc)
        return set(region, ForkRisk::kCrash,
                   "the C library's own variables are missing in children", kRegisterOwnPages);
      return set(region, ForkRisk::kLosesData,
                 "all variables in these pages are missing in children", kRegisterOwnPages);
    case OwnerKind::kFile:
    case OwnerKind::kMemfd:
    case OwnerKind::kShared:
      return set(region, ForkRisk::kBenign, "children lack this mapping, or part of it", "");
    case OwnerKind::kDriver:
      return set(region, ForkRisk::kBenign, "drivers' mappings are never handed on", "");
    case OwnerKind::kSlab:
    case OwnerKind::kWhole:
      return set(region, ForkRisk::kBenign, "it owns its pages: children lack it and nothing else",
                 "");
    case OwnerKind::kAnonymous: break;
  }
  if (!software.other_allocator.empty())
    return set(region, ForkRisk::kLosesData,
               fmt::format("{} may have blocks of others in these pages", software.other_allocator),
               kRegisterOwnPages);
  set(region, ForkRisk::kBenign,
      "probably a buffer with pages of its own; children lack it and, if not, what is beside it",
      "");
}

void judge_wiped(ForkRegion& region, const Owner& owner) {
  switch (owner.kind) {
    case OwnerKind::kArenaHeader:
    case OwnerKind::kHeapChunk:
    case OwnerKind::kArenaChunk:
    case OwnerKind::kPythonPool:
    case OwnerKind::kThreadStack:
    case OwnerKind::kMainStack:
    case OwnerKind::kBss:
    case OwnerKind::kData:
      return set(region, ForkRisk::kSilentZero,
                 "children read zeros here, without any fault, in place of data of others",
                 "wipe memory that owns its pages (mmap), not part of what malloc or the linker "
                 "handed out");
    case OwnerKind::kMmappedChunk:
      if (!owner.whole_chunk)
        return set(region, ForkRisk::kSilentZero, "children read zeros in part of a malloc block",
                   "wipe memory that owns its pages (mmap)");
      break;
    default: break;
  }
  set(region, ForkRisk::kBenign,
      "memory with pages of its own that is meant to be empty in children (random numbers, a sign "
      "that a process is a child)",
      "");
}

void judge_pinned(ForkRegion& region, const Vma& vma, const ForkForecast& forecast,
                  const Software& software) {
  const std::uint64_t bytes = region.end - region.begin;
  const char* remedy =
      "keep it out of children (MADV_DONTFORK on pages that it owns, as segfuse's registered "
      "memory does), or start processes with posix_spawn";
  if (vma.shared || vma.device)
    return set(
        region, ForkRisk::kBenign,
        "pinned and shared: nothing is copied, but a child's writes reach the device's buffer", "");
  if (vma.huge && forecast.no_memory)
    return set(region, ForkRisk::kNoMemory,
               fmt::format("fork() copies pinned huge pages at once: {} are needed, {} are free",
                           forecast.huge_pages_needed, forecast.huge_pages_free),
               remedy);
  if (forecast.out_of_memory_kill)
    return set(region, ForkRisk::kOomKill,
               fmt::format("fork() copies it at once, and {} are left in {}",
                           in_words(forecast.headroom_bytes.value_or(0)), forecast.headroom_of),
               remedy);
  if (!software.kernel.copies_pinned())
    return set(region, ForkRisk::kLosesData,
               "kernels before 5.12 let this process and the device part ways after a fork()",
               remedy);
  const double seconds =
      forecast.slowdown * copy_seconds(bytes, vma.in_huge_pages(), forecast.copy_seconds_per_gib);
  if (seconds < kNoticeable)
    return set(region, ForkRisk::kBenign, "fork() copies it at once, which is quick", "");
  set(region, ForkRisk::kCopyCost,
      fmt::format("fork() copies it at once: about {:.0f} ms in which every thread that allocates "
                  "or faults waits{}",
                  seconds * 1e3,
                  vma.transparent_huge > 0 ? ", and this process's huge pages are split" : ""),
      remedy);
}

}  // namespace

void judge(ForkRegion& region, Mechanism mechanism, const Owner& owner, const Vma& vma,
           const ForkForecast& forecast, const Software& software) {
  switch (mechanism) {
    case Mechanism::kKept: return judge_kept(region, owner, software);
    case Mechanism::kWiped: return judge_wiped(region, owner);
    case Mechanism::kPinned: return judge_pinned(region, vma, forecast, software);
  }
}

}  // namespace segfuse::doctor
