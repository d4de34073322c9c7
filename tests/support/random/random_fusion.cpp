#include "support/random/random_fusion.h"

#include <algorithm>
#include <cmath>

#include "ir/bind.h"
#include "segfuse/error.h"

namespace segfuse::testing {
namespace {

using ir::Builder;
using ir::DTypeRule;
using ir::Extent;
using ir::Extents;
using ir::Op;
using ir::ValId;
using Ints = std::vector<std::int64_t>;

class Generator {
 public:
  Generator(std::uint64_t seed, Numbers numbers)
      : rng_(seed, 77), result_{ir::Fusion("random"), numbers}, b_(result_.fusion) {}

  RandomFusion run() {
    const Extent batch(result_.fusion.symbol("B"));
    const Extent time(result_.fusion.symbol("T"));
    add_input({batch, time, 3});
    add_input({batch, time, 3});
    add_input({time, 5});
    add_input({3});
    add_input({});
    add_required(time);
    mask_ = result_.fusion.add_input("mask", DType::kBool, {batch, time, 3});
    places_ = result_.fusion.add_input("places", DType::kI64, {batch, time, 1});
    const auto steps = 6 + rng_.below(18);
    for (std::uint64_t i = 0; i < steps; ++i) step();
    const auto outputs = 1 + rng_.below(4);
    for (std::uint64_t i = 0; i < outputs; ++i)
      result_.fusion.add_output(values_[values_.size() - 1 - rng_.below(values_.size() / 2)]);
    result_.fusion.add_output(values_.back());
    return std::move(result_);
  }

 private:
  bool exact() const { return result_.numbers == Numbers::kExact; }
  DType smooth_type() const {
    return result_.numbers == Numbers::kSmooth ? DType::kF64 : DType::kF32;
  }
  DType new_dtype() {
    if (!exact()) return smooth_type();
    const DType types[] = {DType::kF32, DType::kF32, DType::kI32, DType::kI64};
    return types[rng_.below(4)];
  }
  void add_input(const Extents& shape) {
    values_.push_back(result_.fusion.add_input("x" + std::to_string(values_.size()),
                                               exact() ? DType::kF32 : smooth_type(), shape));
  }
  /// Inputs whose sizes are symbols of their own and equal to others by a requirement only, as
  /// those of functions traced from Python are, beside a value of that size.
  void add_required(const Extent& time) {
    ir::Fusion& f = result_.fusion;
    const Extent less(f.symbol("TLess"));  // T - 1
    if (!f.unify(time, less + 1)) throw InternalError("T is TLess + 1");
    add_input({less});
    values_.push_back(b_.slice_axis(values_[2], 0, Extent(1), time - 1));
    values_.push_back(b_.broadcast_to(b_.unsqueeze(values_[5], 1), shape(values_.back())));
    const Extent twice(f.symbol("TTwice"));  // 2 T
    if (!f.unify(twice, time * Extent(2))) throw InternalError("TTwice is 2 T");
    add_input({twice, 5});
    values_.push_back(b_.concat({values_[2], values_[2]}, 0));
  }
  ValId any() { return values_[rng_.below(values_.size())]; }
  Extents shape(ValId v) const { return b_.fusion().canonical(b_.val(v).shape); }
  std::size_t rank(ValId v) const { return b_.rank(v); }
  std::int64_t any_axis(ValId v) { return static_cast<std::int64_t>(rng_.below(rank(v))); }
  ValId like(double value, ValId v) { return b_.constant_like(value, v); }

  /// Back to values that the next operation can take.
  ValId tame(ValId v) {
    if (!exact()) return rng_.below(2) ? b_.tanh(v) : b_.sin(v);
    return b_.maximum(b_.minimum(v, like(9, v)), like(-9, v));
  }

  ValId unary(ValId v) {
    const auto ops = ir::all_ops();
    while (true) {
      const ir::OpInfo& op = ops[rng_.below(ops.size())];
      if (op.op_class != ir::OpClass::kElementwise || op.max_operands != 1) continue;
      if (exact()) {
        if (op.rule != DTypeRule::kNumeric) continue;
        return tame(b_.make(op.op, {v}));
      }
      const bool jumps = op.op == Op::floor || op.op == Op::ceil || op.op == Op::round ||
                         op.op == Op::sign || op.op == Op::relu || op.op == Op::abs;
      if (jumps || (op.rule != DTypeRule::kFloat && op.rule != DTypeRule::kNumeric)) continue;
      if (op.domain != ir::Domain::kAny) v = b_.add(b_.square(v), like(0.3, v));
      return tame(b_.make(op.op, {v}));
    }
  }

  ValId binary(ValId v, ValId w) {
    const auto ops = ir::all_ops();
    while (true) {
      const ir::OpInfo& op = ops[rng_.below(ops.size())];
      if (op.op_class != ir::OpClass::kElementwise || op.max_operands != 2) continue;
      if (op.rule == DTypeRule::kLogical || op.rule == DTypeRule::kInteger) continue;
      if (op.op == Op::fmod || op.op == Op::atan2) continue;  // they jump
      if (exact() && op.rule == DTypeRule::kFloat) continue;
      if (op.rule == DTypeRule::kCompare) {
        if (!exact()) continue;
        return b_.cast(b_.make(op.op, {v, w}), b_.val(v).dtype);
      }
      if (op.op == Op::maximum || op.op == Op::minimum) {
        if (!exact()) continue;
      }
      if (op.domain == ir::Domain::kPositive) {
        v = b_.add(b_.square(v), like(0.3, v));
        w = b_.add(b_.square(w), like(0.3, w));
      }
      return tame(b_.make(op.op, {v, w}));
    }
  }

  /// Another value of the type and shape of v, itself if there is none.
  ValId partner(ValId v) {
    std::vector<ValId> fitting;
    for (const ValId w : values_)
      if (b_.val(w).dtype == b_.val(v).dtype && shape(w) == shape(v)) fitting.push_back(w);
    return fitting[rng_.below(fitting.size())];
  }

  ValId reduction(ValId v) {
    Ints axes;
    for (std::size_t a = 0; a < rank(v); ++a)
      if (rng_.below(2)) axes.push_back(static_cast<std::int64_t>(a));
    const bool keep = rng_.below(2) != 0;
    const bool real = is_float(b_.val(v).dtype);
    switch (rng_.below(exact() ? 4 : 5)) {
      case 0: return tame(b_.sum(v, axes, keep));
      case 1: return b_.max(v, axes, keep);
      case 2: return b_.min(v, axes, keep);
      case 3:
        if (exact() || !real) return tame(b_.sum(v, axes, keep));
        return tame(b_.welford(v, axes, keep).m2);
      default: return tame(b_.logsumexp(v, axes, keep));
    }
  }

  ValId movement(ValId v) {
    const std::size_t r = rank(v);
    const std::int64_t axis = r > 0 ? any_axis(v) : 0;
    switch (rng_.below(r > 0 ? 13 : 1)) {
      case 0: return b_.unsqueeze(v, static_cast<std::int64_t>(rng_.below(r + 1)));
      case 1: {
        Ints perm(r);
        for (std::size_t i = 0; i < r; ++i) perm[i] = static_cast<std::int64_t>(i);
        rng_.shuffle(perm);
        return b_.permute(v, perm);
      }
      case 2: return b_.pad_axis(v, axis, Extent(1), Extent(2), 1);
      case 3: return b_.concat({v, partner(v), v}, axis);
      case 4: {
        const Extent size = shape(v)[static_cast<std::size_t>(axis)];
        if (size.is_constant() && size.constant() < 2) return v;
        if (!long_enough(size)) return v;
        return b_.slice_axis(v, axis, Extent(1), size - 1);
      }
      case 5: {
        Extent size = 1;
        for (const Extent& extent : shape(v)) size = size * extent;
        return b_.reshape(v, {size});
      }
      case 6: {
        if (!long_enough(shape(v)[static_cast<std::size_t>(axis)])) return v;
        return b_.unfold(v, axis, 2, 1 + static_cast<std::int64_t>(rng_.below(2)), 1);
      }
      case 7: {
        if (!long_enough(shape(v)[static_cast<std::size_t>(axis)])) return v;
        const Extent size = shape(v)[static_cast<std::size_t>(axis)];
        return tame(b_.fold(b_.unfold(v, axis, 3, 1, 1), axis, 1, 1, size));
      }
      case 8: {
        const ValId indices = b_.iota(Extent(1), DType::kI64);
        if (!long_enough(shape(v)[static_cast<std::size_t>(axis)])) return v;
        return b_.take(v, b_.add(indices, b_.constant(1, DType::kI64)), axis);
      }
      case 9: return picked(v, axis);
      case 10:
      case 11: return halves(v, axis);
      default: {
        const Extent size = shape(v)[static_cast<std::size_t>(axis)];
        return tame(b_.scatter_add(v, b_.iota(size, DType::kI32), axis, size + 1));
      }
    }
  }

  /// One element a row, at a place that is loaded or known.
  ValId picked(ValId v, std::int64_t axis) {
    if (!long_enough(shape(v)[static_cast<std::size_t>(axis)])) return v;
    Extents rows = shape(v);
    rows[static_cast<std::size_t>(axis)] = 1;
    if (axis == 2 && rows == b_.fusion().canonical(b_.val(places_).shape)) {
      const ValId least = b_.maximum(places_, b_.constant(0, DType::kI64));
      return b_.gather(v, b_.minimum(least, b_.constant(2, DType::kI64)), axis);
    }
    return b_.gather(v, b_.broadcast_to(b_.constant(1, DType::kI64), rows), axis);
  }

  /// Two values made of two parts of one, one behind the other or interleaved, as rotary embeddings
  /// are.
  ValId halves(ValId v, std::int64_t axis) {
    const Extent size = shape(v)[static_cast<std::size_t>(axis)];
    if (!long_enough(size)) return v;
    const ValId first = b_.slice_axis(v, axis, Extent(0), size - 1);
    const ValId second = b_.slice_axis(v, axis, Extent(1), size - 1);
    const std::vector<ValId> parts{tame(b_.mul(first, second)), tame(b_.sub(second, first))};
    if (rng_.below(2) == 0) return b_.concat(parts, axis);
    Extents joined = shape(first);
    joined.back() = joined.back() * Extent(2);
    return b_.reshape(b_.concat({b_.unsqueeze(parts[0], -1), b_.unsqueeze(parts[1], -1)}, -1),
                      joined);
  }

  /// Whether an axis has at least three elements whatever B and T are.
  bool long_enough(const Extent& size) const {
    std::int64_t least = 0;
    try {
      least = size.evaluate([&](ir::SymbolId id) {
        const ir::Symbol& symbol = b_.fusion().storage().symbols[id.index];
        if (symbol.name == "TLess") return std::int64_t{3};
        return symbol.name == "T" ? std::int64_t{4} : std::int64_t{0};
      });
    } catch (...) {
      return false;
    }
    return least >= 3;
  }

  ValId product(ValId v) {
    if (rank(v) < 2 || !is_float(b_.val(v).dtype)) return unary(v);
    switch (rng_.below(3)) {
      case 0: return tame(b_.matmul(v, v, true, false));
      case 1: return tame(b_.matmul(v, v, false, true));
      default: {
        const Extent size = shape(v).back();
        const ValId w = b_.broadcast_to(b_.cast(b_.iota(Extent(4)), b_.val(v).dtype), {size, 4});
        return tame(b_.matmul(v, w));
      }
    }
  }

  void step() {
    const ValId v = any();
    if (rank(v) > 4) return;
    ValId made = v;
    switch (rng_.below(10)) {
      case 0:
      case 1: made = unary(v); break;
      case 2:
      case 3:
      case 4: made = binary(v, partner(v)); break;
      case 5:
      case 6: made = movement(v); break;
      case 7: made = reduction(v); break;
      case 8: made = product(v); break;
      default: {
        if (exact()) {
          made = b_.cast(v, new_dtype());
        } else if (shape(v) == b_.fusion().canonical(b_.val(mask_).shape)) {
          made = b_.where(mask_, v, like(0.5, v));
        }
      }
    }
    if (rank(made) < rank(v) && rng_.below(3) == 0) {  // back to the full shape, as norms do
      const Extents full = shape(v);
      if (shape(made) == Extents(full.begin(), full.end() - 1) && rank(v) - rank(made) == 1)
        made = binary(v, b_.broadcast_to(b_.unsqueeze(made, -1), full));
    }
    values_.push_back(made);
  }

  Rng rng_;
  RandomFusion result_;
  Builder b_;
  std::vector<ValId> values_;
  ValId mask_;
  ValId places_;  ///< one a row, made to fit by picked()
};

}  // namespace

RandomFusion random_fusion(std::uint64_t seed, Numbers numbers) {
  return Generator(seed, numbers).run();
}

namespace {

/// Whether random_inputs() knows the size: a quotient of symbols is a symbol of its own.
bool known_size(const ir::Fusion& fusion, const Extent& extent) {
  bool known = true;
  static_cast<void>(extent.evaluate([&](ir::SymbolId id) {
    const std::string& name = fusion.storage().symbols[id.index].name;
    known = known && (name == "B" || name == "T" || name == "TLess" || name == "TTwice");
    return std::int64_t{1};
  }));
  return known;
}

}  // namespace

RandomFusion with_overwritten_inputs(const RandomFusion& program, std::uint64_t seed) {
  RandomFusion result = program;
  ir::Fusion& fusion = result.fusion;
  Rng rng(seed, 79);
  const auto overwritten = [&](ir::ValId input) {
    return std::ranges::any_of(fusion.aliases(),
                               [&](const ir::Alias& alias) { return alias.input == input; });
  };
  for (std::size_t o = 0; o < fusion.outputs().size(); ++o) {
    const ir::ValId output = fusion.outputs()[o].val;
    const ir::Val& val = fusion.val(output);
    std::vector<ir::ValId> fitting;
    for (const ir::Input& input : fusion.inputs())
      if (fusion.val(input.val).dtype == val.dtype && fusion.val(input.val).shape == val.shape &&
          !overwritten(input.val))
        fitting.push_back(input.val);
    if (!fitting.empty() && rng.below(2) == 0)
      fusion.add_alias(output, fitting[rng.below(fitting.size())]);
    else if (rng.below(3) > 0 && std::ranges::all_of(val.shape, [&](const Extent& extent) {
               return known_size(fusion, extent);
             }))
      fusion.add_alias(output, fusion.add_input("place" + std::to_string(o), val.dtype, val.shape));
  }
  return result;
}

std::vector<Tensor> random_inputs(const RandomFusion& program, std::uint64_t seed, std::int64_t b,
                                  std::int64_t t) {
  Rng rng(seed, 78);
  std::vector<Tensor> inputs;
  for (const ir::Input& input : program.fusion.inputs()) {
    const ir::Val& val = program.fusion.val(input.val);
    Shape shape;
    for (const Extent& extent : val.shape)
      shape.push_back(extent.evaluate([&](ir::SymbolId id) {
        const std::string& name = program.fusion.storage().symbols[id.index].name;
        return name == "B" ? b : name == "TLess" ? t - 1 : name == "TTwice" ? 2 * t : t;
      }));
    Tensor tensor(val.dtype, shape);
    for (std::int64_t i = 0; i < tensor.size(); ++i) {
      const double value = -2 + 4 * rng.uniform();
      const bool whole = program.numbers == Numbers::kExact || val.dtype == DType::kBool;
      tensor.set(i, whole ? std::floor(value) : value);
    }
    inputs.push_back(tensor);
  }
  return inputs;
}

}  // namespace segfuse::testing
