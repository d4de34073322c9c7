#pragma once
// Sizes of a program as C computes them: a table n[], filled from the program's symbols.

#include <map>
#include <string>
#include <vector>

#include "ir/fusion.h"

namespace segfuse::compiler::cpu {

class SizeTable {
 public:
  /// `names`: what the parameters for symbols are called, by SymbolId; empty for derived ones.
  SizeTable(const ir::Fusion& fusion, std::vector<std::string> names);

  /// A C expression for the size: a number, or an element of n[].
  std::string of(const ir::Extent& size);
  /// The number of elements of a shape.
  std::string elements(const ir::Extents& shape);
  std::string product(const std::vector<std::string>& factors);
  /// Bytes of so many elements.
  std::string bytes(const std::string& elements, DType dtype);
  /// The smallest multiple of 64 that holds so many bytes.
  std::string rounded(const std::string& bytes);
  std::string sum(const std::string& a, const std::string& b);
  std::string greater(const std::string& a, const std::string& b);

  /// Statements that end the function when sizes do not fit `program`, what the Fusion was before
  /// all passes: what ir::bind() checks.
  void check_program(const ir::Fusion& program);
  /// Its body: fills n[], returns 1 if a size is impossible.
  std::string text() const;
  std::size_t count() const { return count_; }

 private:
  std::string term(const ir::Extent::Term& term);
  std::string symbol(ir::SymbolId id);
  std::string entry(const std::string& expression, const std::string& comment);
  void check_not_negative(const ir::Extent& size);
  bool never_negative(const ir::Extent& size) const;
  void check(const std::string& condition, const std::string& comment);

  const ir::Fusion& fusion_;
  std::vector<std::string> names_;
  std::map<std::string, std::string> entries_;  // by expression
  std::map<std::string, bool> checked_;
  std::string text_;
  std::size_t count_ = 0;
};

/// The functions that the table's expressions call.
std::string size_functions(const std::string& text);

}  // namespace segfuse::compiler::cpu
