#include "support/random/seasoned_fusion.h"

#include <limits>
#include <map>
#include <numeric>

namespace segfuse::testing {
namespace {

using ir::Builder;
using ir::Extent;
using ir::Extents;
using ir::ValId;
using Ints = std::vector<std::int64_t>;

class Seasoning {
 public:
  Seasoning(ir::Fusion& fusion, std::uint64_t seed) : f_(fusion), b_(fusion), rng_(seed, 79) {}

  void run() {
    const std::vector<ValId> all = f_.vals();
    for (int chain = 0; chain < 4; ++chain) {
      ValId v = all[rng_.below(all.size())];
      const auto length = 1 + rng_.below(6);
      for (std::uint64_t i = 0; i < length; ++i) v = step(v);
      if (rng_.below(8) != 0) f_.add_output(v);  // else it is dead
    }
  }

 private:
  Extents shape(ValId v) const { return f_.canonical(b_.val(v).shape); }
  ValId like(double value, ValId v) { return b_.constant_like(value, v); }

  ValId step(ValId v) {
    const DType dtype = b_.val(v).dtype;
    if (dtype == DType::kBool) return logical(v);
    switch (rng_.below(7)) {
      case 0:
      case 1: return neutral(v);
      case 2: return is_float(dtype) ? real(v) : b_.sub(v, v);
      case 3: return there_and_back(v);
      case 4: return shuffle(v);
      case 5: return ones(v);
      default: return empty(v);
    }
  }

  ValId logical(ValId v) {
    switch (rng_.below(4)) {
      case 0: return b_.logical_not(b_.logical_not(v));
      case 1: return b_.logical_and(v, b_.constant(1, DType::kBool));
      case 2: return b_.logical_xor(v, b_.constant(0, DType::kBool));
      default: return b_.logical_or(v, v);
    }
  }

  ValId neutral(ValId v) {
    switch (rng_.below(10)) {
      case 0: return b_.mul(v, like(1, v));
      case 1: return b_.sub(v, like(0, v));
      case 2: return b_.add(v, like(0, v));  // neutral for integers only
      case 3: return b_.neg(b_.neg(v));
      case 4: return b_.maximum(v, v);
      case 5: return b_.mul(like(-1, v), v);
      case 6: return b_.add(b_.neg(v), b_.abs(v));
      case 7: return b_.relu(b_.relu(v));
      case 8: return b_.add(v, b_.add(like(2, v), like(3, v)));
      default:
        return b_.where(b_.constant(static_cast<double>(rng_.below(2)), DType::kBool), v,
                        b_.square(b_.neg(v)));
    }
  }

  ValId real(ValId v) {
    switch (rng_.below(6)) {
      case 0: return b_.div(v, like(4, v));
      case 1: return b_.add(like(-0.0, v), v);
      case 2: return b_.sub(like(-0.0, v), v);
      case 3: return b_.mul(v, b_.exp(b_.broadcast_to(like(0.5, v), shape(v))));
      case 4: return b_.floor(b_.floor(v));
      default: return b_.add(b_.mul(v, b_.square(v)), b_.mul(b_.square(v), v));  // exchanged twins
    }
  }

  ValId there_and_back(ValId v) {
    const DType own = b_.val(v).dtype;
    const DType wide = own == DType::kI32 ? DType::kI64 : DType::kF64;
    const DType narrow = own == DType::kF64 ? DType::kF32 : DType::kI32;
    return b_.cast(b_.cast(v, rng_.below(2) ? wide : narrow), own);
  }

  ValId shuffle(ValId v) {
    const std::size_t rank = b_.rank(v);
    if (rank < 2) return b_.reshape(v, rank == 0 ? Extents{1, 1} : Extents{1, shape(v)[0], 1});
    Ints perm(rank);
    std::iota(perm.begin(), perm.end(), 0);
    rng_.shuffle(perm);
    if (rng_.below(3) == 0) return b_.permute(v, perm);
    Ints inverse(rank);
    for (std::size_t i = 0; i < rank; ++i)
      inverse[static_cast<std::size_t>(perm[i])] = static_cast<std::int64_t>(i);
    return b_.permute(b_.mul(b_.abs(b_.permute(v, perm)), like(2, v)), inverse);
  }

  ValId ones(ValId v) {
    const auto rank = static_cast<std::int64_t>(b_.rank(v));
    if (rank >= 4) return b_.permute(b_.unsqueeze(v, 0), rotated(rank + 1));
    const auto axis = static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(rank) + 1));
    const ValId wide = b_.unsqueeze(v, axis);
    switch (rng_.below(4)) {
      case 0: return b_.squeeze(wide, {axis});
      case 1: return b_.unsqueeze(b_.squeeze(b_.unsqueeze(wide, 0), {0}), -1);
      case 2: return b_.squeeze(b_.permute(b_.unsqueeze(v, 0), rotated(rank + 1)), {-1});
      default: {
        Extents target = shape(v);
        target.insert(target.begin(), Extent(2));
        return b_.abs(b_.broadcast_to(v, target));
      }
    }
  }

  Ints rotated(std::int64_t rank) const {
    Ints perm;
    for (std::int64_t i = 0; i < rank; ++i) perm.push_back((i + 1) % rank);
    return perm;
  }

  ValId empty(ValId v) {
    if (b_.rank(v) == 0) return v;
    const Extents none(b_.rank(v), Extent(0));
    const ValId gone = b_.slice_axis(v, 0, 0, 0);
    switch (rng_.below(4)) {
      case 0: return b_.concat({gone, v, gone}, 0);
      case 1: return b_.add(b_.slice(v, none, shape(v)), b_.pad(v, none, none, 1));
      case 2: {
        const ValId lost = rng_.below(2) ? b_.sum(gone, {0}, true) : b_.max(gone, {0}, true);
        return b_.maximum(v, b_.broadcast_to(lost, shape(v)));
      }
      default: return b_.concat({b_.abs(v), b_.abs(gone)}, 0);
    }
  }

  ir::Fusion& f_;
  Builder b_;
  Rng rng_;
};

}  // namespace

RandomFusion seasoned_fusion(std::uint64_t seed, Numbers numbers) {
  RandomFusion program = random_fusion(seed, numbers);
  Seasoning(program.fusion, seed).run();
  return program;
}

std::vector<Tensor> special_inputs(const RandomFusion& program, std::uint64_t seed, std::int64_t b,
                                   std::int64_t t) {
  std::vector<Tensor> inputs = random_inputs(program, seed, b, t);
  Rng rng(seed, 80);
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const double specials[] = {std::numeric_limits<double>::quiet_NaN(), kInf, -kInf, 0.0, -0.0};
  for (Tensor& input : inputs)
    for (std::int64_t i = 0; i < input.size(); ++i)
      if (is_float(input.dtype()) && rng.below(6) == 0) input.set(i, specials[rng.below(5)]);
  return inputs;
}

ir::Fusion shuffled(const ir::Fusion& fusion, std::uint64_t seed) {
  ir::Fusion result = fusion;
  Rng rng(seed, 81);
  std::map<ValId, ValId> moved;
  auto now = [&](ValId v) {
    const auto found = moved.find(v);
    return found == moved.end() ? v : found->second;
  };
  std::vector<ir::ExprId> waiting = fusion.live_exprs();
  while (!waiting.empty()) {
    std::vector<std::size_t> ready;
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      bool good = true;
      for (const ValId operand : fusion.expr(waiting[i]).operands)
        good = good && (fusion.is_input(operand) || moved.contains(operand));
      if (good) ready.push_back(i);
    }
    const std::size_t pick = ready[rng.below(ready.size())];
    const ir::Expr e = fusion.expr(waiting[pick]);
    std::vector<ValId> operands;
    for (const ValId operand : e.operands) operands.push_back(now(operand));
    const ir::ExprId made = result.add_expr(e.op, operands, e.attrs);
    for (std::size_t r = 0; r < e.results.size(); ++r)
      moved[e.results[r]] = result.expr(made).results[r];
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(pick));
  }
  for (const auto& [from, to] : moved) result.redirect_uses(from, to);
  std::vector<bool> live(result.storage().exprs.size(), false);
  for (const ir::ExprId id : result.live_exprs()) live[id.index] = true;
  const std::vector<ir::ExprId> order = result.sorted_exprs();
  for (auto id = order.rbegin(); id != order.rend(); ++id)
    if (!live[id->index]) result.erase(*id);
  result.compact();
  return result;
}

}  // namespace segfuse::testing
