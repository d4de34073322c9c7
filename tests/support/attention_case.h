#pragma once
// Attention of random operands as a program, for tests of all back ends.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "compiler/autodiff.h"
#include "ir/attention.h"
#include "ir/builder.h"
#include "support/tensors.h"

namespace segfuse::testing {

/// One attention of inputs, and the inputs.
struct Attention {
  Shape leading = {2};
  std::int64_t rows = 5, columns = 7, inner = 3, outer = 4;
  DType dtype = DType::kF32;
  double scale = 0.5;
  double fill = -std::numeric_limits<double>::infinity();
  std::optional<Shape> bias = {}, mask = {};
  std::optional<std::int64_t> ahead = {};
  bool gradient = true;
  std::uint64_t seed = 1;

  Shape stack(std::int64_t a, std::int64_t b) const {
    Shape shape = leading;
    shape.insert(shape.end(), {a, b});
    return shape;
  }

  /// How far results may be from the formula. Of bf16, they and the weights are rounded to it.
  double tolerance() const {
    switch (dtype) {
      case DType::kF32: return 1e-4;
      case DType::kBF16:
        return 3e-3 * std::sqrt(static_cast<double>(std::max<std::int64_t>({4, inner, outer})));
      default: return 1e-11;
    }
  }

  std::vector<Tensor> inputs() const {
    Rng rng(seed);
    const double most = dtype == DType::kBF16 ? 1 : 2;
    const auto some = [&](const Shape& shape) { return uniform(rng, dtype, shape, -most, most); };
    std::vector<Tensor> all{some(stack(rows, inner)), some(stack(columns, inner)),
                            some(stack(columns, outer))};
    if (bias) all.push_back(uniform(rng, ir::attention_sums(dtype), *bias));
    if (mask) {
      all.emplace_back(DType::kBool, *mask);
      for (std::int64_t i = 0; i < all.back().size(); ++i)
        all.back().set(i, rng.uniform() < 0.7 ? 1 : 0);
    }
    if (gradient) all.push_back(some(stack(rows, outer)));
    return all;
  }

  ir::Fusion fusion() const {
    ir::Fusion f;
    std::vector<ir::ValId> ids;
    for (const Tensor& input : inputs())
      ids.push_back(f.add_input("x" + std::to_string(ids.size()), input.dtype(),
                                ir::Extents(input.shape().begin(), input.shape().end())));
    ir::Builder b(f);
    const std::vector<ir::ValId> operands(ids.begin(), ids.end() - (gradient ? 1 : 0));
    ir::Extents by;
    if (ahead)
      by = {ir::Extent(std::max<std::int64_t>(*ahead, 0)),
            ir::Extent(std::max<std::int64_t>(-*ahead, 0))};
    const std::vector<ir::ValId> results =
        b.make_all(ir::Op::attention, operands, {scale, fill, by});
    for (const ir::ValId result : results) f.add_output(result);
    if (gradient) {
      const ir::ValId wrt[] = {ids[0], ids[1], ids[2]};
      const ir::ValId from[] = {results[0]};
      const ir::ValId with[] = {ids.back()};
      for (const ir::ValId g : compiler::vjp(f, from, with, wrt)) f.add_output(g);
    }
    return f;
  }
};

}  // namespace segfuse::testing
