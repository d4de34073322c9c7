// Recurrences along the frames, forward or in both directions.

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
  bool holds;  ///< whether rows without a frame here keep their states; else these are 0
  Extent rows;
  ValId inside;

  StepWriter(const char* name, std::int64_t states_, bool holds_)
      : body(name), states(states_), holds(holds_) {
    rows = body.symbol("B");
  }
  ValId input(const char* name, std::int64_t columns, DType dtype = DType::kF32) {
    return body.add_input(name, dtype, {rows, Extent(columns)});
  }
  ValId gate(ValId all, std::int64_t which) {
    return b.slice_axis(all, 1, Extent(which * states), Extent(states));
  }
  ValId kept(ValId state, ValId before) {
    return b.where(inside, state, holds ? before : b.constant(0));
  }
};

Body lstm_step(std::int64_t h, bool holds) {
  StepWriter s("lstm", h, holds);
  Builder& b = s.b;
  const ValId state = s.input("h", h);
  const ValId cell = s.input("c", h);
  const ValId x = s.input("x", 4 * h);
  s.inside = s.input("inside", 1, DType::kBool);
  const ValId weight = s.body.add_input("weight", DType::kF32, {Extent(h), Extent(4 * h)});
  const ValId z = b.add(x, b.matmul(state, weight));
  const ValId added = b.mul(b.sigmoid(s.gate(z, 0)), b.tanh(s.gate(z, 2)));
  const ValId c = s.kept(b.add(b.mul(b.sigmoid(s.gate(z, 1)), cell), added), cell);
  const ValId next = s.kept(b.mul(b.sigmoid(s.gate(z, 3)), b.tanh(c)), state);
  s.body.add_output(next, "h");
  s.body.add_output(c, "c");
  s.body.add_output(next, "y");
  return {std::make_shared<const Fusion>(std::move(s.body))};
}

Body gru_step(std::int64_t h, bool holds) {
  StepWriter s("gru", h, holds);
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
  const ValId next = s.kept(b.add(fresh, b.mul(update, b.sub(state, fresh))), state);
  s.body.add_output(next, "h");
  s.body.add_output(next, "y");
  return {std::make_shared<const Fusion>(std::move(s.body))};
}

}  // namespace

ValId Net::earlier(const char* state, DType dtype, const Extents& shape) {
  return b_.fusion().add_input("carried." + prefix_ + state, dtype, shape);
}

void Net::keep_last(const char* state, ValId value) {
  carried_.push_back({"carried." + prefix_ + state, value});
}

/// y[t] = a[t] y[t - 1] + u[t] from the state of an earlier piece on. It stands in front of u, in
/// double, as linear_scan carries it: the bits are those of one scan over both pieces.
ValId Net::continued(ValId a, ValId u, ValId inside) {
  const Extents shape = b_.fusion().canonical(b_.val(u).shape);
  const ValId before = earlier("y", DType::kF64, {shape[1], shape[2]});
  const ValId held = b_.where(inside, a, b_.constant(1));
  const ValId all = b_.make(ir::Op::linear_scan,
                            {b_.pad_axis(b_.cast(held, DType::kF64), 0, 1, 0),
                             b_.concat({b_.unsqueeze(before, 0), b_.cast(u, DType::kF64)}, 0)},
                            {std::int64_t{0}, std::int64_t{0}});
  keep_last("y", b_.squeeze(b_.slice_axis(all, 0, shape[0], 1), {0}));
  return b_.cast(b_.slice_axis(all, 0, 1, shape[0]), DType::kF32);
}

ValId Net::state_space(ValId u, std::int64_t states, ValId inside, bool reverse) {
  // exp(-time_scale) is the rate: 1 / frames.
  const ValId scale =
      parameter("time_scale", {states}, {Init::Kind::kUniform, std::log(kLongest), 0});
  const ValId rate = b_.exp(b_.neg(scale));
  const ValId a = b_.exp(b_.neg(rate));
  // 1 - a^2 without cancellation.
  const ValId gain = b_.sqrt(b_.neg(b_.expm1(b_.mul(rate, b_.constant(-2)))));
  const ValId all = b_.broadcast_to(a, b_.fusion().canonical(b_.val(u).shape));
  if (carries_) return continued(all, b_.mul(u, gain), inside);
  return b_.make(ir::Op::linear_scan, {all, b_.mul(u, gain)},
                 {std::int64_t{0}, std::int64_t{reverse}});
}

ValId Net::recurrence(const std::string& name, ValId x, Recurrence kind, std::int64_t states,
                      ValId inside, bool reverse) {
  const Scope scope(*this, name);
  const auto masked = [&](ValId y) { return b_.where(inside, y, b_.constant(0)); };
  if (kind == Recurrence::kSsm)
    return masked(state_space(masked(linear("input", x, states)), states, inside, reverse));
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
  const Extents of_state{shape[1], Extent(states)};
  const auto names = lstm ? std::vector{"h", "c"} : std::vector{"h"};
  std::vector<ValId> operands;
  if (carries_)
    for (const char* const name_of : names)
      operands.push_back(earlier(name_of, DType::kF32, of_state));
  else
    operands.assign(names.size(), b_.full(0, of_state));
  operands.push_back(given);
  operands.push_back(inside);
  for (const ValId constant : constants) operands.push_back(constant);
  ir::Attrs attrs{std::int64_t{lstm ? 2 : 1}, std::int64_t{2}, Extents{shape[0]},
                  std::int64_t{reverse},
                  lstm ? lstm_step(states, carries_) : gru_step(states, carries_)};
  const std::vector<ValId> results =
      b_.make_all(ir::Op::scan, std::move(operands), std::move(attrs));
  if (carries_)
    for (std::size_t i = 0; i < names.size(); ++i) keep_last(names[i], results[i]);
  return results.back();
}

ValId Net::recurrent(const std::string& name, ValId x, Recurrence kind, std::int64_t states,
                     ValId inside) {
  return b_.permute(recurrence(name, b_.permute(x, {1, 0, 2}), kind, states,
                               b_.permute(inside, {1, 0, 2}), false),
                    {1, 0, 2});
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
