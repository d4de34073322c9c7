#include "compiler/attention/band.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/half_types.h"

namespace segfuse::compiler {
namespace {

using ir::Expr;
using ir::Extent;
using ir::Fusion;
using ir::Op;
using ir::ValId;

/// What a whole number at a position is: the sum of by[a] times the position along axis a, and a
/// number.
struct Affine {
  std::vector<std::int64_t> by;
  Extent number;
};

const Expr* definition(const Fusion& fusion, ValId val) {
  const ir::ExprId id = fusion.val(val).definition;
  return id.valid() ? &fusion.expr(id) : nullptr;
}

/// Only small ones: a sum with another may wrap around in i32, or be rounded in f32.
std::optional<std::int64_t> whole(double value) {
  if (!(std::abs(value) <= 0x1p24) || value != std::floor(value)) return {};
  return static_cast<std::int64_t>(value);
}

std::optional<Affine> affine(const Fusion& fusion, ValId val);

std::optional<Affine> moved(const Fusion& fusion, const Expr& e, std::size_t rank) {
  std::optional<Affine> from = affine(fusion, e.operands[0]);
  if (!from) return {};
  Affine to{std::vector<std::int64_t>(rank, 0), from->number};
  const ir::Extents& shape = fusion.val(e.operands[0]).shape;
  const auto& axes = e.attr<std::vector<std::int64_t>>(e.op == Op::permute ? "perm" : "axes");
  if (e.op == Op::permute) {
    for (std::size_t a = 0; a < rank; ++a) to.by[a] = from->by[static_cast<std::size_t>(axes[a])];
  } else if (e.op == Op::broadcast) {
    for (std::size_t a = 0; a < axes.size(); ++a)  // along an axis of one element all is the same
      if (!fusion.canonical(shape[a]).is_constant(1))
        to.by[static_cast<std::size_t>(axes[a])] = from->by[a];
  } else {
    std::size_t next = 0;
    for (std::size_t a = 0; a < shape.size(); ++a)
      if (std::find(axes.begin(), axes.end(), static_cast<std::int64_t>(a)) == axes.end())
        to.by[next++] = from->by[a];
  }
  return to;
}

std::optional<Affine> sum(std::optional<Affine> a, const std::optional<Affine>& b,
                          std::int64_t sign) {
  if (!a || !b) return {};
  for (std::size_t i = 0; i < a->by.size(); ++i) a->by[i] += sign * b->by[i];
  a->number = a->number + Extent(sign) * b->number;
  return a;
}

/// Nothing if it is no whole number of that kind. Floats that count are whole as long as they are
/// small; a program whose axes are longer than 2^24 has no scores in memory either way.
std::optional<Affine> affine(const Fusion& fusion, ValId val) {
  const Expr* e = definition(fusion, val);
  const std::size_t rank = fusion.val(val).shape.size();
  const DType dtype = fusion.val(val).dtype;
  if (!e || dtype == DType::kBool || is_half(dtype)) return {};
  switch (e->op) {
    case Op::constant: {
      const auto number = whole(e->attr<double>("value"));
      if (!number) return {};
      return Affine{{}, Extent(*number)};
    }
    case Op::extent: return Affine{{}, fusion.canonical(e->attr<ir::Extents>("size")[0])};
    case Op::iota: return Affine{{1}, Extent(0)};
    case Op::cast: return affine(fusion, e->operands[0]);
    case Op::permute:
    case Op::broadcast:
    case Op::squeeze: return moved(fusion, *e, rank);
    case Op::add: return sum(affine(fusion, e->operands[0]), affine(fusion, e->operands[1]), 1);
    case Op::sub: return sum(affine(fusion, e->operands[0]), affine(fusion, e->operands[1]), -1);
    case Op::neg:
      return sum(Affine{std::vector<std::int64_t>(rank, 0), Extent(0)},
                 affine(fusion, e->operands[0]), -1);
    default: return {};  // any other: it may put positions in another order
  }
}

/// The scalar that a value is everywhere.
std::optional<double> uniform(const Fusion& fusion, ValId val) {
  const Expr* e = definition(fusion, val);
  while (e && (e->op == Op::broadcast || e->op == Op::reshape))
    e = definition(fusion, e->operands[0]);
  if (!e || e->op != Op::constant) return {};
  return e->attr<double>("value");
}

std::optional<Band> turned(std::optional<Band> band) {
  if (band) band->beyond = !band->beyond;
  return band;
}

/// a <= b + more.
std::optional<Band> at_most(const Fusion& fusion, ValId a, ValId b, std::int64_t more) {
  std::optional<Affine> d = sum(affine(fusion, a), affine(fusion, b), -1);  // <= more
  const std::size_t rank = fusion.val(a).shape.size();
  if (!d || rank < 2) return {};
  for (std::size_t i = 0; i + 2 < rank; ++i)
    if (d->by[i] != 0) return {};
  const std::int64_t m = d->by[rank - 2];
  const std::int64_t n = d->by[rank - 1];
  if (n == 1 && m == -1) return Band{Extent(more) - d->number, false};  // n <= m + more - number
  // m - n + number <= more: not n <= m + number - more - 1
  if (n == -1 && m == 1) return Band{d->number - Extent(more) - Extent(1), true};
  return {};
}

std::optional<Band> through(const Fusion& fusion, const Expr& e) {
  // Moved along other axes than its own last two it is another band.
  const std::size_t from = fusion.val(e.operands[0]).shape.size();
  const std::size_t to = fusion.val(e.results[0]).shape.size();
  if (e.op != Op::broadcast || from < 2) return {};
  const auto& axes = e.attr<std::vector<std::int64_t>>("axes");
  const auto at = [&](std::size_t back) {
    return axes[from - back] == static_cast<std::int64_t>(to - back) &&
           fusion.equal(fusion.val(e.operands[0]).shape[from - back],
                        fusion.val(e.results[0]).shape[to - back]);
  };
  if (!at(1) || !at(2)) return {};
  return band_of(fusion, e.operands[0]);
}

/// where(band, a, b) that is asked whether it is 0.
std::optional<Band> chosen(const Fusion& fusion, const Expr& e) {
  const auto yes = uniform(fusion, e.operands[1]);
  const auto no = uniform(fusion, e.operands[2]);
  // What is not whole may be 0 in another type.
  if (!yes || !no || (*yes != 0) == (*no != 0) || !whole(*yes) || !whole(*no)) return {};
  const auto band = band_of(fusion, e.operands[0]);
  return *yes != 0 ? band : turned(band);
}

}  // namespace

std::optional<Band> band_of(const Fusion& fusion, ValId mask) {
  const Expr* e = definition(fusion, mask);
  if (!e) return {};
  switch (e->op) {
    case Op::broadcast: return through(fusion, *e);
    case Op::le: return at_most(fusion, e->operands[0], e->operands[1], 0);
    case Op::lt: return at_most(fusion, e->operands[0], e->operands[1], -1);
    case Op::ge: return at_most(fusion, e->operands[1], e->operands[0], 0);
    case Op::gt: return at_most(fusion, e->operands[1], e->operands[0], -1);
    case Op::logical_not: return turned(band_of(fusion, e->operands[0]));
    case Op::cast: return band_of(fusion, e->operands[0]);
    case Op::where: return chosen(fusion, *e);
    case Op::ne:
    case Op::eq: {
      if (uniform(fusion, e->operands[1]) != 0.0) return {};
      const auto band = band_of(fusion, e->operands[0]);
      return e->op == Op::ne ? band : turned(band);
    }
    default: return {};  // any other: content decides
  }
}

}  // namespace segfuse::compiler
