#pragma once
// Memory of each rank's GPU that the GPUs of all ranks of a machine reach.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "runtime/device.h"

namespace segfuse::comm {

class PeerMemory {
 public:
  /// All ranks of `control` call it, each for its device; every rank's memory has so many bytes, of
  /// zeros. Nothing where that cannot be, with the same reason on all ranks. CommError where a rank
  /// is lost meanwhile. `device` outlives it.
  static std::optional<PeerMemory> open(Group& control, runtime::Device& device, std::size_t bytes,
                                        std::string& reason);

  /// By rank, as this rank's device reaches it.
  const std::vector<std::shared_ptr<std::byte>>& of_ranks() const { return of_ranks_; }
  /// Lets go of what is others', after this rank's work with it; its own goes with this object, and
  /// by then all others have to have let go of it.
  void leave_others();
  /// Where other processes may still write to this rank's own, keeps it until this one ends.
  void keep_own() noexcept;

 private:
  int rank_ = 0;
  bool one_process_ = true;  ///< whose pointers keep the memory
  std::vector<std::shared_ptr<std::byte>> of_ranks_;
};

/// The reason of the lowest rank that has one; empty where none has. All ranks call it.
std::string first_reason(Group& control, const std::string& own);

}  // namespace segfuse::comm
