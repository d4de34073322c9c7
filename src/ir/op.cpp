#include "ir/op.h"

#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "segfuse/error.h"

namespace segfuse::ir {
namespace {

AttrType attr_type(std::string_view name) {
  if (name == "int") return AttrType::kInt;
  if (name == "ints") return AttrType::kInts;
  if (name == "float") return AttrType::kFloat;
  if (name == "dtype") return AttrType::kDType;
  if (name == "body") return AttrType::kBody;
  SEGFUSE_CHECK(name == "extents", "attribute type '{}' in ops.def", name);
  return AttrType::kExtents;
}

std::vector<AttrSpec> parse_attrs(std::string_view text) {
  std::vector<AttrSpec> specs;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    const std::size_t colon = item.find(':');
    specs.push_back({item.substr(0, colon), attr_type(item.substr(colon + 1))});
    text.remove_prefix(std::min(text.size(), item.size() + 1));
  }
  return specs;
}

constexpr Accuracy kExact{Accuracy::Kind::kExact};
constexpr Accuracy kRounded{Accuracy::Kind::kRounded};
constexpr Accuracy kDerived{Accuracy::Kind::kDerived};
constexpr Accuracy ulps(double f32, double f64, double device_f32, double device_f64) {
  return {Accuracy::Kind::kUlps, f32, f64, device_f32, device_f64};
}

std::vector<std::vector<Monoid>> walks(std::initializer_list<Monoid> first,
                                       std::initializer_list<Monoid> second = {}) {
  if (second.size() == 0) return {first};
  return {first, second};
}

OpInfo elementwise(Op op, std::string_view name, DTypeRule rule, Domain domain,
                   std::uint32_t operands, Accuracy accuracy, Extremes extremes, int instructions,
                   std::string_view formula) {
  return {
      op,       name,     OpClass::kElementwise, rule,    domain, operands,           operands, 1,
      accuracy, extremes, instructions,          formula, {},     Moves::kByPosition, {}};
}

OpInfo other(Op op, std::string_view name, OpClass op_class, std::uint32_t min_operands,
             std::uint32_t max_operands, std::uint32_t results, Accuracy accuracy, int instructions,
             std::string_view attributes, std::vector<std::vector<Monoid>> walks = {},
             Moves moves = Moves::kByPosition) {
  return {op,
          name,
          op_class,
          DTypeRule::kNone,
          Domain::kAny,
          min_operands,
          max_operands,
          results,
          accuracy,
          Extremes::kWithin,
          instructions,
          {},
          std::move(walks),
          moves,
          parse_attrs(attributes)};
}

std::vector<OpInfo> make_table() {
  using enum DTypeRule;
  using enum Domain;
  using enum Extremes;
  using enum Moves;
  using enum Monoid;
  using enum OpClass;
  return {
#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient) \
  elementwise(Op::name, #name, rule, domain, 1, accuracy, extremes, instructions, #formula),
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  elementwise(Op::name, #name, rule, domain, 2, accuracy, extremes, instructions, #formula),
#define SEGFUSE_OP(name, op_class, min_operands, max_operands, results, accuracy, instructions, \
                   attributes)                                                                  \
  other(Op::name, #name, op_class, min_operands, max_operands, results, accuracy, instructions, \
        attributes),
#define SEGFUSE_REDUCTION(name, results, accuracy, walks) \
  other(Op::name, #name, kReduction, 1, 1, results, accuracy, 1, "axes:ints", walks),
#define SEGFUSE_MOVEMENT(name, min_operands, max_operands, moves, attributes)                     \
  other(Op::name, #name, kMovement, min_operands, max_operands, 1,                                \
        moves == kAddsByPosition || moves == kAddsByIndex ? kDerived : kExact, 1, attributes, {}, \
        moves),
#include "segfuse/ops.def"
  };
}

const std::vector<OpInfo>& table() {
  static const auto& ops = *new std::vector<OpInfo>(make_table());
  return ops;
}

}  // namespace

std::span<const OpInfo> all_ops() { return table(); }
const OpInfo& info(Op op) { return table()[static_cast<std::size_t>(op)]; }

std::optional<Op> op_from_name(std::string_view name) {
  for (const OpInfo& candidate : table())
    if (candidate.name == name) return candidate.op;
  return {};
}

void need_class(Op op, OpClass op_class) {
  SEGFUSE_CHECK(info(op).op_class == op_class, "'{}' is of another class", info(op).name);
}

bool adds(Op op) {
  return info(op).moves == Moves::kAddsByPosition || info(op).moves == Moves::kAddsByIndex;
}

bool has_indices(Op op) {
  return info(op).moves == Moves::kByIndex || info(op).moves == Moves::kAddsByIndex;
}

std::string_view infix(Op op) {
  const std::string_view formula = info(op).formula;
  if (!formula.starts_with("a ") || !formula.ends_with(" b")) return {};
  const std::string_view between = formula.substr(2, formula.size() - 4);
  return between.find_first_of(" (?:") == between.npos ? between : std::string_view();
}

std::string_view name_of(Monoid monoid) {
  switch (monoid) {
    case Monoid::kSum: return "sum";
    case Monoid::kProduct: return "prod";
    case Monoid::kMax: return "max";
    case Monoid::kMin: return "min";
    case Monoid::kArgmax: return "argmax";
  }
  throw InternalError("a monoid without a name");
}

double identity(Monoid monoid, DType dtype) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool narrow = dtype == DType::kI32;
  switch (monoid) {
    case Monoid::kSum: return 0;
    case Monoid::kProduct: return 1;
    case Monoid::kMax:
    case Monoid::kArgmax: return is_float(dtype) ? -kInfinity : narrow ? -0x1p31 : -0x1p63;
    case Monoid::kMin: return is_float(dtype) ? kInfinity : narrow ? 0x1p31 - 1 : 0x1p63;
  }
  throw InternalError("a monoid without an identity");
}

Op joining(Monoid monoid) {
  switch (monoid) {
    case Monoid::kSum: return Op::add;
    case Monoid::kProduct: return Op::mul;
    case Monoid::kMax: return Op::maximum;
    case Monoid::kMin: return Op::minimum;
    case Monoid::kArgmax: break;
  }
  throw InternalError("argmax is joined with positions");
}

}  // namespace segfuse::ir
