#include "ir/op.h"

#include <string>

#include "base/check.h"

namespace segfuse::ir {
namespace {

AttrType attr_type(std::string_view name) {
  if (name == "int") return AttrType::kInt;
  if (name == "ints") return AttrType::kInts;
  if (name == "float") return AttrType::kFloat;
  if (name == "dtype") return AttrType::kDType;
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

std::vector<OpInfo> make_table() {
  using enum DTypeRule;
  using enum Domain;
  using enum OpClass;
  return {
#define SEGFUSE_UNARY(name, rule, domain, accuracy, instructions, formula, gradient) \
  {Op::name, #name, kElementwise, rule, domain, 1, 1, 1, accuracy, instructions, {}},
#define SEGFUSE_BINARY(name, rule, domain, accuracy, instructions, formula, gradient_a, \
                       gradient_b)                                                      \
  {Op::name, #name, kElementwise, rule, domain, 2, 2, 1, accuracy, instructions, {}},
#define SEGFUSE_OP(name, op_class, min_operands, max_operands, results, accuracy, instructions, \
                   attributes)                                                                  \
  {Op::name, #name,    op_class,     DTypeRule::kNone,       kAny, min_operands, max_operands,  \
   results,  accuracy, instructions, parse_attrs(attributes)},
#include "segfuse/ops.def"
  };
}

const std::vector<OpInfo>& table() {
  static const std::vector<OpInfo> ops = make_table();
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

}  // namespace segfuse::ir
