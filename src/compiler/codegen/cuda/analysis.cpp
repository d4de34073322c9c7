#include "compiler/codegen/cuda/analysis.h"

#include <algorithm>

#include "compiler/codegen/cuda/print_cuda.h"
#include "compiler/codegen/cuda/scalars.h"

namespace segfuse::compiler::cuda {

using ir::Extent;
using loop::Atom;
using loop::For;
using loop::Index;
using loop::Kernel;
using loop::Statement;
using loop::ValueId;
using loop::Within;

namespace {

bool surely_multiple(const Extent& extent, int vector) {
  return std::all_of(extent.terms().begin(), extent.terms().end(),
                     [&](const Extent::Term& term) { return term.coefficient % vector == 0; });
}

/// Walks an index and notes what makes it move in steps of one.
class Analysis {
 public:
  Analysis(const Kernel& kernel, const For& lane, const std::set<ValueId>& inner)
      : kernel_(kernel), lane_(lane), inner_(inner) {}

  std::vector<Extent> multiples;

  /// How far the index moves with the lane's variable, if that can be said. One that does not move
  /// may begin anywhere.
  std::optional<int> stride(const Index& index) {
    Analysis inside(kernel_, lane_, inner_);
    const std::optional<int> sum = inside.aligned_stride(index);
    if (sum != 0) inside.parts_ = inside.multiples;
    multiples.insert(multiples.end(), inside.parts_.begin(), inside.parts_.end());
    return sum;
  }

  /// The same from a multiple of the vector on.
  std::optional<int> aligned_stride(const Index& index) {
    int sum = 0;
    note(index.constant);
    for (const Index::Term& term : index.terms) {
      const Atom& atom = kernel_.indices.atom(term.atom);
      const std::optional<int> step = stride(atom);
      if (!step) return {};
      if (*step == 0) {
        note(term.coefficient);
      } else {
        if (!term.coefficient.is_constant(1)) return {};
        sum += *step;
      }
    }
    return sum <= 1 ? std::optional(sum) : std::nullopt;
  }

  bool varies(const Index& index) const {
    bool found = kernel_.indices.depends_on(index, lane_.var);
    kernel_.indices.each_value(index,
                               [&](ValueId value) { found = found || inner_.count(value) != 0; });
    return found;
  }
  void note(const Extent& extent) { multiples.push_back(extent); }
  /// Every value of the index is a multiple if these are.
  void note_all(const Index& index) {
    note(index.constant);
    for (const Index::Term& term : index.terms) {
      const Atom& atom = kernel_.indices.atom(term.atom);
      if (atom.kind == Atom::Kind::kMin) {
        note_all(atom.of);
        note_all(atom.other);
      } else {
        note(term.coefficient);
      }
    }
  }

 private:
  /// Of `multiples` those that hold within quotients and remainders.
  std::vector<Extent> parts_;

  std::optional<int> stride(const Atom& atom) {
    switch (atom.kind) {
      case Atom::Kind::kVar:
        if (atom.var != lane_.var) return 0;
        note_all(lane_.begin);
        return 1;
      case Atom::Kind::kValue:
        return inner_.count(atom.value) != 0 ? std::nullopt : std::optional(0);
      case Atom::Kind::kDiv:
      case Atom::Kind::kMod: {
        if (!varies(atom.of)) return 0;
        Analysis inside(kernel_, lane_, inner_);
        if (inside.stride(atom.of) == 0) {  // of what stays the same, wherever it begins
          multiples.insert(multiples.end(), inside.multiples.begin(), inside.multiples.end());
          parts_.insert(parts_.end(), inside.multiples.begin(), inside.multiples.end());
          return 0;
        }
        const std::size_t before = multiples.size();
        const std::optional<int> step = aligned_stride(atom.of);
        if (!step) return {};
        note(atom.by);
        parts_.insert(parts_.end(), multiples.begin() + static_cast<std::ptrdiff_t>(before),
                      multiples.end());
        return atom.kind == Atom::Kind::kMod ? *step : 0;
      }
      case Atom::Kind::kMin:
        return varies(atom.of) || varies(atom.other) ? std::nullopt : std::optional(0);
    }
    return {};
  }

  const Kernel& kernel_;
  const For& lane_;
  const std::set<ValueId>& inner_;
};

void each_lane_loop(const std::vector<Statement>& body,
                    const std::function<void(const For&)>& visit) {
  loop::walk(body, [&](const Statement& statement, int) {
    const auto* found = std::get_if<For>(&statement.node);
    if (found != nullptr && found->kind == For::Kind::kLane) visit(*found);
  });
}

bool has_minimum(const Kernel& kernel, const Index& index) {
  return std::any_of(index.terms.begin(), index.terms.end(), [&](const Index::Term& term) {
    return kernel.indices.atom(term.atom).kind == Atom::Kind::kMin;
  });
}

void note_access(const Kernel& kernel, const For& lane, const std::set<ValueId>& inner, int vector,
                 loop::BufferId buffer, const Index& index, const std::vector<Within>& when,
                 std::vector<Extent>& all) {
  const loop::KernelBuffer& b = kernel.buffer(buffer);
  if (b.kind == loop::KernelBuffer::Kind::kRow && b.hold == Hold::kRegister) return;
  const LaneAccess access = lane_access(kernel, index, lane, inner, vector);
  if (access.kind == LaneAccess::Kind::kElement) return;
  all.insert(all.end(), access.multiples.begin(), access.multiples.end());
  std::vector<Extent> conditions;
  if (same_in_vector(kernel, when, lane, inner, vector, &conditions))
    all.insert(all.end(), conditions.begin(), conditions.end());
}

}  // namespace

LaneAccess lane_access(const Kernel& kernel, const Index& index, const For& lane,
                       const std::set<ValueId>& inner, int vector) {
  Analysis analysis(kernel, lane, inner);
  if (!analysis.varies(index)) return {LaneAccess::Kind::kSame, {}};
  const std::optional<int> stride = analysis.stride(index);
  if (!stride || vector == 1) return {};
  LaneAccess access;
  access.kind = *stride == 1 ? LaneAccess::Kind::kVector : LaneAccess::Kind::kSame;
  for (const Extent& extent : analysis.multiples) {
    if (surely_multiple(extent, vector)) continue;
    if (extent.is_constant()) return {};
    access.multiples.push_back(extent);
  }
  return access;
}

bool same_in_vector(const Kernel& kernel, const std::vector<Within>& when, const For& lane,
                    const std::set<ValueId>& inner, int vector, std::vector<Extent>* multiples) {
  return std::all_of(when.begin(), when.end(), [&](const Within& condition) {
    // An index that goes through whole vectors and a bound that is a multiple of them.
    const LaneAccess access = lane_access(kernel, condition.index, lane, inner, vector);
    if (access.kind == LaneAccess::Kind::kElement) return false;
    const bool whole =
        access.kind == LaneAccess::Kind::kSame || surely_multiple(condition.bound, vector);
    if (!whole && condition.bound.is_constant()) return false;
    if (multiples == nullptr) return true;
    multiples->insert(multiples->end(), access.multiples.begin(), access.multiples.end());
    if (!whole) multiples->push_back(condition.bound);
    return true;
  });
}

std::set<ValueId> defined_in(const std::vector<Statement>& body) {
  std::set<ValueId> all;
  loop::walk(body, [&](const Statement& statement, int) {
    const auto& node = statement.node;
    if (const auto* s = std::get_if<loop::Compute>(&node)) all.insert(s->result);
    if (const auto* s = std::get_if<loop::Constant>(&node)) all.insert(s->result);
    if (const auto* s = std::get_if<loop::FromIndex>(&node)) all.insert(s->result);
    if (const auto* s = std::get_if<loop::Random>(&node)) all.insert(s->result);
    if (const auto* s = std::get_if<loop::Load>(&node)) all.insert(s->result);
    if (const auto* s = std::get_if<loop::Finish>(&node))
      all.insert(s->results.begin(), s->results.end());
  });
  return all;
}

std::set<ValueId> read_by(const Kernel& kernel, const Statement& statement) {
  std::set<ValueId> all;
  auto index = [&](const Index& i) {
    kernel.indices.each_value(i, [&](ValueId value) { all.insert(value); });
  };
  auto when = [&](const std::vector<Within>& conditions) {
    for (const Within& condition : conditions) index(condition.index);
  };
  const auto& node = statement.node;
  if (const auto* s = std::get_if<loop::Compute>(&node))
    all.insert(s->operands.begin(), s->operands.end());
  if (const auto* s = std::get_if<loop::FromIndex>(&node)) index(s->index);
  if (const auto* s = std::get_if<loop::Random>(&node)) {
    all.insert({s->key, s->sequence});
    index(s->element);
  }
  if (const auto* s = std::get_if<loop::Load>(&node)) index(s->index), when(s->when);
  if (const auto* s = std::get_if<loop::Store>(&node)) {
    all.insert(s->value);
    index(s->index), when(s->when);
  }
  if (const auto* s = std::get_if<loop::Check>(&node)) when({s->within}), when(s->when);
  if (const auto* s = std::get_if<loop::Accumulate>(&node)) {
    all.insert(s->value);
    index(s->position);
  }
  if (const auto* s = std::get_if<For>(&node)) index(s->begin), index(s->end);
  if (const auto* s = std::get_if<loop::If>(&node)) when(s->when);
  return all;
}

std::vector<Extent> promised_multiples(const Kernel& kernel, int vector) {
  std::vector<Extent> all;
  if (vector == 1) return all;
  each_lane_loop(kernel.body, [&](const For& lane) {
    const std::set<ValueId> inner = defined_in(lane.body);
    loop::walk(lane.body, [&](const Statement& statement, int) {
      if (const auto* s = std::get_if<loop::Load>(&statement.node))
        note_access(kernel, lane, inner, vector, s->buffer, s->index, s->when, all);
      if (const auto* s = std::get_if<loop::Store>(&statement.node))
        note_access(kernel, lane, inner, vector, s->buffer, s->index, s->when, all);
    });
    loop::walk(lane.body, [&](const Statement& statement, int) {
      const auto* branch = std::get_if<loop::If>(&statement.node);
      std::vector<Extent> conditions;
      if (branch != nullptr &&
          same_in_vector(kernel, branch->when, lane, inner, vector, &conditions))
        all.insert(all.end(), conditions.begin(), conditions.end());
    });
    Analysis ends(kernel, lane, inner);
    for (const Index* bound : {&lane.begin, &lane.end})
      if (!has_minimum(kernel, *bound)) ends.note_all(*bound);
    for (const Extent& extent : ends.multiples)
      if (!extent.is_constant()) all.push_back(extent);
  });
  std::vector<Extent> once;
  for (const Extent& extent : all)
    if (!surely_multiple(extent, vector) &&
        std::find(once.begin(), once.end(), extent) == once.end())
      once.push_back(extent);
  return once;
}

bool ends_whole(const Kernel& kernel, const For& lane, const std::vector<Extent>& promised,
                int vector) {
  const std::set<ValueId> none;
  Analysis ends(kernel, lane, none);
  ends.note_all(lane.begin);
  ends.note_all(lane.end);
  return std::all_of(ends.multiples.begin(), ends.multiples.end(), [&](const Extent& extent) {
    return surely_multiple(extent, vector) ||
           std::find(promised.begin(), promised.end(), extent) != promised.end();
  });
}

std::optional<std::int64_t> most_elements(const Kernel& kernel, const For& lane) {
  std::optional<std::int64_t> most;
  const auto ends_at = [&](const Index& end) {
    if (end.terms != lane.begin.terms) return;
    const Extent count = end.constant - lane.begin.constant;
    if (count.is_constant()) most = std::min(most.value_or(count.constant()), count.constant());
  };
  ends_at(lane.end);
  // The end of a tile, or that of the row.
  if (lane.end.terms.size() == 1 && lane.end.terms[0].coefficient.is_constant(1) &&
      lane.end.constant.is_constant(0)) {
    const loop::Atom& end = kernel.indices.atom(lane.end.terms[0].atom);
    if (end.kind == loop::Atom::Kind::kMin) {
      ends_at(end.of);
      ends_at(end.other);
    }
  }
  return most;
}

std::size_t state_bytes(const loop::Reduction& reduction) {
  if (reduction.op == ir::Monoid::kArgmax) return 16;
  const std::size_t bytes = std::max<std::size_t>(4, size_of(reduction.dtype));
  return reduction.compensated ? 2 * bytes : bytes;
}

bool KernelFacts::uses_registers(const Kernel& kernel, const For& lane) const {
  bool found = false;
  auto look = [&](loop::BufferId id) {
    const loop::KernelBuffer& buffer = kernel.buffer(id);
    found =
        found || (buffer.kind == loop::KernelBuffer::Kind::kRow && buffer.hold == Hold::kRegister);
  };
  loop::walk(lane.body, [&](const Statement& statement, int) {
    if (const auto* s = std::get_if<loop::Load>(&statement.node)) look(s->buffer);
    if (const auto* s = std::get_if<loop::Store>(&statement.node)) look(s->buffer);
  });
  return found;
}

int register_slots(const Kernel& kernel) {
  std::int64_t capacity = 0;
  for (const loop::KernelBuffer& buffer : kernel.buffers)
    if (buffer.kind == loop::KernelBuffer::Kind::kRow && buffer.hold == Hold::kRegister)
      capacity = std::max(capacity, buffer.capacity);
  const std::int64_t at_once = std::int64_t{kernel.schedule.threads} * kernel.schedule.vector;
  return static_cast<int>((capacity + at_once - 1) / at_once);
}

KernelFacts facts_of(const Kernel& kernel) {
  KernelFacts facts;
  facts.reductions.resize(kernel.reductions.size());
  each_lane_loop(kernel.body, [&](const For& lane) {
    loop::walk(lane.body, [&](const Statement& statement, int) {
      if (const auto* s = std::get_if<loop::Begin>(&statement.node))
        facts.reductions[s->reduction.index].in_lane = true;
      if (const auto* s = std::get_if<loop::Accumulate>(&statement.node))
        facts.reductions[s->reduction.index].joined = true;
    });
  });
  const int warps = kernel.schedule.threads / 32;
  for (std::size_t i = 0; i < facts.reductions.size(); ++i) {
    ReductionFacts& r = facts.reductions[i];
    r.joined = r.joined && !r.in_lane;
    if (!r.joined || warps < 2) continue;
    r.slots = facts.state_bytes;
    facts.state_bytes +=
        (state_bytes(kernel.reductions[i]) * static_cast<std::size_t>(warps) + 15) / 16 * 16;
  }
  return facts;
}

// ---- the launch

unsigned CudaLaunch::blocks(const SizeOf& size) const {
  constexpr std::int64_t kMax = 2147483647;
  const std::int64_t rows = size(outer_count);
  const std::int64_t of_block = std::int64_t{rows_at_once} * strip;
  return static_cast<unsigned>(std::clamp<std::int64_t>((rows + of_block - 1) / of_block, 1, kMax));
}

std::size_t CudaLaunch::shared_bytes(const SizeOf& size) const {
  std::size_t bytes = state_bytes;
  for (const RowBuffer& buffer : scratch)
    bytes +=
        (static_cast<std::size_t>(size(buffer.elements)) * buffer.element_bytes + 15) / 16 * 16;
  return bytes * rows_at_once;
}

std::vector<std::uint64_t> CudaLaunch::argument(std::span<void* const> buffers, const SizeOf& size,
                                                int* status) const {
  std::vector<std::uint64_t> words;
  for (void* buffer : buffers) words.push_back(reinterpret_cast<std::uintptr_t>(buffer));
  for (const Extent& extent : sizes) words.push_back(static_cast<std::uint64_t>(size(extent)));
  words.push_back(static_cast<std::uint64_t>(size(outer_count)));
  words.push_back(reinterpret_cast<std::uintptr_t>(status));
  return words;
}

CudaLaunch cuda_launch(const Kernel& kernel) {
  CudaLaunch launch;
  launch.threads = static_cast<unsigned>(kernel.schedule.threads);
  launch.rows_at_once = static_cast<unsigned>(kernel.schedule.rows_at_once);
  launch.strip = static_cast<unsigned>(kernel.schedule.strip);
  launch.sizes = kernel.sizes();
  launch.outer_count = kernel.outer_count;
  launch.state_bytes = facts_of(kernel).state_bytes;
  for (const loop::KernelBuffer& buffer : kernel.buffers) {
    if (buffer.kind != loop::KernelBuffer::Kind::kRow) {
      ++launch.globals;
    } else if (buffer.hold != Hold::kRegister) {
      launch.scratch.push_back({buffer.elements, size_of(buffer.dtype)});
    }
  }
  return launch;
}

namespace {

/// A row in registers cannot end within a vector: its elements have no other places.
bool registers_end_whole(const Kernel& kernel, const std::vector<Extent>& promised, int vector) {
  const KernelFacts facts;
  bool all = true;
  each_lane_loop(kernel.body, [&](const For& lane) {
    all =
        all && (!facts.uses_registers(kernel, lane) || ends_whole(kernel, lane, promised, vector));
  });
  return all;
}

/// The largest of 8, 4, 2, 1 that keeps the promise at these sizes and moves at most 16 bytes of
/// the widest element of the longest buffers; what Schedule::vector says is not looked at.
int largest_vector(const Kernel& kernel, const SizeOf& size) {
  // What most of the traffic is: the vector is made for that, smaller buffers follow.
  std::int64_t longest = 0;
  for (const loop::KernelBuffer& buffer : kernel.buffers)
    if (buffer.kind != loop::KernelBuffer::Kind::kRow)
      longest = std::max(longest, size(buffer.elements));
  std::size_t widest = 2;
  for (const loop::KernelBuffer& buffer : kernel.buffers)
    if (buffer.kind != loop::KernelBuffer::Kind::kRow && size(buffer.elements) > longest / 16)
      widest = std::max(widest, size_of(buffer.dtype));
  for (int vector = static_cast<int>(16 / widest); vector > 1; vector /= 2) {
    const std::vector<Extent> multiples = promised_multiples(kernel, vector);
    if (registers_end_whole(kernel, multiples, vector) &&
        std::all_of(multiples.begin(), multiples.end(),
                    [&](const Extent& extent) { return size(extent) % vector == 0; }))
      return vector;
  }
  return 1;
}

/// Whether positions fit 32 bits at these sizes.
bool fits_narrow(const Kernel& kernel, const SizeOf& size) {
  constexpr std::int64_t kMax = (std::int64_t{1} << 31) - (1 << 24);
  bool fits = size(kernel.outer_count) < kMax;
  for (const loop::KernelBuffer& buffer : kernel.buffers)
    fits = fits && size(buffer.elements) < kMax;
  for (const Extent& extent : kernel.sizes()) fits = fits && size(extent) < kMax;
  return fits;
}

/// Whether rows in registers fill them at these sizes, with the schedule's vector.
bool fills_registers(const Kernel& kernel, const SizeOf& size) {
  const std::int64_t held =
      std::int64_t{register_slots(kernel)} * kernel.schedule.threads * kernel.schedule.vector;
  const KernelFacts facts;
  bool any = false;
  bool all = true;
  each_lane_loop(kernel.body, [&](const For& lane) {
    if (!facts.uses_registers(kernel, lane)) return;
    any = true;
    all = all && lane.begin.is_constant() && lane.end.is_constant() &&
          size(lane.end.constant) - size(lane.begin.constant) == held;
  });
  return any && all;
}

/// Blocks of a multiprocessor for which there are registers, beside `words` that a lane holds.
void keep_resident(Schedule& schedule, std::int64_t words) {
  constexpr std::int64_t kRegisters = 1 << 16;
  constexpr std::int64_t kBesides = 40;
  const std::int64_t threads = std::int64_t{schedule.threads} * schedule.rows_at_once;
  while (schedule.resident > 1 && words + kBesides > kRegisters / (threads * schedule.resident))
    --schedule.resident;
}

/// Rows of less than a vector, each a lane's own: the lane takes several, and moves whole vectors.
void choose_strip(Kernel& kernel, const SizeOf& size) {
  constexpr std::int64_t kVectorBytes = 16;
  constexpr std::int64_t kMaxRows = 8;
  Schedule& s = kernel.schedule;
  s.strip = 1;
  s.strip_row = 0;
  if (s.threads != 1 || s.rows_at_once == 1) return;
  std::int64_t elements = 0;
  each_lane_loop(kernel.body, [&](const For& lane) { elements = size(lane.end.constant); });
  std::int64_t narrowest = kVectorBytes;
  std::int64_t widest = 0;
  std::int64_t bytes_of_row = 0;
  for (const StripBuffer& strip : strip_buffers(kernel)) {
    const auto bytes = static_cast<std::int64_t>(size_of(kernel.buffer(strip.buffer).dtype));
    narrowest = std::min(narrowest, bytes);
    if (strip.row) widest = std::max(widest, bytes);
    bytes_of_row += bytes * (strip.row ? elements : 1);
  }
  if (elements < 1 || widest == 0 || elements * widest >= kVectorBytes) return;
  const int vector = s.vector;
  s.vector = 1;
  const bool registers = std::any_of(
      kernel.buffers.begin(), kernel.buffers.end(),
      [](const loop::KernelBuffer& b) { return b.kind == loop::KernelBuffer::Kind::kRow; });
  if (registers && !fills_registers(kernel, size)) {
    s.vector = vector;
    return;
  }
  std::int64_t rows = std::min(kVectorBytes / narrowest, kMaxRows);
  if (rows * elements * widest < 2 * kVectorBytes) rows = std::min(2 * rows, kMaxRows);
  keep_resident(s, bytes_of_row * rows / 4);
  s.strip = static_cast<int>(rows);
  s.strip_row = static_cast<int>(elements);
}

}  // namespace

void fit_to_sizes(Kernel& kernel, const SizeOf& size) {
  kernel.schedule.vector = largest_vector(kernel, size);
  choose_strip(kernel, size);
  kernel.schedule.filled = fills_registers(kernel, size);
  kernel.schedule.narrow = fits_narrow(kernel, size);
}

namespace {

/// Whether an index is outer * elements + lane, or outer alone; nothing: something else.
std::optional<bool> is_of_row(const Kernel& kernel, const Index& index, const For* lane) {
  if (!index.constant.is_constant() || index.constant.constant() != 0) return {};
  const Extent one(1);
  bool of_outer = false;
  bool of_lane = false;
  Extent elements = one;
  for (const Index::Term& term : index.terms) {
    const Atom& atom = kernel.indices.atom(term.atom);
    if (atom.kind != Atom::Kind::kVar) return {};
    if (atom.var == kernel.outer) {
      of_outer = true;
      elements = term.coefficient;
    } else if (lane != nullptr && atom.var == lane->var && term.coefficient == one) {
      of_lane = true;
    } else {
      return {};
    }
  }
  if (!of_outer) return {};
  if (of_lane) return elements == lane->end.constant ? std::optional(true) : std::nullopt;
  return elements == one ? std::optional(false) : std::nullopt;
}

/// Whether the kernel is lane loops over whole rows, with nothing but plain statements around them.
bool is_rows_alone(const Kernel& kernel) {
  std::optional<Extent> elements;
  bool plain = true;
  for (const Statement& statement : kernel.body) {
    const auto* lane = std::get_if<For>(&statement.node);
    if (lane == nullptr) {
      plain = plain && !std::holds_alternative<loop::If>(statement.node) &&
              !std::holds_alternative<loop::Barrier>(statement.node) &&
              !std::holds_alternative<loop::Transpose>(statement.node);
      continue;
    }
    plain = plain && lane->kind == For::Kind::kLane && lane->begin == Index(0) &&
            lane->end.is_constant() && (!elements || *elements == lane->end.constant);
    elements = lane->end.constant;
    loop::walk(lane->body, [&](const Statement& inner, int) {
      plain = plain && !std::holds_alternative<For>(inner.node);
    });
  }
  return plain && elements.has_value();
}

}  // namespace

std::vector<StripBuffer> strip_buffers(const Kernel& kernel) {
  if (!is_rows_alone(kernel)) return {};
  std::vector<std::optional<bool>> kinds(kernel.buffers.size());
  std::vector<bool> other(kernel.buffers.size(), false);
  auto note = [&](loop::BufferId buffer, const Index& index, bool always, const For* lane) {
    const std::optional<bool> kind = is_of_row(kernel, index, lane);
    std::optional<bool>& known = kinds[buffer.index];
    if (!always || !kind || (known && *known != *kind)) other[buffer.index] = true;
    known = kind;
  };
  auto look = [&](const Statement& statement, const For* lane, bool always) {
    if (const auto* load = std::get_if<loop::Load>(&statement.node))
      note(load->buffer, load->index, always && load->when.empty(), lane);
    if (const auto* store = std::get_if<loop::Store>(&statement.node))
      note(store->buffer, store->index, always && store->when.empty(), lane);
  };
  for (const Statement& statement : kernel.body) {
    look(statement, nullptr, true);
    const auto* lane = std::get_if<For>(&statement.node);
    if (lane == nullptr) continue;
    loop::walk(lane->body,
               [&](const Statement& inner, int depth) { look(inner, lane, depth == 0); });
  }
  std::vector<StripBuffer> found;
  for (std::uint32_t i = 0; i < kernel.buffers.size(); ++i) {
    using Kind = loop::KernelBuffer::Kind;
    const Kind kind = kernel.buffers[i].kind;
    if ((kind == Kind::kInput || kind == Kind::kOutput) && kinds[i] && !other[i])
      found.push_back({loop::BufferId{i}, *kinds[i]});
  }
  return found;
}

}  // namespace segfuse::compiler::cuda
