#pragma once
// What the parts of the C printer share: the text, names, and which values differ between lanes.

#include <fmt/format.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/loop/kernel.h"

namespace segfuse::compiler::cpu {

/// "f32" for f16, bf16 and f32: what values of a type are in lanes.
std::string_view lane_type(DType dtype);
/// "f16", "bool": the names of loads and stores.
std::string_view memory_type(DType dtype);
/// C's type of an element in memory, and of one value.
std::string_view element_type(DType dtype);
std::string_view scalar_type(DType dtype);
/// A number as C has it, for values of the type.
std::string literal(DType dtype, double value);

/// `name` as an identifier that is nobody else's.
std::string c_identifier(const std::string& name, std::set<std::string>& taken);
/// Names that identifiers may not have: keywords of C, and names that every kernel declares.
std::set<std::string> c_reserved_words();

/// Lines, indented.
class CText {
 public:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    add(fmt::format(format, std::forward<Args>(args)...));
  }
  void deeper() { ++depth_; }
  void open(const std::string& head) {
    add(head.empty() ? "{" : head + " {");
    ++depth_;
  }
  void close(std::string_view tail = "") {
    --depth_;
    add("}" + std::string(tail));
  }
  std::string take() { return std::move(text_); }

 private:
  void add(std::string_view text);
  std::string text_;
  std::size_t depth_ = 0;
};

/// The lane loop that is being printed, one of its two forms.
struct Lane {
  loop::VarId var;
  int count = 1;      ///< vectors beside each other
  bool tail = false;  ///< only the first `lanes` lanes are there
  std::string mask;   ///< variable of the mask of the enclosing Ifs; empty: all lanes
};

/// Which values and reductions differ between the lanes of their loop.
class Varying {
 public:
  explicit Varying(const loop::Kernel& kernel);
  bool value(loop::ValueId id) const { return values_[id.index]; }
  /// Begun inside of a lane loop: a state for each lane.
  bool reduction(loop::ReductionId id) const { return reductions_[id.index]; }
  bool index(const loop::Index& index, const Lane* lane) const;
  bool any(const std::vector<loop::Within>& when, const Lane* lane) const;
  /// Vectors beside each other that this lane loop takes.
  int count(const loop::For& lane) const;

 private:
  void block(const std::vector<loop::Statement>& body, const Lane* lane);
  void visit(const loop::Statement& statement, const Lane* lane);
  const loop::Kernel& kernel_;
  std::vector<bool> values_;
  std::vector<bool> reductions_;
};

/// C expressions of names and indices.
class CNames {
 public:
  CNames(const loop::Kernel& kernel, const Varying& varying);

  const std::string& var(loop::VarId id) const { return vars_[id.index]; }
  const std::string& buffer(loop::BufferId id) const { return buffers_[id.index]; }
  /// A value where it is used: v3, or v3[u].
  std::string value(loop::ValueId id, const Lane* lane) const;
  /// The same as a vector.
  std::string vector(loop::ValueId id, const Lane* lane) const;
  /// An int64_t. The lane's variable is that of the first lane of the vector.
  std::string scalar(const loop::Index& index, const Lane* lane) const;
  /// An sf_i64.
  std::string vector(const loop::Index& index, const Lane* lane) const;
  /// The size as an expression; as a factor in brackets where needed.
  std::string size(const ir::Extent& size) const;

 private:
  struct Form {
    bool vector = false;
    const Lane* lane = nullptr;
  };
  std::string sum(const loop::Index& index, Form form) const;
  std::string atom(const loop::Atom& atom, Form form) const;
  std::string whole(loop::ValueId id, Form form) const;
  const loop::Kernel& kernel_;
  const Varying& varying_;
  std::vector<ir::Extent> sizes_;
  std::vector<std::string> vars_;
  std::vector<std::string> buffers_;
};

}  // namespace segfuse::compiler::cpu
