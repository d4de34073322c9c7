#pragma once
// The statements of one kernel about the group's reductions and results.

#include <vector>

#include "compiler/lower/group_state.h"

namespace segfuse::compiler {

class Walker {
 public:
  Walker(const GroupState& group, GroupKernel& out);
  Walker(const Walker&) = delete;
  Walker& operator=(const Walker&) = delete;

  Emitter emitter;
  Tuple plan_at;  ///< positions of the plan's axes, where the kernel is now

  // Numbers are positions in GroupState::reductions.
  /// What is accumulated, in the type of the state.
  loop::ValueId operand(std::size_t number);
  loop::Index position(std::size_t number) const;  ///< of argmax: which element it is
  void begin(std::size_t number);
  void accumulate(std::size_t number);
  void accumulate(std::size_t number, loop::ValueId value, const loop::Index& position);
  void finish(std::size_t number);
  /// Values of a reduction that another kernel finished.
  void set(std::size_t number, std::vector<loop::ValueId> values) {
    finished_[number] = std::move(values);
  }
  const std::vector<loop::ValueId>& finished(std::size_t number) const;
  /// Some value, for who only looks at positions.
  void assume(std::size_t number);

  void store(const Result& result, std::vector<loop::Within> when);

 private:
  bool few_to_a_lane() const;
  loop::ValueId single(ir::ExprId expr, std::size_t which);
  loop::ValueId result(ir::ExprId expr, std::size_t which);
  std::size_t find(ir::ExprId expr, int part) const;
  loop::ValueId mean(ir::ExprId expr);
  loop::ValueId largest(ir::ExprId expr);
  ir::Extent count(ir::ExprId expr) const;

  const GroupState& group_;
  std::vector<loop::ReductionId> states_;  // by number; invalid until begun
  std::vector<std::vector<loop::ValueId>> finished_;
};

}  // namespace segfuse::compiler
