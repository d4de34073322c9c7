#include "compiler/segment/axes.h"

#include <fmt/core.h>

#include <algorithm>

#include "compiler/op_facts.h"
#include "segfuse/error.h"

namespace segfuse::compiler {

using ir::Expr;
using ir::ExprId;
using ir::Extents;
using ir::Op;
using ir::ValId;
using Ints = std::vector<std::int64_t>;

namespace {

constexpr int kMaxClasses = 64;  // bits of a mask

}  // namespace

GroupAxes::GroupAxes(const GroupView& view, bool store_concats)
    : view_(view), fusion_(view.context.fusion()), needs_(view, store_concats) {}

GroupAxes::~GroupAxes() {
  for (const Placed& placed : placed_) view_.context.slots()[placed.val.index] = -1;
}

bool GroupAxes::refuse(std::string reason) {
  reason_ = std::move(reason);
  return false;
}

int GroupAxes::fresh(const ir::Extent& extent) {
  const ir::Extent known = fusion_.canonical(extent);
  if (fusion_.equal(known, 1)) return -1;  // also by a requirement
  parent_.push_back(static_cast<int>(parent_.size()));
  extents_.push_back(known);
  return parent_.back();
}

std::vector<int> GroupAxes::fresh_nodes(ValId val) {
  std::vector<int> nodes;
  for (const ir::Extent& extent : fusion_.val(val).shape) nodes.push_back(fresh(extent));
  return nodes;
}

int GroupAxes::find(int node) const {
  while (parent_[static_cast<std::size_t>(node)] != node) {
    int& up = parent_[static_cast<std::size_t>(node)];
    up = parent_[static_cast<std::size_t>(up)];
    node = up;
  }
  return node;
}

void GroupAxes::unite(const std::vector<int>& a, const std::vector<int>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] < 0 || b[i] < 0) continue;
    const int one = find(a[i]);
    const int other = find(b[i]);
    parent_[static_cast<std::size_t>(std::max(one, other))] = std::min(one, other);
  }
}

int GroupAxes::add(Placed placed) {
  const int slot = static_cast<int>(placed_.size());
  view_.context.slots()[placed.val.index] = slot;
  placed_.push_back(std::move(placed));
  return slot;
}

/// The slot of an operand; a value from outside becomes a load of itself.
int GroupAxes::operand_slot(ValId val) {
  if (const int known = slot(val); known >= 0) return known;
  Placed placed;
  placed.val = val;
  if (view_.context.is_free(val)) return add(std::move(placed));
  placed.place = Place::kLoad;
  placed.nodes = fresh_nodes(val);
  placed.base = val;
  placed.base_rank = static_cast<int>(placed.nodes.size());
  placed.linear = true;
  for (int i = 0; i < placed.base_rank; ++i) placed.memory.push_back(i);
  placed.exact.assign(placed.nodes.size(), true);
  return add(std::move(placed));
}

bool GroupAxes::elementwise(ExprId id) {
  const Expr& e = fusion_.expr(id);
  Placed result;
  result.val = e.results[0];
  result.place = Place::kLocal;
  result.touched = needs_.of(result.val).in_place;
  for (const ValId operand : e.operands) {
    Placed& from = placed_[static_cast<std::size_t>(operand_slot(operand))];
    if (from.place == Place::kStored)
      return refuse("a reshaped value is used again where it was computed");
    if (from.place == Place::kFree) continue;
    from.touched = from.touched || result.touched;
    if (result.nodes.empty()) {
      result.nodes = from.nodes;
    } else {
      unite(result.nodes, from.nodes);
    }
  }
  if (result.nodes.empty()) result.nodes = fresh_nodes(result.val);
  add(std::move(result));
  return true;
}

bool GroupAxes::reduce(ExprId id) {
  const Expr& e = fusion_.expr(id);
  const int from = operand_slot(e.operands[0]);
  Placed& operand = placed_[static_cast<std::size_t>(from)];
  if (operand.place == Place::kStored)
    return refuse("a reshaped value is reduced where it was computed");
  if (operand.place == Place::kFree) {  // as many equal elements as the axes have
    operand.nodes = fresh_nodes(operand.val);
    operand.place = Place::kLocal;
  }
  operand.touched = true;  // computed where it is, wherever the result goes
  ReducedNodes reduction{id, from, {}};
  std::vector<int> kept;
  const auto& axes = e.attr<Ints>("axes");
  for (std::size_t i = 0; i < operand.nodes.size(); ++i) {
    const bool gone = std::binary_search(axes.begin(), axes.end(), static_cast<std::int64_t>(i));
    if (!gone) {
      kept.push_back(operand.nodes[i]);
    } else if (operand.nodes[i] >= 0) {
      reduction.nodes.push_back(operand.nodes[i]);
    }
  }
  for (const ValId value : e.results) {
    Placed result;
    result.val = value;
    result.place = Place::kLocal;
    result.touched = true;
    result.nodes = kept;
    add(std::move(result));
  }
  if (!reduction.nodes.empty()) reductions_.push_back(std::move(reduction));
  return true;
}

/// Movement of a value that this kernel computes: the same classes in another order.
bool GroupAxes::move_local(const Expr& e, const Placed& from) {
  Placed result;
  result.val = e.results[0];
  result.place = from.place;
  result.touched = needs_.of(result.val).in_place;
  result.merged = from.merged;
  const std::size_t rank = fusion_.val(result.val).shape.size();
  result.nodes.assign(rank, -1);
  if (e.op == Op::permute) {
    const auto& perm = e.attr<Ints>("perm");
    for (std::size_t i = 0; i < rank; ++i)
      result.nodes[i] = from.nodes[static_cast<std::size_t>(perm[i])];
  } else if (e.op == Op::squeeze) {
    const auto& axes = e.attr<Ints>("axes");
    for (std::size_t i = 0, next = 0; i < from.nodes.size(); ++i)
      if (!std::binary_search(axes.begin(), axes.end(), static_cast<std::int64_t>(i)))
        result.nodes[next++] = from.nodes[i];
  } else if (e.op == Op::broadcast) {
    const auto& axes = e.attr<Ints>("axes");
    std::vector<int> nodes = fresh_nodes(result.val);
    for (std::size_t i = 0; i < axes.size(); ++i)
      if (from.nodes[i] >= 0) nodes[static_cast<std::size_t>(axes[i])] = from.nodes[i];
    result.nodes = std::move(nodes);
  } else if (e.op == Op::reshape) {
    const ReshapedAxes axes =
        reshaped_axes(fusion_, fusion_.val(e.operands[0]).shape, fusion_.val(result.val).shape);
    for (std::size_t i = 0; i < rank; ++i)
      if (axes.from[i] >= 0) result.nodes[i] = from.nodes[static_cast<std::size_t>(axes.from[i])];
    for (const int node : from.nodes)
      if (std::find(result.nodes.begin(), result.nodes.end(), node) == result.nodes.end())
        result.merged.push_back(node);
    result.place = Place::kStored;
  } else {
    return refuse(fmt::format("'{}' moves elements of a value that is computed in the same kernel",
                              ir::info(e.op).name));
  }
  add(std::move(result));
  return true;
}

/// Movement of what this kernel computes at the position that is moved to: the axes that stay are
/// the operand's, the others are new.
bool GroupAxes::move_again(const Expr& e, ExprId id) {
  Placed result;
  result.val = e.results[0];
  result.place = Place::kLocal;
  result.touched = needs_.of(result.val).in_place;
  result.nodes = fresh_nodes(result.val);
  std::vector<bool> placed(result.nodes.size(), false);
  std::vector<int>& moved = moved_[id];
  const std::size_t sources = e.op == Op::concat ? e.operands.size() : 1;
  for (std::size_t source = 0; source < sources; ++source) {
    const Placed& from = placed_[static_cast<std::size_t>(slot(e.operands[source]))];
    if (from.place == Place::kFree) continue;
    if (from.place == Place::kStored)
      return refuse("a reshaped value is moved where it was computed");
    const std::vector<int> to = kept_axes(fusion_, e, source);
    for (std::size_t axis = 0; axis < to.size(); ++axis) {
      const int node = from.nodes[axis];
      if (to[axis] < 0) {
        if (node >= 0) moved.push_back(node);
        continue;
      }
      const auto at = static_cast<std::size_t>(to[axis]);
      if (placed[at]) {
        unite({result.nodes[at]}, {node});
      } else {
        result.nodes[at] = node;
        placed[at] = true;
      }
    }
  }
  add(std::move(result));
  return true;
}

/// A concat whose operands are stored beside each other: all are of one shape.
bool GroupAxes::join_stored(const Expr& e) {
  Placed result;
  result.val = e.results[0];
  result.place = Place::kStored;
  result.touched = true;
  for (const ValId operand : e.operands) {
    Placed& from = placed_[static_cast<std::size_t>(slot(operand))];
    if (from.place == Place::kStored)
      return refuse("a reshaped value is joined where it was computed");
    if (from.place == Place::kFree) {
      from.nodes = fresh_nodes(from.val);
      from.place = Place::kLocal;
    }
    from.touched = true;
    if (result.nodes.empty()) {
      result.nodes = from.nodes;
    } else {
      unite(result.nodes, from.nodes);
    }
  }
  add(std::move(result));
  return true;
}

/// Movement of what is in memory: another way to read it.
void GroupAxes::move_load(const Expr& e, ExprId /*id*/, const Placed& from) {
  Placed result;
  result.val = e.results[0];
  result.place = Place::kLoad;
  result.base = from.base;
  result.base_rank = from.base_rank;
  result.nodes = fresh_nodes(result.val);
  result.linear =
      from.linear && (e.op == Op::permute || e.op == Op::broadcast || e.op == Op::squeeze);
  const Extents before = fusion_.canonical(fusion_.val(e.operands[0]).shape);
  const Extents after = fusion_.canonical(fusion_.val(result.val).shape);
  const std::size_t rank = after.size();
  result.memory.assign(rank, -1);
  result.exact.assign(rank, false);
  auto follow = [&](std::size_t to, std::size_t of, bool exact) {
    if (from.memory.empty()) return;  // of a free value: nothing is read
    result.memory[to] = from.memory[of];
    result.exact[to] = exact && from.exact[of];
  };
  switch (ir::as<ir::MovementOp>(e.op)) {
    case ir::MovementOp::permute: {
      const auto& perm = e.attr<Ints>("perm");
      for (std::size_t i = 0; i < rank; ++i) follow(i, static_cast<std::size_t>(perm[i]), true);
      break;
    }
    case ir::MovementOp::squeeze: {
      const auto& axes = e.attr<Ints>("axes");
      for (std::size_t i = 0, next = 0; i < before.size(); ++i)
        if (!std::binary_search(axes.begin(), axes.end(), static_cast<std::int64_t>(i)))
          follow(next++, i, true);
      break;
    }
    case ir::MovementOp::broadcast: {
      const auto& axes = e.attr<Ints>("axes");
      for (std::size_t i = 0; i < axes.size(); ++i)
        if (!before[i].is_constant(1)) follow(static_cast<std::size_t>(axes[i]), i, true);
      break;
    }
    case ir::MovementOp::reshape: {
      const ReshapedAxes axes = reshaped_axes(fusion_, before, after);
      for (std::size_t i = 0; i < rank; ++i)
        if (axes.from[i] >= 0) follow(i, static_cast<std::size_t>(axes.from[i]), axes.exact[i]);
      break;
    }
    case ir::MovementOp::take:
    case ir::MovementOp::gather:
    case ir::MovementOp::unfold: {  // `axis` is replaced by what the indices or windows have
      const auto axis = static_cast<std::size_t>(e.attr<std::int64_t>("axis"));
      for (std::size_t i = 0; i < before.size(); ++i)
        if (i != axis) follow(i < axis ? i : i + rank - before.size(), i, true);
      break;
    }
    case ir::MovementOp::slice:
    case ir::MovementOp::pad:
    case ir::MovementOp::concat:
      for (std::size_t i = 0; i < rank; ++i) follow(i, i, fusion_.equal(before[i], after[i]));
      break;
    case ir::MovementOp::scatter_add:
    case ir::MovementOp::fold:
      throw InternalError(fmt::format("'{}' runs alone", ir::info(e.op).name));
  }
  add(std::move(result));
}

bool GroupAxes::move(ExprId id) {
  const Expr& e = fusion_.expr(id);
  const std::size_t sources = e.op == Op::concat ? e.operands.size() : 1;
  int first = -1;
  bool local = false;
  for (std::size_t i = 0; i < sources; ++i) {
    const int s = operand_slot(e.operands[i]);
    const Place place = placed_[static_cast<std::size_t>(s)].place;
    local = local || place == Place::kLocal || place == Place::kStored;
    if (first < 0 || placed_[static_cast<std::size_t>(first)].place == Place::kFree) first = s;
  }
  if (!local) {
    move_load(e, id, Placed(placed_[static_cast<std::size_t>(first)]));
  } else if (!needs_.is_stored(id) && !keeps_positions(e.op)) {
    if (!move_again(e, id)) return false;
  } else if (e.op == Op::concat) {
    return join_stored(e);
  } else {
    return move_local(e, Placed(placed_[static_cast<std::size_t>(first)]));
  }
  if (!ir::has_indices(e.op)) return true;
  // The indices run along with the result.
  const int index = operand_slot(e.operands[1]);
  Placed& indices = placed_[static_cast<std::size_t>(index)];
  if (indices.place == Place::kStored) return refuse("a reshaped value is used as indices");
  if (indices.place == Place::kFree) return true;
  const Placed& result = placed_[static_cast<std::size_t>(slot(e.results[0]))];
  indices.touched = indices.touched || needs_.of(result.val).in_place;
  const auto axis = e.op == Op::gather ? 0 : e.attr<std::int64_t>("axis");
  const auto begin = result.nodes.begin() + axis;
  unite({begin, begin + static_cast<std::ptrdiff_t>(indices.nodes.size())}, indices.nodes);
  return true;
}

bool GroupAxes::visit(ExprId id) {
  const Expr& e = fusion_.expr(id);
  switch (ir::info(e.op).op_class) {
    case ir::OpClass::kElementwise: return elementwise(id);
    case ir::OpClass::kReduction: return reduce(id);
    case ir::OpClass::kMovement: return move(id);
    case ir::OpClass::kCreation:
    case ir::OpClass::kOpaque: break;
  }
  for (const ValId operand : e.operands) (void)operand_slot(operand);  // a seed
  Placed result;
  result.val = e.results[0];
  result.place = Place::kLocal;
  result.touched = true;
  result.nodes = fresh_nodes(result.val);
  add(std::move(result));
  return true;
}

/// Whether a value has two axes in one class: only its diagonal would be there.
bool GroupAxes::conflict() const {
  std::vector<int> roots;
  for (const Placed& placed : placed_) {
    if (!placed.touched) continue;
    roots.clear();
    for (const auto* nodes : {&placed.nodes, &placed.merged})
      for (const int node : *nodes)
        if (node >= 0) roots.push_back(find(node));
    std::sort(roots.begin(), roots.end());
    if (std::adjacent_find(roots.begin(), roots.end()) != roots.end()) return true;
  }
  return false;
}

bool GroupAxes::try_unite(const std::vector<std::pair<int, int>>& pairs) {
  bool news = false;
  for (const auto& [a, b] : pairs) news = news || find(a) != find(b);
  if (!news) return false;
  const std::vector<int> before = parent_;
  for (const auto& [a, b] : pairs) unite({a}, {b});
  if (!conflict()) return true;
  parent_ = before;
  return false;
}

/// Two ways of reading one input become one where they can: it is then loaded once.
void GroupAxes::join_loads() {
  for (std::size_t i = 0; i < placed_.size(); ++i) {
    const Placed& one = placed_[i];
    if (one.place != Place::kLoad || !one.touched || !one.linear) continue;
    for (std::size_t j = i + 1; j < placed_.size(); ++j) {
      const Placed& other = placed_[j];
      if (other.base != one.base || other.place != Place::kLoad || !other.touched || !other.linear)
        continue;
      std::vector<std::pair<int, int>> pairs;
      for (std::size_t a = 0; a < one.nodes.size(); ++a)
        for (std::size_t b = 0; b < other.nodes.size(); ++b)
          if (one.memory[a] >= 0 && one.memory[a] == other.memory[b] && one.nodes[a] >= 0 &&
              other.nodes[b] >= 0)
            pairs.emplace_back(one.nodes[a], other.nodes[b]);
      (void)try_unite(pairs);
    }
  }
}

/// An axis that is reduced away may be run along again for something else of the same size.
void GroupAxes::join_reduced() {
  for (const ReducedNodes& reduction : reductions_) {
    for (const int gone : reduction.nodes) {
      for (int node = 0; node < static_cast<int>(parent_.size()); ++node) {
        if (spanning()) return;
        const int root = find(node);
        if (root != node || root == find(gone) || classes_[static_cast<std::size_t>(root)] < 0 ||
            !fusion_.equal(extent_of(root), extent_of(find(gone))))
          continue;
        if (try_unite({{gone, node}})) number_classes();
      }
    }
  }
}

void GroupAxes::number_classes() {
  classes_.assign(parent_.size(), -1);
  class_count_ = 0;
  space_ = 0;
  for (const Placed& placed : placed_) {
    if (!placed.touched) continue;
    for (const int node : placed.nodes) {
      if (node < 0) continue;
      int& number = classes_[static_cast<std::size_t>(find(node))];
      if (number < 0) number = class_count_++;
      if (number < kMaxClasses) space_ |= std::uint64_t{1} << number;
    }
  }
}

std::uint64_t GroupAxes::mask(const std::vector<int>& nodes) const {
  std::uint64_t all = 0;
  for (const int node : nodes)
    if (const int number = class_of(node); number >= 0) all |= std::uint64_t{1} << number;
  return all;
}

std::uint64_t GroupAxes::mask(const Placed& placed) const { return mask(placed.nodes); }

const Placed* GroupAxes::spanning() const {
  const Placed* loaded = nullptr;
  for (const Placed& placed : placed_) {
    if (!placed.touched || placed.place == Place::kStored || mask(placed) != space_) continue;
    if (placed.place == Place::kLocal) return &placed;
    if (!loaded) loaded = &placed;
  }
  return loaded;
}

/// What a reduction gave is there at the position of the row that is walked, and nowhere else.
std::optional<std::string> GroupAxes::check_moves() const {
  for (const ExprId id : view_.exprs) {
    const Expr& e = fusion_.expr(id);
    if (ir::info(e.op).op_class != ir::OpClass::kReduction) continue;
    for (const ValId result : e.results)
      for (int path : needs_.of(result).paths)
        for (; path >= 0; path = needs_.paths()[static_cast<std::size_t>(path)].after) {
          const ExprId move = needs_.paths()[static_cast<std::size_t>(path)].move;
          for (const int moved : moved_.at(move))
            for (const int node : placed_[static_cast<std::size_t>(slot(result))].nodes)
              if (node >= 0 && find(node) == find(moved))
                return fmt::format(
                    "'{}' moves the result of a reduction along an axis that the reduction kept",
                    ir::info(fusion_.expr(move).op).name);
        }
  }
  return {};
}

/// What is stored beside each other is written by the same loops.
std::optional<std::string> GroupAxes::check_joined() const {
  for (const ExprId id : needs_.stored()) {
    if (fusion_.expr(id).op != Op::concat) continue;
    for (const ValId operand : fusion_.expr(id).operands)
      if (mask(placed_[static_cast<std::size_t>(slot(operand))]) != space_)
        return "'concat' joins values that do not have all axes of the kernel";
  }
  return {};
}

std::optional<std::string> GroupAxes::run() {
  if (auto reason = needs_.refused()) return reason;
  for (const ExprId id : view_.exprs)
    if (!visit(id)) return reason_;
  for (const ValId output : view_.boundary.outputs) {  // copies
    Placed& placed = placed_[static_cast<std::size_t>(slot(output))];
    placed.touched = true;
  }
  if (conflict()) return "a value is needed at two places of the iteration space at once";
  if (auto reason = check_moves()) return reason;
  join_loads();
  number_classes();
  if (class_count_ > kMaxClasses) return "the iteration space has more than 64 axes";
  if (!spanning()) join_reduced();
  if (!spanning()) return "no value has all axes of the kernel";
  return check_joined();
}

}  // namespace segfuse::compiler
