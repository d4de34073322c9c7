#include <fmt/core.h>

#include <algorithm>

#include "compiler/codegen/cuda/printer.h"
#include "segfuse/error.h"

namespace segfuse::compiler::cuda {

using loop::For;
using loop::If;
using loop::Index;
using loop::KernelBuffer;
using loop::Load;
using loop::Statement;
using loop::Store;
using loop::ValueId;
using Kind = LaneAccess::Kind;

namespace {

bool has_serial_loop(const For& lane) {
  bool found = false;
  loop::walk(lane.body, [&](const Statement& statement, int) {
    found = found || std::holds_alternative<For>(statement.node);
  });
  return found;
}

std::vector<ValueId> defined_by(const Statement& statement) {
  const std::vector<Statement> one = {statement};
  const std::set<ValueId> all = defined_in(one);
  return {all.begin(), all.end()};
}

}  // namespace

// ---- around the body

void KernelPrinter::lanes(const For& loop) {
  Lane lane;
  lane.loop = &loop;
  lane.vector = vector_;
  lane.inner = defined_in(loop.body);
  lane.unroll = has_serial_loop(loop) ? 1 : kernel_.schedule.unroll;
  // Registers of turns that never come would be lost.
  if (const std::optional<std::int64_t> most = most_elements(kernel_, loop)) {
    const std::int64_t step = std::int64_t{threads_} * vector_;
    lane.unroll =
        static_cast<int>(std::clamp<std::int64_t>((*most + step - 1) / step, 1, lane.unroll));
  }
  const bool held = facts_.uses_registers(kernel_, loop);
  const bool whole = vector_ == 1 || ends_whole(kernel_, loop, promised_, vector_);
  if (held) {
    if (!whole)
      throw InternalError(
          fmt::format("kernel {}: a row in registers that ends within a vector", kernel_.name));
    lane.slots = register_slots(kernel_);
  }
  open("");
  line("const {} begin = {}, end = {};", positions_.type(), positions_.index(loop.begin),
       positions_.index(loop.end));
  lane.bound = "end";
  if (!whole) {
    line("const {0} whole = begin + (end - begin) / {1} * {1};", positions_.type(), vector_);
    lane.bound = "whole";
  }
  lane_ = &lane;
  lanes_at(lane);
  if (!whole) rest_of_lanes(loop);
  lane_ = nullptr;
  close();
}

/// The elements behind the last whole vector, by the lane whose vector it would be.
void KernelPrinter::rest_of_lanes(const For& loop) {
  Lane rest;
  rest.loop = &loop;
  rest.inner = defined_in(loop.body);
  lane_ = &rest;
  forget();
  const std::string& var = positions_.text(loop.var);
  open(fmt::format("if ((end - begin) / {} % {} == lane)", vector_, threads_));
  open(fmt::format("for ({0} {1} = whole; {1} < end; ++{1})", positions_.type(), var));
  parts(split(loop.body));
  close();
  close();
}

/// Nothing of one way through a lane loop is known in another.
void KernelPrinter::forget() {
  for (const ValueId value : crossing_) positions_.name(value, fmt::format("v{}", value.index));
  crossing_.clear();
  sources_.clear();
  targets_.clear();
  kept_.clear();
  lane_states_.clear();
}

/// The store that puts what a load brings into registers, as it is.
const Store* KernelPrinter::kept_in_registers(const Load& load) const {
  for (const Statement& s : lane_->loop->body) {
    const auto* store = std::get_if<Store>(&s.node);
    if (store != nullptr && store->value == load.result && in_registers(store->buffer) &&
        store->when.empty() &&
        kernel_.buffer(store->buffer).dtype == kernel_.buffer(load.buffer).dtype)
      return store;
  }
  return nullptr;
}

/// Whether no lane comes to the loop's end within a turn.
bool KernelPrinter::filled(const Lane& lane) const {
  if (lane.slots > 0) return kernel_.schedule.filled;
  const For& loop = *lane.loop;
  if (!loop.begin.is_constant() || !loop.begin.constant.is_constant() || !loop.end.is_constant() ||
      !loop.end.constant.is_constant())
    return false;
  const std::int64_t elements = loop.end.constant.constant() - loop.begin.constant.constant();
  return elements % (std::int64_t{threads_} * lane.vector * lane.unroll) == 0;
}

/// How many vectors of a lane are loaded before the first is used. Rows come from far and are
/// loaded at once; what rows share is near, and would only take registers.
int KernelPrinter::vectors_at_once(const Lane& lane) const {
  constexpr std::size_t kManyWords = 40;
  constexpr std::size_t kFarWords = 32;
  if (lane.slots == 0) return lane.staged.empty() ? 1 : lane.unroll;
  auto words = [&](DType dtype, int vectors) {
    return size_of(dtype) * static_cast<std::size_t>(vectors * lane.vector) / 4;
  };
  std::size_t held = 0;
  for (const KernelBuffer& buffer : kernel_.buffers)
    if (buffer.kind == KernelBuffer::Kind::kRow && buffer.hold == Hold::kRegister)
      held += words(buffer.dtype, lane.slots);
  const std::size_t near_words = held > kManyWords ? 4 : 8;
  auto fits = [&](int vectors) {
    std::size_t near = 0;
    std::size_t far = 0;
    for (const Load* load : lane.staged) {
      if (!is_pack(*load) || kept_in_registers(*load)) continue;
      const std::size_t all = words(kernel_.buffer(load->buffer).dtype, vectors);
      (differs_between_rows(*load) ? far : near) += all;
    }
    return near <= near_words && far <= kFarWords;
  };
  int at_once = lane.slots;
  while (at_once > 1 && (lane.slots % at_once != 0 || !fits(at_once))) --at_once;
  return at_once;
}

bool KernelPrinter::differs_between_rows(const Load& load) const {
  return kernel_.indices.depends_on(load.index, kernel_.outer) ||
         (!serial_.empty() && kernel_.indices.depends_on(load.index, serial_.back()->var));
}

/// Asks for what the next turn of the loop around loads, while this one is computed.
void KernelPrinter::prefetch_next(const Lane& lane) {
  if (serial_.empty() || lane.slots == 0) return;
  const For& around = *serial_.back();
  std::vector<const Load*> rows;
  for (const Load* load : lane.staged)
    if (kernel_.buffer(load->buffer).kind == KernelBuffer::Kind::kInput &&
        kept_in_registers(*load) && load->when.empty() &&
        kernel_.indices.stride(load->index, around.var).has_value())
      rows.push_back(load);
  if (rows.empty()) return;
  open(fmt::format("if ({} + 1 < {})", positions_.text(around.var), positions_.index(around.end)));
  pragma("unroll");
  open(fmt::format("for (int turn = 0; turn < {}; ++turn)", lane.slots));
  line("const {} {} = begin + lane{} + turn * {};", positions_.type(),
       positions_.text(lane.loop->var),
       lane.vector > 1 ? fmt::format(" * {}", lane.vector) : std::string(), threads_ * lane.vector);
  if (!filled(lane)) open(fmt::format("if ({} < {})", positions_.text(lane.loop->var), lane.bound));
  for (const Load* load : rows)
    line("prefetch_l2({} + {});", pointer(load->buffer, load->index),
         positions_.size(*kernel_.indices.stride(load->index, around.var)));
  if (!filled(lane)) close();
  close();
  close();
}

void KernelPrinter::lanes_at(Lane& lane) {
  const For& loop = *lane.loop;
  forget();
  for (const Statement& statement : loop.body)
    if (const auto* load = std::get_if<Load>(&statement.node))
      if (can_stage(*load)) lane.staged.push_back(load);
  lane.unroll = vectors_at_once(lane);
  const std::string& type = positions_.type();
  const std::string var = positions_.text(loop.var);
  const int step = threads_ * lane.vector;
  const std::string first = fmt::format(
      "begin + lane{}", lane.vector > 1 ? fmt::format(" * {}", lane.vector) : std::string());
  if (lane.slots > 0) {
    pragma("unroll");
    open(fmt::format("for (int turn = 0; turn < {}; turn += {})", lane.slots, lane.unroll));
  } else if (lane.unroll == 1) {
    open(fmt::format("for ({0} {1} = {2}; {1} < {3}; {1} += {4})", type, var, first, lane.bound,
                     step));
  } else {
    open(fmt::format("for ({0} turn = {1}; turn < {2}; turn += {3})", type, first, lane.bound,
                     step * lane.unroll));
  }
  auto turn = [&] {
    if (lane.slots == 0 && lane.unroll == 1) return open("");
    pragma("unroll");
    open(fmt::format("for (int u = 0; u < {}; ++u)", lane.unroll));
    if (lane.slots > 0) {
      line("const {} {} = {} + (turn + u) * {};", type, var, first, step);
    } else {
      line("const {} {} = turn + u * {};", type, var, step);
    }
    if (!filled(lane)) open(fmt::format("if ({} < {})", var, lane.bound));
  };
  auto end_turn = [&] {
    if (!filled(lane) && (lane.slots > 0 || lane.unroll > 1)) close();
    close();
  };
  if (!lane.staged.empty()) {
    const bool many = lane.unroll > 1 || lane.slots > 0;
    for (const Load* load : lane.staged) declare_source(*load, many ? lane.unroll : 0);
    turn();
    for (const Load* load : lane.staged) fill_source(*load);
    end_turn();
    if (lane.unroll == lane.slots) prefetch_next(lane);
  }
  turn();
  const std::vector<Part> all = split(loop.body);
  if (lane.vector > 1) find_crossing(all);
  parts(all);
  end_turn();
  close();
}

// ---- loads before the rest

bool KernelPrinter::can_stage(const Load& load) const {
  if (in_registers(load.buffer)) return false;
  bool inner = false;
  Statement statement;
  statement.node = load;
  for (const ValueId value : read_by(kernel_, statement))
    inner = inner || lane_->inner.count(value) != 0;
  if (inner) return false;
  if (kernel_.buffer(load.buffer).kind != KernelBuffer::Kind::kRow) return true;
  bool stored = false;
  loop::walk(lane_->loop->body, [&](const Statement& other, int) {
    const auto* store = std::get_if<Store>(&other.node);
    stored = stored || (store != nullptr && store->buffer == load.buffer);
  });
  return !stored;
}

Kind KernelPrinter::access(const Index& index) const {
  return lane_access(kernel_, index, *lane_->loop, lane_->inner, lane_->vector).kind;
}

bool KernelPrinter::same_in_vector(const std::vector<loop::Within>& when) const {
  return cuda::same_in_vector(kernel_, when, *lane_->loop, lane_->inner, lane_->vector);
}

/// From here on the loop's variable is that of one element.
void KernelPrinter::name_element(const std::string& var) {
  const bool aligned = lane_->loop->begin == Index(0);
  positions_.name_element(lane_->loop->var, var, aligned ? lane_->vector : 0);
}

/// Whether the load gives a Pack: the elements of a vector are not one and the same.
bool KernelPrinter::is_pack(const Load& load) const {
  return lane_->vector > 1 && !(access(load.index) == Kind::kSame && same_in_vector(load.when));
}

/// Declares what a load brings, a Pack or one element, `count` times; where its elements are found
/// is kept in sources_.
void KernelPrinter::declare_source(const Load& load, int count) {
  const std::string stored = stored_type(kernel_.buffer(load.buffer).dtype);
  const bool pack = is_pack(load);
  const Store* const kept = kept_in_registers(load);
  if (pack && kept != nullptr && count > 0) {
    sources_[&load] = slot(kept->buffer);
    kept_.insert(kept);
    return;
  }
  line("{} s{}{};", pack ? fmt::format("Pack<{}, {}>", stored, lane_->vector) : stored,
       load.result.index, count > 0 ? fmt::format("[{}]", count) : "");
  sources_[&load] = {fmt::format("s{}{}", load.result.index, count > 0 ? "[u]" : ""), pack};
}

/// Fills what declare_source() declared.
void KernelPrinter::fill_source(const Load& load) {
  const DType dtype = kernel_.buffer(load.buffer).dtype;
  const ElementSlot& at = sources_.at(&load);
  const std::string source = at.element();
  const std::string otherwise = stored_literal(dtype, load.otherwise);
  auto by_element = [&] {
    const std::string element = fetched(load.buffer, load.index);
    if (load.when.empty()) return element;
    return fmt::format("{} ? {} : {}({})", positions_.all(load.when), element,
                       "(" + stored_type(dtype) + ")", otherwise);
  };
  if (!is_pack(load)) return line("{} = {};", source, by_element());
  const bool vector = access(load.index) == Kind::kVector && same_in_vector(load.when);
  if (vector && !load.when.empty()) open(fmt::format("if ({})", positions_.all(load.when)));
  if (vector) {
    line(
        "{} = {}<{}>({});", at.variable,
        kernel_.buffer(load.buffer).kind == KernelBuffer::Kind::kInput ? "fetch_pack" : "load_pack",
        lane_->vector, pointer(load.buffer, load.index));
    if (load.when.empty()) return;
    --depth_;
    line("}} else {{");
    ++depth_;
  }
  pragma("unroll");
  line("for (int e = 0; e < {}; ++e)", lane_->vector);
  if (vector) {
    line("  {} = {};", source, otherwise);
    close();
    return;
  }
  const std::string var = positions_.text(lane_->loop->var);
  name_element(var);
  line("  {} = {};", source, by_element());
  positions_.name(lane_->loop->var, var);
}

// ---- the body in parts

bool KernelPrinter::ends_run(const Statement& next, const std::set<loop::BufferId>& stored) const {
  bool ends = false;
  auto look = [&](const Statement& statement) {
    const auto* load = std::get_if<Load>(&statement.node);
    if (load != nullptr && !in_registers(load->buffer) && stored.count(load->buffer) != 0)
      ends = true;
  };
  look(next);
  if (const auto* branch = std::get_if<If>(&next.node))
    loop::walk(branch->body, [&](const Statement& s, int) { look(s); });
  return ends;
}

std::vector<KernelPrinter::Part> KernelPrinter::split(const Body& body) const {
  std::vector<Part> all;
  std::set<loop::BufferId> stored;
  auto add = [&](Part part) {
    all.push_back(std::move(part));
    stored.clear();
  };
  for (const Statement& statement : body) {
    const auto* loop = std::get_if<For>(&statement.node);
    const auto* branch = std::get_if<If>(&statement.node);
    if (loop != nullptr) {
      add({{}, &statement, split(loop->body)});
    } else if (branch != nullptr && same_in_vector(branch->when)) {
      add({{}, &statement, split(branch->body)});
    } else if (std::holds_alternative<loop::Begin>(statement.node)) {
      add({{}, &statement, {}});
    } else {
      if (all.empty() || all.back().control != nullptr || ends_run(statement, stored)) add({});
      all.back().run.push_back(&statement);
      if (const auto* store = std::get_if<Store>(&statement.node)) stored.insert(store->buffer);
    }
  }
  return all;
}

/// Values that another run than their own reads become arrays over the vector.
void KernelPrinter::find_crossing(const std::vector<Part>& parts) {
  std::map<ValueId, const Part*> home;
  std::function<void(const std::vector<Part>&)> define_all = [&](const std::vector<Part>& all) {
    for (const Part& part : all) {
      for (const Statement* statement : part.run)
        for (const ValueId value : defined_by(*statement)) home[value] = &part;
      define_all(part.parts);
    }
  };
  std::function<void(const std::vector<Part>&)> read_all = [&](const std::vector<Part>& all) {
    for (const Part& part : all) {
      for (const Statement* statement : part.run) {
        Body one = {*statement};
        loop::walk(one, [&](const Statement& inner, int) {
          for (const ValueId value : read_by(kernel_, inner)) {
            const auto found = home.find(value);
            if (found != home.end() && found->second != &part) crossing_.insert(value);
          }
        });
      }
      read_all(part.parts);
    }
  };
  define_all(parts);
  read_all(parts);
  for (const ValueId value : crossing_) positions_.name(value, fmt::format("v{}[e]", value.index));
}

void KernelPrinter::parts(const std::vector<Part>& all) {
  for (const Part& part : all) part.control != nullptr ? control(part) : run_of(part);
}

void KernelPrinter::control(const Part& part) {
  const auto& node = part.control->node;
  if (const auto* begin = std::get_if<loop::Begin>(&node)) {
    const std::string type = state_type(begin->reduction);
    std::string initial = initial_state(begin->reduction);
    if (lane_->vector == 1) {
      line("{} r{} = {};", type, begin->reduction.index, initial);
      return;
    }
    lane_states_.insert(begin->reduction);
    line("{} r{}[{}];", type, begin->reduction.index, lane_->vector);
    pragma("unroll");
    line("for (int e = 0; e < {}; ++e) r{}[e] = {};", lane_->vector, begin->reduction.index,
         initial);
    return;
  }
  if (const auto* loop = std::get_if<For>(&node)) {
    const std::string& var = positions_.text(loop->var);
    pragma(fmt::format("unroll {}", kernel_.schedule.unroll));
    open(fmt::format("for ({0} {1} = {2}; {1} < {3}; ++{1})", positions_.type(), var,
                     positions_.index(loop->begin), positions_.index(loop->end)));
  } else {
    open(fmt::format("if ({})", positions_.all(std::get<If>(node).when)));
  }
  parts(part.parts);
  close();
}

bool KernelPrinter::is_vector_store(const Store& store) const {
  return lane_->vector > 1 && !in_registers(store.buffer) && access(store.index) == Kind::kVector &&
         same_in_vector(store.when);
}

/// What a run needs before its elements are computed one by one: arrays for values that live
/// longer, vectors that are loaded, and vectors that will be stored.
void KernelPrinter::before_run(const Part& part) {
  for (const Statement* statement : part.run) {
    for (const ValueId value : defined_by(*statement))
      if (crossing_.count(value) != 0)
        line("{} v{}[{}];", value_type(kernel_.dtype(value)), value.index, lane_->vector);
    if (const auto* load = std::get_if<Load>(&statement->node)) {
      if (in_registers(load->buffer) || sources_.count(load) != 0 ||
          access(load->index) != Kind::kVector || !same_in_vector(load->when))
        continue;
      declare_source(*load, 0);
      fill_source(*load);
    }
    if (const auto* store = std::get_if<Store>(&statement->node))
      if (is_vector_store(*store)) {
        const std::string name = fmt::format("t{}", targets_.size());
        targets_[store] = name;
        line("Pack<{}, {}> {};", stored_type(kernel_.buffer(store->buffer).dtype), lane_->vector,
             name);
      }
  }
}

void KernelPrinter::run_of(const Part& part) {
  const std::string var = positions_.text(lane_->loop->var);
  const bool vector = lane_->vector > 1;
  if (vector) {
    before_run(part);
    pragma("unroll");
    open(fmt::format("for (int e = 0; e < {}; ++e)", lane_->vector));
    name_element(var);
  }
  for (const Statement* statement : part.run) element(*statement);
  if (!vector) return;
  close();
  positions_.name(lane_->loop->var, var);
  for (const Statement* statement : part.run) {
    const auto* store = std::get_if<Store>(&statement->node);
    if (store == nullptr || targets_.count(store) == 0) continue;
    line("{}store_pack<{}>({}, {});",
         store->when.empty() ? "" : fmt::format("if ({}) ", positions_.all(store->when)),
         lane_->vector, pointer(store->buffer, store->index), targets_.at(store));
  }
}

// ---- one element

/// A row in registers: the slot is a constant once loops are unrolled.
ElementSlot KernelPrinter::slot(loop::BufferId buffer) const {
  return {name(buffer) + "[turn + u]", lane_->vector > 1};
}

std::string KernelPrinter::lane_load(const Load& load) const {
  const DType dtype = kernel_.buffer(load.buffer).dtype;
  const auto source = sources_.find(&load);
  if (source != sources_.end()) return from_stored(dtype, source->second);
  if (!in_registers(load.buffer)) return loaded(load);
  const std::string element = from_stored(dtype, slot(load.buffer));
  if (load.when.empty()) return element;
  return fmt::format("{} ? {} : {}", positions_.all(load.when), element,
                     literal(kernel_.dtype(load.result), load.otherwise));
}

void KernelPrinter::element_store(const Store& store) {
  if (kept_.count(&store) != 0) return;
  const std::string stored =
      to_stored(kernel_.buffer(store.buffer).dtype, positions_.text(store.value));
  const auto target = targets_.find(&store);
  if (target != targets_.end()) return line("{}.at[e] = {};", target->second, stored);
  line("{}{} = {};", store.when.empty() ? "" : fmt::format("if ({}) ", positions_.all(store.when)),
       in_registers(store.buffer) ? slot(store.buffer).element() : place(store.buffer, store.index),
       stored);
}

/// Which state of a reduction an element goes to.
std::string KernelPrinter::state_of_element(loop::ReductionId reduction) const {
  const ReductionFacts& facts = facts_.reductions[reduction.index];
  if (facts.in_lane) return lane_->vector > 1 && lane_states_.count(reduction) != 0 ? "[e]" : "";
  const int count = accumulators(reduction);
  if (count == 1) return "";
  if (lane_->vector == 1) return "[0]";
  return count == lane_->vector ? "[e]" : fmt::format("[e % {}]", count);
}

void KernelPrinter::element(const Statement& statement) {
  const auto& node = statement.node;
  if (const auto* load = std::get_if<Load>(&node)) {
    define(load->result, lane_load(*load));
  } else if (const auto* store = std::get_if<Store>(&node)) {
    element_store(*store);
  } else if (const auto* begin = std::get_if<loop::Begin>(&node)) {
    line("{} r{} = {};", state_type(begin->reduction), begin->reduction.index,
         initial_state(begin->reduction));
  } else if (const auto* a = std::get_if<loop::Accumulate>(&node)) {
    simple(statement, state_of_element(a->reduction));
  } else if (const auto* f = std::get_if<loop::Finish>(&node)) {
    simple(statement, state_of_element(f->reduction));
  } else if (const auto* loop = std::get_if<For>(&node)) {
    const std::string& var = positions_.text(loop->var);
    open(fmt::format("for ({0} {1} = {2}; {1} < {3}; ++{1})", positions_.type(), var,
                     positions_.index(loop->begin), positions_.index(loop->end)));
    for (const Statement& inner : loop->body) element(inner);
    close();
  } else if (const auto* branch = std::get_if<If>(&node)) {
    open(fmt::format("if ({})", positions_.all(branch->when)));
    for (const Statement& inner : branch->body) element(inner);
    close();
  } else {
    simple(statement, "");
  }
}

}  // namespace segfuse::compiler::cuda
