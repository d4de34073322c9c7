#include <fmt/core.h>

#include <functional>

#include "base/check.h"
#include "ir/bind.h"
#include "ir/interpret/evaluate.h"

namespace segfuse::ir {
namespace {

/// Where an element of the result comes from; an empty index stands for the fill value.
using Source = std::function<Index(const Index& index)>;

template <class T>
void move_elements(const Tensor& from, Tensor& to, T fill, const Source& source) {
  std::size_t position = 0;
  for_each_index(to.shape(), [&](const Index& index) {
    const Index at = source(index);
    const bool outside = at.size() != from.shape().size();
    to.span<T>()[position++] =
        outside ? fill : from.span<T>()[static_cast<std::size_t>(linear_index(from.shape(), at))];
  });
}

std::vector<Tensor> move(const Evaluation& e, const Source& source, double fill = 0) {
  Tensor result(wide(e.result().dtype), e.result_shape());
  if (result.dtype() == DType::kF64) {
    move_elements<double>(e.operands[0], result, fill, source);
  } else {
    Tensor scalar(DType::kI64, {});
    scalar.set(0, fill);
    move_elements<std::int64_t>(e.operands[0], result, scalar.span<std::int64_t>()[0], source);
  }
  return {result};
}

std::size_t axis_of(const Evaluation& e) {
  return static_cast<std::size_t>(e.attr<std::int64_t>("axis"));
}

std::int64_t checked_index(const Evaluation& e, std::int64_t position, std::int64_t size) {
  const std::int64_t index = e.operands[1].span<std::int64_t>()[static_cast<std::size_t>(position)];
  check_index(e.expr().op, index, size);
  return index;
}

std::vector<Tensor> evaluate_permute(const Evaluation& e) {
  const auto& perm = e.attr<std::vector<std::int64_t>>("perm");
  return move(e, [&](const Index& index) {
    Index from(index.size());
    for (std::size_t i = 0; i < perm.size(); ++i)
      from[static_cast<std::size_t>(perm[i])] = index[i];
    return from;
  });
}

std::vector<Tensor> evaluate_broadcast(const Evaluation& e) {
  const auto& axes = e.attr<std::vector<std::int64_t>>("axes");
  const Shape& shape = e.operands[0].shape();
  return move(e, [&](const Index& index) {
    Index from;
    for (std::size_t i = 0; i < axes.size(); ++i)
      from.push_back(shape[i] == 1 ? 0 : index[static_cast<std::size_t>(axes[i])]);
    if (axes.empty() && shape.empty()) from.clear();
    return from;
  });
}

std::vector<Tensor> evaluate_slice(const Evaluation& e) {
  const Shape starts = e.sizes.of(e.attr<Extents>("starts"));
  return move(e, [&](const Index& index) {
    Index from = index;
    for (std::size_t i = 0; i < from.size(); ++i) from[i] += starts[i];
    return from;
  });
}

std::vector<Tensor> evaluate_pad(const Evaluation& e) {
  const Shape low = e.sizes.of(e.attr<Extents>("low"));
  const Shape& shape = e.operands[0].shape();
  if (shape.empty()) return {e.operands[0]};
  return move(
      e,
      [&](const Index& index) -> Index {
        Index from = index;
        for (std::size_t i = 0; i < from.size(); ++i) {
          from[i] -= low[i];
          if (from[i] < 0 || from[i] >= shape[i]) return {};
        }
        return from;
      },
      e.attr<double>("value"));
}

std::vector<Tensor> evaluate_take(const Evaluation& e) {
  const std::size_t axis = axis_of(e);
  const Shape& shape = e.operands[0].shape();
  const Shape& indices = e.operands[1].shape();
  const auto first = static_cast<std::ptrdiff_t>(axis);
  const auto count = static_cast<std::ptrdiff_t>(indices.size());
  return move(e, [&](const Index& index) {
    Index from(index.begin(), index.begin() + first);
    const Index at(index.begin() + first, index.begin() + first + count);
    from.push_back(checked_index(e, linear_index(indices, at), shape[axis]));
    from.insert(from.end(), index.begin() + first + count, index.end());
    return from;
  });
}

std::vector<Tensor> evaluate_gather(const Evaluation& e) {
  const std::size_t axis = axis_of(e);
  const Shape& shape = e.operands[0].shape();
  return move(e, [&](const Index& index) {
    Index from = index;
    from[axis] = checked_index(e, linear_index(e.operands[1].shape(), index), shape[axis]);
    return from;
  });
}

std::vector<Tensor> evaluate_unfold(const Evaluation& e) {
  const std::size_t axis = axis_of(e);
  const auto stride = e.attr<std::int64_t>("stride");
  const auto dilation = e.attr<std::int64_t>("dilation");
  return move(e, [&](const Index& index) {
    Index from = index;
    from[axis] = index[axis] * stride + index[axis + 1] * dilation;
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(axis) + 1);
    return from;
  });
}

std::vector<Tensor> evaluate_concat(const Evaluation& e) {
  const std::size_t axis = axis_of(e);
  Tensor result(wide(e.result().dtype), e.result_shape());
  std::int64_t offset = 0;
  for (const Tensor& part : e.operands) {
    std::size_t position = 0;
    for_each_index(part.shape(), [&](const Index& index) {
      Index to = index;
      to[axis] += offset;
      const auto at = static_cast<std::size_t>(linear_index(result.shape(), to));
      if (part.dtype() == DType::kF64) {
        result.span<double>()[at] = part.span<double>()[position++];
      } else {
        result.span<std::int64_t>()[at] = part.span<std::int64_t>()[position++];
      }
    });
    offset += part.shape()[axis];
  }
  return {result};
}

/// Adds every element of the operand to the element of a zero result that `target` names.
std::vector<Tensor> accumulate(const Evaluation& e, const Source& target) {
  const DType dtype = e.result().dtype;
  Tensor result = Tensor::zeros(wide(dtype), e.result_shape());
  std::int64_t position = 0;
  for_each_index(e.operands[0].shape(), [&](const Index& index) {
    const auto at = static_cast<std::size_t>(linear_index(result.shape(), target(index)));
    const auto from = static_cast<std::size_t>(position++);
    if (result.dtype() == DType::kF64) {
      result.span<double>()[at] += e.operands[0].span<double>()[from];
    } else {
      std::int64_t& sum = result.span<std::int64_t>()[at];
      const std::int64_t value = e.operands[0].span<std::int64_t>()[from];
      sum = wrap(dtype, static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) +
                                                  static_cast<std::uint64_t>(value)));
    }
  });
  return {result};
}

std::vector<Tensor> evaluate_scatter_add(const Evaluation& e) {
  const std::size_t axis = axis_of(e);
  const Shape& indices = e.operands[1].shape();
  const std::int64_t size = e.result_shape()[axis];
  const auto first = static_cast<std::ptrdiff_t>(axis);
  const auto count = static_cast<std::ptrdiff_t>(indices.size());
  return accumulate(e, [&](const Index& index) {
    Index to(index.begin(), index.begin() + first);
    const Index at(index.begin() + first, index.begin() + first + count);
    to.push_back(checked_index(e, linear_index(indices, at), size));
    to.insert(to.end(), index.begin() + first + count, index.end());
    return to;
  });
}

std::vector<Tensor> evaluate_fold(const Evaluation& e) {
  const std::size_t axis = axis_of(e);
  const auto stride = e.attr<std::int64_t>("stride");
  const auto dilation = e.attr<std::int64_t>("dilation");
  return accumulate(e, [&](const Index& index) {
    Index to = index;
    to[axis] = index[axis] * stride + index[axis + 1] * dilation;
    to.erase(to.begin() + static_cast<std::ptrdiff_t>(axis) + 1);
    return to;
  });
}

}  // namespace

std::vector<Tensor> evaluate_movement(const Evaluation& e) {
  switch (as<MovementOp>(e.expr().op)) {
    case MovementOp::permute: return evaluate_permute(e);
    case MovementOp::broadcast: return evaluate_broadcast(e);
    case MovementOp::squeeze:
    case MovementOp::reshape: return {e.operands[0].reshaped(e.result_shape())};
    case MovementOp::slice: return evaluate_slice(e);
    case MovementOp::pad: return evaluate_pad(e);
    case MovementOp::concat: return evaluate_concat(e);
    case MovementOp::take: return evaluate_take(e);
    case MovementOp::gather: return evaluate_gather(e);
    case MovementOp::scatter_add: return evaluate_scatter_add(e);
    case MovementOp::unfold: return evaluate_unfold(e);
    case MovementOp::fold: return evaluate_fold(e);
  }
  throw InternalError(fmt::format("no evaluation for '{}'", info(e.expr().op).name));
}

std::vector<Tensor> evaluate_matmul(const Evaluation& e) {
  const bool transpose_a = e.attr<std::int64_t>("transpose_a") != 0;
  const bool transpose_b = e.attr<std::int64_t>("transpose_b") != 0;
  const Shape& a = e.operands[0].shape();
  const Shape& b = e.operands[1].shape();
  const std::int64_t inner = a[a.size() - (transpose_a ? 2 : 1)];
  Tensor result(DType::kF64, e.result_shape());
  std::int64_t position = 0;
  for_each_index(result.shape(), [&](const Index& index) {
    Index at_a = index;
    Index at_b = b.size() == 2 ? Index(index.end() - 2, index.end()) : index;
    long double sum = 0;
    for (std::int64_t k = 0; k < inner; ++k) {
      at_a[a.size() - 1] = transpose_a ? index[a.size() - 2] : k;
      at_a[a.size() - 2] = transpose_a ? k : index[a.size() - 2];
      at_b[b.size() - 1] = transpose_b ? k : index[a.size() - 1];
      at_b[b.size() - 2] = transpose_b ? index[a.size() - 1] : k;
      sum += static_cast<long double>(e.operands[0].at(linear_index(a, at_a))) *
             e.operands[1].at(linear_index(b, at_b));
    }
    result.set(position++, static_cast<double>(sum));
  });
  return {result};
}

}  // namespace segfuse::ir
