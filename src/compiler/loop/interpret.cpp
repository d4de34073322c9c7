#include "compiler/loop/interpret.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <map>

#include "base/check.h"
#include "base/half.h"
#include "ir/interpret/evaluate.h"
#include "ir/random.h"
#include "segfuse/error.h"

namespace segfuse::compiler::loop {

using ir::Scalar;

namespace {

/// The running value of a reduction.
struct Accumulator {
  Scalar value;
  long double sum = 0;
  std::int64_t position = 0;
  bool any = false;
};

class Interpreter {
 public:
  Interpreter(const Kernel& kernel, std::span<Tensor> globals,
              const std::function<std::int64_t(const ir::Extent&)>& size)
      : kernel_(kernel), size_(size), values_(kernel.values.size()), vars_(kernel.indices.vars()) {
    states_.resize(kernel.reductions.size());
    std::size_t next = 0;
    for (const KernelBuffer& buffer : kernel.buffers) {
      if (buffer.kind != KernelBuffer::Kind::kRow) {
        SEGFUSE_CHECK(next < globals.size(), "a kernel got too few buffers");
        buffers_.push_back(globals[next++]);  // shares its storage
        continue;
      }
      const std::int64_t count = std::max(size_(buffer.elements), buffer.capacity);
      buffers_.emplace_back(ir::wide(buffer.dtype), Shape{count});
    }
    numbers_ = {[this](VarId var) { return vars_[var.index]; },
                [this](ValueId value) { return values_[value.index].whole; }, size_};
  }

  int run() {
    const std::int64_t count = size_(kernel_.outer_count);
    for (std::int64_t i = 0; i < count; ++i) {
      vars_[kernel_.outer.index] = i;
      for (std::size_t b = 0; b < buffers_.size(); ++b)
        if (kernel_.buffers[b].kind == KernelBuffer::Kind::kRow &&
            is_float(kernel_.buffers[b].dtype))
          for (std::int64_t e = 0; e < buffers_[b].size(); ++e)
            buffers_[b].set(e, std::numeric_limits<double>::quiet_NaN());
      block(kernel_.body);
    }
    return status_;
  }

 private:
  std::int64_t at(const Index& index) const { return kernel_.indices.evaluate(index, numbers_); }

  bool holds(const std::vector<Within>& when) const {
    for (const Within& condition : when) {
      const std::int64_t position = at(condition.index);
      if (position < 0 || position >= size_(condition.bound)) return false;
    }
    return true;
  }

  std::int64_t position(BufferId buffer, const Index& index, std::int64_t beyond = 0) const {
    const std::int64_t found = at(index) + beyond;
    if (found < 0 || found >= buffers_[buffer.index].size())
      throw InternalError(
          fmt::format("kernel {}: position {} of buffer '{}', which has {} elements", kernel_.name,
                      found, kernel_.buffer(buffer).name, buffers_[buffer.index].size()));
    return found;
  }

  void define(ValueId value, double number) {
    if (is_float(kernel_.dtype(value))) {
      values_[value.index] = {number, 0};
    } else {
      values_[value.index] = {0, saturate_cast<std::int64_t>(number)};
    }
  }

  void block(const std::vector<Statement>& body) {
    for (const Statement& statement : body)
      std::visit([&](const auto& s) { execute(s); }, statement.node);
  }

  void execute(const Compute& s) {
    std::vector<Scalar> operands;
    for (const ValueId operand : s.operands) operands.push_back(values_[operand.index]);
    values_[s.result.index] = ir::evaluate_scalar(s.op, kernel_.dtype(s.result),
                                                  kernel_.dtype(s.operands.back()), operands);
  }
  void execute(const Constant& s) { define(s.result, s.value); }
  void execute(const FromIndex& s) {
    const std::int64_t number = at(s.index);
    if (is_float(kernel_.dtype(s.result))) {
      values_[s.result.index] = {static_cast<double>(number), 0};
    } else {
      values_[s.result.index] = {0, ir::wrap(kernel_.dtype(s.result), number)};
    }
  }
  void execute(const Random& s) {
    define(s.result, ir::random_element(values_[s.key.index].whole, values_[s.sequence.index].whole,
                                        s.stream, static_cast<std::uint64_t>(at(s.element))));
  }
  void execute(const Load& s) {
    if (!holds(s.when)) return define(s.result, s.otherwise);
    const std::int64_t from = position(s.buffer, s.index);
    const Tensor& buffer = buffers_[s.buffer.index];
    if (is_float(kernel_.dtype(s.result))) {
      values_[s.result.index] = {buffer.at(from), 0};
    } else {
      values_[s.result.index] = {0, buffer.span<std::int64_t>()[static_cast<std::size_t>(from)]};
    }
  }
  void execute(const Store& s) {
    if (!holds(s.when)) return;
    const std::int64_t to = position(s.buffer, s.index);
    Tensor& buffer = buffers_[s.buffer.index];
    if (is_float(kernel_.dtype(s.value))) {
      buffer.set(to, values_[s.value.index].real);
    } else {
      buffer.span<std::int64_t>()[static_cast<std::size_t>(to)] = values_[s.value.index].whole;
    }
  }
  void execute(const Check& s) {
    if (holds(s.when) && !holds({s.within})) status_ = static_cast<int>(s.what) + 1;
  }

  void execute(const Begin& s) { states_[s.reduction.index] = {}; }

  static bool better(ir::Monoid op, bool real, const Scalar& a, const Scalar& b) {
    if (!real) return op == ir::Monoid::kMin ? a.whole < b.whole : a.whole > b.whole;
    if (std::isnan(a.real)) return !std::isnan(b.real);
    return op == ir::Monoid::kMin ? a.real < b.real : a.real > b.real;
  }

  void execute(const Accumulate& s) {
    const Reduction& reduction = kernel_.reductions[s.reduction.index];
    Accumulator& state = states_[s.reduction.index];
    const Scalar& value = values_[s.value.index];
    const bool real = is_float(reduction.dtype);
    const bool first = !state.any;
    state.any = true;
    if (reduction.op == ir::Monoid::kSum) {
      if (real) {
        state.sum += value.real;
      } else {
        state.value.whole =
            static_cast<std::int64_t>(static_cast<std::uint64_t>(state.value.whole) +
                                      static_cast<std::uint64_t>(value.whole));
      }
    } else if (reduction.op == ir::Monoid::kProduct) {
      if (real) {
        state.value.real = first ? value.real : state.value.real * value.real;
      } else {
        state.value.whole =
            first ? value.whole
                  : static_cast<std::int64_t>(static_cast<std::uint64_t>(state.value.whole) *
                                              static_cast<std::uint64_t>(value.whole));
      }
    } else {
      const std::int64_t position = at(s.position);
      const bool equal = !first && !better(reduction.op, real, value, state.value) &&
                         !better(reduction.op, real, state.value, value);
      if (first || better(reduction.op, real, value, state.value) ||
          (equal && position < state.position)) {
        state.value = value;
        state.position = position;
      }
    }
  }

  /// What a reduction of no elements gives.
  static Scalar nothing(const Reduction& reduction) {
    const double value = ir::identity(reduction.op, reduction.dtype);
    return {value, saturate_cast<std::int64_t>(value)};
  }

  void execute(const Finish& s) {
    const Reduction& reduction = kernel_.reductions[s.reduction.index];
    Accumulator& state = states_[s.reduction.index];
    Scalar result = state.any ? state.value : nothing(reduction);
    if (reduction.op == ir::Monoid::kSum && is_float(reduction.dtype))
      result.real = static_cast<double>(state.sum);
    result.whole = ir::wrap(reduction.dtype, result.whole);
    values_[s.results[0].index] = result;
    if (s.results.size() > 1) values_[s.results[1].index] = {0, state.position};
  }
  void execute(const Barrier&) {}
  void execute(const Transpose& s) {
    const Tensor& from = buffers_[s.from.index];
    Tensor& to = buffers_[s.to.index];
    const bool real = is_float(kernel_.buffer(s.to).dtype);
    for (std::int64_t i = 0; i < at(s.height); ++i)
      for (std::int64_t j = 0; j < at(s.width); ++j) {
        const std::int64_t there = position(s.from, s.from_at, j * size_(s.from_step) + i);
        const std::int64_t here = position(s.to, s.to_at, i * size_(s.to_step) + j);
        if (real) {
          to.set(here, from.at(there));
        } else {
          to.span<std::int64_t>()[static_cast<std::size_t>(here)] =
              from.span<std::int64_t>()[static_cast<std::size_t>(there)];
        }
      }
  }
  void execute(const For& s) {
    const std::int64_t end = at(s.end);
    for (std::int64_t i = at(s.begin); i < end; ++i) {
      vars_[s.var.index] = i;
      block(s.body);
    }
  }
  void execute(const If& s) {
    if (holds(s.when)) block(s.body);
  }

  const Kernel& kernel_;
  const std::function<std::int64_t(const ir::Extent&)>& size_;
  std::vector<Scalar> values_;
  std::vector<std::int64_t> vars_;
  std::vector<Accumulator> states_;
  std::vector<Tensor> buffers_;
  Indices::Numbers numbers_;
  int status_ = 0;
};

}  // namespace

int interpret(const Kernel& kernel, std::span<Tensor> globals,
              const std::function<std::int64_t(const ir::Extent&)>& size) {
  return Interpreter(kernel, globals, size).run();
}

}  // namespace segfuse::compiler::loop
