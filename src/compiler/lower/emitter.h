#pragma once
// Writes the statements that compute values of a group at given positions, each once and as far
// outside as it can be.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "compiler/loop/kernel.h"
#include "compiler/lower/lower.h"

namespace segfuse::compiler {

/// One position for each axis of a value.
using Tuple = std::vector<loop::Index>;

/// A value at a position, under conditions outside of which memory holds nothing for it.
struct Request {
  ir::ValId val;
  Tuple at;
  std::vector<loop::Within> when;  ///< of the loads below
  double otherwise = 0;
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
};

/// Row-major position of a tuple among `shape`.
loop::Index linearize(loop::Indices& indices, const Tuple& at, const ir::Extents& shape);
Tuple unflatten(loop::Indices& indices, const loop::Index& linear, const ir::Extents& shape);
ir::Extent product(const ir::Extents& shape);

class Emitter {
 public:
  Emitter(const GroupContext& context, GroupKernel& out);

  /// Before anything else: this kernel is what `trial` has written, but for what is held. Requests
  /// and positions of both can be compared from now on, and those of the trial used here.
  void follow(const Emitter& trial);

  // --- blocks
  /// The variable of the outer loop, depth 0.
  loop::VarId outer(ir::Extent count);
  void open(loop::For::Kind kind, loop::VarId var, loop::Index begin, loop::Index end);
  void close();  ///< the innermost loop
  int depth() const { return static_cast<int>(blocks_.size()) - 1; }
  /// Depth of the block where the index is known; deeper than any if it is over a value of a trial
  /// that this kernel has not computed.
  int depth_of(const loop::Index& index) const;
  int depth_of(loop::ValueId value) const { return value_depth_[value.index]; }
  void emit(loop::Statement statement, int depth);
  void emit(loop::Statement statement) { emit(std::move(statement), depth()); }
  void finish();  ///< hands the outermost block to the kernel

  // --- values
  loop::ValueId eval(ir::ValId val, const Tuple& at) { return eval(Request{val, at, {}, 0}); }
  loop::ValueId eval(const Request& request);
  /// Whether what the positions of a trial's request are made of has been computed here, too.
  bool knows(const Request& request) const;
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

  /// The result of a reduction, told by who walks.
  std::function<loop::ValueId(ir::ExprId, std::size_t result, const Tuple& at)> reduced;

  // --- what is kept between walks
  /// Requests that are to be kept in row buffers, and where in them.
  struct Held {
    Request request;
    loop::BufferId buffer;
    bool stored = false;
  };
  std::vector<Held> held;
  loop::Index held_at;
  int held_depth = -1;  ///< depth at which they are loaded and stored

  /// Everything evaluated at `held_depth` or deeper, in order; walks are told apart by next_walk().
  struct Seen {
    Request request;
    bool loaded = false;
    bool expensive = false;
    DType dtype = DType::kF32;
    std::set<int> walks;
    std::set<std::size_t> loads;  ///< positions in `seen` of what it is computed from
  };
  std::vector<Seen> seen;
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
  struct Known {
    Request request;
    loop::ValueId value;
  };

  loop::ValueId evaluate(const Request& request, bool& loaded);
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
  bool reads_memory(ir::ValId val) const;
  void note(const Request& request, loop::ValueId value, bool loaded);
  std::vector<Seen>::iterator find_seen(const Request& request);
  void note_loads(const Request& request, bool loaded);

  GroupContext context_;
  GroupKernel& out_;
  std::vector<Block> blocks_;
  std::vector<int> var_depth_;
  std::vector<int> value_depth_;
  std::vector<Known> known_;
  std::map<std::tuple<ir::Op, DType, std::vector<loop::ValueId>>, loop::ValueId> computed_;
  std::map<std::pair<DType, std::uint64_t>, loop::ValueId> constants_;
  std::vector<std::tuple<DType, loop::Index, loop::ValueId>> indices_;
  std::vector<std::set<std::size_t>> loads_;  ///< below the values that are being evaluated
  int walk_ = 0;
  std::vector<Request> origins_;  ///< of values that are in positions; numbered from 1
};

}  // namespace segfuse::compiler
