#include "doctor/fork/act/repair.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <cerrno>
#include <system_error>

#include "doctor/fork/act/remote_call.h"
#include "doctor/fork/read/process.h"
#include "segfuse/error.h"

namespace segfuse {

namespace {

const ForkRegion* kept_at(const ForkReport& report, std::uint64_t address) {
  for (const ForkRegion& region : report.regions)
    if (address >= region.begin && address < region.end && region.mechanism == kKeptFromChildren)
      return &region;
  return nullptr;
}

}  // namespace

namespace doctor {

ForkRepair repair_knowing(int pid, std::uint64_t address, const comm::CopyOnForkProof& proof) {
  ForkRepair repair;
  const Process process(pid);
  const ForkReport before = examine_fork(pid);
  const ForkRegion* region = kept_at(before, address);
  if (region == nullptr)
    throw UsageError(
        fmt::format("{:#x} of process {} is not kept from children, so there is nothing to give "
                    "back; segfuse doctor fork {} lists the regions that are",
                    address, pid, pid));
  if (region->risk == ForkRisk::kBenign)
    throw UsageError(fmt::format(
        "{:#x} of process {} does no harm to children ({}: {}); it stays as it is, since its owner "
        "may rely on that",
        address, pid, region->kind, region->why));
  if (proof.answer != comm::CopyOnFork::kYes)
    throw DeviceError(fmt::format(
        "giving these pages to children is safe only where fork() copies pinned memory, and this "
        "kernel was not seen to do so: {}; nothing was changed",
        proof.reason));
  repair.region = *region;
  const RemoteResult result = remote_madvise(process, region->begin, region->end, MADV_DOFORK);
  repair.stopped_seconds = result.stopped_seconds;
  if (result.error == EINTR) throw UsageError(fmt::format("process {} ended meanwhile", pid));
  if (result.error != 0)
    throw DeviceError(fmt::format("process {}: madvise({:#x}, {}, MADV_DOFORK) failed: {}", pid,
                                  region->begin, region->end - region->begin,
                                  std::generic_category().message(result.error)));
  repair.after = examine_fork(pid);
  if (kept_at(repair.after, address) != nullptr)
    throw DeviceError(fmt::format(
        "process {}: {:#x} is kept from children again: a library there insists", pid, address));
  return repair;
}

}  // namespace doctor

ForkRepair repair_fork(int pid, std::uint64_t address) {
  return doctor::repair_knowing(pid, address, comm::copy_on_fork());
}

}  // namespace segfuse
