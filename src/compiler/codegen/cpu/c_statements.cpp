#include "compiler/codegen/cpu/c_statements.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/half_types.h"
#include "segfuse/error.h"

namespace segfuse::compiler::cpu {

using namespace loop;

CStatements::CStatements(const Kernel& kernel, const Varying& varying, const CNames& names)
    : kernel_(kernel),
      varying_(varying),
      names_(names),
      needed_(kernel.values.size(), false),
      widths_(kernel.reductions.size(), 1) {
  mark_needed(kernel.body);
  walk(kernel.body, [&](const Statement& statement, int) {
    const auto* loop = std::get_if<For>(&statement.node);
    if (loop == nullptr || loop->kind != For::Kind::kLane) return;
    walk(loop->body, [&](const Statement& inner, int) {
      if (const auto* s = std::get_if<Accumulate>(&inner.node)) {
        int& width = widths_[s->reduction.index];
        width = std::max(width, varying_.count(*loop));
      }
    });
  });
}

void CStatements::need(const Index& index) {
  kernel_.indices.each_value(index, [&](ValueId id) { needed_[id.index] = true; });
}

void CStatements::need(const std::vector<Within>& when) {
  for (const Within& condition : when) need(condition.index);
}

/// Uses come after definitions, so one way back finds all that effects need.
void CStatements::mark_needed(const std::vector<Statement>& body) {
  for (auto statement = body.rbegin(); statement != body.rend(); ++statement)
    mark_needed(*statement);
}

void CStatements::mark_needed(const Statement& statement) {
  const auto& node = statement.node;
  if (const auto* s = std::get_if<Compute>(&node)) {
    if (needed(s->result))
      for (const ValueId operand : s->operands) needed_[operand.index] = true;
  }
  if (const auto* s = std::get_if<FromIndex>(&node)) {
    if (needed(s->result)) need(s->index);
  }
  if (const auto* s = std::get_if<Random>(&node)) {
    if (!needed(s->result)) return;
    needed_[s->key.index] = needed_[s->sequence.index] = true;
    need(s->element);
  }
  if (const auto* s = std::get_if<Load>(&node)) {
    if (needed(s->result)) need(s->index), need(s->when);
  }
  if (const auto* s = std::get_if<Store>(&node)) {
    needed_[s->value.index] = true;
    need(s->index);
    need(s->when);
  }
  if (const auto* s = std::get_if<Check>(&node)) {
    need(s->within.index);
    need(s->when);
  }
  if (const auto* s = std::get_if<Accumulate>(&node)) {
    needed_[s->value.index] = true;
    need(s->position);
  }
  if (const auto* s = std::get_if<Transpose>(&node)) {
    for (const Index* index : {&s->to_at, &s->from_at, &s->height, &s->width}) need(*index);
  }
  if (const auto* s = std::get_if<For>(&node)) {
    mark_needed(s->body);
    need(s->begin);
    need(s->end);
  }
  if (const auto* s = std::get_if<If>(&node)) {
    mark_needed(s->body);
    need(s->when);
  }
}

std::string CStatements::outer_loop() {
  const std::string& o = names_.var(kernel_.outer);
  text_.deeper();
  text_.open(fmt::format("for (int64_t {} = begin; {} < end; ++{})", o, o, o));
  declare_states(kernel_.body, nullptr);
  block(kernel_.body, nullptr);
  text_.close();
  return text_.take();
}

void CStatements::block(const std::vector<Statement>& body, const Lane* lane) {
  for (const Statement& statement : body) print(statement, lane);
}

void CStatements::print(const Statement& statement, const Lane* lane) {
  const auto& node = statement.node;
  if (const auto* s = std::get_if<Compute>(&node)) {
    if (needed(s->result)) define(s->result, compute(*s, lane), lane);
  }
  if (const auto* s = std::get_if<Constant>(&node)) {
    if (needed(s->result)) define(s->result, literal(kernel_.dtype(s->result), s->value), lane);
  }
  if (const auto* s = std::get_if<FromIndex>(&node)) {
    if (needed(s->result)) define(s->result, from_index(*s, lane), lane);
  }
  if (const auto* s = std::get_if<Random>(&node)) {
    if (needed(s->result)) define(s->result, random(*s, lane), lane);
  }
  if (const auto* s = std::get_if<Load>(&node)) {
    if (needed(s->result)) print(*s, lane);
  }
  if (const auto* s = std::get_if<Store>(&node)) {
    print(*s, lane);
  }
  if (const auto* s = std::get_if<Check>(&node)) {
    print(*s, lane);
  }
  if (const auto* s = std::get_if<Begin>(&node)) {
    print(*s, lane);
  }
  if (const auto* s = std::get_if<Accumulate>(&node)) {
    print(*s, lane);
  }
  if (const auto* s = std::get_if<Finish>(&node)) {
    print(*s, lane);
  }
  if (const auto* s = std::get_if<Transpose>(&node)) {
    print(*s);
  }
  if (const auto* s = std::get_if<For>(&node)) {
    print(*s, lane);
  }
  if (const auto* s = std::get_if<If>(&node)) {
    print(*s, lane);
  }  // a Barrier has nothing to do: lane loops end before the next begins
}

void CStatements::define(ValueId result, const std::string& value, const Lane* lane) {
  const DType dtype = kernel_.dtype(result);
  const std::string name = names_.value(result, nullptr);
  if (!varying_.value(result)) {
    text_.line("const {} {} = {};", scalar_type(dtype), name, value);
  } else if (lane->count == 1) {
    text_.line("const sf_{} {} = {};", lane_type(dtype), name, value);
  } else {
    text_.line("sf_{} {}[{}];", lane_type(dtype), name, lane->count);
    text_.line("SF_EACH({}, {}[u] = {};)", lane->count, name, value);
  }
}

void CStatements::each(const Lane* lane, const std::string& statement) {
  if (lane != nullptr && lane->count > 1) {
    text_.line("SF_EACH({}, {})", lane->count, statement);
  } else {
    text_.line("{}", statement);
  }
}

std::string CStatements::uniform(const std::vector<Within>& when) const {
  std::string text;
  for (const Within& condition : when)
    text += fmt::format("{}sf_inside({}, {})", text.empty() ? "" : " && ",
                        names_.scalar(condition.index, nullptr), names_.size(condition.bound));
  return text;
}

/// The lanes that are there and where all conditions hold; empty: all of them.
std::string CStatements::mask(const std::vector<Within>& when, const Lane* lane) {
  std::string value = lane->mask;
  const auto add = [&](const std::string& part) { value += (value.empty() ? "" : " & ") + part; };
  for (const Within& condition : when) {
    if (varying_.index(condition.index, lane)) {
      add(fmt::format("sf_within({}, {})", names_.vector(condition.index, lane),
                      names_.size(condition.bound)));
    } else {
      add("sf_all_bool(" + uniform({condition}) + ")");
    }
  }
  if (value.empty()) return "";
  if (lane->tail) add("sf_lanes_below(lanes)");
  const std::string name = fmt::format("m{}", masks_++);
  if (lane->count == 1) {
    text_.line("const sf_bool {} = {};", name, value);
    return name;
  }
  text_.line("sf_bool {}[{}];", name, lane->count);
  text_.line("SF_EACH({}, {}[u] = {};)", lane->count, name, value);
  return name + "[u]";
}

std::string CStatements::place(BufferId buffer, const Index& index, const Lane* lane) const {
  const std::string at = names_.scalar(index, lane);
  return at == "0" ? names_.buffer(buffer) : names_.buffer(buffer) + " + " + at;
}

namespace {

/// How the elements of neighbouring lanes lie: `stride` apart, or anywhere.
struct Walk {
  bool known = false;
  ir::Extent stride;
};

Walk walk_of(const Kernel& kernel, const Varying& varying, const Index& index, const Lane* lane) {
  bool gathered = false;
  kernel.indices.each_value(index, [&](ValueId id) { gathered = gathered || varying.value(id); });
  if (gathered) return {};
  const auto stride = kernel.indices.stride(index, lane->var);
  if (!stride || stride->is_constant(0)) return {};
  return {true, *stride};
}

}  // namespace

void CStatements::print(const Load& s, const Lane* lane) {
  const KernelBuffer& buffer = kernel_.buffer(s.buffer);
  const DType dtype = kernel_.dtype(s.result);
  const std::string load = fmt::format("sf_load_{}", memory_type(buffer.dtype));
  if (!varying_.value(s.result)) {
    const std::string at = place(s.buffer, s.index, lane);
    std::string value = fmt::format("sf_first_{}({}_n({}, 1))", lane_type(buffer.dtype), load, at);
    if (buffer.dtype != DType::kF16 && buffer.dtype != DType::kBF16)
      value = fmt::format("{}[{}]", names_.buffer(s.buffer), names_.scalar(s.index, lane));
    if (buffer.dtype == DType::kBool) value += " != 0";
    if (!s.when.empty())
      value = fmt::format("{} ? {} : {}", uniform(s.when), value, literal(dtype, s.otherwise));
    return define(s.result, value, lane);
  }
  const std::string where = mask(s.when, lane);
  const Walk walk = walk_of(kernel_, varying_, s.index, lane);
  const std::string lanes = lane->tail ? "lanes" : "SF_LANES";
  std::string value;
  if (!walk.known) {
    value = fmt::format("{}_{}({}, {}, {})", load, where.empty() ? "at" : "where",
                        names_.buffer(s.buffer), names_.vector(s.index, lane),
                        where.empty() ? lanes : where);
  } else if (!where.empty()) {
    const std::string at = place(s.buffer, s.index, lane);
    const std::string apart = "sf_lanes_i64(0) * " + names_.size(walk.stride);
    value = walk.stride.is_constant(1)
                ? fmt::format("{}_in({}, {})", load, at, where)
                : fmt::format("{}_where({}, {}, {})", load, at, apart, where);
  } else if (!walk.stride.is_constant(1)) {
    value = fmt::format("{}_strided({}, {}, {})", load, place(s.buffer, s.index, lane),
                        names_.size(walk.stride), lanes);
  } else {
    value = fmt::format("{}{}({}{})", load, lane->tail ? "_n" : "", place(s.buffer, s.index, lane),
                        lane->tail ? ", lanes" : "");
  }
  if (!s.when.empty() && s.otherwise != 0)
    value = fmt::format("sf_select_{}({}, {}, sf_all_{}({}))", lane_type(dtype), where, value,
                        lane_type(dtype), literal(dtype, s.otherwise));
  define(s.result, value, lane);
}

void CStatements::print(const Store& s, const Lane* lane) {
  const KernelBuffer& buffer = kernel_.buffer(s.buffer);
  const std::string store = fmt::format("sf_store_{}", memory_type(buffer.dtype));
  const bool masked = lane != nullptr && (!lane->mask.empty() || varying_.any(s.when, lane));
  if (!masked && !varying_.index(s.index, lane) && !varying_.value(s.value)) {
    const std::string value = names_.value(s.value, lane);
    std::string text =
        fmt::format("{}[{}] = {};", names_.buffer(s.buffer), names_.scalar(s.index, lane), value);
    if (is_half(buffer.dtype))
      text =
          fmt::format("{}_n({}, sf_all_f32({}), 1);", store, place(s.buffer, s.index, lane), value);
    return text_.line("{}{}", s.when.empty() ? "" : "if (" + uniform(s.when) + ") ", text);
  }
  const std::string where = mask(s.when, lane);
  const std::string value = names_.vector(s.value, lane);
  const Walk walk = walk_of(kernel_, varying_, s.index, lane);
  const std::string lanes = lane->tail ? "lanes" : "SF_LANES";
  if (!walk.known) {
    each(lane, fmt::format("{}_{}({}, {}, {}, {});", store, where.empty() ? "at" : "where",
                           names_.buffer(s.buffer), value, names_.vector(s.index, lane),
                           where.empty() ? lanes : where));
    return;
  }
  const std::string at = place(s.buffer, s.index, lane);
  if (!where.empty() && walk.stride.is_constant(1)) {
    each(lane, fmt::format("{}_in({}, {}, {});", store, at, value, where));
  } else if (!where.empty()) {
    each(lane, fmt::format("{}_where({}, {}, sf_lanes_i64(0) * {}, {});", store, at, value,
                           names_.size(walk.stride), where));
  } else if (!walk.stride.is_constant(1)) {
    each(lane, fmt::format("{}_strided({}, {}, {}, {});", store, at, value,
                           names_.size(walk.stride), lanes));
  } else {
    each(lane, fmt::format("{}{}({}, {}{});", store, lane->tail ? "_n" : "", at, value,
                           lane->tail ? ", lanes" : ""));
  }
}

void CStatements::print(const Check& s, const Lane* lane) {
  const std::string report = fmt::format("sf_report(status, {});", s.what + 1);
  const bool varies = lane != nullptr && (!lane->mask.empty() || varying_.any(s.when, lane) ||
                                          varying_.any({s.within}, lane));
  if (!varies) {
    const std::string when = s.when.empty() ? "" : uniform(s.when) + " && ";
    return text_.line("if ({}!{}) {}", when, uniform({s.within}), report);
  }
  std::string where = mask(s.when, lane);
  if (where.empty() && lane->tail) where = "sf_lanes_below(lanes)";
  const std::string within = fmt::format("sf_within({}, {})", names_.vector(s.within.index, lane),
                                         names_.size(s.within.bound));
  each(lane,
       fmt::format("if (sf_any({}~{})) {}", where.empty() ? "" : where + " & ", within, report));
}

void CStatements::print(const Transpose& s) {
  text_.line("sf_transpose_b{}({}, {}, {}, {}, {}, {});", 8 * size_of(kernel_.buffer(s.to).dtype),
             place(s.to, s.to_at, nullptr), names_.size(s.to_step),
             place(s.from, s.from_at, nullptr), names_.size(s.from_step),
             names_.scalar(s.height, nullptr), names_.scalar(s.width, nullptr));
}

void CStatements::print(const If& s, const Lane* lane) {
  if (lane == nullptr || (lane->mask.empty() && !varying_.any(s.when, lane))) {
    text_.open("if (" + uniform(s.when) + ")");
    block(s.body, lane);
    return text_.close();
  }
  Lane inner = *lane;
  inner.mask = mask(s.when, lane);
  block(s.body, &inner);
}

void CStatements::print(const For& s, const Lane* lane) {
  if (s.kind == For::Kind::kLane) return lane_loop(s);
  const std::string& i = names_.var(s.var);
  text_.open(fmt::format("for (int64_t {} = {}; {} < {}; ++{})", i, names_.scalar(s.begin, lane), i,
                         names_.scalar(s.end, lane), i));
  block(s.body, lane);
  text_.close();
}

/// Whole vectors first, as many beside each other as the loop takes; then what is left, one vector
/// at a time, of which the last may be a part.
void CStatements::lane_loop(const For& s) {
  const std::string& i = names_.var(s.var);
  Lane lane{s.var, varying_.count(s), false, ""};
  text_.open("");
  text_.line("const int64_t {}_end = {};", i, names_.scalar(s.end, nullptr));
  text_.line("int64_t {} = {};", i, names_.scalar(s.begin, nullptr));
  const std::string step = lane.count == 1 ? "SF_LANES" : fmt::format("{} * SF_LANES", lane.count);
  text_.open(fmt::format("for (; {} + {} <= {}_end; {} += {})", i, step, i, i, step));
  declare_states(s.body, &lane);
  block(s.body, &lane);
  text_.close();
  text_.open(fmt::format("for (; {} < {}_end; {} += SF_LANES)", i, i, i));
  text_.line("const int64_t lanes = sf_min({}_end - {}, SF_LANES);", i, i);
  lane.count = 1;
  lane.tail = true;
  declare_states(s.body, &lane);
  block(s.body, &lane);
  text_.close();
  text_.close();
}

}  // namespace segfuse::compiler::cpu
