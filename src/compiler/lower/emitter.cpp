#include "compiler/lower/emitter.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"
#include "base/half_types.h"
#include "compiler/op_facts.h"
#include "segfuse/error.h"

namespace segfuse::compiler {

using ir::Expr;
using ir::Extent;
using ir::Extents;
using ir::Op;
using ir::ValId;
using loop::BufferId;
using loop::Index;
using loop::Indices;
using loop::ValueId;
using loop::VarId;
using loop::Within;

ValId GroupContext::memory_of(ValId val) const {
  for (const ir::Alias& alias : in_place)
    if (alias.output == val) return alias.input;
  return val;
}

bool GroupContext::reads(ValId val) const {
  return std::binary_search(inputs.begin(), inputs.end(), val);
}

Extents GroupContext::shape_of(ValId val) const { return fusion.canonical(fusion.val(val).shape); }

Extent product(const Extents& shape) {
  Extent all = 1;
  for (const Extent& extent : shape) all = all * extent;
  return all;
}

Index linearize(Indices& indices, const Coordinates& at, const Extents& shape) {
  Index linear;
  Extent stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    linear = indices.add(linear, indices.multiply(at[axis], stride));
    stride = stride * shape[axis];
  }
  return linear;
}

Coordinates unflatten(Indices& indices, const Index& linear, const Extents& shape) {
  Coordinates at(shape.size());
  Index left = linear;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    if (axis == 0) {
      at[axis] = left;
    } else {
      at[axis] = indices.modulo(left, shape[axis]);
      left = indices.divide(left, shape[axis]);
    }
  }
  if (!shape.empty() && shape[0].is_constant(1)) at[0] = 0;
  return at;
}

Emitter::Emitter(const GroupContext& context, GroupKernel& out) : context_(context), out_(out) {}

void Emitter::share_indices(const Emitter& dry_run) {
  SEGFUSE_CHECK(blocks_.empty() && indices().vars() == 0,
                "a kernel follows another from its start");
  indices() = dry_run.out_.kernel.indices;
  indices().again();
  origins_ = dry_run.origins_;
}

VarId Emitter::outer(Extent count) {
  SEGFUSE_CHECK(blocks_.empty(), "the outer loop is opened first");
  blocks_.emplace_back();
  kernel().outer_count = count;
  kernel().outer = indices().add_var("p", std::move(count));
  var_depth_.resize(indices().vars(), 0);
  return kernel().outer;
}

void Emitter::open(loop::For::Kind kind, VarId var, Index begin, Index end) {
  blocks_.push_back({{kind, var, std::move(begin), std::move(end), {}}, {}});
  var_depth_.resize(indices().vars(), 0);
  var_depth_[var.index] = depth();
}

void Emitter::close() {
  Block block = std::move(blocks_.back());
  blocks_.pop_back();
  block.owner.body = std::move(block.body);
  blocks_.back().body.push_back({std::move(block.owner)});
  std::erase_if(available_, [&](const Available& k) { return depth_of(k.value) > depth(); });
  std::erase_if(computed_, [&](const auto& k) { return depth_of(k.second) > depth(); });
  std::erase_if(indices_, [&](const auto& k) { return depth_of(std::get<2>(k)) > depth(); });
}

void Emitter::finish() {
  SEGFUSE_CHECK(blocks_.size() == 1, "blocks are closed");
  kernel().body = std::move(blocks_.back().body);
  blocks_.clear();
  for (std::size_t i = 0; i < context_.fusion.storage().symbols.size(); ++i)
    kernel().symbols.push_back(
        context_.fusion.to_string(Extent(ir::SymbolId{static_cast<std::uint32_t>(i)})));
}

int Emitter::depth_of(const Index& index) const {
  int deepest = 0;
  const Indices& all = out_.kernel.indices;
  all.each_var(index, [&](VarId var) { deepest = std::max(deepest, var_depth_[var.index]); });
  all.each_value(index, [&](ValueId value) {
    deepest = std::max(deepest, value.valid() ? depth_of(value) : std::numeric_limits<int>::max());
  });
  return deepest;
}

void Emitter::emit(loop::Statement statement, int depth) {
  SEGFUSE_CHECK(depth < static_cast<int>(blocks_.size()), "a statement is inside of open loops");
  blocks_[static_cast<std::size_t>(depth)].body.push_back(std::move(statement));
}

ValueId Emitter::new_value(DType dtype, int depth) {
  kernel().values.push_back(dtype);
  value_depth_.push_back(depth);
  return {static_cast<std::uint32_t>(kernel().values.size() - 1)};
}

ValueId Emitter::compute(Op op, DType dtype, std::vector<ValueId> operands) {
  const auto [known, fresh] = computed_.try_emplace({op, dtype, operands});
  if (!fresh) return known->second;
  int deepest = 0;
  for (const ValueId operand : operands) deepest = std::max(deepest, depth_of(operand));
  known->second = new_value(dtype, deepest);
  emit({loop::Compute{known->second, op, std::move(operands)}}, deepest);
  return known->second;
}

ValueId Emitter::constant(DType dtype, double value) {
  const auto [known, fresh] = constants_.try_emplace({dtype, std::bit_cast<std::uint64_t>(value)});
  if (!fresh) return known->second;
  known->second = new_value(dtype, 0);
  emit({loop::Constant{known->second, value}}, 0);
  return known->second;
}

ValueId Emitter::from_index(DType dtype, const Index& index) {
  for (const auto& [type, known, value] : indices_)
    if (type == dtype && known == index) return value;
  const int where = depth_of(index);
  const ValueId result = new_value(dtype, where);
  emit({loop::FromIndex{result, index}}, where);
  indices_.emplace_back(dtype, index, result);
  return result;
}

ValueId Emitter::cast(ValueId value, DType dtype) {
  return kernel().dtype(value) == dtype ? value : compute(Op::cast, dtype, {value});
}

DType Emitter::carried(DType dtype) const {
  return context_.excess_precision ? compute_type(dtype) : dtype;
}

ValueId Emitter::load(BufferId buffer, const Index& index, std::vector<Within> when,
                      double otherwise) {
  int where = depth_of(index);
  for (const Within& condition : when) where = std::max(where, depth_of(condition.index));
  if (kernel().buffer(buffer).kind != loop::KernelBuffer::Kind::kRow) add_guard(when, where);
  const ValueId result = new_value(kernel().buffer(buffer).dtype, where);
  emit({loop::Load{result, buffer, index, std::move(when), otherwise}}, where);
  return result;
}

void Emitter::store(BufferId buffer, const Index& index, ValueId value, std::vector<Within> when) {
  std::erase_if(when, [](const Within& w) { return w.index == Index(0); });
  if (kernel().buffer(buffer).kind != loop::KernelBuffer::Kind::kRow) add_guard(when, depth());
  const ValueId stored = cast(value, kernel().buffer(buffer).dtype);
  emit({loop::Store{buffer, index, stored, std::move(when)}});
}

void Emitter::add_guard(std::vector<Within>& when, int depth) const {
  if (depth > 0) when.insert(when.end(), guard.begin(), guard.end());
}

BufferId Emitter::buffer_of(ValId val, bool written) {
  const ValId memory = context_.memory_of(val);
  std::size_t next = 0;
  for (std::size_t i = 0; i < kernel().buffers.size(); ++i) {
    loop::KernelBuffer& buffer = kernel().buffers[i];
    if (buffer.kind == loop::KernelBuffer::Kind::kRow) continue;
    if (out_.operands[next++].val != memory) continue;
    const auto kind =
        written ? loop::KernelBuffer::Kind::kOutput : loop::KernelBuffer::Kind::kInput;
    if (buffer.kind != kind) buffer.kind = loop::KernelBuffer::Kind::kInOut;
    return {static_cast<std::uint32_t>(i)};
  }
  const ir::Val& v = context_.fusion.val(val);
  loop::KernelBuffer buffer;
  buffer.kind = written ? loop::KernelBuffer::Kind::kOutput : loop::KernelBuffer::Kind::kInput;
  buffer.name = fmt::format("b{}", kernel().buffers.size());
  buffer.dtype = v.dtype;
  buffer.elements = product(context_.shape_of(val));
  kernel().buffers.push_back(std::move(buffer));
  out_.operands.push_back({memory, 0});
  return {static_cast<std::uint32_t>(kernel().buffers.size() - 1)};
}

BufferId Emitter::workspace(std::uint32_t number, const Workspace& workspace, bool written) {
  const auto kind = written ? loop::KernelBuffer::Kind::kOutput : loop::KernelBuffer::Kind::kInput;
  std::size_t next = 0;
  for (std::size_t i = 0; i < kernel().buffers.size(); ++i) {
    if (kernel().buffers[i].kind == loop::KernelBuffer::Kind::kRow) continue;
    const Operand& operand = out_.operands[next++];
    if (operand.val.valid() || operand.workspace != number) continue;
    if (kernel().buffers[i].kind != kind)
      kernel().buffers[i].kind = loop::KernelBuffer::Kind::kInOut;
    return {static_cast<std::uint32_t>(i)};
  }
  loop::KernelBuffer buffer;
  buffer.kind = kind;
  buffer.name = fmt::format("w{}", kernel().buffers.size());
  buffer.dtype = workspace.dtype;
  buffer.elements = workspace.elements;
  kernel().buffers.push_back(std::move(buffer));
  out_.operands.push_back({{}, number});
  return {static_cast<std::uint32_t>(kernel().buffers.size() - 1)};
}

BufferId Emitter::row_buffer(std::string name, DType dtype, Extent elements, Hold hold,
                             std::int64_t capacity) {
  loop::KernelBuffer buffer;
  buffer.kind = loop::KernelBuffer::Kind::kRow;
  buffer.name = std::move(name);
  buffer.dtype = dtype;
  buffer.elements = std::move(elements);
  buffer.hold = hold;
  buffer.capacity = capacity;
  kernel().buffers.push_back(std::move(buffer));
  return {static_cast<std::uint32_t>(kernel().buffers.size() - 1)};
}

void Emitter::record(const Request& request, ValueId value, bool loaded) {
  if (cache.depth < 0 || depth_of(value) < cache.depth) return;
  const ir::ExprId definition = context_.fusion.val(request.val).definition;
  auto found = find_traced(request);
  if (found == trace.end()) {
    trace.push_back(
        {request,
         loaded,
         definition.valid() && costs_more_than_a_load(context_.fusion.expr(definition).op),
         kernel().dtype(value),
         {},
         {}});
    found = trace.end() - 1;
  }
  found->walks.insert(walk_);
}

std::vector<Emitter::Traced>::iterator Emitter::find_traced(const Request& request) {
  return std::find_if(trace.begin(), trace.end(),
                      [&](const Traced& s) { return s.request == request; });
}

/// What asked for this value depends on its loads.
void Emitter::record_loads(const Request& request, bool loaded) {
  const auto found = find_traced(request);
  if (found == trace.end()) return;
  if (loaded) found->loads.insert(static_cast<std::size_t>(found - trace.begin()));
  if (!loads_.empty()) loads_.back().insert(found->loads.begin(), found->loads.end());
}

ValueId Emitter::eval(const Request& request) {
  for (const Available& known : available_)
    if (known.request == request) {
      record_loads(request, false);
      return known.value;
    }
  Cached* cached = nullptr;
  for (Cached& one : cache.values)
    if (one.request == request) cached = &one;
  ValueId value;
  bool loaded = false;
  loads_.emplace_back();
  if (cached && cached->stored) {
    value = load(cached->buffer, cache.index);
  } else {
    value = evaluate(request, loaded);
    if (cached && depth_of(value) == cache.depth) {
      emit({loop::Store{cached->buffer, cache.index, value, {}}}, cache.depth);
      cached->stored = true;
    }
  }
  record(request, value, loaded);
  const auto found = find_traced(request);
  if (found != trace.end()) found->loads.merge(loads_.back());
  loads_.pop_back();
  record_loads(request, loaded);
  available_.push_back({request, value});
  return value;
}

bool Emitter::has_coordinates_of(const Request& request) const {
  return std::all_of(request.at.begin(), request.at.end(),
                     [&](const Index& at) { return depth_of(at) <= depth(); }) &&
         std::all_of(request.when.begin(), request.when.end(),
                     [&](const Within& w) { return depth_of(w.index) <= depth(); });
}

ValueId Emitter::evaluate(const Request& request, bool& loaded) {
  const ir::Val& val = context_.fusion.val(request.val);
  if (context_.reads(request.val)) {
    loaded = true;
    const Index from = linearize(indices(), request.at, context_.shape_of(request.val));
    return load(buffer_of(request.val, false), from, request.when, request.otherwise);
  }
  SEGFUSE_CHECK(val.definition.valid(), "an input of a group is in its boundary");
  const Expr& expr = context_.fusion.expr(val.definition);
  switch (ir::info(expr.op).op_class) {
    case ir::OpClass::kElementwise: return elementwise(expr, request);
    case ir::OpClass::kReduction:
      if (!request.when.empty()) return guarded(request);
      return reduced(val.definition, val.result, request.at);
    case ir::OpClass::kMovement: return movement(expr, request, loaded);
    case ir::OpClass::kCreation: return creation(expr, request);
    case ir::OpClass::kOpaque: break;
  }
  throw InternalError(fmt::format("'{}' cannot be lowered into a kernel", ir::info(expr.op).name));
}

/// What needs no memory under the request's conditions.
ValueId Emitter::guarded(const Request& request) {
  const ValueId value = eval(request.val, request.at);
  return request.any ? value : conditional(value, request.when, request.otherwise);
}

ValueId Emitter::elementwise(const Expr& expr, const Request& request) {
  if (!request.when.empty() && !request.any) {
    Request inner = request;
    inner.any = true;
    inner.otherwise = 0;
    return conditional(eval(inner), request.when, request.otherwise);
  }
  const DType dtype = context_.fusion.val(request.val).dtype;
  std::vector<ValueId> operands;
  for (const ValId operand : expr.operands) {
    const ValueId value = eval({operand, request.at, request.when, 0, request.any});
    operands.push_back(cast(value, carried(kernel().dtype(value))));
  }
  // An explicit cast rounds even where operations carry excess precision.
  if (expr.op == Op::cast) return cast(operands[0], dtype);
  return compute(expr.op, carried(dtype), std::move(operands));
}

ValueId Emitter::creation(const Expr& expr, const Request& request) {
  if (!request.when.empty()) return guarded(request);
  const ir::Val& val = context_.fusion.val(request.val);
  switch (ir::as<ir::CreationOp>(expr.op)) {
    case ir::CreationOp::constant: return constant(carried(val.dtype), expr.attr<double>("value"));
    case ir::CreationOp::iota: return from_index(carried(val.dtype), request.at[0]);
    case ir::CreationOp::extent: {
      const Extent size = context_.fusion.canonical(expr.attr<Extents>("size")[0]);
      return from_index(carried(val.dtype), size);
    }
    case ir::CreationOp::random_uniform: {
      const ValueId key = eval(expr.operands[0], {0});
      const ValueId sequence = eval(expr.operands[0], {1});
      const Index element = linearize(indices(), request.at, context_.shape_of(request.val));
      const int where = std::max({depth_of(key), depth_of(sequence), depth_of(element)});
      const ValueId result = new_value(val.dtype, where);
      emit({loop::Random{result, key, sequence, expr.attr<std::int64_t>("stream"), element}},
           where);
      return result;
    }
  }
  throw InternalError(fmt::format("'{}' cannot be lowered into a kernel", ir::info(expr.op).name));
}

ValueId Emitter::holds(const std::vector<Within>& when) {
  ValueId all;
  for (const Within& condition : when) {
    const ValueId at = from_index(DType::kI64, condition.index);
    const ValueId low = compute(Op::ge, DType::kBool, {at, constant(DType::kI64, 0)});
    const ValueId high =
        compute(Op::lt, DType::kBool, {at, from_index(DType::kI64, Index(condition.bound))});
    const ValueId both = compute(Op::logical_and, DType::kBool, {low, high});
    all = all.valid() ? compute(Op::logical_and, DType::kBool, {all, both}) : both;
  }
  return all;
}

ValueId Emitter::conditional(ValueId value, const std::vector<Within>& when, double otherwise) {
  const DType dtype = kernel().dtype(value);
  return compute(Op::where, dtype, {holds(when), value, constant(dtype, otherwise)});
}

/// The value at a row-major position of it.
ValueId Emitter::eval_linear(ValId val, const Index& linear, const Request& context, bool& loaded) {
  const Extents shape = context_.shape_of(val);
  if (context_.reads(val)) {
    loaded = true;
    return load(buffer_of(val, false), linear, context.when, context.otherwise);
  }
  const ir::ExprId definition = context_.fusion.val(val).definition;
  if (definition.valid()) {
    const Expr& expr = context_.fusion.expr(definition);
    if (expr.op == Op::reshape || expr.op == Op::squeeze)
      return eval_linear(expr.operands[0], linear, context, loaded);
  }
  return eval(
      {val, unflatten(indices(), linear, shape), context.when, context.otherwise, context.any});
}

ValueId Emitter::movement(const Expr& expr, const Request& request, bool& loaded) {
  using Ints = std::vector<std::int64_t>;
  const Extents before = context_.shape_of(expr.operands[0]);
  const Extents after = context_.shape_of(request.val);
  Request operand{expr.operands[0], Coordinates(before.size()), request.when, request.otherwise,
                  request.any};
  switch (ir::as<ir::MovementOp>(expr.op)) {
    case ir::MovementOp::permute: {
      const auto& perm = expr.attr<Ints>("perm");
      for (std::size_t i = 0; i < perm.size(); ++i)
        operand.at[static_cast<std::size_t>(perm[i])] = request.at[i];
      return eval(operand);
    }
    case ir::MovementOp::squeeze: {
      const auto& axes = expr.attr<Ints>("axes");
      for (std::size_t i = 0, next = 0; i < before.size(); ++i)
        if (!std::binary_search(axes.begin(), axes.end(), static_cast<std::int64_t>(i)))
          operand.at[i] = request.at[next++];
      return eval(operand);
    }
    case ir::MovementOp::broadcast: {
      const auto& axes = expr.attr<Ints>("axes");
      for (std::size_t i = 0; i < axes.size(); ++i) {
        const auto to = static_cast<std::size_t>(axes[i]);
        if (!before[i].is_constant(1)) operand.at[i] = request.at[to];
      }
      return eval(operand);
    }
    case ir::MovementOp::reshape:
      return eval_linear(operand.val, linearize(indices(), request.at, after), request, loaded);
    case ir::MovementOp::slice: {
      const auto& starts = expr.attr<Extents>("starts");
      for (std::size_t i = 0; i < before.size(); ++i)
        operand.at[i] = indices().add(request.at[i], Index(context_.fusion.canonical(starts[i])));
      return eval(operand);
    }
    case ir::MovementOp::unfold: {
      const auto axis = static_cast<std::size_t>(expr.attr<std::int64_t>("axis"));
      const Extent stride = expr.attr<std::int64_t>("stride");
      const Extent dilation = expr.attr<std::int64_t>("dilation");
      for (std::size_t i = 0; i < before.size(); ++i)
        operand.at[i] = request.at[i <= axis ? i : i + 1];
      operand.at[axis] = indices().add(indices().multiply(request.at[axis], stride),
                                       indices().multiply(request.at[axis + 1], dilation));
      return eval(operand);
    }
    case ir::MovementOp::pad: return pad(expr, request);
    case ir::MovementOp::concat: return concat(expr, request);
    case ir::MovementOp::take:
    case ir::MovementOp::gather: return indexed(expr, request);
    case ir::MovementOp::scatter_add:
    case ir::MovementOp::fold: break;
  }
  throw InternalError(fmt::format("'{}' cannot be lowered into a kernel", ir::info(expr.op).name));
}

ValueId Emitter::pad(const Expr& expr, const Request& request) {
  const auto& low = expr.attr<Extents>("low");
  const double value = expr.attr<double>("value");
  const Extents before = context_.shape_of(expr.operands[0]);
  const Extents after = context_.shape_of(request.val);
  Request inner{expr.operands[0], Coordinates(before.size()), {}, value};
  for (std::size_t i = 0; i < before.size(); ++i) {
    inner.at[i] = indices().subtract(request.at[i], Index(context_.fusion.canonical(low[i])));
    if (before[i] != after[i]) inner.when.push_back({inner.at[i], before[i]});
  }
  if (request.when.empty()) return eval(inner);
  // What lies outside of the outer conditions is another value than what lies outside of these.
  inner.when.insert(inner.when.begin(), request.when.begin(), request.when.end());
  const ValueId padded = eval(inner);
  return request.any ? padded : conditional(padded, request.when, request.otherwise);
}

ValueId Emitter::concat(const Expr& expr, const Request& request) {
  const auto axis = static_cast<std::size_t>(expr.attr<std::int64_t>("axis"));
  const DType dtype = carried(context_.fusion.val(request.val).dtype);
  Extent begin = 0;
  ValueId joined;
  for (const ValId part : expr.operands) {
    const Extent size = context_.fusion.canonical(context_.fusion.val(part).shape[axis]);
    // One of the conditions holds, or none of the request's: other values are not looked at.
    Request inner{part, request.at, request.when, request.otherwise,
                  request.any || request.when.empty()};
    inner.at[axis] = indices().subtract(request.at[axis], Index(begin));
    const Within own{inner.at[axis], size};
    inner.when.push_back(own);
    const ValueId value = cast(eval(inner), dtype);
    joined = joined.valid() ? compute(Op::where, dtype, {holds({own}), value, joined}) : value;
    begin = begin + size;
  }
  return joined;
}

/// take and gather: one axis is found by an index from memory.
ValueId Emitter::indexed(const Expr& expr, const Request& request) {
  const auto axis = static_cast<std::size_t>(expr.attr<std::int64_t>("axis"));
  const Extents before = context_.shape_of(expr.operands[0]);
  const std::size_t rank = context_.fusion.val(expr.operands[1]).shape.size();
  Request index{expr.operands[1], request.at, request.when, 0};
  Request inner{expr.operands[0], request.at, request.when, request.otherwise,
                request.any || request.when.empty()};
  const auto first = request.at.begin() + static_cast<std::ptrdiff_t>(axis);
  if (expr.op == Op::take) {
    index.at.assign(first, first + static_cast<std::ptrdiff_t>(rank));
    inner.at.assign(request.at.begin(), first);
    inner.at.emplace_back();
    inner.at.insert(inner.at.end(), first + static_cast<std::ptrdiff_t>(rank), request.at.end());
  }
  const ValueId found = cast(eval(index), DType::kI64);
  auto origin = std::find(origins_.begin(), origins_.end(), index);
  if (origin == origins_.end()) origin = origins_.insert(origins_.end(), index);
  const auto number = static_cast<std::uint32_t>(origin - origins_.begin() + 1);
  const Within within{indices().of(found, number), before[axis]};
  const std::string what = fmt::format("{}: index along axis {}", ir::info(expr.op).name, axis);
  auto& checks = kernel().checks;
  auto known = std::find(checks.begin(), checks.end(), what);
  if (known == checks.end()) known = checks.insert(checks.end(), what);
  int where = depth_of(found);
  for (const Within& condition : request.when) where = std::max(where, depth_of(condition.index));
  std::vector<Within> checked = request.when;
  add_guard(checked, where);
  emit(
      {loop::Check{within, std::move(checked), static_cast<std::uint32_t>(known - checks.begin())}},
      where);
  inner.at[axis] = within.index;
  inner.when.push_back(within);
  return eval(inner);
}

}  // namespace segfuse::compiler
