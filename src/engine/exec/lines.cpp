#include "engine/exec/lines.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "segfuse/error.h"

namespace segfuse::engine {

namespace {

constexpr std::int64_t kLineElements = 1 << 14;

template <class Body>
void with_line_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32: return body(float{});
    case DType::kF64: return body(double{});
    case DType::kI32: return body(std::int32_t{});
    case DType::kI64: return body(std::int64_t{});
    default: throw InternalError("an operation along an axis of a type that no array has");
  }
}

/// An array as lines: element t of line (o, i) is at (o * length + t) * inner + i.
struct Lines {
  std::int64_t outer = 1, length = 1, inner = 1;

  Lines(const Shape& shape, std::size_t axis) : length(shape[axis]) {
    for (std::size_t a = 0; a < axis; ++a) outer *= shape[a];
    for (std::size_t a = axis + 1; a < shape.size(); ++a) inner *= shape[a];
  }
  std::int64_t count() const { return length == 0 ? 0 : outer * inner; }
  std::int64_t begin(std::int64_t line) const {
    return line / inner * length * inner + line % inner;
  }
  std::int64_t grain() const { return std::max<std::int64_t>(1, kLineElements / length); }
};

// --- running results

/// Sums of floats in double; integers wrap.
template <class T>
using Carried = std::conditional_t<std::is_same_v<T, float>, double, T>;
template <class T>
using Wrapping = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                             std::type_identity<T>>::type;

template <class T>
struct Sum {
  Wrapping<Carried<T>> y = 0;
  Carried<T> next(Carried<T> x) {
    y = static_cast<Wrapping<Carried<T>>>(y + static_cast<Wrapping<Carried<T>>>(x));
    return static_cast<Carried<T>>(y);
  }
};

template <class T>
struct RunningProduct {
  Wrapping<Carried<T>> y = 1;
  Carried<T> next(Carried<T> x) {
    y = static_cast<Wrapping<Carried<T>>>(y * static_cast<Wrapping<Carried<T>>>(x));
    return static_cast<Carried<T>>(y);
  }
};

template <class T>
constexpr T lowest() {
  if constexpr (std::is_integral_v<T>) return std::numeric_limits<T>::min();
  return static_cast<T>(-std::numeric_limits<double>::infinity());
}
template <class T>
constexpr T highest() {
  if constexpr (std::is_integral_v<T>) return std::numeric_limits<T>::max();
  return static_cast<T>(std::numeric_limits<double>::infinity());
}

template <class T>
struct Max {
  T y = lowest<T>();
  T next(T x) { return y = x > y || x != x ? x : y; }
};

template <class T>
struct Min {
  T y = highest<T>();
  T next(T x) { return y = x < y || x != x ? x : y; }
};

/// A maximum and the sum of exponentials below it.
struct LogSum {
  double most = -std::numeric_limits<double>::infinity();
  double sum = 0;
  double next(double x) {
    if (x != x) most = x;
    if (x > most) {
      sum = sum * std::exp(most - x) + 1;
      most = x;
    } else if (std::isfinite(most)) {
      sum += std::exp(x - most);
    }
    return std::isfinite(most) ? most + std::log(sum) : most;
  }
};

template <class T, class State>
void run_lines(ThreadPool& pool, const Lines& lines, bool reverse, const T* from, T* to) {
  using Value = decltype(State().next(0));
  pool.for_ranges(lines.count(), lines.grain(), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t line = first; line < last; ++line) {
      State state;
      for (std::int64_t t = 0; t < lines.length; ++t) {
        const std::int64_t at =
            lines.begin(line) + (reverse ? lines.length - 1 - t : t) * lines.inner;
        to[at] = static_cast<T>(state.next(static_cast<Value>(from[at])));
      }
    }
  });
}

template <class T>
void run_linear(ThreadPool& pool, const Lines& lines, bool reverse, const T* a, const T* b, T* to) {
  pool.for_ranges(lines.count(), lines.grain(), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t line = first; line < last; ++line) {
      double y = 0;
      for (std::int64_t t = 0; t < lines.length; ++t) {
        const std::int64_t at =
            lines.begin(line) + (reverse ? lines.length - 1 - t : t) * lines.inner;
        // What is before the first is 0, whatever it would be multiplied by.
        y = (t == 0 ? 0.0 : static_cast<double>(a[at]) * y) + static_cast<double>(b[at]);
        to[at] = static_cast<T>(y);
      }
    }
  });
}

// --- sorting

template <class T>
bool less(T a, T b) {
  return a < b || (a == a && b != b);
}

template <class T>
struct Keyed {
  T key;
  std::int64_t place;
};

}  // namespace

void scan(ThreadPool& pool, ir::Op op, const Array& from, const Array& second, std::size_t axis,
          bool reverse, const Array& to) {
  const Lines lines(to.shape(), axis);
  if (lines.count() == 0) return;
  with_line_type(to.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* in = from.as<const T>();
    T* out = to.as<T>();
    switch (op) {
      case ir::Op::cumsum: return run_lines<T, Sum<T>>(pool, lines, reverse, in, out);
      case ir::Op::cumprod: return run_lines<T, RunningProduct<T>>(pool, lines, reverse, in, out);
      case ir::Op::cummax: return run_lines<T, Max<T>>(pool, lines, reverse, in, out);
      case ir::Op::cummin: return run_lines<T, Min<T>>(pool, lines, reverse, in, out);
      case ir::Op::cumlogsumexp: return run_lines<T, LogSum>(pool, lines, reverse, in, out);
      case ir::Op::linear_scan:
        return run_linear<T>(pool, lines, reverse, in, second.as<const T>(), out);
      default: throw InternalError("no running result of that name");  // any other is no scan
    }
  });
}

void sort(ThreadPool& pool, const Array& from, std::size_t axis, bool descending,
          const Array& values, const Array& places) {
  const Lines lines(from.shape(), axis);
  if (lines.count() == 0) return;
  with_line_type(from.dtype, [&](auto zero) {
    using T = decltype(zero);
    pool.for_ranges(lines.count(), lines.grain(), [&](std::int64_t first, std::int64_t last) {
      std::vector<Keyed<T>> line(static_cast<std::size_t>(lines.length));
      for (std::int64_t n = first; n < last; ++n) {
        const std::int64_t begin = lines.begin(n);
        for (std::int64_t t = 0; t < lines.length; ++t)
          line[static_cast<std::size_t>(t)] = {from.as<const T>()[begin + t * lines.inner], t};
        std::sort(line.begin(), line.end(), [&](const Keyed<T>& a, const Keyed<T>& b) {
          if (descending ? less(b.key, a.key) : less(a.key, b.key)) return true;
          if (descending ? less(a.key, b.key) : less(b.key, a.key)) return false;
          return a.place < b.place;
        });
        for (std::int64_t t = 0; t < lines.length; ++t) {
          values.as<T>()[begin + t * lines.inner] = line[static_cast<std::size_t>(t)].key;
          places.as<std::int64_t>()[begin + t * lines.inner] =
              line[static_cast<std::size_t>(t)].place;
        }
      }
    });
  });
}

}  // namespace segfuse::engine
