#include "compiler/lower/group_analysis.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "base/check.h"
#include "base/half_types.h"
#include "compiler/lower/kernel_writer.h"
#include "compiler/op_facts.h"
#include "segfuse/error.h"

namespace segfuse::compiler {

using ir::Expr;
using ir::ExprId;
using ir::Extent;
using ir::Extents;
using ir::Op;
using ir::OpClass;
using ir::ValId;
using loop::Index;
using Ints = std::vector<std::int64_t>;
using Role = SpaceAxis::Role;

GroupAnalysis::GroupAnalysis(ir::Fusion& program, const SegmentedGroup& g, const IterationDomain& p,
                             std::vector<ir::Alias> aliases, const SizeHints& h,
                             std::string kernel_name, bool excess_precision)
    : fusion(program),
      group(g),
      domain(p),
      in_place(std::move(aliases)),
      hints(h),
      name(std::move(kernel_name)),
      context{fusion, group.boundary.inputs, in_place, excess_precision} {
  for (const IterationDomain::ValueAxes& known : domain.value_axes)
    value_axes_[known.val] = known.axes;
  find_reductions();
  find_results();
  if (domain.kind == GroupKind::kRowCol) postpone_reductions();
  order_stores();
  std::vector<loop::VarId> vars;
  const GroupKernel all = survey(vars);
  collapse_axes(all, vars);
  describe_space(all, vars);
}

const std::vector<int>& GroupAnalysis::value_axes(ValId val) const {
  const auto found = value_axes_.find(val);
  if (found == value_axes_.end())
    throw InternalError(fmt::format("value {} has no axes in its group", val.index));
  return found->second;
}

Coordinates GroupAnalysis::coordinates_of(ValId val, const Coordinates& at) const {
  Coordinates all;
  for (const int axis : value_axes(val))
    all.push_back(axis < 0 ? Index(0) : at[static_cast<std::size_t>(axis)]);
  return all;
}

bool GroupAnalysis::is_local(ValId val) const {
  const ExprId definition = fusion.val(val).definition;
  if (!definition.valid() ||
      std::find(group.exprs.begin(), group.exprs.end(), definition) == group.exprs.end())
    return false;
  const Expr& expr = fusion.expr(definition);
  if (ir::info(expr.op).op_class != OpClass::kMovement) return true;
  if (expr.op != Op::concat) return is_local(expr.operands[0]);
  return std::any_of(expr.operands.begin(), expr.operands.end(),
                     [&](ValId operand) { return is_local(operand); });
}

/// Whether a result goes through the movement on its way to where it is stored.
bool GroupAnalysis::moves_when_stored(ExprId id) const {
  return keeps_positions(fusion.expr(id).op) ||
         std::find(domain.stored.begin(), domain.stored.end(), id) != domain.stored.end();
}

int GroupAnalysis::walks_of(const std::vector<std::size_t>& numbers) const {
  int walks = 0;
  for (const std::size_t i : numbers) walks = std::max(walks, reductions[i].walk + 1);
  return walks;
}

Extent GroupAnalysis::ceil_divide(const Extent& size, std::int64_t by) const {
  return by == 1 ? size : fusion.canonical(fusion.floordiv(size + Extent(by - 1), by));
}

Coordinates GroupAnalysis::domain_axes(loop::Indices& indices, const Coordinates& space_at) const {
  Coordinates at(domain.axes.size());
  for (std::size_t axis = 0; axis < collapsed.size(); ++axis) {
    Extents parts;
    for (const std::size_t part : collapsed[axis]) parts.push_back(domain.axes[part]);
    const Coordinates split = unflatten(indices, space_at[axis], parts);
    for (std::size_t i = 0; i < parts.size(); ++i) at[collapsed[axis][i]] = split[i];
  }
  return at;
}

Coordinates GroupAnalysis::output_coordinates(loop::Indices& indices, const GroupResult& result,
                                              const Coordinates& at) const {
  Coordinates position = coordinates_of(result.root, at);
  for (const GroupResult::Step& step : result.path) {
    const Expr& expr = fusion.expr(step.move);
    const Extents before = context.shape_of(expr.operands[step.operand]);
    const Extents after = context.shape_of(expr.results[0]);
    Coordinates next(after.size());
    if (expr.op == Op::permute) {
      const auto& perm = expr.attr<Ints>("perm");
      for (std::size_t i = 0; i < perm.size(); ++i)
        next[i] = position[static_cast<std::size_t>(perm[i])];
    } else if (expr.op == Op::squeeze) {
      const auto& axes = expr.attr<Ints>("axes");
      for (std::size_t i = 0, to = 0; i < before.size(); ++i)
        if (!std::binary_search(axes.begin(), axes.end(), static_cast<std::int64_t>(i)))
          next[to++] = position[i];
    } else if (expr.op == Op::broadcast) {
      next = coordinates_of(expr.results[0], at);
      const auto& axes = expr.attr<Ints>("axes");
      for (std::size_t i = 0; i < axes.size(); ++i) {
        const auto to = static_cast<std::size_t>(axes[i]);
        if (!before[i].is_constant(1)) next[to] = position[i];
      }
    } else if (expr.op == Op::concat) {
      const auto axis = static_cast<std::size_t>(expr.attr<std::int64_t>("axis"));
      Extent begin = 0;
      for (std::size_t i = 0; i < step.operand; ++i)
        begin = begin + context.shape_of(expr.operands[i])[axis];
      next = position;
      next[axis] = indices.add(position[axis], Index(begin));
    } else {
      SEGFUSE_CHECK(expr.op == Op::reshape, "'{}' moves a computed value", ir::info(expr.op).name);
      next = unflatten(indices, linearize(indices, position, before), after);
    }
    position = std::move(next);
  }
  return position;
}

int GroupAnalysis::first_walk(ValId val) {
  if (const auto known = first_walks_.find(val); known != first_walks_.end()) return known->second;
  const ExprId definition = fusion.val(val).definition;
  int most = 0;
  if (definition.valid() && !context.reads(val)) {
    const Expr& expr = fusion.expr(definition);
    for (const ValId operand : expr.operands) most = std::max(most, first_walk(operand));
    // The mean is known before the deviations from it are summed.
    const bool mean = expr.op == Op::welford && fusion.val(val).result == 0;
    for (const SimpleReduction& r : reductions)
      if (r.expr == definition && !r.column && !(mean && r.part > 0))
        most = std::max(most, r.walk + 1);
  }
  return first_walks_[val] = most;
}

void GroupAnalysis::find_reductions() {
  for (const ExprId id : group.exprs) {
    const Expr& expr = fusion.expr(id);
    if (ir::info(expr.op).op_class != OpClass::kReduction) continue;
    const ValId operand = expr.operands[0];
    bool any = false;
    bool column = false;
    for (const std::int64_t axis : expr.attr<Ints>("axes")) {
      const int at = value_axes(operand)[static_cast<std::size_t>(axis)];
      if (at < 0) continue;
      any = true;
      column = column || domain.column_reduced[static_cast<std::size_t>(at)];
    }
    if (!any) continue;  // of one element
    SimpleReduction r{
        id,    0, ir::Monoid::kSum, compute_type(fusion.val(operand).dtype), first_walk(operand),
        column};
    for (const std::vector<ir::Monoid>& states : ir::info(expr.op).walks) {
      for (const ir::Monoid state : states) {
        r.op = state;
        reductions.push_back(r);
        ++r.part;
      }
      ++r.walk;
    }
  }
}

std::set<ValId> GroupAnalysis::dependencies_of(ValId val, bool same_walk) const {
  std::set<ValId> visited;
  std::vector<ValId> open{val};
  while (!open.empty()) {
    const ValId next = open.back();
    open.pop_back();
    const ExprId definition = fusion.val(next).definition;
    const bool reduced = std::any_of(reductions.begin(), reductions.end(), [&](const auto& r) {
      return r.expr == definition && definition.valid();
    });
    if ((same_walk && reduced) || !visited.insert(next).second || !definition.valid() ||
        context.reads(next))
      continue;
    const auto& operands = fusion.expr(definition).operands;
    open.insert(open.end(), operands.begin(), operands.end());
  }
  return visited;
}

/// A sum that nothing waits for goes into a later walk, where what it is made of is loaded for
/// others as well: the walk before has less to load and to compute.
void GroupAnalysis::postpone_reductions() {
  const auto loads_of = [&](ValId val) {
    std::set<ValId> loads = dependencies_of(val, true);
    std::erase_if(loads, [&](ValId v) { return !context.reads(v); });
    return loads;
  };
  const auto operand_of = [&](const SimpleReduction& r) { return fusion.expr(r.expr).operands[0]; };
  int last = 0;
  std::map<int, std::set<ValId>> loaded;  // by walk, for what stays in it
  for (const GroupResult& result : results) {
    last = std::max(last, result.walk);
    if (!result.column) loaded[result.walk].merge(loads_of(result.root));
  }
  for (std::size_t n = reductions.size(); n-- > 0;) {
    SimpleReduction& r = reductions[n];
    const Op op = fusion.expr(r.expr).op;
    const ValId value = fusion.expr(r.expr).results[0];
    int latest = r.walk;
    if (is_monoid(op)) {
      latest = r.column ? last : last - 1;
      for (const SimpleReduction& other : reductions)
        if (!r.column && other.expr != r.expr &&
            dependencies_of(operand_of(other), false).contains(value))
          latest = std::min(latest, other.walk - 1);
      for (const GroupResult& result : results)
        if (!r.column && dependencies_of(result.root, false).contains(value))
          latest = std::min(latest, result.walk - 1);
    }
    const std::set<ValId> loads = loads_of(operand_of(r));
    for (int walk = latest; walk > r.walk; --walk)
      if (std::includes(loaded[walk].begin(), loaded[walk].end(), loads.begin(), loads.end()))
        r.walk = walk;
    loaded[r.walk].insert(loads.begin(), loads.end());
  }
  first_walks_.clear();
  for (GroupResult& result : results) result.walk = first_walk(result.root);
}

/// What overwrites an input is stored in the last walk that loads the input. In that walk
/// KernelWriter::store() computes what else needs it before. A walk that is put off may put off
/// others.
void GroupAnalysis::order_stores() {
  bool changed = true;
  while (changed) {
    changed = false;
    for (GroupResult& result : results) {
      const ValId memory = context.memory_of(result.output);
      if (memory == result.output) continue;
      const int before = result.walk;
      for (const GroupResult& other : results)
        if (dependencies_of(other.root, true).contains(memory))
          result.walk = std::max(result.walk, other.walk);
      for (const SimpleReduction& r : reductions)
        if (!r.column && dependencies_of(fusion.expr(r.expr).operands[0], true).contains(memory))
          result.walk = std::max(result.walk, r.walk);
      changed = changed || result.walk != before;
    }
  }
}

std::vector<std::size_t> GroupAnalysis::reductions_of(ValId val) const {
  const std::set<ValId> all = dependencies_of(val, false);
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < reductions.size(); ++i) {
    const auto& made = fusion.expr(reductions[i].expr).results;
    if (std::any_of(made.begin(), made.end(), [&](ValId v) { return all.contains(v); }))
      found.push_back(i);
  }
  return found;
}

bool GroupAnalysis::depends_on_column(ValId val) const {
  const std::vector<std::size_t> all = reductions_of(val);
  return std::any_of(all.begin(), all.end(), [&](std::size_t i) { return reductions[i].column; });
}

/// Goes on from `root` back to what is computed.
void GroupAnalysis::add_results(GroupResult result) {
  while (is_local(result.root)) {
    const ExprId definition = fusion.val(result.root).definition;
    const Expr& expr = fusion.expr(definition);
    if (ir::info(expr.op).op_class != OpClass::kMovement || !moves_when_stored(definition)) break;
    for (std::size_t operand = 1; expr.op == Op::concat && operand < expr.operands.size();
         ++operand) {
      GroupResult part = result;
      part.path.insert(part.path.begin(), {definition, operand});
      part.root = expr.operands[operand];
      add_results(std::move(part));
    }
    result.path.insert(result.path.begin(), {definition, 0});
    result.root = expr.operands[0];
  }
  result.walk = first_walk(result.root);
  result.column = depends_on_column(result.root);
  results.push_back(std::move(result));
}

void GroupAnalysis::find_results() {
  for (const ValId output : group.boundary.outputs) {
    GroupResult result;
    result.output = output;
    result.root = output;
    add_results(std::move(result));
  }
}

void each_index(const loop::Kernel& kernel, const std::function<void(const Index&)>& visit) {
  auto conditions = [&](const std::vector<loop::Within>& when) {
    for (const loop::Within& condition : when) visit(condition.index);
  };
  loop::walk(kernel.body, [&](const loop::Statement& statement, int) {
    const auto& node = statement.node;
    if (const auto* s = std::get_if<loop::FromIndex>(&node)) visit(s->index);
    if (const auto* s = std::get_if<loop::Random>(&node)) visit(s->element);
    if (const auto* s = std::get_if<loop::Load>(&node)) visit(s->index), conditions(s->when);
    if (const auto* s = std::get_if<loop::Store>(&node)) visit(s->index), conditions(s->when);
    if (const auto* s = std::get_if<loop::Check>(&node))
      visit(s->within.index), conditions(s->when);
    if (const auto* s = std::get_if<loop::Accumulate>(&node)) visit(s->position);
  });
}

namespace {

bool collapsible(const loop::Indices& indices, const Index& index, loop::VarId a, loop::VarId b,
                 const Extent& extent) {
  Extent first = 0;
  Extent second = 0;
  for (const Index::Term& term : index.terms) {
    const loop::Atom& atom = indices.atom(term.atom);
    if (atom.kind == loop::Atom::Kind::kVar && atom.var == a) first = term.coefficient;
    if (atom.kind == loop::Atom::Kind::kVar && atom.var == b) second = term.coefficient;
    if (!collapsible(indices, atom.of, a, b, extent) ||
        !collapsible(indices, atom.other, a, b, extent))
      return false;
  }
  return first == second * extent;
}

}  // namespace

bool collapsible(const loop::Kernel& kernel, loop::VarId a, loop::VarId b, const Extent& extent) {
  bool all = true;
  each_index(kernel, [&](const Index& index) {
    all = all && collapsible(kernel.indices, index, a, b, extent);
  });
  return all;
}

GroupKernel GroupAnalysis::survey(std::vector<loop::VarId>& vars) const {
  GroupKernel out;
  KernelWriter writer(*this, out);
  Emitter& e = writer.emitter;
  e.outer(1);
  Coordinates at;
  for (const Extent& extent : domain.axes) {
    vars.push_back(e.indices().add_var(fmt::format("i{}", vars.size()), extent));
    at.push_back(e.indices().of(vars.back()));
    e.open(loop::For::Kind::kSerial, vars.back(), 0, Index(extent));
  }
  writer.domain_at = at;
  for (std::size_t i = 0; i < reductions.size(); ++i) {
    writer.accumulate(i);
    writer.assume(i);
  }
  for (const GroupResult& result : results) writer.store(result, {});
  for (std::size_t i = 0; i < domain.axes.size(); ++i) e.close();
  e.finish();
  return out;
}

void GroupAnalysis::collapse_axes(const GroupKernel& survey, const std::vector<loop::VarId>& vars) {
  for (GroupResult& result : results) {
    result.along.assign(domain.axes.size(), false);
    auto note = [&](ValId val) {
      if (!has_axes(val)) return;
      for (const int axis : value_axes(val))
        if (axis >= 0) result.along[static_cast<std::size_t>(axis)] = true;
    };
    note(result.root);
    for (const GroupResult::Step& step : result.path)
      if (fusion.expr(step.move).op == Op::broadcast) note(fusion.expr(step.move).results[0]);
    for (std::size_t axis = 0; axis < domain.axes.size(); ++axis)
      result.full = result.full || (result.along[axis] && domain.reduced[axis]);
  }
  auto role = [&](std::size_t axis) {
    return domain.reduced[axis]          ? Role::kReduced
           : domain.column_reduced[axis] ? Role::kColumn
                                         : Role::kParallel;
  };
  for (std::size_t axis = 0; axis < domain.axes.size(); ++axis) {
    const Extent extent = fusion.canonical(domain.axes[axis]);
    bool join = axis > 0 && role(axis) == role(axis - 1) &&
                collapsible(survey.kernel, vars[axis - 1], vars[axis], extent);
    for (const GroupResult& result : results)
      join = join && result.along[axis] == result.along[axis - 1];
    if (join) {
      collapsed.back().push_back(axis);
      space.axes.back().extent = space.axes.back().extent * extent;
    } else {
      collapsed.push_back({axis});
      space.axes.push_back({extent, role(axis), 1});
    }
  }
}

namespace {

/// The axis of the domain along which neighbours in memory are; -1 if none is.
int unit_axis(const loop::Kernel& kernel, const Index& index,
              const std::vector<loop::VarId>& vars) {
  for (std::size_t axis = vars.size(); axis-- > 0;) {
    const auto stride = kernel.indices.stride(index, vars[axis]);
    if (stride && stride->is_constant(1)) return static_cast<int>(axis);
  }
  return -1;
}

/// The axis along which neighbours are nearest, where the distance is known; -1 if it is for none.
int nearest_axis(const loop::Kernel& kernel, const Index& index,
                 const std::vector<loop::VarId>& vars) {
  int nearest = -1;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t axis = vars.size(); axis-- > 0;) {
    const auto stride = kernel.indices.stride(index, vars[axis]);
    if (!stride || !stride->is_constant() || stride->constant() <= 0 || stride->constant() >= least)
      continue;
    least = stride->constant();
    nearest = static_cast<int>(axis);
  }
  return nearest;
}

}  // namespace

void GroupAnalysis::describe_space(const GroupKernel& survey,
                                   const std::vector<loop::VarId>& vars) {
  const loop::Kernel& kernel = survey.kernel;
  space.kind = domain.kind;
  SizeHints known = hints;
  const SegmentContext sizes(fusion, known);
  for (SpaceAxis& axis : space.axes)
    axis.hint = std::max<std::int64_t>(1, sizes.value_of(axis.extent));
  auto space_axis = [&](int domain_axis) {
    for (std::size_t i = 0; i < collapsed.size(); ++i)
      if (domain_axis >= 0 && collapsed[i].back() == static_cast<std::size_t>(domain_axis))
        return static_cast<int>(i);
    return -1;
  };
  auto is_full = [&](const Index& index) {
    return std::all_of(vars.begin(), vars.end(), [&](loop::VarId var) {
      return kernel.indices.var(var).bound.is_constant(1) || kernel.indices.depends_on(index, var);
    });
  };
  space.widest = 0;
  space.narrowest = 8;
  auto width = [&](loop::BufferId buffer) {
    const int bytes = static_cast<int>(size_of(kernel.buffer(buffer).dtype));
    space.widest = std::max(space.widest, bytes);
    space.narrowest = std::min(space.narrowest, bytes);
  };
  int written = -1;
  int read = -1;
  int any = -1;
  int near = -1;  // elements of several values beside each other: interleaved
  loop::walk(kernel.body, [&](const loop::Statement& statement, int) {
    if (const auto* s = std::get_if<loop::Store>(&statement.node)) {
      if (any < 0) any = unit_axis(kernel, s->index, vars);
      if (!is_full(s->index)) return;
      width(s->buffer);
      if (written < 0) written = unit_axis(kernel, s->index, vars);
      if (near < 0) near = nearest_axis(kernel, s->index, vars);
    }
    if (const auto* s = std::get_if<loop::Load>(&statement.node)) {
      if (any < 0) any = unit_axis(kernel, s->index, vars);
      if (!is_full(s->index)) return;
      width(s->buffer);
      ++space.loads;
      const int axis = unit_axis(kernel, s->index, vars);
      if (read < 0 || (domain.kind == GroupKind::kTiledTranspose && read == written)) read = axis;
    }
  });
  if (space.widest == 0) space.widest = space.narrowest = 4;
  if (any < 0 && domain.kind == GroupKind::kPointwise) any = near;
  space.inner = space_axis(written >= 0 ? written : read >= 0 ? read : any);
  if (domain.kind == GroupKind::kTiledTranspose) space.cross = space_axis(read);
  if (space.cross == space.inner) space.cross = -1;
  space.reductions = static_cast<int>(reductions.size());
  for (const SimpleReduction& r : reductions) space.column_sums += r.column ? 1 : 0;
  space.phases = 1;
  for (const GroupResult& result : results) space.phases = std::max(space.phases, result.walk + 1);
  space.expensive = repeats_expensive();
}

bool GroupAnalysis::repeats_expensive() const {
  std::map<ir::ExprId, std::set<int>> walks;
  std::set<std::pair<ir::ValId, int>> visited;
  const std::function<void(ir::ValId, int)> visit = [&](ir::ValId val, int walk) {
    const ir::ExprId definition = fusion.val(val).definition;
    if (!definition.valid() || context.reads(val) || !visited.insert({val, walk}).second) return;
    const ir::Expr& expr = fusion.expr(definition);
    if (ir::info(expr.op).op_class == ir::OpClass::kReduction) return;
    if (costs_more_than_a_load(expr.op)) walks[definition].insert(walk);
    for (const ir::ValId operand : expr.operands) visit(operand, walk);
  };
  for (const SimpleReduction& r : reductions) visit(fusion.expr(r.expr).operands[0], r.walk);
  for (const GroupResult& result : results)
    if (result.full) visit(result.root, result.walk);
  return std::any_of(walks.begin(), walks.end(),
                     [](const auto& entry) { return entry.second.size() > 1; });
}

}  // namespace segfuse::compiler
