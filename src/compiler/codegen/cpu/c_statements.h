#pragma once
// The statements of a kernel in C.

#include <string>
#include <vector>

#include "compiler/codegen/cpu/c_writer.h"

namespace segfuse::compiler::cpu {

class CStatements {
 public:
  CStatements(const loop::Kernel& kernel, const Varying& varying, const CNames& names);
  /// The loop over [begin, end) with everything in it.
  std::string outer_loop();

 private:
  using Operands = std::vector<loop::ValueId>;
  // c_statements.cpp
  void mark_needed(const std::vector<loop::Statement>& body);
  void mark_needed(const loop::Statement& statement);
  void need(const loop::Index& index);
  void need(const std::vector<loop::Within>& when);
  void block(const std::vector<loop::Statement>& body, const Lane* lane);
  void print(const loop::Statement& statement, const Lane* lane);
  void print(const loop::For& loop, const Lane* lane);
  void print(const loop::If& branch, const Lane* lane);
  void print(const loop::Transpose& transpose);
  void print(const loop::Load& load, const Lane* lane);
  void print(const loop::Store& store, const Lane* lane);
  void print(const loop::Check& check, const Lane* lane);
  void lane_loop(const loop::For& loop);
  void define(loop::ValueId result, const std::string& value, const Lane* lane);
  /// A statement for each vector of the lane.
  void each(const Lane* lane, const std::string& statement);
  std::string mask(const std::vector<loop::Within>& when, const Lane* lane);
  std::string uniform(const std::vector<loop::Within>& when) const;
  std::string place(loop::BufferId buffer, const loop::Index& index, const Lane* lane) const;
  bool needed(loop::ValueId id) const { return needed_[id.index]; }

  // c_compute.cpp
  std::string compute(const loop::Compute& s, const Lane* lane) const;
  std::string vector_compute(const loop::Compute& s, const Lane* lane) const;
  std::string scalar_compute(const loop::Compute& s) const;
  std::string rounded(loop::ValueId result, const std::string& value) const;
  std::string from_index(const loop::FromIndex& s, const Lane* lane) const;
  std::string random(const loop::Random& s, const Lane* lane) const;

  // c_reductions.cpp
  void declare_states(const std::vector<loop::Statement>& body, const Lane* lane);
  void print(const loop::Begin& begin, const Lane* lane);
  void print(const loop::Accumulate& accumulate, const Lane* lane);
  void print(const loop::Finish& finish, const Lane* lane);
  void join(const loop::Finish& finish);
  void finish_lanes(const loop::Finish& finish, const Lane* lane);
  int width(loop::ReductionId id, const Lane* lane) const;
  std::string state(loop::ReductionId id, std::string_view part, const Lane* lane) const;
  std::string step(loop::ReductionId id, const std::string& to, const std::string& value) const;
  std::string identity(loop::ReductionId id) const;

  const loop::Kernel& kernel_;
  const Varying& varying_;
  const CNames& names_;
  CText text_;
  std::vector<bool> needed_;  // by value
  std::vector<int> widths_;   // by reduction: states beside each other, if begun outside of lanes
  int masks_ = 0;
};

}  // namespace segfuse::compiler::cpu
