#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "compiler/loop/kernel.h"
#include "segfuse/error.h"

namespace segfuse::compiler::loop {

namespace {

class Verifier {
 public:
  explicit Verifier(const Kernel& kernel)
      : kernel_(kernel),
        known_(kernel.values.size(), false),
        vars_(kernel.indices.vars(), false),
        begun_(kernel.reductions.size(), false),
        lanes_(kernel.buffers.size()) {}

  void run() {
    need(kernel_.outer.index < vars_.size(), "it has an outer variable");
    vars_[kernel_.outer.index] = true;
    block(kernel_.body);
  }

 private:
  void need(bool holds, std::string_view what) const {
    if (!holds)
      throw InternalError(
          fmt::format("kernel {}: not so: {}\n{}", kernel_.name, what, print(kernel_)));
  }

  void define(ValueId value) {
    need(value.index < known_.size() && !known_[value.index], "a value is defined once");
    known_[value.index] = true;
    defined_.push_back(value);
  }
  void use(ValueId value) const {
    need(value.index < known_.size() && known_[value.index],
         fmt::format("%{} is known where it is used", value.index));
  }
  void use(const Index& index) const {
    kernel_.indices.each_var(index, [&](VarId var) {
      need(vars_[var.index], "an index is over variables of loops around it");
    });
    kernel_.indices.each_value(index, [&](ValueId value) {
      use(value);
      need(is_integer(kernel_.dtype(value)), "an index is made of integers");
    });
  }
  void use(const std::vector<Within>& when) const {
    for (const Within& condition : when) use(condition.index);
  }
  void uniform(const Index& index) const {
    use(index);
    need(!lane_ || !kernel_.indices.depends_on(index, *lane_), "bounds are uniform");
  }

  void block(const std::vector<Statement>& body) {
    const std::size_t before = defined_.size();
    for (const Statement& statement : body)
      std::visit([&](const auto& s) { check(s); }, statement.node);
    for (; defined_.size() > before; defined_.pop_back()) known_[defined_.back().index] = false;
  }

  void check(const Compute& s) {
    for (const ValueId operand : s.operands) use(operand);
    const ir::OpInfo& op = ir::info(s.op);
    need(op.op_class == ir::OpClass::kElementwise, "Compute is elementwise");
    need(s.operands.size() == op.min_operands, "an operation has its operands");
    if (s.operands.size() == 2)
      need(kernel_.dtype(s.operands[0]) == kernel_.dtype(s.operands[1]),
           "operands are of one type");
    const bool to_bool = op.rule == ir::DTypeRule::kCompare || op.rule == ir::DTypeRule::kTest;
    if (to_bool) need(kernel_.dtype(s.result) == DType::kBool, "a test gives a bool");
    if (!to_bool && s.op != ir::Op::cast)
      need(kernel_.dtype(s.result) == kernel_.dtype(s.operands.back()),
           fmt::format("{} keeps the type", op.name));
    define(s.result);
  }
  void check(const Constant& s) { define(s.result); }
  void check(const FromIndex& s) {
    use(s.index);
    define(s.result);
  }
  void check(const Random& s) {
    use(s.key);
    use(s.sequence);
    use(s.element);
    define(s.result);
  }
  void access(BufferId id, const Index& index) {
    use(index);
    const KernelBuffer& buffer = kernel_.buffer(id);
    if (buffer.kind != KernelBuffer::Kind::kRow || buffer.hold != Hold::kRegister) return;
    need(buffer.capacity > 0, "a buffer in registers has a capacity");
    need(lane_ && index.terms.size() == 1 && index.constant.is_constant(0) &&
             kernel_.indices.stride(index, *lane_) == ir::Extent(1),
         "a buffer in registers is indexed by the lane alone");
    auto& bounds = lanes_[id.index];
    if (!bounds) bounds = bounds_;
    need(*bounds == bounds_, "lane loops over a buffer in registers have the same bounds");
  }
  void check(const Load& s) {
    access(s.buffer, s.index);
    use(s.when);
    need(kernel_.dtype(s.result) == kernel_.buffer(s.buffer).dtype, "a load keeps the type");
    need(kernel_.buffer(s.buffer).kind != KernelBuffer::Kind::kOutput, "an output is not read");
    define(s.result);
  }
  void check(const Store& s) {
    access(s.buffer, s.index);
    use(s.when);
    use(s.value);
    need(kernel_.dtype(s.value) == kernel_.buffer(s.buffer).dtype, "a store keeps the type");
    need(kernel_.buffer(s.buffer).kind != KernelBuffer::Kind::kInput, "an input is not written");
  }
  void check(const Check& s) {
    use(s.within.index);
    use(s.when);
    need(s.what < kernel_.checks.size(), "a check has a name");
  }
  void check(const Begin& s) { begun_.at(s.reduction.index) = true; }
  void check(const Accumulate& s) const {
    use(s.value);
    use(s.position);
    need(begun_.at(s.reduction.index), "a reduction is begun before it accumulates");
    need(kernel_.dtype(s.value) == kernel_.reductions[s.reduction.index].dtype,
         "a reduction accumulates its type");
  }
  void check(const Finish& s) {
    const Reduction& reduction = kernel_.reductions.at(s.reduction.index);
    need(begun_[s.reduction.index], "a reduction is begun before it is finished");
    begun_[s.reduction.index] = false;
    need(s.results.size() == (reduction.op == ir::Monoid::kArgmax ? 2U : 1U),
         "results of a reduction");
    need(kernel_.dtype(s.results[0]) == reduction.dtype, "a reduction gives its type");
    for (const ValueId result : s.results) define(result);
  }
  void check(const Barrier&) const { need(!lane_, "a barrier is outside of lane loops"); }
  void check(const Transpose& s) {
    need(!lane_, "a transposition is outside of lane loops");
    const KernelBuffer& to = kernel_.buffer(s.to);
    const KernelBuffer& from = kernel_.buffer(s.from);
    access(s.to, s.to_at);
    access(s.from, s.from_at);
    use(s.height);
    use(s.width);
    need(to.dtype == from.dtype, "a transposition keeps the type");
    need((to.kind == KernelBuffer::Kind::kRow) != (from.kind == KernelBuffer::Kind::kRow),
         "a transposition is into a row buffer or out of one");
    need(from.kind != KernelBuffer::Kind::kOutput, "an output is not read");
    need(to.kind != KernelBuffer::Kind::kInput, "an input is not written");
  }
  void check(const For& s) {
    uniform(s.begin);
    uniform(s.end);
    const auto outer_lane = lane_;
    const auto outer_bounds = bounds_;
    if (s.kind == For::Kind::kLane) {
      need(!lane_, "lane loops are not nested");
      lane_ = s.var;
      bounds_ = {s.begin, s.end};
    }
    need(!vars_.at(s.var.index), "a variable belongs to one loop at a time");
    vars_[s.var.index] = true;
    block(s.body);
    vars_[s.var.index] = false;
    lane_ = outer_lane;
    bounds_ = outer_bounds;
  }
  void check(const If& s) {
    use(s.when);
    block(s.body);
  }

  const Kernel& kernel_;
  std::vector<bool> known_;
  std::vector<ValueId> defined_;
  std::vector<bool> vars_;
  std::vector<bool> begun_;
  std::optional<VarId> lane_;
  std::pair<Index, Index> bounds_;
  std::vector<std::optional<std::pair<Index, Index>>> lanes_;  // by buffer
};

}  // namespace

void verify(const Kernel& kernel) { Verifier(kernel).run(); }

}  // namespace segfuse::compiler::loop
