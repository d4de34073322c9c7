#include <fmt/core.h>

#include <algorithm>

#include "compiler/attention.h"
#include "compiler/autodiff.h"
#include "engine/ops/state.h"
#include "engine/program_state.h"
#include "ir/attention.h"
#include "ir/rules/verify.h"
#include "ir/text.h"

namespace segfuse::ops {
namespace {

void need_bound(const Value& value, std::string_view what) {
  if (value.is_number())
    throw UsageError(fmt::format("{}: found the plain number {}, expected a value of a program",
                                 what, value.number()));
}

/// The value's id in `state`.
ir::ValId own(const std::shared_ptr<Value::State>& state, std::string_view operation,
              const Value& value) {
  if (value.is_number())
    throw UsageError(
        fmt::format("{}: found the plain number {}, expected a value of the Fusion '{}'", operation,
                    value.number(), state->fusion.name()));
  if (value.state() != state)
    throw UsageError(fmt::format("{}: found a value of the Fusion '{}', expected one of '{}'",
                                 operation, value.state()->fusion.name(), state->fusion.name()));
  return id_of(value);
}

ir::Attr to_attr(ir::Fusion& fusion, const Attribute& attribute) {
  if (const auto* sizes = std::get_if<Sizes>(&attribute)) return to_extents(fusion, *sizes);
  if (const auto* axes = std::get_if<Axes>(&attribute)) return *axes;
  if (const auto* whole = std::get_if<std::int64_t>(&attribute)) return *whole;
  if (const auto* real = std::get_if<double>(&attribute)) return *real;
  return std::get<DType>(attribute);
}

/// a / b of sums of products, if b is one product.
std::optional<ir::Extent> divided(const ir::Extent& a, const ir::Extent& b) {
  if (b.terms().size() != 1 || b.terms()[0].coefficient == 0) return std::nullopt;
  const ir::Extent::Term& by = b.terms()[0];
  ir::Extent result;
  for (ir::Extent::Term term : a.terms()) {
    if (term.coefficient % by.coefficient != 0) return std::nullopt;
    term.coefficient /= by.coefficient;
    for (const ir::SymbolId factor : by.factors) {
      const auto found = std::find(term.factors.begin(), term.factors.end(), factor);
      if (found == term.factors.end()) return std::nullopt;
      term.factors.erase(found);
    }
    result = result + ir::Extent::of(term);
  }
  return result;
}

}  // namespace

// --- values
// -----------------------------------------------------------------------

DType Value::dtype() const {
  need_bound(*this, "the element type");
  return state_->fusion.val(id_of(*this)).dtype;
}

Sizes Value::shape() const {
  need_bound(*this, "the shape");
  Sizes sizes;
  for (const ir::Extent& extent : state_->fusion.val(id_of(*this)).shape)
    sizes.push_back(to_size(state_->fusion, state_->fusion.canonical(extent)));
  return sizes;
}

Size Value::size(std::int64_t axis) const {
  const Sizes sizes = shape();
  const auto rank = static_cast<std::int64_t>(sizes.size());
  const std::int64_t at = axis < 0 ? axis + rank : axis;
  if (at < 0 || at >= rank)
    throw UsageError(
        fmt::format("size: found axis {} for {}, which has {} axes", axis, text(), rank));
  return sizes[static_cast<std::size_t>(at)];
}

std::int64_t Value::rank() const {
  need_bound(*this, "the rank");
  return static_cast<std::int64_t>(state_->fusion.val(id_of(*this)).shape.size());
}

FusionBuilder Value::fusion() const {
  need_bound(*this, "the program");
  return FusionBuilder(state_);
}

std::int64_t Value::large() const {
  constexpr std::int64_t kExact = std::int64_t{1} << 53;
  return (whole_ > kExact && number_ > 0) || (whole_ < -kExact && number_ < 0) ? whole_ : 0;
}

std::string Value::text() const {
  if (is_number()) return large() != 0 ? fmt::format("{}", whole_) : fmt::format("{}", number_);
  const ir::Val& val = state_->fusion.val(id_of(*this));
  return fmt::format("{}{}", name_of(val.dtype), state_->fusion.to_string(val.shape));
}

// --- programs
// -----------------------------------------------------------------------

FusionBuilder::FusionBuilder(std::string name)
    : state_(std::make_shared<Value::State>(std::move(name))) {}

Value FusionBuilder::input(std::string name, DType dtype, const Sizes& shape) {
  ir::Fusion& fusion = state_->fusion;
  if (name.empty()) throw UsageError("input: the name is empty, expected one");
  for (const ir::Input& input : fusion.inputs())
    if (input.name == name)
      throw UsageError(
          fmt::format("input: there is an input '{}' already, expected another name", name));
  return {state_, fusion.add_input(std::move(name), dtype, to_extents(fusion, shape)).index};
}

void FusionBuilder::output(const Value& value, std::string name) {
  const ir::ValId id = own(state_, "output", value);
  for (const ir::Output& output : state_->fusion.outputs())
    if (!name.empty() && output.name == name)
      throw UsageError(
          fmt::format("output: there is an output '{}' already, expected another name", name));
  state_->fusion.add_output(id, std::move(name));
}

void FusionBuilder::alias(const Value& output, const Value& input) {
  state_->fusion.add_alias(own(state_, "alias", output), own(state_, "alias", input));
}

Value FusionBuilder::constant(double value, DType dtype) {
  return {state_, state_->fusion.constant(value, dtype).index};
}

Value FusionBuilder::full(double value, const Sizes& shape, DType dtype) {
  ir::Builder builder(state_->fusion);
  return {state_, builder.full(value, to_extents(state_->fusion, shape), dtype).index};
}

Value FusionBuilder::iota(const Size& length, DType dtype) {
  ir::Builder builder(state_->fusion);
  return {state_, builder.iota(to_extent(state_->fusion, length), dtype).index};
}

Value FusionBuilder::size(const Size& size, DType dtype) {
  ir::Builder builder(state_->fusion);
  // A number, unlike a size, may be negative.
  const ir::Extent whole = state_->fusion.canonical(to_extent(state_->fusion, size));
  const auto [more, less] = ir::difference(whole);
  if (less.is_constant()) return {state_, builder.extent(whole, dtype).index};
  const ir::ValId number =
      builder.sub(builder.extent(more, DType::kI64), builder.extent(less, DType::kI64));
  return {state_, builder.cast(number, dtype).index};
}

std::vector<Value> FusionBuilder::apply(std::string_view operation, std::span<const Value> operands,
                                        std::span<const Attribute> attributes) {
  const std::optional<ir::Op> op = ir::op_from_name(operation);
  if (!op)
    throw UsageError(fmt::format("there is no operation '{}'; docs/ir.md lists them", operation));
  if (*op == ir::Op::scan)
    throw UsageError("scan: found the attribute body, which is a program; call scan() instead");
  ir::Fusion& fusion = state_->fusion;
  ir::Builder builder(fusion);
  std::vector<ir::ValId> ids;
  for (const Value& operand : operands) ids.push_back(own(state_, operation, operand));
  ir::Attrs attrs;
  for (const Attribute& attribute : attributes) attrs.push_back(to_attr(fusion, attribute));
  if (ir::info(*op).op_class == ir::OpClass::kElementwise && !ids.empty()) {
    Call call(operation, {operands.begin(), operands.end()});
    ids = call.run([&](ir::Builder& b) { return b.broadcast_together(ids); });
  }
  std::vector<Value> results;
  for (const ir::ValId id : builder.make_all(*op, std::move(ids), std::move(attrs)))
    results.emplace_back(state_, id.index);
  return results;
}

void FusionBuilder::require(const Size& a, const Size& b) {
  ir::Fusion& fusion = state_->fusion;
  if (!fusion.unify(to_extent(fusion, a), to_extent(fusion, b)))
    throw UsageError(
        fmt::format("require: the sizes {} and {} can never be equal", a.text(), b.text()));
}

bool FusionBuilder::equal(const Size& a, const Size& b) const {
  ir::Fusion& fusion = state_->fusion;
  return fusion.equal(to_extent(fusion, a), to_extent(fusion, b));
}

Size FusionBuilder::canonical(const Size& size) const {
  ir::Fusion& fusion = state_->fusion;
  return to_size(fusion, fusion.canonical(to_extent(fusion, size)));
}

std::optional<Size> FusionBuilder::divide(const Size& a, const Size& b) const {
  ir::Fusion& fusion = state_->fusion;
  const auto result =
      divided(fusion.canonical(to_extent(fusion, a)), fusion.canonical(to_extent(fusion, b)));
  if (!result) return std::nullopt;
  return to_size(fusion, *result);
}

Program FusionBuilder::build() const {
  if (state_->fusion.outputs().empty())
    throw UsageError(
        fmt::format("the Fusion '{}' has no output, expected at least one before it is built",
                    state_->fusion.name()));
  ir::verify(state_->fusion);
  ir::Fusion fusion = state_->fusion;
  if (compiler::find_attention(fusion)) ir::verify(fusion);
  return Program(std::make_shared<Program::State>(std::move(fusion)));
}

std::string FusionBuilder::text() const { return ir::print(state_->fusion); }

// --- gradients
// -----------------------------------------------------------------------

std::vector<Value> vjp(std::span<const Value> outputs, std::span<const Value> cotangents,
                       std::span<const Value> wrt) {
  if (outputs.empty()) throw UsageError("vjp: found no output to differentiate, expected one");
  need_bound(outputs[0], "the gradient");
  const auto& state = outputs[0].state();
  const std::span<const Value> groups[] = {outputs, cotangents, wrt};
  std::vector<ir::ValId> ids[3];
  for (std::size_t i = 0; i < 3; ++i)
    for (const Value& value : groups[i]) ids[i].push_back(own(state, "vjp", value));
  compiler::Replaced replaced;
  compiler::find_attention(state->fusion, ids[0], ids[2], replaced);
  for (ir::ValId& id : ids[0])
    if (const auto found = replaced.find(id); found != replaced.end()) id = found->second;
  std::vector<Value> results;
  for (const ir::ValId id : compiler::vjp(state->fusion, ids[0], ids[1], ids[2]))
    results.emplace_back(state, id.index);
  return results;
}

std::vector<Value> grad(const Value& scalar, std::span<const Value> wrt) {
  need_bound(scalar, "the gradient");
  if (scalar.rank() != 0)
    throw UsageError(
        fmt::format("grad: found a value {} to differentiate, expected a scalar; vjp takes any",
                    scalar.text()));
  if (!is_float(scalar.dtype()))
    throw UsageError(fmt::format("grad: found a value {} to differentiate, expected floating point",
                                 scalar.text()));
  const Value outputs[] = {scalar};
  const Value cotangents[] = {scalar.fusion().constant(1, scalar.dtype())};
  return vjp(outputs, cotangents, wrt);
}

Value grad(const Value& scalar, const Value& wrt) {
  return grad(scalar, std::span<const Value>(&wrt, 1))[0];
}

// --- the table
// -----------------------------------------------------------------------

std::vector<OperationInfo> operations() {
  constexpr std::string_view kKinds[] = {"elementwise", "reduction", "movement", "creation",
                                         "library"};
  constexpr std::string_view kTypes[] = {"",     "float",   "numeric", "compare",
                                         "test", "logical", "integer"};
  constexpr std::string_view kDomains[] = {"any", "positive", "nonzero"};
  constexpr std::string_view kAttributes[] = {"int", "ints", "float", "dtype", "sizes", "body"};
  std::vector<OperationInfo> all;
  for (const ir::OpInfo& op : ir::all_ops()) {
    OperationInfo& row = all.emplace_back();
    row.name = op.name;
    row.kind = kKinds[static_cast<std::size_t>(op.op_class)];
    row.types = kTypes[static_cast<std::size_t>(op.rule)];
    row.domain = kDomains[static_cast<std::size_t>(op.domain)];
    row.min_operands = op.min_operands;
    row.max_operands = op.max_operands;
    row.results = op.max_results;
    for (const ir::AttrSpec& attr : op.attrs)
      row.attributes.emplace_back(attr.name, kAttributes[static_cast<std::size_t>(attr.type)]);
  }
  return all;
}

}  // namespace segfuse::ops
