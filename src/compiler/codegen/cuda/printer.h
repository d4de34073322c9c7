#pragma once
// Writes one kernel as CUDA C++: statements outside of lane loops in uniform.cpp, lane loops in
// lanes.cpp, what is around them in print_cuda.cpp.

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "compiler/codegen/cuda/analysis.h"
#include "compiler/codegen/cuda/positions.h"
#include "compiler/codegen/cuda/scalars.h"
#include "compiler/loop/kernel.h"

namespace segfuse::compiler::cuda {

class KernelPrinter {
 public:
  explicit KernelPrinter(const loop::Kernel& kernel);
  /// The function with its argument's type and the functions of operations.
  std::string run();

 private:
  using Body = std::vector<loop::Statement>;

  /// The lane loop that is being written, and for how many elements at a time.
  struct Lane {
    const loop::For* loop = nullptr;
    int vector = 1;
    int unroll = 1;
    int slots = 0;  ///< vectors of a lane that registers hold; 0: none are held
    std::string bound;
    std::set<loop::ValueId> inner;
    std::vector<const loop::Load*> staged;  ///< loads that are done before anything else
  };
  /// A lane loop's body in parts: elements of a vector go through a run of statements together.
  struct Part {
    std::vector<const loop::Statement*> run;
    const loop::Statement* control = nullptr;  ///< a loop, branch or Begin around `parts`
    std::vector<Part> parts;
  };

  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    text_.append(2 * depth_, ' ');
    text_ += fmt::format(format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  void open(const std::string& head);
  void close();
  void pragma(const std::string& text) { text_ += "#pragma " + text + "\n"; }

  // print_cuda.cpp
  std::string argument_type() const;
  void declare_memory();
  void outer_iteration();
  void outer_body();
  void outer_loop();
  void strip_loop();
  void move_strip(const StripBuffer& strip, bool load);
  int pack_of(const StripBuffer& strip) const;
  ir::Extent row_of_strip() const;
  std::string strip_name(const StripBuffer& strip) const;
  bool shares_memory() const;

  // uniform.cpp: all lanes of a row do the same
  void uniform(const Body& body);
  void uniform(const loop::Statement& statement);
  void uniform_loop(const loop::For& loop);
  void uniform_store(const loop::Store& store);
  void finish(const std::vector<const loop::Finish*>& group);
  void barrier();
  bool turns_may_overlap(const Body& body) const;

  // The parts that both kinds share.
  std::string name(loop::BufferId buffer) const { return fmt::format("b{}", buffer.index); }
  std::string pointer(loop::BufferId buffer, const loop::Index& index) const;
  std::string fetched(loop::BufferId buffer, const loop::Index& index) const;
  std::string place(loop::BufferId buffer, const loop::Index& index) const;
  std::string loaded(const loop::Load& load) const;
  void simple(const loop::Statement& statement, const std::string& element);
  void define(loop::ValueId value, const std::string& text);
  void check(const loop::Check& check);
  std::string state_type(loop::ReductionId reduction) const;
  std::string initial_state(loop::ReductionId reduction) const;
  std::string added(const loop::Accumulate& accumulate) const;
  std::string result(loop::ReductionId reduction, const std::string& state,
                     std::size_t which) const;
  int accumulators(loop::ReductionId reduction) const;
  bool in_registers(loop::BufferId buffer) const;

  // lanes.cpp
  void lanes(const loop::For& loop);
  void lanes_at(Lane& lane);
  void rest_of_lanes(const loop::For& loop);
  void forget();
  bool can_stage(const loop::Load& load) const;
  LaneAccess::Kind access(const loop::Index& index) const;
  void name_element(const std::string& var);
  bool same_in_vector(const std::vector<loop::Within>& when) const;
  int vectors_at_once(const Lane& lane) const;
  bool differs_between_rows(const loop::Load& load) const;
  const loop::Store* kept_in_registers(const loop::Load& load) const;
  bool filled(const Lane& lane) const;
  void prefetch_next(const Lane& lane);
  bool is_pack(const loop::Load& load) const;
  void declare_source(const loop::Load& load, int count);
  void fill_source(const loop::Load& load);
  std::vector<Part> split(const Body& body) const;
  bool ends_run(const loop::Statement& next, const std::set<loop::BufferId>& stored) const;
  void find_crossing(const std::vector<Part>& parts);
  void parts(const std::vector<Part>& all);
  void control(const Part& part);
  void before_run(const Part& part);
  void run_of(const Part& part);
  void element(const loop::Statement& statement);
  void element_store(const loop::Store& store);
  ElementSlot slot(loop::BufferId buffer) const;
  std::string lane_load(const loop::Load& load) const;
  std::string state_of_element(loop::ReductionId reduction) const;
  bool is_vector_store(const loop::Store& store) const;

  const loop::Kernel& kernel_;
  const KernelFacts facts_;
  const std::vector<ir::Extent> promised_;
  const int threads_;
  const int rows_;
  const int vector_;
  mutable Positions positions_;
  Operations operations_;
  std::vector<StripBuffer> strips_;  ///< of the strip that is written; empty: none is
  std::string text_;
  std::size_t depth_ = 0;

  std::vector<const loop::For*> serial_;  ///< uniform loops around what is written
  Lane* lane_ = nullptr;
  std::set<loop::ValueId> crossing_;                   ///< values that are arrays over a vector
  std::map<const loop::Load*, ElementSlot> sources_;   ///< where a load's element was brought
  std::map<const loop::Store*, std::string> targets_;  ///< vectors that are stored after a run
  std::set<const loop::Store*> kept_;                  ///< done by a load into registers
  std::set<loop::ReductionId> lane_states_;            ///< begun with a state for each element
};

}  // namespace segfuse::compiler::cuda
