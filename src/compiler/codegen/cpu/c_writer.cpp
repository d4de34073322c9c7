#include "compiler/codegen/cpu/c_writer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/half.h"
#include "base/half_types.h"
#include "segfuse/error.h"

namespace segfuse::compiler::cpu {

using namespace loop;

std::string_view memory_type(DType dtype) { return name_of(dtype); }

std::string_view lane_type(DType dtype) { return name_of(compute_type(dtype)); }

std::string_view element_type(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "uint8_t";
    case DType::kF16:
    case DType::kBF16: return "uint16_t";
    default: return scalar_type(dtype);
  }
}

std::string_view scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "int";
    case DType::kI32: return "int32_t";
    case DType::kI64: return "int64_t";
    case DType::kF64: return "double";
    default: return "float";
  }
}

namespace {

template <class Float>
std::string real_literal(Float value, std::string_view suffix) {
  if (std::isnan(value)) return "SF_NAN";
  if (std::isinf(value)) return value < 0 ? "-SF_INFINITY" : "SF_INFINITY";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text + std::string(suffix);
}

}  // namespace

std::string literal(DType dtype, double value) {
  switch (dtype) {
    case DType::kF16: return real_literal(half_to_float(double_to_half(value)), "f");
    case DType::kBF16: return real_literal(bfloat16_to_float(double_to_bfloat16(value)), "f");
    case DType::kF32: return real_literal(static_cast<float>(value), "f");
    case DType::kF64: return real_literal(value, "");
    case DType::kBool: return value != 0 ? "1" : "0";
    default: break;
  }
  const bool narrow = dtype == DType::kI32;
  const std::int64_t whole =
      narrow ? saturate_cast<std::int32_t>(value) : saturate_cast<std::int64_t>(value);
  const std::int64_t least =
      narrow ? std::numeric_limits<std::int32_t>::min() : std::numeric_limits<std::int64_t>::min();
  // The least number has no literal of its own.
  return whole == least ? fmt::format("({} - 1)", whole + 1) : fmt::format("{}", whole);
}

void CText::add(std::string_view text) {
  text_.append(2 * depth_, ' ');
  text_.append(text).push_back('\n');
}

Varying::Varying(const Kernel& kernel)
    : kernel_(kernel),
      values_(kernel.values.size(), false),
      reductions_(kernel.reductions.size(), false) {
  block(kernel.body, nullptr);
}

bool Varying::index(const Index& index, const Lane* lane) const {
  bool found = lane != nullptr && kernel_.indices.depends_on(index, lane->var);
  kernel_.indices.each_value(index, [&](ValueId id) { found = found || value(id); });
  return found;
}

bool Varying::any(const std::vector<Within>& when, const Lane* lane) const {
  return std::any_of(when.begin(), when.end(),
                     [&](const Within& w) { return index(w.index, lane); });
}

void Varying::block(const std::vector<Statement>& body, const Lane* lane) {
  for (const Statement& statement : body) visit(statement, lane);
}

void Varying::visit(const Statement& statement, const Lane* lane) {
  const bool masked = lane != nullptr && !lane->mask.empty();
  const auto& node = statement.node;
  if (const auto* s = std::get_if<Compute>(&node)) {
    values_[s->result.index] = std::any_of(s->operands.begin(), s->operands.end(),
                                           [&](ValueId operand) { return value(operand); });
  }
  if (const auto* s = std::get_if<FromIndex>(&node)) {
    values_[s->result.index] = index(s->index, lane);
  }
  if (const auto* s = std::get_if<Random>(&node)) {
    values_[s->result.index] = index(s->element, lane);
    if (value(s->key) || value(s->sequence))
      throw InternalError(fmt::format(
          "kernel {}: the seed of a random number differs between lanes", kernel_.name));
  }
  if (const auto* s = std::get_if<Load>(&node)) {
    values_[s->result.index] = masked || index(s->index, lane) || any(s->when, lane);
  }
  if (const auto* s = std::get_if<Begin>(&node)) {
    reductions_[s->reduction.index] = lane != nullptr;
  }
  if (const auto* s = std::get_if<Finish>(&node)) {
    for (const ValueId result : s->results) values_[result.index] = reductions_[s->reduction.index];
  }
  if (const auto* s = std::get_if<For>(&node)) {
    const Lane inner{s->var, 1, false, ""};
    block(s->body, s->kind == For::Kind::kLane ? &inner : lane);
  }
  if (const auto* s = std::get_if<If>(&node)) {
    if (lane == nullptr) return block(s->body, nullptr);
    Lane inner = *lane;
    if (any(s->when, lane)) inner.mask = "masked";
    block(s->body, &inner);
  }
}

int Varying::count(const For& lane) const {
  bool several = false;
  bool wide = false;
  walk(lane.body, [&](const Statement& statement, int) {
    if (std::holds_alternative<For>(statement.node)) several = true;
    if (const auto* s = std::get_if<Accumulate>(&statement.node)) {
      const Reduction& reduction = kernel_.reductions[s->reduction.index];
      several = true;
      wide = wide || size_of(reduction.dtype) == 8 || reduction.op == ir::Monoid::kArgmax;
    }
  });
  if (!several) return 1;
  return std::clamp(wide ? kernel_.schedule.unroll / 2 : kernel_.schedule.unroll, 1, 8);
}

namespace {

/// In brackets unless it is one word.
std::string factor(const std::string& text) {
  return text.find(' ') == text.npos ? text : "(" + text + ")";
}

}  // namespace

std::string c_identifier(const std::string& name, std::set<std::string>& taken) {
  std::string clean;
  for (const char c : name)
    clean += std::isalnum(static_cast<unsigned char>(c)) || c == '_' ? c : '_';
  // Ours are v0, r0, n0, m0 and so on, or begin with sf_.
  const bool ours = clean.size() > 1 && std::string_view("vrnm").find(clean[0]) != clean.npos &&
                    std::isdigit(static_cast<unsigned char>(clean[1]));
  if (clean.empty() || std::isdigit(static_cast<unsigned char>(clean[0])) || clean[0] == '_' ||
      clean.starts_with("sf_") || ours)
    clean = "x_" + clean;
  std::string unique = clean;
  for (int i = 2; !taken.insert(unique).second; ++i) unique = fmt::format("{}_{}", clean, i);
  return unique;
}

std::set<std::string> c_reserved_words() {
  return {"auto",    "break",  "case",     "char",   "const",    "continue", "default",
          "do",      "double", "else",     "enum",   "extern",   "float",    "for",
          "goto",    "if",     "inline",   "int",    "long",     "register", "restrict",
          "return",  "short",  "signed",   "sizeof", "static",   "struct",   "switch",
          "typedef", "union",  "unsigned", "void",   "volatile", "while",    "asm",
          "typeof",  "linux",  "unix",     "bool",   "true",     "false",    "nullptr",
          "buffers", "sizes",  "begin",    "end",    "scratch",  "status",   "lanes",
          "u"};
}

CNames::CNames(const Kernel& kernel, const Varying& varying)
    : kernel_(kernel), varying_(varying), sizes_(kernel.sizes()) {
  std::set<std::string> taken = c_reserved_words();
  taken.insert(kernel.name);
  for (std::uint32_t i = 0; i < kernel.indices.vars(); ++i)
    vars_.push_back(c_identifier(kernel.indices.var({i}).name, taken));
  for (const KernelBuffer& buffer : kernel.buffers)
    buffers_.push_back(c_identifier(buffer.name, taken));
}

std::string CNames::value(ValueId id, const Lane* lane) const {
  const bool many = lane != nullptr && lane->count > 1 && varying_.value(id);
  return fmt::format("v{}{}", id.index, many ? "[u]" : "");
}

std::string CNames::vector(ValueId id, const Lane* lane) const {
  const std::string text = value(id, lane);
  if (varying_.value(id)) return text;
  return fmt::format("sf_all_{}({})", lane_type(kernel_.dtype(id)), text);
}

std::string CNames::size(const ir::Extent& size) const {
  if (size.is_constant()) return fmt::format("{}", size.constant());
  const auto found = std::find(sizes_.begin(), sizes_.end(), size);
  if (found == sizes_.end())
    throw InternalError(fmt::format("kernel {}: a size that is not among its sizes", kernel_.name));
  return fmt::format("n{}", found - sizes_.begin());
}

std::string CNames::scalar(const Index& index, const Lane* lane) const {
  return sum(index, {false, lane});
}

std::string CNames::vector(const Index& index, const Lane* lane) const {
  if (!varying_.index(index, lane)) return "sf_all_i64(" + scalar(index, lane) + ")";
  return sum(index, {true, lane});
}

std::string CNames::sum(const Index& index, Form form) const {
  std::string text;
  for (const Index::Term& term : index.terms) {
    const bool negative =
        term.coefficient.is_constant() && term.coefficient.constant() < 0 && !text.empty();
    const ir::Extent coefficient = negative ? term.coefficient * ir::Extent(-1) : term.coefficient;
    if (!text.empty()) text += negative ? " - " : " + ";
    text += atom(kernel_.indices.atom(term.atom), form);
    if (!coefficient.is_constant(1)) text += " * " + size(coefficient);
  }
  if (text.empty()) return size(index.constant);
  if (index.constant.is_constant(0)) return text;
  if (index.constant.is_constant() && index.constant.constant() < 0)
    return text + fmt::format(" - {}", -index.constant.constant());
  return text + " + " + size(index.constant);
}

std::string CNames::whole(ValueId id, Form form) const {
  const std::string text = value(id, form.lane);
  if (form.vector && varying_.value(id))
    return fmt::format("sf_i64_from_{}({})", lane_type(kernel_.dtype(id)), text);
  if (varying_.value(id))
    throw InternalError(
        fmt::format("kernel {}: an index that differs between lanes", kernel_.name));
  return kernel_.dtype(id) == DType::kI64 ? text : "(int64_t)" + text;
}

std::string CNames::atom(const Atom& atom, Form form) const {
  const bool differs =
      form.vector && (varying_.index(atom.of, form.lane) || varying_.index(atom.other, form.lane));
  const Form inner{differs, form.lane};
  switch (atom.kind) {
    case Atom::Kind::kVar: {
      if (form.lane == nullptr || atom.var != form.lane->var) return var(atom.var);
      const bool many = form.lane->count > 1;
      const std::string first = var(atom.var) + (many ? " + u * SF_LANES" : "");
      if (form.vector) return "sf_lanes_i64(" + first + ")";
      return many ? "(" + first + ")" : first;
    }
    case Atom::Kind::kValue: return whole(atom.value, form);
    case Atom::Kind::kDiv: return factor(sum(atom.of, inner)) + " / " + size(atom.by);
    case Atom::Kind::kMod: return factor(sum(atom.of, inner)) + " % " + size(atom.by);
    case Atom::Kind::kMin:
      if (differs)
        return fmt::format("sf_minimum_i64({}, {})", vector(atom.of, form.lane),
                           vector(atom.other, form.lane));
      return fmt::format("sf_min({}, {})", sum(atom.of, inner), sum(atom.other, inner));
  }
  throw InternalError("an atom of no kind");
}

}  // namespace segfuse::compiler::cpu
