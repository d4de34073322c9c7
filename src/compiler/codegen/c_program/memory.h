#pragma once
// Where each value of a program is: a parameter of its function, or a part of its workspace.

#include <map>
#include <span>
#include <string>
#include <vector>

#include "compiler/codegen/c_program/print_program.h"
#include "compiler/codegen/c_program/sizes.h"

namespace segfuse::compiler::cpu {

struct Location {
  enum class Kind : std::uint8_t { kInput, kOutput, kSlot };
  Kind kind = Kind::kSlot;
  std::size_t index = 0;  ///< of the input, the output or the slot
};

class ProgramMemory {
 public:
  ProgramMemory(const ir::Fusion& fusion, std::span<const ProgramGroup> groups,
                std::span<const ir::Alias> in_place);

  /// The value whose memory `val` shares.
  ir::ValId root(ir::ValId val) const;
  const Location& location(ir::ValId val) const;
  /// The slot of a group's workspace.
  std::size_t workspace(std::size_t group, std::size_t index) const {
    return workspaces_.at(group).at(index);
  }
  /// Outputs that are parameters: those that are written over no input.
  bool is_parameter(std::size_t output) const;
  bool overwritten(std::size_t input) const;

  /// Adds the sizes of all slots; what it returns are their offsets by slot, then the end.
  std::vector<std::string> offsets(SizeTable& sizes) const;

 private:
  struct Slot {
    struct Member {
      DType dtype;
      ir::Extents shape;
    };
    std::vector<Member> members;  ///< one after the other
    std::size_t free_after = 0;   ///< the last group that uses it
  };
  std::size_t take(std::size_t first, std::size_t last, Slot::Member member);
  void place_outputs(std::span<const ir::Alias> in_place);
  void find_last_uses(std::span<const ProgramGroup> groups);

  const ir::Fusion& fusion_;
  std::vector<ir::ValId> views_;  // by ValId: what it is a view of
  std::map<ir::ValId, Location> locations_;
  std::map<ir::ValId, std::size_t> last_use_;  // group
  std::vector<Slot> slots_;
  std::vector<std::vector<std::size_t>> workspaces_;  // by group
};

}  // namespace segfuse::compiler::cpu
