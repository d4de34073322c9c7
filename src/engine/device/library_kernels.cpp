#include "engine/device/library_kernels.h"

#include <fmt/format.h>

#include <algorithm>

#include "compiler/compile.h"
#include "segfuse/error.h"

namespace segfuse::engine {

namespace {

constexpr std::int64_t kThreads = 256;
constexpr std::int64_t kMaxAxes = 8;
constexpr std::int64_t kMaxBlocks = 1 << 20;
constexpr std::int64_t kTile = 16;
constexpr std::int64_t kWarp = 32;

std::string replaced(std::string text, std::string_view what, const std::string& with) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
  return text;
}

/// STORED, VALUE, LOADED(x) and KEPT(x) by element type.
std::string with_types(std::string text, DType dtype) {
  const compiler::CudaElement element = compiler::cuda_element(dtype);
  std::string head = fmt::format(
      "typedef {} STORED;\ntypedef {} VALUE;\n"
      "static __device__ __forceinline__ VALUE LOADED(STORED x) {{ return {}; }}\n"
      "static __device__ __forceinline__ STORED KEPT(VALUE x) {{ return {}; }}\n",
      element.stored, element.value, element.load, element.store);
  return head + text;
}

LibraryLaunch launch_of(const std::string& entry, const std::string& code, std::size_t addresses,
                        const std::vector<std::int64_t>& sizes) {
  LibraryLaunch launch;
  launch.program = {entry, compiler::complete_cuda(code), {}};
  launch.entry = entry;
  launch.addresses = addresses;
  launch.words.assign(addresses, 0);
  for (const std::int64_t size : sizes) launch.words.push_back(static_cast<std::uint64_t>(size));
  launch.block = {static_cast<unsigned>(kThreads), 1, 1};
  return launch;
}

unsigned blocks_for(std::int64_t elements) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>((elements + kThreads - 1) / kThreads, 1, kMaxBlocks));
}

constexpr const char* kCopyView = R"(
struct Arguments {
  const STORED* from;
  STORED* to;
  long long count;
  long long rank;
  long long size[8];
  long long stride[8];
};
extern "C" __global__ void __launch_bounds__(256, 1) copy_view(const Arguments a) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < a.count; i += gridDim.x * 256ll) {
    long long rest = i;
    long long at = 0;
    for (int axis = 7; axis >= 0; --axis) {
      if (axis >= a.rank) continue;
      at += rest % a.size[axis] * a.stride[axis];
      rest /= a.size[axis];
    }
    a.to[i] = a.from[at];
  }
}
)";

constexpr const char* kFold = R"(
struct Arguments {
  const STORED* from;
  STORED* to;
  long long outer, length, windows, width, stride, dilation, inner;
};
extern "C" __global__ void __launch_bounds__(256, 1) fold(const Arguments a) {
  const long long count = a.outer * a.length * a.inner;
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
    const long long c = i % a.inner;
    const long long t = i / a.inner % a.length;
    const long long o = i / a.inner / a.length;
    VALUE sum = 0;
    for (long long j = 0; j < a.width; ++j) {
      const long long start = t - j * a.dilation;
      if (start < 0 || start % a.stride != 0 || start / a.stride >= a.windows) continue;
      sum += LOADED(a.from[((o * a.windows + start / a.stride) * a.width + j) * a.inner + c]);
    }
    a.to[i] = KEPT(sum);
  }
}
)";

// A block owns some rows and up to 256 columns of the result, and goes through all indices: so each
// element is summed by one thread, in the order of the updates. Few rows are held in shared memory.
// Where there are many updates for each row, they are summed in chunks, and then the chunks in
// order.
constexpr std::int64_t kHeldRows = 16;
constexpr const char* kScatterAdd = R"(
struct Arguments {
  const STORED* updates;
  const INDEX* indices;
  VALUE* sums;
  STORED* to;
  int* status;
  long long outer, count, size, inner, rows, chunk;
};
extern "C" __global__ void __launch_bounds__(256, 1) scatter_add(const Arguments a) {
  __shared__ long long row[256];
  __shared__ VALUE held[HELD * 256];
  const long long row_blocks = (a.size + a.rows - 1) / a.rows;
  const long long column_blocks = (a.inner + 255) / 256;
  const long long chunks = a.count > 0 ? (a.count + a.chunk - 1) / a.chunk : 1;  // of none: zeros
  const long long blocks = chunks * a.outer * row_blocks * column_blocks;
  for (long long block = blockIdx.x; block < blocks; block += gridDim.x) {
    const long long column = block % column_blocks * 256 + threadIdx.x;
    const long long first = block / column_blocks % row_blocks * a.rows;
    const long long place = block / column_blocks / row_blocks;  // chunk and o
    const long long o = place % a.outer;
    const long long begin = place / a.outer * a.chunk;
    const long long end = begin + a.chunk < a.count ? begin + a.chunk : a.count;
    const long long last = first + a.rows < a.size ? first + a.rows : a.size;
    VALUE* const stored = a.sums + place * a.size * a.inner;
    VALUE* const sums = IS_HELD ? held + threadIdx.x : stored + first * a.inner + column;
    const long long step = IS_HELD ? 256 : a.inner;
    if (column < a.inner)
      for (long long r = first; r < last; ++r) sums[(r - first) * step] = 0;
    for (long long base = begin; base < end; base += 256) {
      const long long i = base + threadIdx.x;
      const long long index = i < end ? (long long)(a.indices[i]) : -1;
      if (i < end && (index < 0 || index >= a.size)) atomicMax(a.status, 1);
      __syncthreads();
      row[threadIdx.x] = index;
      __syncthreads();
      if (column >= a.inner) continue;
      if (!IS_HELD) {  // few of the updates are for this block
        for (int k = 0; k < 256; ++k)
          if (row[k] >= first && row[k] < last)
            sums[(row[k] - first) * step] +=
                LOADED(a.updates[(o * a.count + base + k) * a.inner + column]);
        continue;
      }
      for (int k = 0; k < 256; k += 16) {  // loads ahead of the sums, which are in order
        VALUE x[16];
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          const bool here = row[k + j] >= first && row[k + j] < last;
          x[j] = here ? LOADED(a.updates[(o * a.count + base + k + j) * a.inner + column]) : 0;
        }
#pragma unroll
        for (int j = 0; j < 16; ++j)
          if (row[k + j] >= first && row[k + j] < last) sums[(row[k + j] - first) * step] += x[j];
      }
    }
    if ((KEEP || IS_HELD) && column < a.inner)
      for (long long r = first; r < last; ++r) {
        const VALUE sum = sums[(r - first) * step];
        const long long at = r * a.inner + column;
        if (KEEP)
          a.to[o * a.size * a.inner + at] = KEPT(sum);
        else
          stored[at] = sum;
      }
  }
}
)";

constexpr const char* kJoinChunks = R"(
struct Arguments {
  const VALUE* from;
  STORED* to;
  long long chunks, elements;
};
extern "C" __global__ void __launch_bounds__(256, 1) join_chunks(const Arguments a) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < a.elements; i += gridDim.x * 256ll) {
    VALUE sum = a.from[i];
#pragma unroll 16
    for (long long c = 1; c < a.chunks; ++c) sum += a.from[c * a.elements + i];
    a.to[i] = KEPT(sum);
  }
}
)";

// A state is (p, q): that of an element x (and y, if there are TWO operands) is FIRST or x, and
// LEAF; JOINED makes s of two runs l and r; RESULT is what s stands for.
constexpr const char* kScanHead = R"(
struct Arguments {
  const STORED* a;
  const STORED* b;
  STORED* to;
  long long outer, length, inner, reverse;
};
struct State {
  VALUE p, q;
};
static __device__ __forceinline__ State leaf(const Arguments& g, long long at, bool first) {
  const VALUE x = LOADED(g.a[at]);
  const VALUE y = TWO ? LOADED(g.b[at]) : x;
  State s;
  s.p = first ? FIRST : x;
  s.q = LEAF;
  return s;
}
static __device__ __forceinline__ State joined(State l, State r) {
  State s = r;
  JOINED;
  return s;
}
static __device__ __forceinline__ VALUE result_of(State s) { return RESULT; }
)";

/// The elements of a line by one thread, which is in order and reads beside its neighbours.
constexpr const char* kScanColumns = R"(
extern "C" __global__ void __launch_bounds__(256, 1) scan_columns(const Arguments g) {
  for (long long line = blockIdx.x * 256ll + threadIdx.x; line < g.outer * g.inner;
       line += gridDim.x * 256ll) {
    const long long base = line / g.inner * g.length * g.inner + line % g.inner;
    State carry;
    for (long long t = 0; t < g.length; ++t) {
      const long long at = base + (g.reverse ? g.length - 1 - t : t) * g.inner;
      const State s = leaf(g, at, t == 0);
      carry = t == 0 ? s : joined(carry, s);
      g.to[at] = KEPT(result_of(carry));
    }
  }
}
)";

/// A line by one block: pieces of 1024 elements, 4 of each thread, whose ends are joined in a tree.
constexpr const char* kScanRows = R"(
extern "C" __global__ void __launch_bounds__(256, 1) scan_rows(const Arguments g) {
  __shared__ State total[256];
  const int lane = threadIdx.x;
  for (long long line = blockIdx.x; line < g.outer * g.inner; line += gridDim.x) {
    const long long base = line / g.inner * g.length * g.inner + line % g.inner;
    State carry;
    for (long long piece = 0; piece < g.length; piece += 1024) {
      const long long begin = piece + lane * 4ll;
      const bool some = begin < g.length;
      State own[4];
      State sum;
      for (int e = 0; e < 4; ++e) {
        const long long t = begin + e;
        if (t >= g.length) continue;
        const long long at = base + (g.reverse ? g.length - 1 - t : t) * g.inner;
        const State s = leaf(g, at, t == 0);
        sum = e == 0 ? s : joined(sum, s);
        own[e] = sum;
      }
      if (some) total[lane] = sum;
      for (int back = 1; back < 256; back *= 2) {
        __syncthreads();
        State left;
        const bool has = some && lane >= back;
        if (has) left = total[lane - back];
        __syncthreads();
        if (has) total[lane] = joined(left, total[lane]);
      }
      __syncthreads();
      State before;
      bool has = some && lane > 0;
      if (has) before = total[lane - 1];
      if (piece > 0) {
        before = has ? joined(carry, before) : carry;
        has = true;
      }
      for (int e = 0; e < 4; ++e) {
        const long long t = begin + e;
        if (t >= g.length) continue;
        const long long at = base + (g.reverse ? g.length - 1 - t : t) * g.inner;
        g.to[at] = KEPT(result_of(has ? joined(before, own[e]) : own[e]));
      }
      const long long left_over = (g.length - piece - 1) / 4;
      const State all = total[left_over < 255 ? left_over : 255];
      carry = piece > 0 ? joined(carry, all) : all;
      __syncthreads();
    }
  }
}
)";

// A block sorts a line in the memory of its results, in Batcher's order of comparisons: the lesser
// one always moves to the front, so elements beyond the end count as greater than all others.
constexpr const char* kSort = R"(
struct Arguments {
  const STORED* from;
  STORED* values;
  long long* places;
  long long outer, length, inner, descending;
};
static __device__ __forceinline__ bool less(VALUE a, VALUE b) {
  return a < b || (a == a && b != b);
}
extern "C" __global__ void __launch_bounds__(256, 1) sort(const Arguments g) {
  for (long long line = blockIdx.x; line < g.outer * g.inner; line += gridDim.x) {
    const long long base = line / g.inner * g.length * g.inner + line % g.inner;
    for (long long t = threadIdx.x; t < g.length; t += 256) {
      g.values[base + t * g.inner] = g.from[base + t * g.inner];
      g.places[base + t * g.inner] = t;
    }
    __syncthreads();
    for (long long size = 2; size < 2 * g.length; size *= 2) {
      for (long long step = size / 2; step > 0; step /= 2) {
        for (long long pair = threadIdx.x; pair / step * 2 * step < g.length; pair += 256) {
          const long long begin = pair / step * 2 * step;
          const long long i = begin + pair % step;
          const long long j = step == size / 2 ? begin + size - 1 - pair % step : i + step;
          if (j >= g.length) continue;
          const long long at = base + i * g.inner;
          const long long other = base + j * g.inner;
          const VALUE a = LOADED(g.values[at]);
          const VALUE b = LOADED(g.values[other]);
          const bool up = g.descending ? less(a, b) : less(b, a);
          const bool down = g.descending ? less(b, a) : less(a, b);
          if (!up && (down || g.places[at] < g.places[other])) continue;
          const STORED value = g.values[at];
          g.values[at] = g.values[other];
          g.values[other] = value;
          const long long place = g.places[at];
          g.places[at] = g.places[other];
          g.places[other] = place;
        }
        __syncthreads();
      }
    }
  }
}
)";

/// FIRST, LEAF, JOINED and RESULT of each running result.
struct ScanText {
  const char* first;
  const char* leaf;
  const char* joined;
  const char* result;
};

ScanText scan_text(ir::Op op) {
  switch (op) {
    case ir::Op::cumsum: return {"x", "x", "s.q = l.q + r.q", "s.q"};
    case ir::Op::cumprod: return {"x", "x", "s.q = l.q * r.q", "s.q"};
    case ir::Op::cummax: return {"x", "x", "s.q = r.q > l.q || r.q != r.q ? r.q : l.q", "s.q"};
    case ir::Op::cummin: return {"x", "x", "s.q = r.q < l.q || r.q != r.q ? r.q : l.q", "s.q"};
    case ir::Op::linear_scan:  // what is before the first is 0
      return {"VALUE(0)", "y", "s.p = l.p * r.p;\n  s.q = r.p * l.q + r.q", "s.q"};
    case ir::Op::cumlogsumexp:
      return {"x", "VALUE(1)",
              "s.p = l.p != l.p || l.p > r.p ? l.p : r.p;\n"
              "  if (s.p - s.p == VALUE(0)) s.q = l.q * exp(l.p - s.p) + r.q * exp(r.p - s.p)",
              "(s.p - s.p == VALUE(0) ? s.p + log(s.q) : s.p)"};
    default: throw InternalError("no running result of that name");  // any other is no scan
  }
}

constexpr const char* kMatmul = R"(
struct Arguments {
  const STORED* a;
  const STORED* b;
  STORED* out;
  long long batch, m, n, k;
  long long a_batch, a_row, a_column, b_batch, b_row, b_column;
};
extern "C" __global__ void __launch_bounds__(256, 1) matmul(const Arguments p) {
  __shared__ VALUE left[16][17];
  __shared__ VALUE right[16][17];
  const int x = threadIdx.x;
  const int y = threadIdx.y;
  const long long across = (p.n + 15) / 16;
  const long long down = (p.m + 15) / 16;
  for (long long tile = blockIdx.x; tile < p.batch * across * down; tile += gridDim.x) {
    const long long column = tile % across * 16 + x;
    const long long row = tile / across % down * 16 + y;
    const long long batch = tile / across / down;
    VALUE sum = 0;
    for (long long base = 0; base < p.k; base += 16) {
      __syncthreads();
      left[y][x] = row < p.m && base + x < p.k
                       ? LOADED(p.a[batch * p.a_batch + row * p.a_row + (base + x) * p.a_column])
                       : VALUE(0);
      right[y][x] = column < p.n && base + y < p.k
                        ? LOADED(p.b[batch * p.b_batch + (base + y) * p.b_row +
                                     column * p.b_column])
                        : VALUE(0);
      __syncthreads();
      for (int i = 0; i < 16; ++i) sum += left[y][i] * right[i][x];
    }
    if (row < p.m && column < p.n) p.out[(batch * p.m + row) * p.n + column] = KEPT(sum);
  }
}
)";

// An infinity minus itself is NaN.
constexpr const char* kLook = R"(
struct Arguments {
  const STORED* from;
  int* word;
  long long count;
};
extern "C" __global__ void __launch_bounds__(256, 1) look(const Arguments a) {
  int seen = 0;
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < a.count; i += gridDim.x * 256ll) {
    const VALUE x = LOADED(a.from[i]);
    seen |= x != x ? 1 : x - x != VALUE(0) ? 2 : 0;
  }
  if (seen != 0) atomicOr(a.word, seen);
}
)";

constexpr const char* kConvert = R"(
struct Arguments {
  const FROM* from;
  TO* to;
  long long count;
};
extern "C" __global__ void __launch_bounds__(256, 1) convert(const Arguments a) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < a.count; i += gridDim.x * 256ll)
    a.to[i] = TO(a.from[i]);
}
)";

}  // namespace

LibraryLaunch copy_view_launch(std::size_t element_bytes, const std::vector<std::int64_t>& sizes,
                               const std::vector<std::int64_t>& strides) {
  if (sizes.size() > kMaxAxes)
    throw UsageError(fmt::format(
        "a view of {} axes that cannot be joined cannot be copied on a GPU; at most {} can",
        sizes.size(), kMaxAxes));
  const std::string type = element_bytes == 1   ? "unsigned char"
                           : element_bytes == 2 ? "unsigned short"
                           : element_bytes == 4 ? "unsigned"
                                                : "unsigned long long";
  const std::int64_t count = num_elements(sizes);
  std::vector<std::int64_t> words = {count, static_cast<std::int64_t>(sizes.size())};
  for (const std::vector<std::int64_t>* part : {&sizes, &strides}) {
    words.insert(words.end(), part->begin(), part->end());
    words.resize(words.size() + kMaxAxes - part->size(), 1);
  }
  LibraryLaunch launch = launch_of("copy_view", replaced(kCopyView, "STORED", type), 2, words);
  launch.grid = {blocks_for(count), 1, 1};
  return launch;
}

LibraryLaunch fold_launch(DType dtype, const FoldSizes& s) {
  LibraryLaunch launch =
      launch_of("fold", with_types(kFold, dtype), 2,
                {s.outer, s.length, s.windows, s.width, s.stride, s.dilation, s.inner});
  launch.grid = {blocks_for(s.outer * s.length * s.inner), 1, 1};
  return launch;
}

std::int64_t scatter_chunk(const ScatterSizes& s) {
  constexpr std::int64_t kMinChunk = 512;
  constexpr std::int64_t kMaxChunks = 1024;
  std::int64_t chunk = kMinChunk;
  while (chunk < 4 * s.size || s.count / chunk > kMaxChunks) chunk *= 2;
  return s.count >= 4 * chunk ? chunk : std::max<std::int64_t>(s.count, 1);
}

LibraryLaunch scatter_add_launch(DType dtype, DType indices, const ScatterSizes& s,
                                 int multiprocessors) {
  const std::int64_t chunk = scatter_chunk(s);
  const std::int64_t chunks = std::max<std::int64_t>(1, (s.count + chunk - 1) / chunk);
  const bool keep = size_of(dtype) == 2 && chunks == 1;
  std::string text = replaced(kScatterAdd, "INDEX", compiler::cuda_element(indices).stored);
  text = replaced(std::move(text), "KEEP", keep ? "true" : "false");
  // A block goes through all indices of a chunk: as few as still fill the device.
  const std::int64_t columns = (s.inner + kThreads - 1) / kThreads;
  const std::int64_t others = std::max<std::int64_t>(1, chunks * s.outer * columns);
  std::int64_t row_blocks =
      std::clamp<std::int64_t>(2 * multiprocessors / others, 1, std::max<std::int64_t>(s.size, 1));
  if (s.size <= kHeldRows * kHeldRows)
    row_blocks = std::max(row_blocks, (s.size + kHeldRows - 1) / kHeldRows);
  const std::int64_t rows = std::max<std::int64_t>(1, (s.size + row_blocks - 1) / row_blocks);
  const bool held = rows <= kHeldRows;
  text = replaced(std::move(text), "IS_HELD", held ? "true" : "false");
  text = replaced(std::move(text), "HELD", held ? std::to_string(kHeldRows) : "1");
  LibraryLaunch launch = launch_of("scatter_add", with_types(std::move(text), dtype), 5,
                                   {s.outer, s.count, s.size, s.inner, rows, chunk});
  launch.grid = {static_cast<unsigned>(std::clamp<std::int64_t>(
                     others * ((s.size + rows - 1) / rows), 1, kMaxBlocks)),
                 1, 1};
  return launch;
}

LibraryLaunch join_chunks_launch(DType dtype, std::int64_t chunks, std::int64_t elements) {
  LibraryLaunch launch =
      launch_of("join_chunks", with_types(kJoinChunks, dtype), 2, {chunks, elements});
  launch.grid = {blocks_for(elements), 1, 1};
  return launch;
}

LibraryLaunch scan_launch(DType dtype, ir::Op op, const LineSizes& s, bool reverse) {
  const ScanText parts = scan_text(op);
  const bool columns = s.inner >= kWarp;
  std::string text = std::string(kScanHead) + (columns ? kScanColumns : kScanRows);
  text = replaced(std::move(text), "TWO", op == ir::Op::linear_scan ? "true" : "false");
  text = replaced(std::move(text), "FIRST", parts.first);
  text = replaced(std::move(text), "LEAF", parts.leaf);
  text = replaced(std::move(text), "JOINED", parts.joined);
  text = replaced(std::move(text), "RESULT", parts.result);
  LibraryLaunch launch =
      launch_of(columns ? "scan_columns" : "scan_rows", with_types(std::move(text), dtype), 3,
                {s.outer, s.length, s.inner, reverse ? 1 : 0});
  const std::int64_t lines = s.outer * s.inner;
  launch.grid = {columns ? blocks_for(lines)
                         : static_cast<unsigned>(std::clamp<std::int64_t>(lines, 1, kMaxBlocks)),
                 1, 1};
  return launch;
}

LibraryLaunch sort_launch(DType dtype, const LineSizes& s, bool descending) {
  LibraryLaunch launch = launch_of("sort", with_types(kSort, dtype), 3,
                                   {s.outer, s.length, s.inner, descending ? 1 : 0});
  launch.grid = {static_cast<unsigned>(std::clamp<std::int64_t>(s.outer * s.inner, 1, kMaxBlocks)),
                 1, 1};
  return launch;
}

LibraryLaunch matmul_launch(const runtime::GpuProduct& p) {
  const auto steps = [](const runtime::GpuMatrix& matrix) {
    return std::pair(matrix.by_columns ? 1 : matrix.leading,
                     matrix.by_columns ? matrix.leading : 1);
  };
  const auto [a_row, a_column] = steps(p.a);
  const auto [b_row, b_column] = steps(p.b);
  LibraryLaunch launch = launch_of("matmul", with_types(kMatmul, p.dtype), 3,
                                   {p.batch, p.m, p.n, p.k, p.a.batch_stride, a_row, a_column,
                                    p.b.batch_stride, b_row, b_column});
  const std::int64_t tiles = p.batch * ((p.m + kTile - 1) / kTile) * ((p.n + kTile - 1) / kTile);
  launch.grid = {static_cast<unsigned>(std::clamp<std::int64_t>(tiles, 1, kMaxBlocks)), 1, 1};
  launch.block = {static_cast<unsigned>(kTile), static_cast<unsigned>(kTile), 1};
  return launch;
}

LibraryLaunch look_launch(DType dtype, std::int64_t count) {
  LibraryLaunch launch = launch_of("look", with_types(kLook, dtype), 2, {count});
  launch.grid = {blocks_for(count), 1, 1};
  return launch;
}

LibraryLaunch convert_launch(DType from, DType to, std::int64_t count) {
  std::string text = replaced(kConvert, "FROM", compiler::cuda_element(from).stored);
  LibraryLaunch launch = launch_of(
      "convert", replaced(std::move(text), "TO", compiler::cuda_element(to).stored), 2, {count});
  launch.grid = {blocks_for(count), 1, 1};
  return launch;
}

}  // namespace segfuse::engine
