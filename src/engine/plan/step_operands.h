#pragma once
// Views of a plan's buffers, and what a step touches while it is put together.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/exec/array.h"
#include "plan/plan.h"

namespace segfuse::engine {

/// A view of a buffer of a plan. On the CPU built-in loops hold halves as f32.
struct Ref {
  std::uint32_t buffer = 0;
  DType dtype = DType::kF32;
  Layout layout;
};

/// Where an operand is when its step runs: one of the step's addresses, and bytes behind it.
struct StepAddress {
  std::size_t which = 0;
  std::int64_t offset = 0;
  std::byte* in(std::span<std::byte* const> addresses) const { return addresses[which] + offset; }
};

/// Collects the buffers that a step reads and writes; a buffer that it does both with is written.
class StepOperands {
 public:
  void read(const Ref& ref) { add(ref, false); }
  void write(const Ref& ref) { add(ref, true); }

  /// The step's lists: all operands have to be known. A plan has a buffer once.
  std::vector<plan::BufferId> reads() const { return all(false); }
  std::vector<plan::BufferId> writes() const { return all(true); }
  /// Addresses are those of reads(), then those of writes().
  StepAddress of(const Ref& ref) const {
    std::size_t which = 0;
    for (const bool writes : {false, true})
      for (const Entry& entry : entries_) {
        if (entry.write != writes) continue;
        if (entry.buffer == ref.buffer)
          return {which, ref.layout.offset * static_cast<std::int64_t>(size_of(ref.dtype))};
        ++which;
      }
    return {which, 0};
  }

 private:
  struct Entry {
    std::uint32_t buffer;
    bool write;
  };
  void add(const Ref& ref, bool write) {
    for (Entry& entry : entries_)
      if (entry.buffer == ref.buffer) {
        entry.write = entry.write || write;
        return;
      }
    entries_.push_back({ref.buffer, write});
  }
  std::vector<plan::BufferId> all(bool writes) const {
    std::vector<plan::BufferId> ids;
    for (const Entry& entry : entries_)
      if (entry.write == writes) ids.push_back({entry.buffer});
    return ids;
  }
  std::vector<Entry> entries_;
};

}  // namespace segfuse::engine
