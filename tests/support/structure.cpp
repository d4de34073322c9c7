#include "support/structure.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "base/code/fnv.h"

namespace segfuse::ir {
namespace {

constexpr int kRefinements = 3;
constexpr int kMaxAttempts = 1000;

/// FNV-1a and a final mix.
std::uint64_t hash_text(std::string_view text) {
  std::uint64_t hash = fnv1a(text);
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9U;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBU;
  return hash ^ (hash >> 31);
}

/// Gives equal texts one number. Which one is up to the purpose.
using Intern = std::function<std::uint64_t(const std::string&)>;

/// Writes the definition of a Fusion down with given names for its symbols.
class Describer {
 public:
  Describer(const Fusion& fusion, const std::vector<std::string>& names, Intern intern)
      : fusion_(fusion), names_(names), intern_(std::move(intern)) {}

  /// The whole definition, and on the way every size in it with the place where it stands.
  std::string run();
  struct Place {
    std::string where;
    Extent size;
  };
  const std::vector<Place>& places() const { return places_; }

  /// `marked` is written as "@".
  std::string text(const Extent& extent, SymbolId marked = {}) const;
  /// The plain symbols in `extent`, also inside divisions.
  void plain_symbols(const Extent& extent, std::set<SymbolId>& all) const;

 private:
  std::string text(const std::string& where, const Extents& extents);
  std::string attribute(const std::string& where, const Attr& attr);
  std::string expression(const Expr& e);

  const Fusion& fusion_;
  const std::vector<std::string>& names_;
  Intern intern_;
  std::vector<std::uint64_t> classes_;  // by ValId
  std::vector<Place> places_;
};

std::string Describer::text(const Extent& extent, SymbolId marked) const {
  return fusion_.canonical(extent).to_string([&](SymbolId id) -> std::string {
    const auto& derived = fusion_.storage().symbols[id.index].derived;
    if (!derived) return id == marked ? "@" : names_[id.index];
    return fmt::format("floordiv({}, {})", text(derived->numerator, marked), derived->divisor);
  });
}

void Describer::plain_symbols(const Extent& extent, std::set<SymbolId>& all) const {
  for (const SymbolId id : fusion_.canonical(extent).symbols()) {
    const auto& derived = fusion_.storage().symbols[id.index].derived;
    if (derived) {
      plain_symbols(derived->numerator, all);
    } else {
      all.insert(id);
    }
  }
}

std::string Describer::text(const std::string& where, const Extents& extents) {
  std::string all = "[";
  for (std::size_t i = 0; i < extents.size(); ++i) {
    if (!fusion_.canonical(extents[i]).is_constant())
      places_.push_back({fmt::format("{} {}", where, i), extents[i]});
    all += text(extents[i]) + ",";
  }
  return all + "]";
}

std::string Describer::attribute(const std::string& where, const Attr& attr) {
  if (const auto* one = std::get_if<std::int64_t>(&attr)) return std::to_string(*one);
  if (const auto* dtype = std::get_if<DType>(&attr)) return std::string(name_of(*dtype));
  if (const auto* extents = std::get_if<Extents>(&attr)) return text(where, *extents);
  if (const auto* value = std::get_if<double>(&attr))
    return std::isnan(*value) ? "nan" : fmt::format("{:x}", std::bit_cast<std::uint64_t>(*value));
  if (const auto* body = std::get_if<Body>(&attr))
    return fmt::format("body {:x}", structural_hash(*body->fusion));
  return fmt::format("[{}]", fmt::join(std::get<std::vector<std::int64_t>>(attr), ","));
}

std::string Describer::expression(const Expr& e) {
  std::string all = std::string(info(e.op).name) + "(";
  for (const ValId operand : e.operands) all += fmt::format("{:x},", classes_[operand.index]);
  const std::string where = all;  // without the attributes: a place does not depend on its content
  for (std::size_t i = 0; i < e.attrs.size(); ++i)
    all += " " + attribute(fmt::format("{}) {}", where, i), e.attrs[i]);
  return all;
}

std::string Describer::run() {
  classes_.assign(fusion_.storage().vals.size(), 0);
  std::string all = "inputs";
  for (std::size_t i = 0; i < fusion_.inputs().size(); ++i) {
    const ValId id = fusion_.inputs()[i].val;
    const std::string name = fmt::format("input {}", i);
    classes_[id.index] = intern_(name);
    all += fmt::format(" {}{}", name_of(fusion_.val(id).dtype), text(name, fusion_.val(id).shape));
  }
  for (const ExprId id : fusion_.live_exprs()) {
    const Expr& e = fusion_.expr(id);
    const std::string definition = expression(e);
    for (std::size_t r = 0; r < e.results.size(); ++r)
      classes_[e.results[r].index] = intern_(fmt::format("{}: {}", definition, r));
  }
  all += " outputs";
  for (const Output& output : fusion_.outputs())
    all += fmt::format(" {:x}", classes_[output.val.index]);
  std::set<std::string> facts;  // in no order of their own
  for (const Alias& alias : fusion_.aliases())
    facts.insert(
        fmt::format("{:x}->{:x}", classes_[alias.output.index], classes_[alias.input.index]));
  std::set<SymbolId> used;
  for (const Place& place : places_) plain_symbols(place.size, used);
  for (const auto& [left, right] : fusion_.storage().requirements) {
    std::set<SymbolId> inside;
    plain_symbols(left, inside);
    plain_symbols(right, inside);
    if (!std::includes(used.begin(), used.end(), inside.begin(), inside.end())) continue;
    const std::string one = text(left);
    const std::string other = text(right);
    facts.insert(std::min(one, other) + "==" + std::max(one, other));
    places_.push_back({"require", left - right});
    places_.push_back({"require", right - left});
  }
  return fmt::format("{} facts {}", all, fmt::join(facts, " "));
}

/// Names for the symbols made from where they stand and nothing else.
std::vector<std::string> names_by_place(const Fusion& fusion) {
  std::vector<std::string> names(fusion.storage().symbols.size(), "?");
  for (int round = 0; round < kRefinements; ++round) {
    Describer describer(fusion, names, hash_text);
    (void)describer.run();
    std::map<SymbolId, std::set<std::string>> stands;
    for (const Describer::Place& place : describer.places()) {
      std::set<SymbolId> inside;
      describer.plain_symbols(place.size, inside);
      for (const SymbolId id : inside)
        stands[id].insert(place.where + ":" + describer.text(place.size, id));
    }
    std::vector<std::string> next(names.size(), "?");
    for (const auto& [id, places] : stands)
      next[id.index] = fmt::format(
          "{:x}", hash_text(names[id.index] + fmt::format("{}", fmt::join(places, ";"))));
    names = std::move(next);
  }
  return names;
}

/// The named symbols, by name.
std::map<std::string, std::vector<std::uint32_t>> by_name(const std::vector<std::string>& names) {
  std::map<std::string, std::vector<std::uint32_t>> all;
  for (std::uint32_t i = 0; i < names.size(); ++i)
    if (names[i] != "?") all[names[i]].push_back(i);
  return all;
}

}  // namespace

std::uint64_t structural_hash(const Fusion& fusion) {
  const std::vector<std::string> names = names_by_place(fusion);
  return hash_text(Describer(fusion, names, hash_text).run());
}

bool structurally_equal(const Fusion& a, const Fusion& b) {
  if (a.inputs().size() != b.inputs().size() || a.outputs().size() != b.outputs().size())
    return false;
  const auto groups_a = by_name(names_by_place(a));
  auto groups_b = by_name(names_by_place(b));
  if (groups_a.size() != groups_b.size()) return false;
  // Texts get numbers in the order of their first appearance: no two share one.
  std::map<std::string, std::uint64_t> numbers;
  const Intern intern = [&](const std::string& text) {
    return numbers.emplace(text, numbers.size()).first->second;
  };
  std::vector<std::string> names_a(a.storage().symbols.size(), "?");
  std::vector<std::string> names_b(b.storage().symbols.size(), "?");
  for (const auto& [name, symbols] : groups_a) {
    const auto other = groups_b.find(name);
    if (other == groups_b.end() || other->second.size() != symbols.size()) return false;
    for (std::size_t i = 0; i < symbols.size(); ++i)
      names_a[symbols[i]] = fmt::format("{}.{}", name, i);
  }
  const std::string definition = Describer(a, names_a, intern).run();
  // Symbols that stand in like places are tried in all orders.
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    for (const auto& [name, symbols] : groups_b)
      for (std::size_t i = 0; i < symbols.size(); ++i)
        names_b[symbols[i]] = fmt::format("{}.{}", name, i);
    if (Describer(b, names_b, intern).run() == definition) return true;
    bool more = false;
    for (auto& [name, symbols] : groups_b) {
      more = std::next_permutation(symbols.begin(), symbols.end());
      if (more) break;  // otherwise this group is back in its first order, and the next one moves
    }
    if (!more) return false;
  }
  return false;
}

}  // namespace segfuse::ir
