#include <fmt/core.h>

#include <algorithm>

#include "compiler/loop/kernel.h"
#include "segfuse/error.h"

namespace segfuse::compiler::loop {

using ir::Extent;

namespace {

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

std::string name_of(const Kernel& kernel, const Extent& size) {
  return size.to_string([&](ir::SymbolId symbol) { return kernel.symbols.at(symbol.index); });
}

/// A size as a factor: sums in brackets.
std::string factor(const Kernel& kernel, const Extent& size) {
  const std::string text = name_of(kernel, size);
  return size.terms().size() > 1 ? "(" + text + ")" : text;
}

std::string name_of(ValueId value) { return fmt::format("%{}", value.index); }

class Printer {
 public:
  explicit Printer(const Kernel& kernel) : kernel_(kernel) {}

  std::string run() {
    line("kernel {} [{}] {{", kernel_.name, to_string(kernel_.schedule));
    ++depth_;
    for (const KernelBuffer& buffer : kernel_.buffers) print(buffer);
    for (std::size_t i = 0; i < kernel_.reductions.size(); ++i) {
      const Reduction& r = kernel_.reductions[i];
      line("reduction r{}: {} {}{}", i, ir::name_of(r.op), segfuse::name_of(r.dtype),
           r.compensated ? " compensated" : "");
    }
    line("outer {} in 0 .. {} {{", kernel_.indices.var(kernel_.outer).name,
         name_of(kernel_, kernel_.outer_count));
    block(kernel_.body);
    line("}}");
    --depth_;
    line("}}");
    return std::move(text_);
  }

  std::string index(const Index& i) const {
    std::string text;
    for (const Index::Term& term : i.terms) {
      if (!text.empty()) text += " + ";
      text += atom(kernel_.indices.atom(term.atom));
      if (!term.coefficient.is_constant(1)) text += "*" + factor(kernel_, term.coefficient);
    }
    if (text.empty() || !i.constant.is_constant(0))
      text += (text.empty() ? "" : " + ") + name_of(kernel_, i.constant);
    return text;
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    text_.append(2 * depth_, ' ');
    text_ += fmt::format(format, std::forward<Args>(args)...);
    text_ += '\n';
  }

  std::string atom(const Atom& a) const {
    switch (a.kind) {
      case Atom::Kind::kVar: return kernel_.indices.var(a.var).name;
      case Atom::Kind::kValue: return name_of(a.value);
      case Atom::Kind::kDiv: return fmt::format("({}) / {}", index(a.of), factor(kernel_, a.by));
      case Atom::Kind::kMod: return fmt::format("({}) % {}", index(a.of), factor(kernel_, a.by));
      case Atom::Kind::kMin: return fmt::format("min({}, {})", index(a.of), index(a.other));
    }
    throw InternalError("an atom of no kind");
  }

  void print(const KernelBuffer& buffer) {
    static constexpr const char* kKinds[] = {"input", "output", "inout", "row"};
    std::string text =
        fmt::format("{} {}: {}[{}]", kKinds[static_cast<int>(buffer.kind)], buffer.name,
                    segfuse::name_of(buffer.dtype), name_of(kernel_, buffer.elements));
    if (buffer.kind == KernelBuffer::Kind::kRow) {
      text += buffer.hold == Hold::kRegister ? " in registers" : " in scratch";
      if (buffer.capacity > 0) text += fmt::format(" up to {}", buffer.capacity);
    }
    line("{}", text);
  }

  std::string when(const std::vector<Within>& conditions) const {
    std::string text;
    for (const Within& condition : conditions)
      text += fmt::format("{} 0 <= {} < {}", text.empty() ? " when" : " and",
                          index(condition.index), name_of(kernel_, condition.bound));
    return text;
  }

  std::string place(BufferId buffer, const Index& at) const {
    return fmt::format("{}[{}]", kernel_.buffer(buffer).name, index(at));
  }

  void block(const std::vector<Statement>& body) {
    ++depth_;
    for (const Statement& statement : body) print(statement);
    --depth_;
  }

  std::string defines(ValueId value) const {
    return fmt::format("{} {} =", segfuse::name_of(kernel_.dtype(value)), name_of(value));
  }

  void print(const Statement& statement) {
    std::visit(
        Overloaded{
            [&](const Compute& s) {
              std::string operands;
              for (const ValueId operand : s.operands)
                operands += (operands.empty() ? "" : ", ") + name_of(operand);
              line("{} {}({})", defines(s.result), ir::info(s.op).name, operands);
            },
            [&](const Constant& s) { line("{} {}", defines(s.result), s.value); },
            [&](const FromIndex& s) { line("{} index {}", defines(s.result), index(s.index)); },
            [&](const Random& s) {
              line("{} random {} {} {} [{}]", defines(s.result), name_of(s.key),
                   name_of(s.sequence), s.stream, index(s.element));
            },
            [&](const Load& s) {
              const std::string rest =
                  s.when.empty() ? "" : fmt::format("{} else {}", when(s.when), s.otherwise);
              line("{} {}{}", defines(s.result), place(s.buffer, s.index), rest);
            },
            [&](const Store& s) {
              line("{} = {}{}", place(s.buffer, s.index), name_of(s.value), when(s.when));
            },
            [&](const Check& s) {
              line("check {} 0 <= {} < {}{}", s.what, index(s.within.index),
                   name_of(kernel_, s.within.bound), when(s.when));
            },
            [&](const Begin& s) { line("begin r{}", s.reduction.index); },
            [&](const Accumulate& s) {
              const bool placed = kernel_.reductions[s.reduction.index].op == ir::Monoid::kArgmax;
              line("r{} <- {}{}", s.reduction.index, name_of(s.value),
                   placed ? " at " + index(s.position) : "");
            },
            [&](const Finish& s) {
              std::string results;
              for (const ValueId result : s.results)
                results += fmt::format("{}{} {}", results.empty() ? "" : ", ",
                                       segfuse::name_of(kernel_.dtype(result)), name_of(result));
              line("{} = finish r{}", results, s.reduction.index);
            },
            [&](const Barrier&) { line("barrier"); },
            [&](const Transpose& s) {
              line("{} by {} = transposed {} by {}, {} x {}", place(s.to, s.to_at),
                   name_of(kernel_, s.to_step), place(s.from, s.from_at),
                   name_of(kernel_, s.from_step), index(s.height), index(s.width));
            },
            [&](const For& s) {
              line("{} {} in {} .. {} {{", s.kind == For::Kind::kLane ? "lane" : "serial",
                   kernel_.indices.var(s.var).name, index(s.begin), index(s.end));
              block(s.body);
              line("}}");
            },
            [&](const If& s) {
              line("if{} {{", when(s.when));
              block(s.body);
              line("}}");
            },
        },
        statement.node);
  }

  const Kernel& kernel_;
  std::string text_;
  std::size_t depth_ = 0;
};

}  // namespace

std::string print(const Kernel& kernel) { return Printer(kernel).run(); }

std::string to_string(const Kernel& kernel, const Index& index) {
  return Printer(kernel).index(index);
}

}  // namespace segfuse::compiler::loop
