#include "engine/exec/reduce.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/check.h"
#include "engine/exec/growing_memory.h"
#include "engine/exec/move.h"
#include "engine/kernels/reduce_kernels.h"

namespace segfuse::engine {
namespace {

constexpr std::int64_t kRun = 4096;      // elements of one state
constexpr std::int64_t kRowBlock = 256;  // rows of one partial result of a column reduction
constexpr std::int64_t kColumnTile = 512;

/// The operand as kept axes times reduced axes.
struct Split {
  Nest kept;
  Nest reduced;
};

Split split(const Layout& layout, const std::vector<std::int64_t>& axes) {
  Shape sizes[2];
  Shape strides[2];
  for (std::size_t axis = 0; axis < layout.shape.size(); ++axis) {
    const bool reduced =
        std::find(axes.begin(), axes.end(), static_cast<std::int64_t>(axis)) != axes.end();
    sizes[reduced].push_back(layout.shape[axis]);
    strides[reduced].push_back(layout.strides[axis]);
  }
  return {collapse(sizes[0], {strides[0]}), collapse(sizes[1], {strides[1]})};
}

template <class T>
class Reduction {
 public:
  Reduction(ThreadPool& pool, ir::Op op, const Array& from, const std::vector<std::int64_t>& axes,
            std::span<const Array> to)
      : pool_(pool),
        op_(ir::as<ir::ReductionOp>(op)),
        from_(from.as<const T>()),
        split_(split(*from.layout, axes)),
        to_(to),
        loops_(reduce_loops<T>(op)),
        results_(split_.kept.size()),
        elements_(split_.reduced.size()) {}

  void run() {
    if (results_ == 0) return;
    if (op_ == ir::ReductionOp::argmax && elements_ == 0)
      throw UsageError("argmax: an axis of size 0 has no maximum");
    if (columns_fit()) {
      reduce_columns();
    } else if (results_ * 4 >= elements_ / kRun || elements_ <= kRun) {
      reduce_rows();
    } else {
      reduce_long_rows();
    }
  }

 private:
  using State = ReduceState<T>;

  void store(std::int64_t i, const State& state) const {
    const auto number = state.a;
    switch (op_) {
      case ir::ReductionOp::argmax: to_[0].as<std::int64_t>()[i] = state.n; return;
      case ir::ReductionOp::welford:
        to_[0].as<T>()[i] = static_cast<T>(state.a);
        to_[1].as<T>()[i] = static_cast<T>(state.b);
        return;
      case ir::ReductionOp::logsumexp:
        if constexpr (std::is_floating_point_v<T>)
          to_[0].as<T>()[i] =
              static_cast<T>(std::isfinite(number) ? number + std::log(state.b) : number);
        return;
      case ir::ReductionOp::sum:
      case ir::ReductionOp::prod:
      case ir::ReductionOp::max:
      case ir::ReductionOp::min: to_[0].as<T>()[i] = static_cast<T>(number); return;
    }
  }

  /// The state of elements [begin, begin + n) of the result that starts at `base`.
  State run_state(const T* base, std::int64_t begin, std::int64_t n) const {
    const Nest& nest = split_.reduced;
    if (nest.sizes.empty()) return loops_.run(base, n, begin);
    const std::size_t last = nest.sizes.size() - 1;
    const std::int64_t stride = nest.strides[0][last];
    if (last == 0 && stride == 1) return loops_.run(base + begin, n, begin);
    auto& memory = of_thread<GrowingMemory, struct Gathered>();  // a stack may be small
    T* const gathered = reinterpret_cast<T*>(memory.at_least(kRun * sizeof(T)));
    std::int64_t filled = 0;
    while (filled < n) {
      const std::int64_t column = (begin + filled) % nest.sizes[last];
      const std::int64_t count = std::min(n - filled, nest.sizes[last] - column);
      const Odometer at(nest, last, (begin + filled) / nest.sizes[last]);
      const T* source = base + at.offset(0) + column * stride;
      for (std::int64_t i = 0; i < count; ++i) gathered[filled + i] = source[i * stride];
      filled += count;
    }
    return loops_.run(gathered, n, begin);
  }

  void reduce_rows() const {
    const std::int64_t grain =
        std::max<std::int64_t>(1, kTaskElements / std::max<std::int64_t>(1, elements_));
    pool_.for_ranges(results_, grain, [&](std::int64_t begin, std::int64_t end) {
      Odometer at(split_.kept, split_.kept.sizes.size(), begin);
      for (std::int64_t i = begin; i < end; ++i, at.next()) {
        State state = loops_.identity;
        for (std::int64_t first = 0; first < elements_; first += kRun)
          state = loops_.combine(
              state, run_state(from_ + at.offset(0), first, std::min(kRun, elements_ - first)));
        store(i, state);
      }
    });
  }

  /// Few results of many elements: the same states as reduce_rows, made in parallel.
  void reduce_long_rows() const {
    const std::int64_t runs = (elements_ + kRun - 1) / kRun;
    std::vector<State> states(static_cast<std::size_t>(results_ * runs));
    pool_.for_ranges(
        results_ * runs, kTaskElements / kRun, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t task = begin; task < end; ++task) {
            const Odometer at(split_.kept, split_.kept.sizes.size(), task / runs);
            const std::int64_t first = task % runs * kRun;
            states[static_cast<std::size_t>(task)] =
                run_state(from_ + at.offset(0), first, std::min(kRun, elements_ - first));
          }
        });
    for (std::int64_t i = 0; i < results_; ++i) {
      State state = loops_.identity;
      for (std::int64_t r = 0; r < runs; ++r)
        state = loops_.combine(state, states[static_cast<std::size_t>(i * runs + r)]);
      store(i, state);
    }
  }

  bool columns_fit() const {
    const Nest& kept = split_.kept;
    return loops_.columns != nullptr && !kept.sizes.empty() && kept.strides[0].back() == 1 &&
           kept.sizes.back() >= 8 && elements_ > 1 && split_.reduced.strides[0].back() != 1;
  }

  /// The innermost axis is kept: whole rows are added, in blocks of rows whose partial results are
  /// combined in order.
  void reduce_columns() const {
    const std::size_t inner = split_.kept.sizes.size() - 1;
    const std::int64_t columns = split_.kept.sizes[inner];
    const std::int64_t tiles = (columns + kColumnTile - 1) / kColumnTile;
    const std::int64_t blocks = (elements_ + kRowBlock - 1) / kRowBlock;
    const std::int64_t outer = results_ / columns;
    std::vector<T> partial(blocks > 1 ? static_cast<std::size_t>(results_ * blocks) : 0);
    const std::int64_t work = std::min(columns, kColumnTile) * std::min(elements_, kRowBlock);
    const std::int64_t grain = std::max<std::int64_t>(1, kTaskElements / work);
    pool_.for_ranges(outer * blocks * tiles, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t tile = task % tiles * kColumnTile;
        const std::int64_t block = task / tiles % blocks;
        const std::int64_t o = task / tiles / blocks;
        const Odometer at(split_.kept, inner, o);
        T* target = blocks > 1 ? partial.data() + (o * blocks + block) * columns + tile
                               : to_[0].as<T>() + o * columns + tile;
        reduce_block(from_ + at.offset(0) + tile, block * kRowBlock,
                     std::min(elements_, (block + 1) * kRowBlock),
                     std::min(kColumnTile, columns - tile), target);
      }
    });
    if (blocks == 1) return;
    pool_.for_ranges(outer, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t o = begin; o < end; ++o)
        combine_blocks(partial.data() + o * blocks * columns, blocks, columns,
                       to_[0].as<T>() + o * columns);
    });
  }

  /// Rows [begin, end) of up to kColumnTile columns: sums of 16 rows, then of these.
  void reduce_block(const T* base, std::int64_t begin, std::int64_t end, std::int64_t columns,
                    T* target) const {
    constexpr std::int64_t kRows = 16;
    alignas(64) T part[kColumnTile];
    Odometer at(split_.reduced, split_.reduced.sizes.size(), begin);
    const T identity = static_cast<T>(loops_.identity.a);
    std::fill_n(target, columns, identity);
    for (std::int64_t first = begin; first < end; first += kRows) {
      std::fill_n(part, columns, identity);
      for (std::int64_t row = first; row < std::min(end, first + kRows); ++row, at.next())
        loops_.columns(part, base + at.offset(0), columns);
      loops_.columns(target, part, columns);
    }
  }

  /// Pairwise, in place; the first block holds the result.
  void combine_blocks(T* partial, std::int64_t blocks, std::int64_t columns, T* target) const {
    for (std::int64_t step = 1; step < blocks; step *= 2)
      for (std::int64_t b = 0; b + step < blocks; b += 2 * step)
        loops_.columns(partial + b * columns, partial + (b + step) * columns, columns);
    std::copy_n(partial, columns, target);
  }

  ThreadPool& pool_;
  ir::ReductionOp op_;
  const T* from_;
  Split split_;
  std::span<const Array> to_;
  ReduceLoops<T> loops_;
  std::int64_t results_;
  std::int64_t elements_;
};

}  // namespace

void reduce(ThreadPool& pool, ir::Op op, const Array& from, const std::vector<std::int64_t>& axes,
            std::span<const Array> to) {
  switch (from.dtype) {
    case DType::kF32: return Reduction<float>(pool, op, from, axes, to).run();
    case DType::kF64: return Reduction<double>(pool, op, from, axes, to).run();
    case DType::kI32: return Reduction<std::int32_t>(pool, op, from, axes, to).run();
    case DType::kI64: return Reduction<std::int64_t>(pool, op, from, axes, to).run();
    default: throw InternalError(fmt::format("no reduction of {}", name_of(from.dtype)));
  }
}

}  // namespace segfuse::engine
