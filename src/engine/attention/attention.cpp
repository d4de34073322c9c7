#include "engine/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/sizes.h"
#include "engine/exec/growing_memory.h"
#include "engine/kernels/attention_kernels.h"
#include "engine/kernels/product_kernels.h"

namespace segfuse::engine {
namespace {

constexpr std::int64_t kTaskWork = 1 << 18;  // multiplications that make waking a thread worth it

template <class T>
bool finite(const T* from, std::int64_t row, std::int64_t rows, std::int64_t columns) {
  T sum = 0;  // of zeros, or NaN
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) sum += from[i * row + j] * T(0);
  return sum == T(0);
}

/// One attention while it runs, and what both directions share.
template <class T>
class Tiled {
 public:
  Tiled(ThreadPool& pool, const AttentionPlan& plan, const AttentionArrays<T>& in)
      : pool_(pool),
        plan_(plan),
        in_(in),
        kernels_(attention_kernels<T>()),
        row_tiles_(ceil_divide(plan.rows, kTileRows)),
        column_tiles_(ceil_divide(plan.columns, kTileColumns)),
        skips_(plan.skips()) {}

 protected:
  /// Some rows and columns of one batch.
  struct Tile {
    std::int64_t batch, row, column;  ///< where it begins
    std::int64_t rows, columns;
    std::int64_t row_tile, column_tile;  ///< over all batches
  };
  Tile tile(std::int64_t batch, std::int64_t row_tile, std::int64_t column_tile) const {
    const std::int64_t row = row_tile * kTileRows;
    const std::int64_t column = column_tile * kTileColumns;
    return {batch,
            row,
            column,
            std::min(kTileRows, plan_.rows - row),
            std::min(kTileColumns, plan_.columns - column),
            batch * row_tiles_ + row_tile,
            batch * column_tiles_ + column_tile};
  }

  const T* rows_of(const T* data, const AttentionMatrices& m, std::int64_t batch,
                   std::int64_t row) const {
    return data + m.starts[static_cast<std::size_t>(batch)] + row * m.row;
  }
  /// Whether no row of the tile sees a column of it.
  bool hidden(const Tile& t) const {
    return skips_ && t.column > t.row + t.rows - 1 + *plan_.ahead;
  }

  TileMask<T> mask_of(const Tile& t) const {
    TileMask<T> mask;
    mask.rows = t.rows;
    mask.columns = t.columns;
    mask.scale = static_cast<T>(plan_.scale);
    mask.fill = static_cast<T>(plan_.fill);
    const auto batch = static_cast<std::size_t>(t.batch);
    if (const auto& bias = plan_.bias) {
      mask.bias = in_.bias + bias->starts[batch] + t.row * bias->row + t.column * bias->column;
      mask.bias_row = bias->row;
      mask.bias_column = bias->column;
    }
    if (const auto& seen = plan_.mask) {
      mask.mask = in_.mask + seen->starts[batch] + t.row * seen->row + t.column * seen->column;
      mask.mask_row = seen->row;
      mask.mask_column = seen->column;
    }
    mask.banded = plan_.ahead.has_value();
    if (mask.banded) mask.seen = t.row + *plan_.ahead + 1 - t.column;
    return mask;
  }

  /// The products of a tile's rows and columns, `width` each.
  void multiply_rows(const Tile& t, const T* rows, std::int64_t row, std::int64_t width,
                     const T* columns, std::int64_t column, T* to) const {
    multiply_block<T>(
        {t.rows, t.columns, width, rows, row, 1, columns, 1, column, to, kTileColumns, false});
  }
  /// And what they have still to be multiplied by.
  T scores(const Tile& t, T* s) const {
    multiply_rows(t, rows_of(in_.q, plan_.q, t.batch, t.row), plan_.q.row, plan_.inner,
                  rows_of(in_.k, plan_.k, t.batch, t.column), plan_.k.row, s);
    const TileMask<T> mask = mask_of(t);
    // 0 would make NaN of the -infinity that fills rows up.
    if (!mask.bias && !mask.mask && (!mask.banded || mask.seen >= t.columns) && mask.scale != T(0))
      return mask.scale;
    kernels_.score(mask, s);
    return T(1);
  }

  template <class Body>
  void each(std::int64_t count, std::int64_t work, const Body& body) {
    const std::int64_t grain =
        std::max<std::int64_t>(1, kTaskWork / std::max<std::int64_t>(1, work));
    pool_.for_ranges(count, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) body(i);
    });
  }
  std::int64_t tile_work() const {
    return std::min(kTileRows, plan_.rows) * std::min(kTileColumns, plan_.columns) *
           (plan_.inner + plan_.outer);
  }

  ThreadPool& pool_;
  const AttentionPlan& plan_;
  const AttentionArrays<T>& in_;
  const AttentionKernels<T> kernels_;
  std::int64_t row_tiles_, column_tiles_;
  bool skips_;
};

template <class T>
T* tile_memory(std::int64_t count) {
  auto& memory = of_thread<GrowingMemory, struct AttentionTiles>();
  return reinterpret_cast<T*>(
      memory.at_least(static_cast<std::size_t>(count * kTileRows * kTileColumns) * sizeof(T)));
}

template <class T>
class Forward : Tiled<T> {
  using Base = Tiled<T>;
  using Base::plan_, Base::in_, Base::kernels_, Base::row_tiles_, Base::column_tiles_;
  using typename Base::Tile;

 public:
  Forward(ThreadPool& pool, const AttentionPlan& plan, const AttentionArrays<T>& in, T* out,
          T* logs)
      : Base(pool, plan, in), out_(out), logs_(logs) {}

  void run() {
    if (plan_.columns == 0) return without_columns();
    if (this->skips_)
      this->each(plan_.batch * column_tiles_, kTileColumns * plan_.outer, [&](std::int64_t i) {
        const Tile t = this->tile(i / column_tiles_, 0, i % column_tiles_);
        in_.flags[i] = finite(this->rows_of(in_.v, plan_.v, t.batch, t.column), plan_.v.row,
                              t.columns, plan_.outer);
      });
    this->each(plan_.batch * row_tiles_, this->tile_work() * column_tiles_,
               [&](std::int64_t i) { rows(i / row_tiles_, i % row_tiles_); });
  }

 private:
  void without_columns() {
    std::fill_n(out_, plan_.batch * plan_.rows * plan_.outer, T(0));
    std::fill_n(logs_, plan_.batch * plan_.rows, -std::numeric_limits<T>::infinity());
  }

  void rows(std::int64_t batch, std::int64_t row_tile) {
    T* s = tile_memory<T>(1);
    T most[kTileRows], sum[kTileRows], factor[kTileRows];
    std::fill_n(most, kTileRows, -std::numeric_limits<T>::infinity());
    std::fill_n(sum, kTileRows, T(0));
    bool first = true;
    for (std::int64_t c = 0; c < column_tiles_; ++c) {
      const Tile t = this->tile(batch, row_tile, c);
      // 0 times what is not finite is NaN.
      if (this->hidden(t) && in_.flags[t.column_tile] != 0) continue;
      const T scale = this->scores(t, s);
      kernels_.weigh(t.rows, t.columns, scale, s, most, sum, factor);
      T* out = out_of(t);
      if (!first)
        for (std::int64_t r = 0; r < t.rows; ++r)
          if (factor[r] != T(1))
            for (std::int64_t j = 0; j < plan_.outer; ++j) out[r * plan_.outer + j] *= factor[r];
      multiply_block<T>({t.rows, plan_.outer, t.columns, s, kTileColumns, 1,
                         this->rows_of(in_.v, plan_.v, batch, t.column), plan_.v.row, 1, out,
                         plan_.outer, !first});
      first = false;
    }
    finish(this->tile(batch, row_tile, 0), most, sum);
  }

  T* out_of(const Tile& t) const { return out_ + (t.batch * plan_.rows + t.row) * plan_.outer; }

  void finish(const Tile& t, const T* most, const T* sum) {
    T* out = out_of(t);
    for (std::int64_t r = 0; r < t.rows; ++r, out += plan_.outer) {
      const T nan = std::numeric_limits<T>::quiet_NaN();
      if (std::isnan(sum[r]) || !std::isfinite(most[r])) {
        // exp(s - log(sum)) of a row without a finite sum is NaN somewhere, and so is all it
        // weighs.
        std::fill_n(out, plan_.outer, nan);
      } else {
        for (std::int64_t j = 0; j < plan_.outer; ++j) out[j] /= sum[r];
      }
      logs_[t.batch * plan_.rows + t.row + r] = std::isnan(sum[r])    ? nan
                                                : std::isinf(most[r]) ? most[r]
                                                                      : most[r] + std::log(sum[r]);
    }
  }

  T* out_;
  T* logs_;
};

template <class T>
class Backward : Tiled<T> {
  using Base = Tiled<T>;
  using Base::plan_, Base::in_, Base::kernels_, Base::row_tiles_, Base::column_tiles_;
  using typename Base::Tile;

 public:
  Backward(ThreadPool& pool, const AttentionPlan& plan, const AttentionArrays<T>& in,
           const AttentionSlopes<T>& with)
      : Base(pool, plan, in), with_(with) {}

  void run() {
    const std::int64_t rows = plan_.batch * plan_.rows;
    const std::int64_t columns = plan_.batch * plan_.columns;
    if (with_.dq) std::fill_n(with_.dq, rows * plan_.inner, T(0));
    if (with_.dk) std::fill_n(with_.dk, columns * plan_.inner, T(0));
    if (with_.dv) std::fill_n(with_.dv, columns * plan_.outer, T(0));
    if (rows == 0 || columns == 0) return;
    prepare();
    // Each sum goes in the same order either way.
    const std::int64_t work = this->tile_work() * 2 * column_tiles_;
    const std::int64_t threads = this->pool_.size();
    if (plan_.batch >= 2 * threads || plan_.batch % threads == 0) {
      this->each(plan_.batch, work * row_tiles_, [&](std::int64_t b) {
        for (std::int64_t c = 0; c < column_tiles_; ++c)
          for (std::int64_t r = 0; r < row_tiles_; ++r) add(this->tile(b, r, c), true, true);
      });
      return;
    }
    if (with_.dk || with_.dv)
      this->each(plan_.batch * column_tiles_, this->tile_work() * 2 * row_tiles_,
                 [&](std::int64_t i) {
                   for (std::int64_t r = 0; r < row_tiles_; ++r)
                     add(this->tile(i / column_tiles_, r, i % column_tiles_), false, true);
                 });
    if (with_.dq)
      this->each(plan_.batch * row_tiles_, work, [&](std::int64_t i) {
        for (std::int64_t c = 0; c < column_tiles_; ++c)
          add(this->tile(i / row_tiles_, i % row_tiles_, c), true, false);
      });
  }

 private:
  /// The logarithms of the sums as two numbers, each (batch, rows).
  T* logs() const { return in_.split_logs; }
  T* rests() const { return logs() + plan_.batch * plan_.rows; }
  std::uint8_t& rows_flag(const Tile& t) const {
    return in_.flags[plan_.batch * column_tiles_ + t.row_tile];
  }

  void prepare() {
    this->each(plan_.batch * row_tiles_, kTileRows * plan_.inner,
               [&](std::int64_t i) { split_logs(i / row_tiles_, i % row_tiles_); });
    if (!this->skips_) return;
    this->each(plan_.batch * column_tiles_, kTileColumns * plan_.inner, [&](std::int64_t i) {
      const Tile t = this->tile(i / column_tiles_, 0, i % column_tiles_);
      in_.flags[i] = finite(this->rows_of(in_.k, plan_.k, t.batch, t.column), plan_.k.row,
                            t.columns, plan_.inner);
    });
    this->each(
        plan_.batch * row_tiles_, kTileRows * (plan_.inner + plan_.outer), [&](std::int64_t i) {
          const Tile t = this->tile(i / row_tiles_, i % row_tiles_, 0);
          const T* logs = logs_of(t);
          rows_flag(t) = std::all_of(logs, logs + t.rows,
                                     [](T x) { return x > -std::numeric_limits<T>::infinity(); }) &&
                         finite(this->rows_of(in_.q, plan_.q, t.batch, t.row), plan_.q.row, t.rows,
                                plan_.inner) &&
                         finite(g_of(t), plan_.g.row, t.rows, plan_.outer);
        });
  }

  /// A logarithm that is large, as of scores of -1e9 that fill a row, has no digits left for the
  /// sum: there the greatest score and the sum are found once more.
  void split_logs(std::int64_t batch, std::int64_t row_tile) {
    const Tile rows = this->tile(batch, row_tile, 0);
    const T* from = logs_of(rows);
    T* log = logs() + batch * plan_.rows + rows.row;
    T* rest = rests() + batch * plan_.rows + rows.row;
    std::copy_n(from, rows.rows, log);
    std::fill_n(rest, rows.rows, T(0));
    const auto is_large = [](T x) { return std::isfinite(x) && std::abs(x) > T(64); };
    if (std::none_of(from, from + rows.rows, is_large)) return;
    T* s = tile_memory<T>(1);
    T most[kTileRows], sum[kTileRows], factor[kTileRows];
    std::fill_n(most, kTileRows, -std::numeric_limits<T>::infinity());
    std::fill_n(sum, kTileRows, T(0));
    for (std::int64_t c = 0; c < column_tiles_; ++c) {
      const Tile t = this->tile(batch, row_tile, c);
      if (this->hidden(t)) continue;
      const T scale = this->scores(t, s);
      kernels_.weigh(t.rows, t.columns, scale, s, most, sum, factor);
    }
    for (std::int64_t r = 0; r < rows.rows; ++r)
      if (is_large(from[r]) && std::isfinite(most[r])) {
        log[r] = most[r];
        rest[r] = std::log(sum[r]);
      }
  }

  const T* logs_of(const Tile& t) const { return with_.logs + t.batch * plan_.rows + t.row; }
  const T* g_of(const Tile& t) const { return this->rows_of(with_.g, plan_.g, t.batch, t.row); }

  /// What a tile adds to the gradients of its rows and of its columns.
  void add(const Tile& t, bool to_rows, bool to_columns) {
    if (this->hidden(t) && in_.flags[t.column_tile] != 0 && rows_flag(t) != 0) return;
    T* p = tile_memory<T>(2);
    T* ds = p + kTileRows * kTileColumns;
    const T scale = this->scores(t, p);
    const std::int64_t first_column = t.batch * plan_.columns + t.column;
    const std::int64_t first_row = t.batch * plan_.rows + t.row;
    kernels_.weights(t.rows, t.columns, scale, p, logs() + first_row, rests() + first_row);
    if (to_columns && with_.dv)
      multiply_block<T>({t.columns, plan_.outer, t.rows, p, 1, kTileColumns, g_of(t), plan_.g.row,
                         1, with_.dv + first_column * plan_.outer, plan_.outer, true});
    if (!(to_columns && with_.dk) && !(to_rows && with_.dq)) return;
    this->multiply_rows(t, g_of(t), plan_.g.row, plan_.outer,
                        this->rows_of(in_.v, plan_.v, t.batch, t.column), plan_.v.row, ds);
    kernels_.slope(this->mask_of(t), p, with_.less + first_row, ds);
    if (to_columns && with_.dk)
      multiply_block<T>({t.columns, plan_.inner, t.rows, ds, 1, kTileColumns,
                         this->rows_of(in_.q, plan_.q, t.batch, t.row), plan_.q.row, 1,
                         with_.dk + first_column * plan_.inner, plan_.inner, true});
    if (to_rows && with_.dq)
      multiply_block<T>({t.rows, plan_.inner, t.columns, ds, kTileColumns, 1,
                         this->rows_of(in_.k, plan_.k, t.batch, t.column), plan_.k.row, 1,
                         with_.dq + first_row * plan_.inner, plan_.inner, true});
  }

  const AttentionSlopes<T>& with_;
};

}  // namespace

std::int64_t AttentionPlan::flags(bool gradient) const {
  return batch *
         (ceil_divide(columns, kTileColumns) + (gradient ? ceil_divide(rows, kTileRows) : 0));
}

template <class T>
void attend(ThreadPool& pool, const AttentionPlan& plan, const AttentionArrays<T>& in, T* out,
            T* logs) {
  Forward<T>(pool, plan, in, out, logs).run();
}

template <class T>
void attend_grad(ThreadPool& pool, const AttentionPlan& plan, const AttentionArrays<T>& in,
                 const AttentionSlopes<T>& with) {
  Backward<T>(pool, plan, in, with).run();
}

template void attend<float>(ThreadPool&, const AttentionPlan&, const AttentionArrays<float>&,
                            float*, float*);
template void attend<double>(ThreadPool&, const AttentionPlan&, const AttentionArrays<double>&,
                             double*, double*);
template void attend_grad<float>(ThreadPool&, const AttentionPlan&, const AttentionArrays<float>&,
                                 const AttentionSlopes<float>&);
template void attend_grad<double>(ThreadPool&, const AttentionPlan&, const AttentionArrays<double>&,
                                  const AttentionSlopes<double>&);

}  // namespace segfuse::engine
