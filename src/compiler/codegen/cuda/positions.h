#pragma once
// Positions and conditions in CUDA C++, under the names that variables and values have just now.

#include <set>
#include <string>
#include <vector>

#include "compiler/loop/kernel.h"

namespace segfuse::compiler::cuda {

class Positions {
 public:
  explicit Positions(const loop::Kernel& kernel);

  /// Definitions of the quotients and remainders of an outer iteration that texts so far name:
  /// where a branch is around a division, the compiler divides again for every element.
  std::vector<std::string> definitions() const;

  void name(loop::VarId var, std::string text) {
    vars_.at(var.index) = std::move(text);
    if (element_.var == var) element_ = {};
  }
  /// The e-th of `vector` values that follow `base`, a multiple of `vector`; 0: of nothing known.
  void name_element(loop::VarId var, const std::string& base, int vector);
  void name(loop::ValueId value, std::string text) { values_.at(value.index) = std::move(text); }
  const std::string& text(loop::VarId var) const { return vars_.at(var.index); }
  const std::string& text(loop::ValueId value) const { return values_.at(value.index); }

  /// The type of positions: int or long long.
  const std::string& type() const { return type_; }
  std::string size(const ir::Extent& extent) const;
  /// Of type(); of long long where it holds a value.
  std::string index(const loop::Index& index) const;
  std::string within(const loop::Within& condition) const;
  /// Joined by "and"; "true" when there are none.
  std::string all(const std::vector<loop::Within>& conditions) const;

 private:
  bool holds_value(const loop::Index& index) const;
  std::string sum(const loop::Index& index, bool wide) const;
  std::string atom(loop::AtomId id, bool wide) const;
  std::string quotient(const loop::Atom& atom, bool wide) const;
  bool of_outer(const loop::Index& index) const;

  struct Element {
    loop::VarId var;
    std::string base;
    int vector = 1;
  };
  bool is_element(const loop::Atom& atom) const;

  const loop::Kernel& kernel_;
  Element element_;
  std::vector<ir::Extent> sizes_;
  std::vector<std::string> vars_;
  std::vector<std::string> values_;
  std::vector<char> of_outer_;              ///< by atom: it depends on the outer iteration alone
  mutable std::set<loop::AtomId> defined_;  ///< of those, what texts name
  std::string type_;
};

}  // namespace segfuse::compiler::cuda
