#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "compiler/attention.h"
#include "compiler/attention/band.h"
#include "compiler/passes/passes.h"
#include "ir/attention.h"
#include "ir/builder.h"

namespace segfuse::compiler {
namespace {

using ir::Expr;
using ir::ExprId;
using ir::Extent;
using ir::Extents;
using ir::Fusion;
using ir::Op;
using ir::ValId;
using AxisList = std::vector<std::int64_t>;

/// A value that is stretched to the shape of the scores: its axis i is their axis axes[i].
struct Spread {
  ValId source;
  AxisList axes;
};

/// What a match found.
struct Found {
  ValId q, k, v;
  double scale = 1;
  bool zero = false;  ///< one of its factors
  std::vector<Spread> biases;
  std::vector<std::pair<Spread, bool>> masks;  ///< true: where it does not hold
  std::optional<double> fill;
  std::optional<Extent> ahead;
  std::set<ExprId> within;  ///< all that is no longer needed, the last product included
};

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

AxisList first_axes(std::size_t count) {
  AxisList axes(count);
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

/// Looks at one product.
class Match {
 public:
  explicit Match(Fusion& fusion) : fusion_(fusion), builder_(fusion) {}

  /// Whether `id` is the product of a softmax and values.
  bool run(ExprId id) {
    const Expr& product = fusion_.expr(id);
    if (product.op != Op::matmul || product.attr<std::int64_t>("transpose_a") != 0) return false;
    ValId weights = product.operands[0];
    const DType dtype = fusion_.val(weights).dtype;
    if (dtype != DType::kF32 && dtype != DType::kF64) return false;
    if (rank_of(product.operands[1]) != rank_of(weights)) return false;
    found_.within.insert(id);
    found_.v = product.operands[1];
    weights = before_join(weights);
    rank_ = rank_of(weights);
    shape_ = fusion_.canonical(fusion_.val(weights).shape);
    const std::optional<ValId> scores = softmax_of(weights);
    return scores && masked(*scores);
  }

  const Found& found() const { return found_; }

  /// The attention; its result has the shape of the product's.
  ValId build(ExprId id) {
    const bool turn_v = fusion_.expr(id).attr<std::int64_t>("transpose_b") != 0;
    std::vector<ValId> operands{split(turn_q_ ? turned(found_.q) : found_.q),
                                split(turn_k_ ? turned(found_.k) : found_.k),
                                split(turn_v ? turned(found_.v) : found_.v)};
    ValId bias;
    for (const Spread& next : found_.biases) {
      const ValId thin = thinned(next);
      bias = bias.valid() ? builder_.add(bias, thin) : thin;
    }
    ValId mask;
    for (const auto& [next, not_this] : found_.masks) {
      const ValId thin = not_this ? builder_.logical_not(thinned(next)) : thinned(next);
      mask = mask.valid() ? builder_.logical_and(mask, thin) : thin;
    }
    for (const ValId more : {bias, mask})
      if (more.valid()) operands.push_back(more);
    const double lowest = -std::numeric_limits<double>::infinity();
    const ExprId made = fusion_.add_expr(Op::attention, operands,
                                         {found_.scale, found_.fill.value_or(lowest), ahead()});
    ValId result = fusion_.result(made);
    const Extents shape = fusion_.val(fusion_.result(id)).shape;
    if (!fusion_.equal(fusion_.val(result).shape, shape)) return builder_.reshape(result, shape);
    if (fusion_.val(result).shape != shape)  // sizes that a requirement makes equal
      result = builder_.broadcast(result, first_axes(rank_), shape);
    return result;
  }

 private:
  Extents ahead() const {
    if (!found_.ahead) return {};
    const auto [more, less] = ir::difference(fusion_.canonical(*found_.ahead));
    return {more, less};
  }
  const Expr* is(ValId val, Op op) const {
    const ExprId id = fusion_.val(val).definition;
    if (!id.valid() || fusion_.expr(id).op != op) return nullptr;
    return &fusion_.expr(id);
  }
  std::size_t rank_of(ValId val) const { return fusion_.val(val).shape.size(); }
  /// What a product of one batch was, where leading axes were joined for it or split after it.
  ValId before_join(ValId val) {
    const Expr* e = is(val, Op::reshape);
    if (!e) return val;
    const Extents& to = fusion_.val(val).shape;
    const Extents& from = fusion_.val(e->operands[0]).shape;
    if (to.size() < 2 || from.size() < 2) return val;
    for (const std::size_t back : {1, 2})
      if (!fusion_.equal(to[to.size() - back], from[from.size() - back])) return val;
    take(val);
    return e->operands[0];
  }
  /// A matrix stack with the leading axes of the scores.
  ValId split(ValId val) {
    const Extents from = fusion_.val(val).shape;
    Extents shape(shape_.begin(), shape_.end() - 2);
    shape.insert(shape.end(), from.end() - 2, from.end());
    return fusion_.equal(from, shape) ? val : builder_.reshape(val, shape);
  }
  void take(ValId val) { found_.within.insert(fusion_.val(val).definition); }

  std::optional<double> uniform(ValId val) const {
    const Expr* spread = nullptr;
    while ((spread = is(val, Op::broadcast)) != nullptr) val = spread->operands[0];
    const Expr* constant = is(val, Op::constant);
    if (!constant) return {};
    return constant->attr<double>("value");
  }

  /// What is stretched, through all broadcasts; `through` gets them.
  Spread source_of(Spread spread, std::vector<ValId>* through = nullptr) const {
    while (const Expr* e = is(spread.source, Op::broadcast)) {
      if (through) through->push_back(spread.source);
      AxisList axes;
      for (const std::int64_t axis : e->attr<AxisList>("axes"))
        axes.push_back(spread.axes[static_cast<std::size_t>(axis)]);
      spread = {e->operands[0], std::move(axes)};
    }
    return spread;
  }
  Spread whole(ValId val) const { return {val, first_axes(rank_)}; }

  /// The definition of one number a row, which is stretched along it or has 1 there, or neither;
  /// all on the way is within.
  const Expr* row(ValId val) {
    std::vector<ValId> through;
    const Spread spread = source_of({val, first_axes(rank_of(val))}, &through);
    Extents rows(shape_.begin(), shape_.end() - 1);
    const std::size_t rank = spread.axes.size();
    if (rank == rank_) rows.emplace_back(1);
    const ExprId id = fusion_.val(spread.source).definition;
    if (!id.valid() || rank + 1 < rank_ || spread.axes != first_axes(rank) ||
        !fusion_.equal(fusion_.val(spread.source).shape, rows))
      return nullptr;
    for (const ValId stretched : through) take(stretched);
    take(spread.source);
    return &fusion_.expr(id);
  }
  bool reduces_row(const Expr& e, ValId of) const {
    return e.operands[0] == of &&
           e.attr<AxisList>("axes") == AxisList{static_cast<std::int64_t>(rank_) - 1};
  }

  /// s of softmax(s) along the last axis.
  std::optional<ValId> softmax_of(ValId weights) {
    take(weights);
    if (const Expr* e = is(weights, Op::exp)) {
      const Expr* shifted = is(e->operands[0], Op::sub);
      if (!shifted) return {};
      take(e->operands[0]);
      const ValId s = shifted->operands[0];
      const Expr* sum = row(shifted->operands[1]);
      if (sum && sum->op == Op::logsumexp) {
        if (!reduces_row(*sum, s)) return {};
        return s;
      }
      // The logarithm of the sum of what is below the maximum.
      if (!sum || sum->op != Op::log || !is(s, Op::sub)) return {};
      sum = row(sum->operands[0]);
      if (!sum || sum->op != Op::sum) return {};
      const ValId powers = sum->operands[0];
      const Expr* power = is(powers, Op::exp);
      if (!power || power->operands[0] != s || !reduces_row(*sum, powers)) return {};
      take(powers);
      return below_maximum(s);
    }
    ValId powers;
    const Expr* sum = nullptr;
    if (const Expr* e = is(weights, Op::div)) {
      powers = e->operands[0];
      sum = row(e->operands[1]);
    } else if (const Expr* product = is(weights, Op::mul)) {
      powers = product->operands[0];
      const Expr* inverse = row(product->operands[1]);
      if (!inverse || inverse->op != Op::reciprocal) return {};
      sum = row(inverse->operands[0]);
    }
    if (!sum || sum->op != Op::sum || !reduces_row(*sum, powers)) return {};
    const Expr* power = is(powers, Op::exp);
    if (!power) return {};
    take(powers);
    return below_maximum(power->operands[0]);
  }

  /// s of s - max(s) along the last axis.
  std::optional<ValId> below_maximum(ValId difference) {
    const Expr* shifted = is(difference, Op::sub);
    if (!shifted) return {};
    take(difference);
    const ValId s = shifted->operands[0];
    const Expr* most = row(shifted->operands[1]);
    if (most && most->op == Op::stop_gradient) most = row(most->operands[0]);
    if (most && most->op == Op::where) {  // 0 for a maximum that is not finite
      const Expr* finite = is(most->operands[0], Op::is_finite);
      if (!finite || finite->operands[0] != most->operands[1] || uniform(most->operands[2]) != 0.0)
        return {};
      take(most->operands[0]);
      most = row(most->operands[1]);
    }
    if (!most || most->op != Op::max || !reduces_row(*most, s)) return {};
    return s;
  }

  /// Before slices of the whole, which say that sizes are equal.
  ValId before_slice(ValId s) {
    while (const Expr* e = is(s, Op::slice)) {
      const Extents& starts = e->attr<Extents>("starts");
      const Extents from = fusion_.canonical(fusion_.val(e->operands[0]).shape);
      if (!fusion_.equal(starts, Extents(starts.size(), Extent(0))) ||
          !fusion_.equal(from, e->attr<Extents>("sizes")))
        break;
      take(s);
      s = e->operands[0];
    }
    return s;
  }

  /// where(..., s, fill), any number of times.
  bool masked(ValId s) {
    s = before_slice(s);
    const Expr* e = is(s, Op::where);
    if (!e) return biased(s);
    for (const bool filled_first : {false, true}) {
      const auto fill = uniform(e->operands[filled_first ? 1 : 2]);
      if (!fill) continue;
      if (found_.fill && !same(*found_.fill, *fill)) return false;
      found_.fill = fill;
      take(s);
      add_mask(whole(e->operands[0]), filled_first);
      return masked(e->operands[filled_first ? 2 : 1]);
    }
    return false;
  }

  /// All of a conjunction alone, as far as positions decide it.
  void add_mask(const Spread& mask, bool not_this) {
    const Spread thin = source_of(mask);
    const auto part = [&](const Expr& e, std::size_t i) {
      return Spread{e.operands[i], thin.axes};
    };
    if (const Expr* e = is(thin.source, Op::logical_not)) return add_mask(part(*e, 0), !not_this);
    if (const Expr* e = is(thin.source, not_this ? Op::logical_or : Op::logical_and)) {
      add_mask(part(*e, 0), not_this);
      return add_mask(part(*e, 1), not_this);
    }
    if (!found_.ahead && ends_in_scores(thin)) {
      const auto band = band_of(fusion_, thin.source);
      if (band && band->beyond == not_this) {
        found_.ahead = band->ahead;
        return;
      }
    }
    found_.masks.emplace_back(thin, not_this);
  }
  bool ends_in_scores(const Spread& spread) const {
    const std::size_t n = spread.axes.size();
    const Extents& shape = fusion_.val(spread.source).shape;
    if (n < 2) return false;
    for (const std::size_t back : {1, 2})
      if (spread.axes[n - back] != static_cast<std::int64_t>(rank_ - back) ||
          !fusion_.equal(shape[n - back], shape_[rank_ - back]))
        return false;
    return true;
  }

  /// Any sum of biases and scaled scores.
  bool biased(ValId s) {
    s = before_slice(s);
    const Expr* e = is(s, Op::add);
    if (!e) return scaled(s);
    const Found before = found_;
    for (const std::size_t side : {0, 1}) {
      take(s);
      found_.biases.push_back(source_of(whole(e->operands[1 - side])));
      if (biased(e->operands[side])) return true;
      found_ = before;
    }
    return false;
  }

  bool scaled(ValId s) {
    s = before_slice(s);
    if (const Expr* e = is(s, Op::mul)) {
      for (const std::size_t side : {0, 1})
        if (const auto by = uniform(e->operands[1 - side])) {
          take(s);
          found_.scale *= *by;
          found_.zero = found_.zero || *by == 0;
          return scaled(e->operands[side]);
        }
    } else if (const Expr* quotient = is(s, Op::div)) {
      if (const auto by = uniform(quotient->operands[1])) {
        take(s);
        found_.scale /= *by;
        return scaled(quotient->operands[0]);
      }
    }
    return product(s);
  }

  bool product(ValId s) {
    s = before_slice(before_join(s));
    const Expr* e = is(s, Op::matmul);
    if (!e || rank_of(e->operands[0]) != rank_of(e->operands[1]) || !is_scale(s)) return false;
    take(s);
    found_.q = e->operands[0];
    found_.k = e->operands[1];
    turn_q_ = e->attr<std::int64_t>("transpose_a") != 0;
    turn_k_ = e->attr<std::int64_t>("transpose_b") == 0;
    return true;
  }

  /// Whether one factor of their type does what all did: one after the other they may stay in range
  /// where their product does not.
  bool is_scale(ValId s) const {
    const double size = std::abs(found_.scale);
    const bool narrow = fusion_.val(s).dtype == DType::kF32;
    const double least =
        narrow ? std::numeric_limits<float>::min() : std::numeric_limits<double>::min();
    const double most =
        narrow ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max();
    return found_.zero ? size == 0 : size >= least && size <= most;
  }

  /// A stack of matrices, each transposed.
  ValId turned(ValId matrix) {
    if (const Expr* e = is(matrix, Op::permute)) {
      AxisList swapped = first_axes(rank_of(matrix));
      std::swap(swapped[swapped.size() - 1], swapped[swapped.size() - 2]);
      if (e->attr<AxisList>("perm") == swapped) return e->operands[0];
    }
    return builder_.transpose(matrix, -1, -2);
  }

  /// With 1 for each axis that it is stretched along.
  ValId thinned(const Spread& spread) {
    if (spread.axes == first_axes(rank_)) return spread.source;
    Extents shape(rank_, Extent(1));
    for (std::size_t i = 0; i < spread.axes.size(); ++i)
      shape[static_cast<std::size_t>(spread.axes[i])] = fusion_.val(spread.source).shape[i];
    return builder_.broadcast(spread.source, spread.axes, shape);
  }

  Fusion& fusion_;
  ir::Builder builder_;
  std::size_t rank_ = 0;
  Extents shape_;  ///< of the scores
  Found found_;
  bool turn_q_ = false, turn_k_ = false;
};

}  // namespace

void find_attention(Fusion& fusion, std::span<const ValId> roots, std::span<const ValId> kept,
                    Replaced& replaced) {
  std::vector<bool> needed(fusion.storage().exprs.size(), false);
  std::vector<ExprId> all;
  std::vector<ValId> stack(roots.begin(), roots.end());
  while (!stack.empty()) {
    const ExprId id = fusion.val(stack.back()).definition;
    stack.pop_back();
    if (!id.valid() || needed[id.index]) continue;
    needed[id.index] = true;
    all.push_back(id);
    for (const ValId operand : fusion.expr(id).operands) stack.push_back(operand);
  }
  std::sort(all.begin(), all.end());
  const auto among = [](std::span<const ValId> list, ValId val) {
    return std::find(list.begin(), list.end(), val) != list.end();
  };
  for (const ExprId id : all) {
    Match match(fusion);
    if (!match.run(id)) continue;
    const Found& found = match.found();
    const ValId old = fusion.result(id);
    const bool whole =
        !among(kept, old) &&
        std::all_of(found.within.begin(), found.within.end(), [&](ExprId within) {
          if (within == id) return true;
          for (const ValId val : fusion.expr(within).results) {
            if (among(kept, val) || among(roots, val)) return false;
            for (const ExprId user : fusion.val(val).uses)
              if (user.index < needed.size() && needed[user.index] && !found.within.contains(user))
                return false;
          }
          return true;
        });
    if (!whole) continue;
    const ValId with = match.build(id);
    fusion.redirect_uses(old, with);
    replaced[old] = with;
  }
}

bool find_attention(Fusion& fusion) {
  std::vector<ValId> roots;
  for (const ir::Output& output : fusion.outputs()) roots.push_back(output.val);
  Replaced replaced;
  find_attention(fusion, roots, {}, replaced);
  if (!replaced.empty()) remove_dead_code(fusion);
  return !replaced.empty();
}

}  // namespace segfuse::compiler
