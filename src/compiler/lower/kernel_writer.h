#pragma once
// Writes the statements of one kernel that reduce, and that store results; Emitter computes their
// operands.

#include <vector>

#include "compiler/lower/group_analysis.h"

namespace segfuse::compiler {

class KernelWriter {
 public:
  KernelWriter(const GroupAnalysis& group, GroupKernel& out);
  KernelWriter(const KernelWriter&) = delete;
  KernelWriter& operator=(const KernelWriter&) = delete;

  Emitter emitter;
  Coordinates domain_at;  ///< of the domain's axes, in the loops that are open now

  // Numbers are positions in GroupAnalysis::reductions.
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
  /// A stand-in for the result, where only positions matter.
  void assume(std::size_t number);

  void store(const GroupResult& result, std::vector<loop::Within> when);

 private:
  bool few_to_a_lane() const;
  loop::ValueId single(ir::ExprId expr, std::size_t which);
  loop::ValueId result(ir::ExprId expr, std::size_t which);
  std::size_t find(ir::ExprId expr, int part) const;
  loop::ValueId mean(ir::ExprId expr);
  loop::ValueId largest(ir::ExprId expr);
  ir::Extent count(ir::ExprId expr) const;

  const GroupAnalysis& group_;
  std::vector<loop::ReductionId> states_;  // by number; invalid until begun
  std::vector<std::vector<loop::ValueId>> finished_;
};

}  // namespace segfuse::compiler
