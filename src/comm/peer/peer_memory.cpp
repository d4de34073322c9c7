#include "comm/peer/peer_memory.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>

#include "comm/machine.h"

namespace segfuse::comm {
namespace {

/// What went wrong, where work() did not end; for one rank's part of what all do.
template <class Work>
std::string reason_of(const Work& work) {
  try {
    work();
    return "";
  } catch (const Error& error) {
    return error.what();
  } catch (const runtime::NoMemory&) {
    return "the GPU has no memory left for it";
  }
}

}  // namespace

std::string first_reason(Group& control, const std::string& own) {
  const std::vector<std::string> all = control.gather(own);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty()) return fmt::format("rank {}: {}", rank, all[rank]);
  return "";
}

std::optional<PeerMemory> PeerMemory::open(Group& control, runtime::Device& device,
                                           std::size_t bytes, std::string& reason) {
  static const char one_of_this_process = 0;
  const std::string process =
      fmt::format("{} {}", ::getpid(), static_cast<const void*>(&one_of_this_process));
  const std::vector<std::string> machines = control.gather(own_machine());
  const std::vector<std::string> processes = control.gather(process);
  for (std::size_t rank = 1; rank < machines.size(); ++rank)
    if (machines[rank] != machines[0]) {
      reason =
          fmt::format("rank 0 is on {}, and rank {} is on {}", machines[0], rank, machines[rank]);
      return {};
    }
  PeerMemory memory;
  std::shared_ptr<std::byte> own;
  std::string shared;
  memory.rank_ = control.rank();
  memory.one_process_ =
      std::ranges::all_of(processes, [&](const std::string& other) { return other == process; });
  reason = first_reason(control, reason_of([&] {
                          own = device.allocate_shared(bytes);
                          shared = device.share(own);
                        }));
  if (!reason.empty()) return {};
  const std::vector<std::string> all = control.gather(shared);
  reason = first_reason(control, reason_of([&] {
                          for (std::size_t rank = 0; rank < all.size(); ++rank)
                            memory.of_ranks_.push_back(static_cast<int>(rank) == memory.rank_
                                                           ? own
                                                           : device.reach_shared(all[rank]));
                        }));
  if (reason.empty()) return memory;
  // Others may reach it: it goes when all have let go.
  memory.leave_others();
  control.barrier();
  return {};
}

void PeerMemory::leave_others() {
  for (std::size_t rank = 0; rank < of_ranks_.size(); ++rank)
    if (static_cast<int>(rank) != rank_) of_ranks_[rank].reset();
}

void PeerMemory::keep_own() noexcept {
  if (one_process_) return;
  static_cast<void>(new std::shared_ptr<std::byte>(of_ranks_[static_cast<std::size_t>(rank_)]));
}

}  // namespace segfuse::comm
