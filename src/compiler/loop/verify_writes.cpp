// That each element of an output is written, and once: the iterations around a store are taken as a
// product of ranges, and its index has to be their position in a mixed radix that ends with the
// buffer. Several stores are parts that lie beside each other: each has one digit of its own, which
// its loops do not run along.

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>

#include "compiler/loop/kernel.h"
#include "segfuse/error.h"

namespace segfuse::compiler::loop {

namespace {

using ir::Extent;

/// constant + the sum of factor * coordinate.
struct Form {
  std::map<std::size_t, Extent> factors;  ///< none is zero
  Extent constant;

  void add(std::size_t coordinate, const Extent& factor) {
    const auto at = factors.try_emplace(coordinate, 0).first;
    at->second = at->second + factor;
    if (at->second.is_constant(0)) factors.erase(at);
  }
  void add(const Form& other, const Extent& times) {
    constant = constant + other.constant * times;
    for (const auto& [coordinate, factor] : other.factors) add(coordinate, factor * times);
  }
};

/// The iterations around one store.
class Iterations {
 public:
  Iterations(const Kernel& kernel, const SizeFacts& facts)
      : indices_(kernel.indices), facts_(facts) {
    var(kernel.outer, kernel.outer_count);
  }

  /// All of these say whether the form is one that can be followed.
  bool enter(const For& loop) {
    const Form begin = form(loop.begin);
    if (begin.factors.empty() && begin.constant.is_constant(0) && loop.end.is_constant()) {
      var(loop.var, loop.end.constant);
      return true;
    }
    const auto tile = tile_of(loop.begin, loop.end);
    if (!tile) return false;
    ranges_[tile->number].gone = true;  // the variable tells the tile
    var(loop.var, tile->whole);
    return true;
  }

  bool restrict(const Within& condition) {
    const Form at = form(condition.index);
    if (failed_) return false;
    if (condition.bound.is_constant(1)) {  // the first of them
      if (!at.constant.is_constant(0)) return false;
      for (const auto& [coordinate, factor] : at.factors) ranges_[coordinate].count = 1;
      return true;
    }
    return merge(at, condition.bound).has_value();
  }

  /// A range from 0 on, added to what an index says.
  std::optional<std::size_t> run_along(const Index& count) {
    if (count.is_constant()) return range(count.constant);
    for (const Index::Term& term : count.terms) {  // min(end, whole) - begin
      if (indices_.atom(term.atom).kind != Atom::Kind::kMin || !term.coefficient.is_constant(1))
        continue;
      Index end;
      end.terms = {term};
      Index begin;  // what is taken away
      begin.constant = count.constant * Extent(-1);
      for (const Index::Term& other : count.terms)
        if (!(other == term)) begin.terms.push_back({other.atom, other.coefficient * Extent(-1)});
      const auto tile = tile_of(begin, end);
      if (!tile) return {};
      const std::size_t inside = range(tile->length);
      Form at;
      at.add(tile->number, tile->length);
      at.add(inside, 1);
      if (!merge(at, tile->whole)) return {};
      return inside;
    }
    return {};
  }

  /// One of several stores: the constant of its index is that of a digit.
  struct Part {
    Extent constant;  ///< digit * step
    Extent step;
    std::int64_t count = 0;
  };

  /// Whether the index goes over [0, elements) once; of a part, over those with its digit.
  bool covers(const Index& index, const std::vector<std::pair<std::size_t, Extent>>& more,
              const Extent& elements, const std::optional<Part>& part) {
    Form at = written_out(index);
    for (const auto& [coordinate, factor] : more) at.add(coordinate, factor);
    if (part) {
      at.constant = at.constant + part->constant * Extent(-1);
      at.add(range(Extent(part->count)), part->step);
    }
    simplify(at);
    if (failed_ || !at.constant.is_constant(0)) return false;
    for (std::size_t i = 0; i < ranges_.size(); ++i)
      if (!ranges_[i].gone && !single(i) && !at.factors.contains(i)) return false;
    const auto order = in_radix(at);
    return order && facts_.equal(product_of(*order), elements);
  }

 private:
  struct Range {
    Extent count;
    bool gone = false;          ///< taken apart, or part of another
    std::optional<Form> parts;  ///< taken apart: what it is now
  };
  struct Merged {
    Form of;
    std::size_t range;
  };
  struct Tile {
    std::size_t number;  ///< the range that counts tiles
    Extent length, whole;
  };

  std::size_t range(Extent count) {
    ranges_.push_back({std::move(count), false, {}});
    return ranges_.size() - 1;
  }
  void var(VarId id, const Extent& count) { vars_[id.index].add(range(count), 1); }
  bool single(std::size_t i) const { return ranges_[i].count.is_constant(1); }

  Form fail() {
    failed_ = true;
    return {};
  }

  Form written_out(const Index& index) {
    Form all;
    all.constant = index.constant;
    for (const Index::Term& term : index.terms) all.add(form(term.atom), term.coefficient);
    return all;
  }
  Form form(const Index& index) {
    Form all = written_out(index);
    simplify(all);
    return all;
  }

  Form form(AtomId id) {
    const Atom& atom = indices_.atom(id);
    if (atom.kind == Atom::Kind::kVar) {
      const auto found = vars_.find(atom.var.index);
      return found == vars_.end() ? fail() : found->second;
    }
    if (atom.kind != Atom::Kind::kDiv && atom.kind != Atom::Kind::kMod) return fail();
    const auto known = atoms_.find(id.index);
    if (known != atoms_.end()) return known->second;
    const Form of = form(atom.of);
    if (failed_) return {};
    if (of.factors.empty() && of.constant.is_constant(0)) return {};
    const auto whole = merge(of, {});
    if (!whole) return fail();
    // Both parts are ranges if the whole is a multiple.
    const auto times = divide_exactly(ranges_[*whole].count, atom.by);
    if (!times) return fail();
    const std::size_t quotient = range(*times);
    const std::size_t rest = range(atom.by);
    Form parts;
    parts.add(quotient, atom.by);
    parts.add(rest, 1);
    ranges_[*whole].gone = true;
    ranges_[*whole].parts = parts;
    for (std::uint32_t other = 0; other < indices_.atoms(); ++other) {
      const Atom& same = indices_.atom(AtomId{other});
      if (same.of != atom.of || same.by != atom.by) continue;
      if (same.kind == Atom::Kind::kDiv) atoms_[other].add(quotient, 1);
      if (same.kind == Atom::Kind::kMod) atoms_[other].add(rest, 1);
    }
    return atoms_[id.index];
  }

  /// Writes a form with the ranges that there are.
  void simplify(Form& form) {
    for (bool changed = true; changed && !failed_;) {
      changed = false;
      for (const auto& [coordinate, factor] : form.factors) {
        const Range& r = ranges_[coordinate];
        if (!r.parts) continue;
        const Extent times = factor;
        const Form parts = *r.parts;
        form.factors.erase(coordinate);
        form.add(parts, times);
        changed = true;
        break;
      }
      for (const Merged& m : merged_) {
        const auto lowest = std::find_if(m.of.factors.begin(), m.of.factors.end(),
                                         [](const auto& f) { return f.second.is_constant(1); });
        const auto at = form.factors.find(lowest->first);
        if (at == form.factors.end()) continue;
        const Extent times = at->second;
        form.add(m.of, times * Extent(-1));
        form.add(m.range, times);
        changed = true;
      }
    }
    for (auto at = form.factors.begin(); at != form.factors.end();)
      at = single(at->first) ? form.factors.erase(at) : std::next(at);
    for (const auto& [coordinate, factor] : form.factors)
      if (ranges_[coordinate].gone) failed_ = true;
  }

  /// The ranges of a form, innermost first, if each moves by what those before it make together.
  std::optional<std::vector<std::size_t>> in_radix(const Form& form) const {
    std::vector<std::size_t> order;
    std::map<std::size_t, Extent> left = form.factors;
    Extent step = 1;
    while (!left.empty()) {
      const auto next = std::find_if(left.begin(), left.end(),
                                     [&](const auto& f) { return facts_.equal(f.second, step); });
      if (next == left.end()) return {};
      order.push_back(next->first);
      step = step * ranges_[next->first].count;
      left.erase(next);
    }
    return order;
  }
  Extent product_of(const std::vector<std::size_t>& all) const {
    Extent count = 1;
    for (const std::size_t i : all) count = count * ranges_[i].count;
    return count;
  }

  /// One range instead of those of the form; no longer than `bound`, if that is given.
  std::optional<std::size_t> merge(const Form& form, const std::optional<Extent>& bound) {
    if (failed_ || !form.constant.is_constant(0)) return {};
    const auto order = in_radix(form);
    if (!order) return {};
    const Extent whole = product_of(*order);
    const bool cut = bound && !facts_.equal(whole, *bound);
    const bool shorter =
        cut && whole.is_constant() && bound->is_constant() && bound->constant() <= whole.constant();
    if (cut && !shorter) {  // the last of some tiles
      if (order->empty()) return {};
      const Extent& step = form.factors.at(order->back());
      if (!step.is_constant() ||
          !facts_.equal(ranges_[order->back()].count, facts_.ceil_divide(*bound, step.constant())))
        return {};
    }
    if (order->size() == 1 && !cut) return order->front();
    const std::size_t one = range(cut ? *bound : whole);
    if (order->empty()) return one;
    for (const std::size_t i : *order) ranges_[i].gone = true;
    merged_.push_back({form, one});
    return one;
  }

  /// [begin, end) as one of the tiles that make a whole: begin = number * length and
  /// end = min(begin + length, whole).
  std::optional<Tile> tile_of(const Index& begin, const Index& end) {
    const Form from = form(begin);
    if (failed_ || from.factors.size() != 1 || !from.constant.is_constant(0)) return {};
    const auto& [number, length] = *from.factors.begin();
    if (!length.is_constant() || end.terms.size() != 1 || !end.constant.is_constant(0) ||
        !end.terms[0].coefficient.is_constant(1))
      return {};
    const Atom& least = indices_.atom(end.terms[0].atom);
    if (least.kind != Atom::Kind::kMin) return {};
    const bool first = least.of.is_constant();
    const Index& whole = first ? least.of : least.other;
    const Form next = form(first ? least.other : least.of);
    if (failed_ || !whole.is_constant() || next.factors != from.factors ||
        next.constant != length ||
        !facts_.equal(ranges_[number].count, facts_.ceil_divide(whole.constant, length.constant())))
      return {};
    return Tile{number, length, whole.constant};
  }

  const Indices& indices_;
  const SizeFacts& facts_;
  std::vector<Range> ranges_;
  std::map<std::uint32_t, Form> vars_;
  std::map<std::uint32_t, Form> atoms_;  ///< quotients and rests
  std::vector<Merged> merged_;
  bool failed_ = false;
};

class WriteVerifier {
 public:
  WriteVerifier(const Kernel& kernel, const SizeFacts& facts)
      : kernel_(kernel),
        facts_(facts),
        stores_(kernel.buffers.size(), 0),
        constants_(kernel.buffers.size()) {}

  void run() {
    walk(kernel_.body, [&](const Statement& s, int) {
      if (const auto* store = std::get_if<Store>(&s.node)) note(store->buffer, store->index);
      if (const auto* moved = std::get_if<Transpose>(&s.node)) note(moved->to, moved->to_at);
    });
    for (std::size_t i = 0; i < kernel_.buffers.size(); ++i)
      if (kernel_.buffers[i].kind == KernelBuffer::Kind::kOutput && stores_[i] == 0)
        refuse(kernel_.buffers[i], "no statement writes it");
    block(kernel_.body);
  }

 private:
  [[noreturn]] void refuse(const KernelBuffer& buffer, const std::string& why) const {
    throw InternalError(
        fmt::format("kernel {}: it does not follow that each element of {} is written once: {}\n{}",
                    kernel_.name, buffer.name, why, print(kernel_)));
  }

  void note(BufferId buffer, const Index& index) {
    ++stores_[buffer.index];
    constants_[buffer.index].push_back(index.constant);
  }

  /// How the stores to a buffer share it, if they lie beside each other at equal distances.
  std::optional<Iterations::Part> part_of(BufferId buffer, const Extent& constant) const {
    const std::vector<Extent>& all = constants_[buffer.index];
    const auto count = static_cast<std::int64_t>(all.size());
    for (const Extent& step : all) {
      bool fits = !facts_.equal(step, 0);
      for (std::int64_t digit = 0; fits && digit < count; ++digit)
        fits = std::any_of(all.begin(), all.end(),
                           [&](const Extent& c) { return facts_.equal(c, step * Extent(digit)); });
      if (fits) return Iterations::Part{constant, step, count};
    }
    return {};
  }

  bool covers(Iterations& all, BufferId buffer, const Index& index,
              const std::vector<std::pair<std::size_t, Extent>>& more) const {
    std::optional<Iterations::Part> part;
    if (stores_[buffer.index] > 1) {
      part = part_of(buffer, index.constant);
      if (!part) return false;
    }
    return all.covers(index, more, kernel_.buffer(buffer).elements, part);
  }

  void block(const std::vector<Statement>& body) {
    for (const Statement& s : body) {
      if (const auto* loop = std::get_if<For>(&s.node)) {
        around_.push_back(&s);
        block(loop->body);
        around_.pop_back();
      } else if (const auto* branch = std::get_if<If>(&s.node)) {
        around_.push_back(&s);
        block(branch->body);
        around_.pop_back();
      } else if (const auto* store = std::get_if<Store>(&s.node)) {
        check(store->buffer, [&](Iterations& all) {
          return restrict(all, store->when) && covers(all, store->buffer, store->index, {});
        });
      } else if (const auto* moved = std::get_if<Transpose>(&s.node)) {
        check(moved->to, [&](Iterations& all) {
          const auto i = all.run_along(moved->height);
          const auto j = all.run_along(moved->width);
          return i && j && covers(all, moved->to, moved->to_at, {{*i, moved->to_step}, {*j, 1}});
        });
      }
    }
  }

  static bool restrict(Iterations& all, const std::vector<Within>& when) {
    return std::all_of(when.begin(), when.end(),
                       [&](const Within& condition) { return all.restrict(condition); });
  }

  /// Memory that is read and written again and again is nobody's result.
  bool is_result(BufferId id) const {
    const KernelBuffer::Kind kind = kernel_.buffer(id).kind;
    return kind == KernelBuffer::Kind::kOutput ||
           (kind == KernelBuffer::Kind::kInOut && stores_[id.index] == 1);
  }

  void check(BufferId id, const std::function<bool(Iterations&)>& written) const {
    if (!is_result(id)) return;
    if (facts_.equal(kernel_.buffer(id).elements, ir::Extent(0))) return;  // none to write
    Iterations all(kernel_, facts_);
    for (const Statement* s : around_) {
      const auto* loop = std::get_if<For>(&s->node);
      const bool followed = loop ? all.enter(*loop) : restrict(all, std::get<If>(s->node).when);
      if (!followed) refuse(kernel_.buffer(id), "the loops around the store are not ranges");
    }
    if (!written(all)) refuse(kernel_.buffer(id), "positions are missing, or come again");
  }

  const Kernel& kernel_;
  const SizeFacts& facts_;
  std::vector<int> stores_;                     // by buffer
  std::vector<std::vector<Extent>> constants_;  // by buffer: of the stores' positions
  std::vector<const Statement*> around_;
};

}  // namespace

void verify_writes(const Kernel& kernel, const SizeFacts& facts) {
  WriteVerifier(kernel, facts).run();
}

}  // namespace segfuse::compiler::loop
