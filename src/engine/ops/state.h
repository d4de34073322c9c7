#pragma once
// What a FusionBuilder writes, and the ways between its handles and the IR.

#include <string>
#include <string_view>

#include "ir/builder.h"
#include "ir/fusion.h"
#include "segfuse/error.h"
#include "segfuse/ops.h"

namespace segfuse::ops {

struct Value::State {
  explicit State(std::string name) : fusion(std::move(name)) {}
  ir::Fusion fusion;
};

struct Size::Node {
  enum class Kind : std::uint8_t { kNumber, kName, kAdd, kSub, kMul, kFloorDiv };
  Kind kind = Kind::kNumber;
  std::int64_t number = 0;  ///< the number, or the divisor
  std::string name;
  std::shared_ptr<const Node> a;
  std::shared_ptr<const Node> b;
  int depth = 0;  ///< of the operations one inside of the other
};

ir::Extent to_extent(ir::Fusion& fusion, const Size& size);
ir::Extents to_extents(ir::Fusion& fusion, const Sizes& sizes);
Size to_size(const ir::Fusion& fusion, const ir::Extent& extent);

inline ir::ValId id_of(const Value& value) { return ir::ValId{value.id()}; }

/// One call of an operation: the program it writes into, the operands in it, and the words for what
/// goes wrong.
class Call {
 public:
  /// A plain number takes the type of the first operand from `typed_by` on that is none.
  Call(std::string_view operation, std::vector<Value> operands, std::size_t typed_by = 0);

  ir::Builder& build() { return builder_; }
  ir::Fusion& fusion() { return builder_.fusion(); }
  ir::ValId id(std::size_t operand) const { return ids_[operand]; }
  const std::vector<ir::ValId>& ids() const { return ids_; }
  std::int64_t rank(std::size_t operand = 0) {
    return static_cast<std::int64_t>(builder_.rank(ids_[operand]));
  }
  DType dtype(std::size_t operand = 0) { return builder_.val(ids_[operand]).dtype; }
  /// The axis counted from 0. UsageError if there is none.
  std::int64_t axis(std::int64_t axis, std::int64_t rank) const;
  Axes axes(const OptionalAxes& axes);
  Value value(ir::ValId id) const { return {state_, id.index}; }

  /// What `function(builder)` gives; its errors tell of this operation and its operands.
  template <class Function>
  auto run(Function function) {
    try {
      return function(builder_);
    } catch (const UsageError& error) {
      refuse(error.what());
    }
  }
  template <class Function>
  Value make(Function function) {
    return value(run(function));
  }
  [[noreturn]] void refuse(std::string_view reason) const;

 private:
  std::string operation_;
  std::vector<Value> operands_;
  std::shared_ptr<Value::State> state_;
  ir::Builder builder_;
  std::vector<ir::ValId> ids_;
};

}  // namespace segfuse::ops
