#pragma once
// Facts about a kernel that the printer needs before it writes.

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "compiler/loop/kernel.h"

namespace segfuse::compiler::cuda {

/// How a position moves within a vector of consecutive values of a lane loop's variable.
struct LaneAccess {
  enum class Kind : std::uint8_t {
    kSame,     ///< not at all
    kVector,   ///< by one element each, from a multiple of the vector
    kElement,  ///< otherwise
  };
  Kind kind = Kind::kElement;
  /// What has to be a multiple of the vector for this to be true; only sizes that are not numbers.
  std::vector<ir::Extent> multiples;
};
/// `inner` are the values defined in the loop.
LaneAccess lane_access(const loop::Kernel& kernel, const loop::Index& index, const loop::For& lane,
                       const std::set<loop::ValueId>& inner, int vector);
/// Whether conditions are the same for a vector. What has to be a multiple of the vector for this
/// to be true is added to `multiples`, if there is one.
bool same_in_vector(const loop::Kernel& kernel, const std::vector<loop::Within>& when,
                    const loop::For& lane, const std::set<loop::ValueId>& inner, int vector,
                    std::vector<ir::Extent>* multiples = nullptr);
/// The values that statements define, inner blocks included.
std::set<loop::ValueId> defined_in(const std::vector<loop::Statement>& body);
/// The values that one statement reads, those in its indices included; not those of inner blocks.
std::set<loop::ValueId> read_by(const loop::Kernel& kernel, const loop::Statement& statement);

/// The extents that have to be multiples of `vector` for vector accesses to be aligned and loops
/// to end with whole vectors, without those that are multiples anyway; numbers that are not are
/// handled element by element instead.
std::vector<ir::Extent> promised_multiples(const loop::Kernel& kernel, int vector);
/// Whether end - begin of the loop is a multiple of `vector` where `promised` are.
bool ends_whole(const loop::Kernel& kernel, const loop::For& lane,
                const std::vector<ir::Extent>& promised, int vector);

/// The most elements that a lane loop goes through, where a number is known.
std::optional<std::int64_t> most_elements(const loop::Kernel& kernel, const loop::For& lane);

struct ReductionFacts {
  bool in_lane = false;   ///< begun in a lane loop: one state for each element
  bool joined = false;    ///< begun outside, accumulated inside: joined over the lanes
  std::size_t slots = 0;  ///< joined: bytes before its place in the shared memory of a row
};
struct KernelFacts {
  std::vector<ReductionFacts> reductions;
  std::size_t state_bytes = 0;
  bool uses_registers(const loop::Kernel& kernel, const loop::For& lane) const;
};
/// How many vectors of a lane registers hold.
int register_slots(const loop::Kernel& kernel);
KernelFacts facts_of(const loop::Kernel& kernel);

/// A buffer in which outer iterations that follow each other have their elements one after the
/// other: of a row, or one each.
struct StripBuffer {
  loop::BufferId buffer;
  bool row = false;
  /// Elements of an outer iteration.
  int elements(const Schedule& schedule) const { return row ? schedule.strip_row : 1; }
};
/// Those that a lane can read or write for a strip of rows at once; empty unless lane loops over
/// whole rows are all that the kernel has.
std::vector<StripBuffer> strip_buffers(const loop::Kernel& kernel);

/// Bytes of a reduction's state as the prelude's struct holds it.
std::size_t state_bytes(const loop::Reduction& reduction);

}  // namespace segfuse::compiler::cuda
