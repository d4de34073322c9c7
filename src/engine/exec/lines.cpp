#include "engine/exec/lines.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
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
using KeyOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

/// An unsigned integer: those of two elements are in the elements' order. NaNs are alike and last,
/// and -0 is like 0.
template <class T>
KeyOf<T> key_of(T x, bool descending) {
  using Key = KeyOf<T>;
  constexpr Key kSign = Key{1} << (8 * sizeof(Key) - 1);
  Key key = ~Key{0};
  if constexpr (std::is_integral_v<T>) {
    key = static_cast<Key>(x) ^ kSign;
  } else if (x == x) {
    key = std::bit_cast<Key>(x == 0 ? T{0} : x);
    key = (key & kSign) != 0 ? ~key : key | kSign;
  }
  return descending ? ~key : key;
}

template <class Key>
struct Keyed {
  Key key;
  std::conditional_t<sizeof(Key) == 4, std::uint32_t, std::int64_t> place;
};

constexpr std::size_t kShortLine = 64;

/// Puts each element behind those that are less, and behind the equal ones before it.
template <class Key>
void sort_by_ranks(const std::vector<Keyed<Key>>& line, std::vector<Keyed<Key>>& sorted) {
  std::array<Key, kShortLine> keys;
  for (std::size_t i = 0; i < line.size(); ++i) keys[i] = line[i].key;
  for (std::size_t i = 0; i < line.size(); ++i) {
    Key rank = 0;
    for (std::size_t j = 0; j < i; ++j) rank += Key{keys[j] <= keys[i]};
    for (std::size_t j = i + 1; j < line.size(); ++j) rank += Key{keys[j] < keys[i]};
    sorted[rank] = line[i];
  }
}

template <class Key>
void sort_by_comparison(const std::vector<Keyed<Key>>& line, std::vector<Keyed<Key>>& sorted) {
  sorted = line;
  std::ranges::sort(sorted, [](const Keyed<Key>& a, const Keyed<Key>& b) {
    return a.key < b.key || (a.key == b.key && a.place < b.place);
  });
}

/// Sorts by the bytes of the keys, from the last to the first; equal keys keep their order.
/// Both vectors are overwritten; the result is in `sorted`.
template <class Key>
void sort_by_bytes(std::vector<Keyed<Key>>& line, std::vector<Keyed<Key>>& sorted) {
  constexpr std::size_t kBytes = sizeof(Key);
  std::array<std::array<std::size_t, 256>, kBytes> counts{};
  for (const Keyed<Key>& element : line)
    for (std::size_t byte = 0; byte < kBytes; ++byte)
      ++counts[byte][(element.key >> (8 * byte)) & 255];
  line.swap(sorted);
  for (std::size_t byte = 0; byte < kBytes; ++byte) {
    const std::size_t shift = 8 * byte;
    std::array<std::size_t, 256>& begins = counts[byte];
    if (begins[(sorted[0].key >> shift) & 255] == sorted.size()) continue;  // all have this byte
    std::size_t begin = 0;
    for (std::size_t& count : begins) begin += std::exchange(count, begin);
    for (const Keyed<Key>& element : sorted) line[begins[(element.key >> shift) & 255]++] = element;
    line.swap(sorted);
  }
}

/// Adjacent lines, packed: their elements lie side by side in an array whose lines are not along
/// the last axis.
template <class T>
struct LineBlock {
  std::int64_t first = 0, count = 0, inner = 0, length = 0;

  void read(const T* from, T* packed) const {
    for (std::int64_t t = 0; t < length; ++t)
      for (std::int64_t n = 0; n < count; ++n) packed[n * length + t] = from[first + t * inner + n];
  }
  template <class U>
  void write(const U* packed, U* to) const {
    for (std::int64_t t = 0; t < length; ++t)
      for (std::int64_t n = 0; n < count; ++n) to[first + t * inner + n] = packed[n * length + t];
  }
};

/// Sorts packed lines. Either result may be null.
template <class T, class Key>
class LineSorter {
 public:
  LineSorter(std::int64_t length, bool descending)
      : descending_(descending),
        line_(static_cast<std::size_t>(length)),
        sorted_(static_cast<std::size_t>(length)) {}

  void sort(const T* from, T* values, std::int64_t* places) {
    for (std::size_t t = 0; t < line_.size(); ++t) {
      using Place = decltype(line_[t].place);
      line_[t] = {key_of(from[t], descending_), static_cast<Place>(t)};
    }
    if (line_.size() > kShortLine)
      sort_by_bytes(line_, sorted_);
    else if constexpr (sizeof(Key) == 4)
      sort_by_ranks(line_, sorted_);
    else  // 64-bit integers are compared one by one
      sort_by_comparison(line_, sorted_);
    if (values != nullptr)
      for (std::size_t t = 0; t < sorted_.size(); ++t) values[t] = from[sorted_[t].place];
    if (places != nullptr)
      for (std::size_t t = 0; t < sorted_.size(); ++t)
        places[t] = static_cast<std::int64_t>(sorted_[t].place);
  }

 private:
  bool descending_;
  std::vector<Keyed<Key>> line_, sorted_;
};

template <class T, class Key>
void sort_lines(ThreadPool& pool, const Lines& lines, bool descending, const T* from, T* values,
                std::int64_t* places) {
  // A cache line's worth of adjacent lines, as long as they are short.
  const std::int64_t most = std::clamp<std::int64_t>((1 << 16) / lines.length, 1, 64 / sizeof(T));
  pool.for_ranges(lines.count(), lines.grain(), [&](std::int64_t first, std::int64_t last) {
    LineSorter<T, Key> sorter(lines.length, descending);
    const auto elements = static_cast<std::size_t>(most * lines.length);
    std::vector<T> packed(elements), sorted(values != nullptr ? elements : 0);
    std::vector<std::int64_t> sorted_places(places != nullptr ? elements : 0);
    for (std::int64_t n = first, count = 0; n < last; n += count) {
      count = std::min({most, last - n, lines.inner - n % lines.inner});
      const LineBlock<T> block{lines.begin(n), count, lines.inner, lines.length};
      block.read(from, packed.data());
      for (std::int64_t k = 0; k < count; ++k) {
        const std::int64_t begin = k * lines.length;
        sorter.sort(packed.data() + begin, values != nullptr ? sorted.data() + begin : nullptr,
                    places != nullptr ? sorted_places.data() + begin : nullptr);
      }
      if (values != nullptr) block.write(sorted.data(), values);
      if (places != nullptr) block.write(sorted_places.data(), places);
    }
  });
}

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
          const Array* values, const Array* places) {
  const Lines lines(from.shape(), axis);
  if (lines.count() == 0) return;
  with_line_type(from.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* in = from.as<const T>();
    T* out = values != nullptr ? values->as<T>() : nullptr;
    std::int64_t* out_places = places != nullptr ? places->as<std::int64_t>() : nullptr;
    if (lines.length > std::numeric_limits<std::uint32_t>::max())
      return sort_lines<T, std::uint64_t>(pool, lines, descending, in, out, out_places);
    return sort_lines<T, KeyOf<T>>(pool, lines, descending, in, out, out_places);
  });
}

}  // namespace segfuse::engine
