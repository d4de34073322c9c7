#include "compiler/codegen/cpu/prelude.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "base/check.h"
#include "compiler/codegen/cpu/formula.h"
#include "ir/op.h"

namespace segfuse::compiler::cpu {
namespace {

constexpr std::string_view kNamesMark = "//: ";
constexpr std::string_view kNeedsMark = "//+ ";

/// "a_{x,y}b c" is a_xb a_yb c.
std::vector<std::string> expand(const std::string& pattern) {
  const std::size_t open = pattern.find('{');
  if (open == std::string::npos) return {pattern};
  const std::size_t close = pattern.find('}', open);
  SEGFUSE_CHECK(close != std::string::npos, "the pattern {} of a piece", pattern);
  std::vector<std::string> names;
  for (std::size_t at = open + 1; at <= close;) {
    const std::size_t end = std::min(pattern.find(',', at), close);
    const std::string one = pattern.substr(0, open) + pattern.substr(at, end - at);
    for (std::string& name : expand(one + pattern.substr(close + 1))) names.push_back(name);
    at = end + 1;
  }
  return names;
}

std::vector<std::string> names_of(std::string_view line) {
  std::vector<std::string> names;
  while (!line.empty()) {
    const std::size_t end = std::min(line.find(' '), line.size());
    for (std::string& name : expand(std::string(line.substr(0, end))))
      if (!name.empty()) names.push_back(std::move(name));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return names;
}

std::vector<PreludePiece> parse(std::string_view source) {
  std::vector<PreludePiece> pieces;
  while (!source.empty()) {
    const std::size_t end = std::min(source.find('\n'), source.size() - 1);
    const std::string_view line = source.substr(0, end);
    source.remove_prefix(end + 1);
    if (line.starts_with(kNamesMark)) {
      pieces.push_back({names_of(line.substr(kNamesMark.size())), {}, {}});
    } else if (line.starts_with(kNeedsMark)) {
      pieces.back().needs = names_of(line.substr(kNeedsMark.size()));
    } else if (!pieces.empty()) {
      pieces.back().text.append(line).push_back('\n');
    }
  }
  for (PreludePiece& piece : pieces)
    while (piece.text.ends_with("\n\n")) piece.text.pop_back();
  return pieces;
}

/// Vector forms of the operations that no piece defines, for the types that their rules admit.
void add_formulas(std::vector<PreludePiece>& pieces) {
  std::set<std::string, std::less<>> known;
  for (const PreludePiece& piece : pieces) known.insert(piece.names.begin(), piece.names.end());
  for (const ir::OpInfo& info : ir::all_ops()) {
    if (info.rule != ir::DTypeRule::kFloat && info.rule != ir::DTypeRule::kNumeric) continue;
    for (const std::string_view type : {"f32", "f64", "i32", "i64"}) {
      if (info.rule == ir::DTypeRule::kFloat && type[0] == 'i') continue;
      const std::string name = fmt::format("sf_{}_{}", info.name, type);
      if (known.contains(name)) continue;
      std::string list = fmt::format("sf_{} a", type);
      if (info.max_operands == 2) list += fmt::format(", sf_{} b", type);
      pieces.push_back({{name},
                        {},
                        fmt::format("SF_INLINE sf_{} {}({}) {{ return {}; }}\n", type, name, list,
                                    vector_formula(info.formula, type))});
    }
  }
}

using PieceByName = std::map<std::string, std::size_t, std::less<>>;

const PieceByName& piece_by_name() {
  static const auto& table = *new PieceByName([] {
    PieceByName made;
    for (std::size_t i = 0; i < prelude_pieces().size(); ++i)
      for (const std::string& name : prelude_pieces()[i].names) {
        const bool fresh = made.emplace(name, i).second;
        SEGFUSE_CHECK(fresh, "two pieces of the prelude define {}", name);
      }
    return made;
  }());
  return table;
}

/// Marks the pieces whose names stand in `text`.
void mark_used(std::string_view text, std::vector<bool>& used) {
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && is_word(text[end])) ++end;
    if (end > at) {
      const auto found = piece_by_name().find(text.substr(at, end - at));
      if (found != piece_by_name().end()) used[found->second] = true;
    }
    at = end + 1;
  }
}

}  // namespace

const std::vector<PreludePiece>& prelude_pieces() {
  static const auto& pieces = *new std::vector<PreludePiece>([] {
    std::vector<PreludePiece> all = parse(prelude_source("all.h"));
    add_formulas(all);
    return all;
  }());
  return pieces;
}

std::string prelude_for(std::string_view text) {
  const std::vector<PreludePiece>& pieces = prelude_pieces();
  std::vector<bool> used(pieces.size(), false);
  used[0] = true;
  mark_used(text, used);
  for (std::size_t i = pieces.size(); i-- > 0;)  // a piece uses earlier ones only
    if (used[i]) {
      mark_used(pieces[i].text, used);
      for (const std::string& name : pieces[i].needs) mark_used(name, used);
    }
  std::string out;
  for (std::size_t i = 0; i < pieces.size(); ++i)
    if (used[i]) out += pieces[i].text + "\n";
  return out;
}

}  // namespace segfuse::compiler::cpu
