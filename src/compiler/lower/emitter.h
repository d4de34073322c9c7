#pragma once
// Writes the statements that compute values of a group at given coordinates. Each is computed once,
// in the outermost loop in which all its operands are available: common subexpressions and loop
// invariants need no pass of their own. docs/lowering.md has the terms.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "compiler/loop/kernel.h"
#include "compiler/lower/lower.h"

namespace segfuse::compiler {

/// One position for each dimension of a value.
using Coordinates = std::vector<loop::Index>;

/// A value at given coordinates, with the conditions under which memory holds it.
struct Request {
  ir::ValId val;
  Coordinates at;
  std::vector<loop::Within> when;  ///< of the loads that it depends on
  double otherwise = 0;            ///< the value where they do not hold
  bool any = false;                ///< there it may be any value
  friend bool operator==(const Request&, const Request&) = default;
};

/// What a group reads and where its results go.
struct GroupContext {
  ir::Fusion& fusion;
  const std::vector<ir::ValId>& inputs;
  const std::vector<ir::Alias>& in_place;
  bool excess_precision = false;  ///< see GroupLowering

  /// The value whose memory `val` is written to or read from.
  ir::ValId memory_of(ir::ValId val) const;
  /// Whether the group finds the value in memory rather than computing it.
  bool reads(ir::ValId val) const;
  ir::Extents shape_of(ir::ValId val) const;
};

/// Row-major position of an element of `shape`, and back.
loop::Index linearize(loop::Indices& indices, const Coordinates& at, const ir::Extents& shape);
Coordinates unflatten(loop::Indices& indices, const loop::Index& linear, const ir::Extents& shape);
ir::Extent product(const ir::Extents& shape);

class Emitter {
 public:
  Emitter(const GroupContext& context, GroupKernel& out);

  /// Before anything else: this kernel repeats what `dry_run` has written, except for cached
  /// values. It takes over the numbers of variables and positions, so that requests of both can be
  /// compared, and those of the dry run used here.
  void share_indices(const Emitter& dry_run);

  // --- blocks
  /// The variable of the outer loop, depth 0.
  loop::VarId outer(ir::Extent count);
  void open(loop::For::Kind kind, loop::VarId var, loop::Index begin, loop::Index end);
  void close();  ///< the innermost loop
  int depth() const { return static_cast<int>(blocks_.size()) - 1; }
  /// Depth of the block where the index is known; deeper than any if it is over a value of the dry
  /// run that this kernel has not computed.
  int depth_of(const loop::Index& index) const;
  int depth_of(loop::ValueId value) const { return value_depth_[value.index]; }
  void emit(loop::Statement statement, int depth);
  void emit(loop::Statement statement) { emit(std::move(statement), depth()); }
  void finish();  ///< hands the outermost block to the kernel

  // --- values
  loop::ValueId eval(ir::ValId val, const Coordinates& at) { return eval(Request{val, at, {}, 0}); }
  loop::ValueId eval(const Request& request);
  /// Whether the values in the coordinates of a dry run's request have been computed here, too.
  bool has_coordinates_of(const Request& request) const;
  loop::ValueId compute(ir::Op op, DType dtype, std::vector<loop::ValueId> operands);
  loop::ValueId constant(DType dtype, double value);
  loop::ValueId from_index(DType dtype, const loop::Index& index);
  loop::ValueId cast(loop::ValueId value, DType dtype);
  /// The type that a value of the IR's type has between the operations of a kernel.
  DType carried(DType dtype) const;
  loop::ValueId load(loop::BufferId buffer, const loop::Index& index,
                     std::vector<loop::Within> when = {}, double otherwise = 0);
  loop::ValueId new_value(DType dtype, int depth);
  void store(loop::BufferId buffer, const loop::Index& index, loop::ValueId value,
             std::vector<loop::Within> when);

  // --- buffers
  loop::BufferId buffer_of(ir::ValId val, bool written);
  loop::BufferId workspace(std::uint32_t number, const Workspace& workspace, bool written);
  loop::BufferId row_buffer(std::string name, DType dtype, ir::Extent elements, Hold hold,
                            std::int64_t capacity);

  /// The result of a reduction; the writer of its walk provides it.
  std::function<loop::ValueId(ir::ExprId, std::size_t result, const Coordinates& at)> reduced;

  // --- what is live from one walk to the next
  /// A request whose value is stored in a row buffer when it is first computed, and loaded from
  /// there afterwards.
  struct Cached {
    Request request;
    loop::BufferId buffer;
    bool stored = false;  ///< already: by a walk before this, or by a transposition
  };
  struct Cache {
    std::vector<Cached> values;
    loop::Index index;  ///< of the element that belongs to this iteration, in every buffer
    int depth = -1;     ///< of the loops in which they are loaded and stored
  } cache;

  /// A request that was evaluated at the cache's depth or deeper. A dry run records them in order,
  /// and what to cache is chosen from them; next_walk() numbers the walks.
  struct Traced {
    Request request;
    bool loaded = false;  ///< from global memory, without computing
    bool expensive = false;
    DType dtype = DType::kF32;
    std::set<int> walks;
    std::set<std::size_t> loads;  ///< positions in `trace` of what it is computed from
  };
  std::vector<Traced> trace;
  void next_walk() { ++walk_; }

  /// Conditions on everything that touches global memory along the lanes.
  std::vector<loop::Within> guard;

  const Schedule& schedule() const { return out_.kernel.schedule; }
  loop::Kernel& kernel() { return out_.kernel; }
  loop::Indices& indices() { return out_.kernel.indices; }

 private:
  struct Block {
    loop::For owner;  ///< without its body
    std::vector<loop::Statement> body;
  };
  struct Available {
    Request request;
    loop::ValueId value;
  };

  loop::ValueId evaluate(const Request& request, bool& loaded);
  loop::ValueId guarded(const Request& request);
  loop::ValueId eval_linear(ir::ValId val, const loop::Index& linear, const Request& context,
                            bool& loaded);
  loop::ValueId elementwise(const ir::Expr& expr, const Request& request);
  loop::ValueId creation(const ir::Expr& expr, const Request& request);
  loop::ValueId movement(const ir::Expr& expr, const Request& request, bool& loaded);
  loop::ValueId pad(const ir::Expr& expr, const Request& request);
  loop::ValueId concat(const ir::Expr& expr, const Request& request);
  loop::ValueId indexed(const ir::Expr& expr, const Request& request);
  loop::ValueId conditional(loop::ValueId value, const std::vector<loop::Within>& when,
                            double otherwise);
  /// Adds the guard to the conditions of an access at that depth.
  void add_guard(std::vector<loop::Within>& when, int depth) const;
  loop::ValueId holds(const std::vector<loop::Within>& when);
  void record(const Request& request, loop::ValueId value, bool loaded);
  std::vector<Traced>::iterator find_traced(const Request& request);
  void record_loads(const Request& request, bool loaded);

  GroupContext context_;
  GroupKernel& out_;
  std::vector<Block> blocks_;
  std::vector<int> var_depth_;
  std::vector<int> value_depth_;
  std::vector<Available> available_;  ///< requests whose values are visible in the open loops
  std::map<std::tuple<ir::Op, DType, std::vector<loop::ValueId>>, loop::ValueId> computed_;
  std::map<std::pair<DType, std::uint64_t>, loop::ValueId> constants_;
  std::vector<std::tuple<DType, loop::Index, loop::ValueId>> indices_;
  std::vector<std::set<std::size_t>> loads_;  ///< a set for each value that is being evaluated
  int walk_ = 0;
  /// Which request each value in a position is: its number, from 1, is the same in a dry run and in
  /// the kernel, where the value's id is not.
  std::vector<Request> origins_;
};

}  // namespace segfuse::compiler
