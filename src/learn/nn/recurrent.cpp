// Recurrences along the frames, in both directions.

#include <cmath>
#include <memory>

#include "ir/builder.h"
#include "learn/nn/layers.h"

namespace segfuse::nn {

using ir::Body;
using ir::Builder;
using ir::Extent;
using ir::Extents;
using ir::Fusion;
using ir::ValId;

namespace {

constexpr double kLongest = 1000;  // frames: the slowest decay that a state begins with

/// One step of a batch of rows (B): states in, what comes from the input (B, gates * H), whether
/// the row has a frame here (B, 1), the weight (H, gates * H) and, for GRU, the bias (H).
struct StepWriter {
  Fusion body;
  Builder b{body};
  std::int64_t states;
  Extent rows;
  ValId inside;

  StepWriter(const char* name, std::int64_t states_) : body(name), states(states_) {
    rows = body.symbol("B");
  }
  ValId input(const char* name, std::int64_t columns, DType dtype = DType::kF32) {
    return body.add_input(name, dtype, {rows, Extent(columns)});
  }
  ValId gate(ValId all, std::int64_t which) {
    return b.slice_axis(all, 1, Extent(which * states), Extent(states));
  }
  /// The state of a row without a frame here is 0.
  ValId kept(ValId state) { return b.where(inside, state, b.constant(0)); }
};

Body lstm_step(std::int64_t h) {
  StepWriter s("lstm", h);
  Builder& b = s.b;
  const ValId state = s.input("h", h);
  const ValId cell = s.input("c", h);
  const ValId x = s.input("x", 4 * h);
  s.inside = s.input("inside", 1, DType::kBool);
  const ValId weight = s.body.add_input("weight", DType::kF32, {Extent(h), Extent(4 * h)});
  const ValId z = b.add(x, b.matmul(state, weight));
  const ValId added = b.mul(b.sigmoid(s.gate(z, 0)), b.tanh(s.gate(z, 2)));
  const ValId c = s.kept(b.add(b.mul(b.sigmoid(s.gate(z, 1)), cell), added));
  const ValId next = s.kept(b.mul(b.sigmoid(s.gate(z, 3)), b.tanh(c)));
  s.body.add_output(next, "h");
  s.body.add_output(c, "c");
  s.body.add_output(next, "y");
  return {std::make_shared<const Fusion>(std::move(s.body))};
}

Body gru_step(std::int64_t h) {
  StepWriter s("gru", h);
  Builder& b = s.b;
  const ValId state = s.input("h", h);
  const ValId x = s.input("x", 3 * h);
  s.inside = s.input("inside", 1, DType::kBool);
  const ValId weight = s.body.add_input("weight", DType::kF32, {Extent(h), Extent(3 * h)});
  const ValId bias = s.body.add_input("bias", DType::kF32, {Extent(h)});
  const ValId z = b.matmul(state, weight);
  const ValId reset = b.sigmoid(b.add(s.gate(x, 0), s.gate(z, 0)));
  const ValId update = b.sigmoid(b.add(s.gate(x, 1), s.gate(z, 1)));
  const ValId fresh = b.tanh(b.add(s.gate(x, 2), b.mul(reset, b.add(s.gate(z, 2), bias))));
  const ValId next = s.kept(b.add(fresh, b.mul(update, b.sub(state, fresh))));
  s.body.add_output(next, "h");
  s.body.add_output(next, "y");
  return {std::make_shared<const Fusion>(std::move(s.body))};
}

}  // namespace

ValId Net::state_space(ValId u, std::int64_t states, bool reverse) {
  // exp(-time_scale) is the rate: 1 / frames.
  const ValId scale =
      parameter("time_scale", {states}, {Init::Kind::kUniform, std::log(kLongest), 0});
  const ValId rate = b_.exp(b_.neg(scale));
  const ValId a = b_.exp(b_.neg(rate));
  // 1 - a^2 without cancellation.
  const ValId gain = b_.sqrt(b_.neg(b_.expm1(b_.mul(rate, b_.constant(-2)))));
  const ValId all = b_.broadcast_to(a, b_.fusion().canonical(b_.val(u).shape));
  return b_.make(ir::Op::linear_scan, {all, b_.mul(u, gain)},
                 {std::int64_t{0}, std::int64_t{reverse}});
}

ValId Net::recurrence(const std::string& name, ValId x, Recurrence kind, std::int64_t states,
                      ValId inside, bool reverse) {
  const Scope scope(*this, name);
  const auto masked = [&](ValId y) { return b_.where(inside, y, b_.constant(0)); };
  if (kind == Recurrence::kSsm)
    return masked(state_space(masked(linear("input", x, states)), states, reverse));
  const bool lstm = kind == Recurrence::kLstm;
  const std::int64_t gates = (lstm ? 4 : 3) * states;
  const double bound = 1 / std::sqrt(static_cast<double>(states));
  const Init uniform{Init::Kind::kUniform, bound, -bound};
  std::vector<ValId> constants;
  ValId given;
  {
    const Scope input(*this, "input");
    const ValId weight = parameter("weight", {channels(b_, x), gates}, uniform, true);
    const ValId bias = parameter(
        "bias", {gates}, {lstm ? Init::Kind::kSecond : Init::Kind::kConstant, lstm ? 1.0 : 0.0});
    given = b_.add(b_.matmul(x, weight), bias);
  }
  {
    const Scope state(*this, "state");
    constants.push_back(parameter("weight", {states, gates}, uniform, true));
    if (!lstm) constants.push_back(parameter("bias", {states}, {}));
  }
  const Extents shape = b_.fusion().canonical(b_.val(x).shape);
  const ValId zeros = b_.full(0, {shape[1], Extent(states)});
  std::vector<ValId> operands{zeros};
  if (lstm) operands.push_back(zeros);
  operands.push_back(given);
  operands.push_back(inside);
  for (const ValId constant : constants) operands.push_back(constant);
  ir::Attrs attrs{std::int64_t{lstm ? 2 : 1}, std::int64_t{2}, Extents{shape[0]},
                  std::int64_t{reverse}, lstm ? lstm_step(states) : gru_step(states)};
  return b_.make_all(ir::Op::scan, std::move(operands), std::move(attrs)).back();
}

ValId Net::bidirectional(const std::string& name, ValId x, Recurrence kind, std::int64_t states,
                         ValId inside) {
  const Scope scope(*this, name);
  const ValId steps = b_.permute(x, {1, 0, 2});
  const ValId there = b_.permute(inside, {1, 0, 2});
  const ValId both = b_.concat({recurrence("forward", steps, kind, states, there, false),
                                recurrence("backward", steps, kind, states, there, true)},
                               2);
  return b_.permute(both, {1, 0, 2});
}

}  // namespace segfuse::nn
