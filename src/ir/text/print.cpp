#include <fmt/ranges.h>

#include <cmath>

#include "ir/text.h"

namespace segfuse::ir {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(byte));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string number(double value) { return std::isnan(value) ? "nan" : fmt::format("{}", value); }

/// A text of several lines within a statement: no line end behind it.
std::string indented(const std::string& text) {
  std::string all;
  for (const char c : text.substr(0, text.size() - 1)) {
    all += c;
    if (c == '\n') all += "  ";
  }
  return all;
}

class Printer {
 public:
  explicit Printer(const Fusion& fusion) : fusion_(fusion), names_(fusion.storage().vals.size()) {}

  std::string run() {
    text_ = "fusion " + quoted(fusion_.name()) + " {\n";
    print_sizes();
    for (const Input& input : fusion_.inputs())
      text_ += fmt::format("  {} = input {} : {}\n", define(input.val), quoted(input.name),
                           type(input.val));
    for (const ExprId id : fusion_.sorted_exprs()) print_expr(fusion_.expr(id));
    for (const Output& output : fusion_.outputs()) {
      text_ += "  output " + names_[output.val.index];
      if (!output.name.empty()) text_ += " " + quoted(output.name);
      text_ += "\n";
    }
    for (const Alias& alias : fusion_.aliases())
      text_ +=
          fmt::format("  alias {} -> {}\n", names_[alias.output.index], names_[alias.input.index]);
    return text_ + "}\n";
  }

 private:
  std::string define(ValId id) {
    names_[id.index] = fmt::format("%{}", next_++);
    return names_[id.index];
  }
  std::string type(ValId id) const {
    const Val& val = fusion_.val(id);
    return std::string(name_of(val.dtype)) + fusion_.to_string(val.shape);
  }

  void print_sizes();
  void print_expr(const Expr& e);
  std::string attribute(const Attr& attr) const;

  const Fusion& fusion_;
  std::vector<std::string> names_;  // by ValId
  std::uint32_t next_ = 0;
  std::string text_;
};

void Printer::print_sizes() {
  const IrStorage& ir = fusion_.storage();
  std::string names;
  for (std::uint32_t i = 0; i < ir.symbols.size(); ++i)
    if (!ir.symbols[i].derived && ir.symbol_parent[i] == Extent(SymbolId{i}))
      names += (names.empty() ? "" : ", ") + ir.symbols[i].name;
  if (!names.empty()) text_ += "  symbols " + names + "\n";
  for (const auto& [left, right] : ir.requirements) {
    const Extent difference = left - right;
    // The side with more factors comes first, then by name: the ids must not matter.
    const std::string a = fusion_.to_string(left);
    const std::string b = fusion_.to_string(right);
    const bool swap = fusion_.to_string(difference).front() == '-';
    text_ += fmt::format("  require {} == {}\n", swap ? b : a, swap ? a : b);
  }
}

std::string Printer::attribute(const Attr& attr) const {
  if (const auto* one = std::get_if<std::int64_t>(&attr)) return std::to_string(*one);
  if (const auto* value = std::get_if<double>(&attr)) return number(*value);
  if (const auto* dtype = std::get_if<DType>(&attr)) return std::string(name_of(*dtype));
  if (const auto* extents = std::get_if<Extents>(&attr)) return fusion_.to_string(*extents);
  if (const auto* body = std::get_if<Body>(&attr)) return indented(print(*body->fusion));
  return fmt::format("[{}]", fmt::join(std::get<std::vector<std::int64_t>>(attr), ", "));
}

void Printer::print_expr(const Expr& e) {
  std::string results;
  std::string types;
  for (const ValId id : e.results) {
    results += (results.empty() ? "" : ", ") + define(id);
    types += (types.empty() ? "" : ", ") + type(id);
  }
  std::string operands;
  for (const ValId id : e.operands) operands += (operands.empty() ? "" : ", ") + names_[id.index];
  std::string attrs;
  for (std::size_t i = 0; i < e.attrs.size(); ++i)
    attrs += fmt::format("{}{}={}", i ? ", " : "", info(e.op).attrs[i].name, attribute(e.attrs[i]));
  text_ += fmt::format("  {} = {}", results, info(e.op).name);
  if (!operands.empty()) text_ += "(" + operands + ")";
  if (!attrs.empty()) text_ += " {" + attrs + "}";
  text_ += " : " + types + "\n";
}

}  // namespace

std::string print(const Fusion& fusion) { return Printer(fusion).run(); }

}  // namespace segfuse::ir
