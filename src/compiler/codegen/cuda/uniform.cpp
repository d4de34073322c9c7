#include <fmt/core.h>

#include <algorithm>

#include "compiler/codegen/cuda/printer.h"
#include "segfuse/error.h"

namespace segfuse::compiler::cuda {

using ir::Monoid;
using loop::Index;
using loop::KernelBuffer;
using loop::ReductionId;
using loop::Statement;

bool KernelPrinter::in_registers(loop::BufferId buffer) const {
  const KernelBuffer& b = kernel_.buffer(buffer);
  return b.kind == KernelBuffer::Kind::kRow && b.hold == Hold::kRegister;
}

std::string KernelPrinter::pointer(loop::BufferId buffer, const Index& index) const {
  return fmt::format("{} + ({})", name(buffer), positions_.index(index));
}

std::string KernelPrinter::fetched(loop::BufferId buffer, const Index& index) const {
  const bool in_strip = std::any_of(strips_.begin(), strips_.end(), [&](const StripBuffer& strip) {
    return strip.buffer == buffer;
  });
  if (kernel_.buffer(buffer).kind == KernelBuffer::Kind::kInput && !in_strip)
    return fmt::format("__ldg({})", pointer(buffer, index));
  return place(buffer, index);
}

/// An element as a variable: of a strip, the registers that it is in.
std::string KernelPrinter::place(loop::BufferId buffer, const Index& index) const {
  for (const StripBuffer& strip : strips_) {
    if (strip.buffer != buffer) continue;
    const std::string outer = positions_.text(kernel_.outer);
    positions_.name(kernel_.outer, "q");
    const std::string at = positions_.index(index);
    positions_.name(kernel_.outer, outer);
    return fmt::format("{0}[({1}) / {2}].at[({1}) % {2}]", strip_name(strip), at, pack_of(strip));
  }
  return fmt::format("{}[{}]", name(buffer), positions_.index(index));
}

/// The value of a load of one element.
std::string KernelPrinter::loaded(const loop::Load& load) const {
  const DType dtype = kernel_.buffer(load.buffer).dtype;
  const std::string element = from_stored(dtype, fetched(load.buffer, load.index));
  if (load.when.empty()) return element;
  return fmt::format("{} ? {} : {}", positions_.all(load.when), element,
                     literal(kernel_.dtype(load.result), load.otherwise));
}

void KernelPrinter::define(loop::ValueId value, const std::string& text) {
  if (lane_ != nullptr && crossing_.count(value) != 0) {
    line("{} = {};", positions_.text(value), text);
  } else {
    line("const {} {} = {};", value_type(kernel_.dtype(value)), positions_.text(value), text);
  }
}

void KernelPrinter::check(const loop::Check& check) {
  std::string failed = fmt::format("!({})", positions_.within(check.within));
  if (!check.when.empty()) failed = positions_.all(check.when) + " && " + failed;
  line("if ({}) atomicMax(arguments.status, {});", failed, check.what + 1);
}

int KernelPrinter::accumulators(ReductionId reduction) const {
  const bool sum = kernel_.reductions[reduction.index].op == Monoid::kSum;
  return facts_.reductions[reduction.index].joined && sum ? std::min(vector_, 4) : 1;
}

std::string KernelPrinter::state_type(ReductionId reduction) const {
  const loop::Reduction& r = kernel_.reductions[reduction.index];
  std::string type = r.dtype == DType::kBool ? "int" : value_type(r.dtype);
  const bool wraps = r.op == Monoid::kSum || r.op == Monoid::kProduct;
  if (wraps && type == "int") type = "unsigned";
  if (wraps && type == "long long") type = "unsigned long long";
  switch (r.op) {
    case Monoid::kSum:
      return fmt::format("{}Sum<{}>", r.compensated && is_float(r.dtype) ? "Compensated" : "",
                         type);
    case Monoid::kProduct: return fmt::format("Product<{}>", type);
    case Monoid::kMax: return fmt::format("Largest<{}>", type);
    case Monoid::kMin: return fmt::format("Smallest<{}>", type);
    case Monoid::kArgmax: return fmt::format("LargestAt<{}>", type);
  }
  throw InternalError("a reduction without a type of state");
}

std::string KernelPrinter::initial_state(ReductionId reduction) const {
  const loop::Reduction& r = kernel_.reductions[reduction.index];
  const std::string type = state_type(reduction);
  const DType dtype = r.dtype == DType::kBool ? DType::kI32 : r.dtype;
  const bool adds = r.op == Monoid::kSum || r.op == Monoid::kProduct;
  const double first = ir::identity(r.op, dtype);
  std::string value = adds ? fmt::format("{}", first) : literal(dtype, first);
  if (r.compensated && is_float(r.dtype)) value += ", 0";
  if (r.op == Monoid::kArgmax) value += ", 0x7fffffffffffffffll";
  return fmt::format("{}{{{}}}", type, value);
}

/// The arguments of add().
std::string KernelPrinter::added(const loop::Accumulate& accumulate) const {
  const loop::Reduction& r = kernel_.reductions[accumulate.reduction.index];
  std::string value = positions_.text(accumulate.value);
  const bool wraps = r.op == Monoid::kSum || r.op == Monoid::kProduct;
  if (r.dtype == DType::kBool) {
    value = fmt::format("int({})", value);
  } else if (wraps && r.dtype == DType::kI32) {
    value = fmt::format("unsigned({})", value);
  } else if (wraps && r.dtype == DType::kI64) {
    value = fmt::format("(unsigned long long)({})", value);
  }
  if (r.op != Monoid::kArgmax) return value;
  return fmt::format("{}, {}", value, positions_.index(accumulate.position));
}

std::string KernelPrinter::result(ReductionId reduction, const std::string& state,
                                  std::size_t which) const {
  if (which == 1) return state + ".place()";
  const std::string value = state + ".result()";
  switch (kernel_.reductions[reduction.index].dtype) {
    case DType::kBool: return value + " != 0";
    case DType::kI32: return fmt::format("int({})", value);
    case DType::kI64: return fmt::format("(long long)({})", value);
    case DType::kF16: return fmt::format("round_f16({})", value);
    case DType::kBF16: return fmt::format("round_bf16({})", value);
    default: return value;
  }
}

/// A statement that is written alike everywhere; `element` tells the states of one element apart.
void KernelPrinter::simple(const Statement& statement, const std::string& element) {
  const auto& node = statement.node;
  if (const auto* s = std::get_if<loop::Compute>(&node)) {
    std::vector<std::string> operands;
    for (const loop::ValueId operand : s->operands) operands.push_back(positions_.text(operand));
    define(s->result, operations_.apply(s->op, kernel_.dtype(s->result),
                                        kernel_.dtype(s->operands.back()), operands));
  } else if (const auto* constant = std::get_if<loop::Constant>(&node)) {
    define(constant->result, literal(kernel_.dtype(constant->result), constant->value));
  } else if (const auto* index = std::get_if<loop::FromIndex>(&node)) {
    const std::string position = positions_.index(index->index);
    define(index->result, operations_.apply(ir::Op::cast, kernel_.dtype(index->result), DType::kI64,
                                            {fmt::format("(long long)({})", position)}));
  } else if (const auto* random = std::get_if<loop::Random>(&node)) {
    define(random->result,
           fmt::format("random_uniform({}, {}, {}, (unsigned long long)({}))",
                       positions_.text(random->key), positions_.text(random->sequence),
                       whole_literal(random->stream), positions_.index(random->element)));
  } else if (const auto* c = std::get_if<loop::Check>(&node)) {
    check(*c);
  } else if (const auto* a = std::get_if<loop::Accumulate>(&node)) {
    line("r{}{}.add({});", a->reduction.index, element, added(*a));
  } else if (const auto* f = std::get_if<loop::Finish>(&node)) {
    const std::string state = fmt::format("r{}{}", f->reduction.index, element);
    for (std::size_t i = 0; i < f->results.size(); ++i)
      define(f->results[i], result(f->reduction, state, i));
  } else {
    throw InternalError(
        fmt::format("kernel {}: a statement where none of its kind can be", kernel_.name));
  }
}

void KernelPrinter::barrier() {
  if (threads_ == 1) return;
  if (threads_ <= 32) {
    line("__syncwarp(lanes);");
  } else if (rows_ == 1) {
    line("__syncthreads();");
  } else {
    line("row_barrier(threadIdx.y, {});", threads_);
  }
}

/// Reductions that are finished beside each other wait for the other warps once.
void KernelPrinter::finish(const std::vector<const loop::Finish*>& group) {
  std::vector<const loop::Finish*> joined;
  for (const loop::Finish* f : group)
    if (facts_.reductions[f->reduction.index].joined && threads_ > 1) joined.push_back(f);
  auto state = [&](const loop::Finish* f) {
    return fmt::format("r{}{}", f->reduction.index, accumulators(f->reduction) > 1 ? "[0]" : "");
  };
  for (const loop::Finish* f : group)
    for (int i = 1; i < accumulators(f->reduction); ++i)
      line("{}.join(r{}[{}]);", state(f), f->reduction.index, i);
  for (const loop::Finish* f : joined)
    line("join_lanes<{}>({}, lanes);", std::min(threads_, 32), state(f));
  if (threads_ > 32 && !joined.empty()) {
    open("if (lane % 32 == 0)");
    for (const loop::Finish* f : joined) line("w{}[lane / 32] = {};", f->reduction.index, state(f));
    close();
    barrier();
    for (const loop::Finish* f : joined)
      line("{} = join_warps<{}>(w{}, lane);", state(f), threads_ / 32, f->reduction.index);
  }
  for (const loop::Finish* f : group)
    for (std::size_t i = 0; i < f->results.size(); ++i)
      define(f->results[i], result(f->reduction, state(f), i));
}

/// Whether a lane may begin the next turn of a loop while others end this one. It must not write
/// the states of a join that slower lanes still read: there is no join, or another one lies
/// between.
bool KernelPrinter::turns_may_overlap(const Body& body) const {
  auto joins = [&](const Statement& statement) {
    const auto* f = std::get_if<loop::Finish>(&statement.node);
    return f != nullptr && facts_.reductions[f->reduction.index].joined;
  };
  int all = 0;
  loop::walk(body, [&](const Statement& statement, int) { all += joins(statement); });
  int here = 0;
  int waits = 0;
  for (std::size_t i = 0; i < body.size(); ++i) {
    // Those that stand beside each other wait once.
    bool waiting = false;
    for (; i < body.size() && std::holds_alternative<loop::Finish>(body[i].node); ++i) {
      here += joins(body[i]);
      waiting = waiting || joins(body[i]);
    }
    waits += waiting;
  }
  return all == 0 || (all == here && waits > 1);
}

void KernelPrinter::uniform_loop(const loop::For& loop) {
  const std::string& var = positions_.text(loop.var);
  open(fmt::format("for ({} {} = {}; {} < {}; ++{})", positions_.type(), var,
                   positions_.index(loop.begin), var, positions_.index(loop.end), var));
  serial_.push_back(&loop);
  uniform(loop.body);
  serial_.pop_back();
  if (threads_ > 32 && !turns_may_overlap(loop.body)) barrier();
  close();
}

void KernelPrinter::uniform_store(const loop::Store& store) {
  const KernelBuffer& buffer = kernel_.buffer(store.buffer);
  // All lanes have read what one of them overwrites.
  if (buffer.kind == KernelBuffer::Kind::kInOut) barrier();
  std::string when = threads_ > 1 ? "lane == 0" : "";
  if (!store.when.empty()) when += (when.empty() ? "" : " && ") + positions_.all(store.when);
  line("{}{} = {};", when.empty() ? "" : fmt::format("if ({}) ", when),
       place(store.buffer, store.index), to_stored(buffer.dtype, positions_.text(store.value)));
}

void KernelPrinter::uniform(const Statement& statement) {
  const auto& node = statement.node;
  if (const auto* load = std::get_if<loop::Load>(&node)) {
    define(load->result, loaded(*load));
  } else if (const auto* store = std::get_if<loop::Store>(&node)) {
    uniform_store(*store);
  } else if (std::holds_alternative<loop::Barrier>(node)) {
    barrier();
  } else if (std::holds_alternative<loop::Transpose>(node)) {
    throw InternalError(fmt::format("kernel {}: a transposition is of the CPU", kernel_.name));
  } else if (const auto* begin = std::get_if<loop::Begin>(&node)) {
    const int count = accumulators(begin->reduction);
    for (int i = 0; i < count; ++i)
      line("r{}{} = {};", begin->reduction.index, count > 1 ? fmt::format("[{}]", i) : "",
           initial_state(begin->reduction));
  } else if (const auto* a = std::get_if<loop::Accumulate>(&node)) {
    const bool joined = facts_.reductions[a->reduction.index].joined && threads_ > 1;
    line("{}r{}{}.add({});", joined ? "if (lane == 0) " : "", a->reduction.index,
         accumulators(a->reduction) > 1 ? "[0]" : "", added(*a));
  } else if (const auto* loop = std::get_if<loop::For>(&node)) {
    loop->kind == loop::For::Kind::kLane ? lanes(*loop) : uniform_loop(*loop);
  } else if (const auto* branch = std::get_if<loop::If>(&node)) {
    open(fmt::format("if ({})", positions_.all(branch->when)));
    uniform(branch->body);
    close();
  } else {
    simple(statement, "");
  }
}

void KernelPrinter::uniform(const Body& body) {
  for (std::size_t i = 0; i < body.size(); ++i) {
    std::vector<const loop::Finish*> group;
    while (i < body.size() && std::holds_alternative<loop::Finish>(body[i].node))
      group.push_back(&std::get<loop::Finish>(body[i++].node));
    if (!group.empty()) finish(group);
    if (i < body.size()) uniform(body[i]);
  }
}

}  // namespace segfuse::compiler::cuda
