#include "engine/device/library_kernels.h"

#include <fmt/format.h>

#include <algorithm>

#include "compiler/compile.h"
#include "segfuse/error.h"

namespace segfuse::engine {

namespace {

constexpr std::int64_t kThreads = 256;
constexpr std::int64_t kMostAxes = 8;
constexpr std::int64_t kMostBlocks = 1 << 20;
constexpr std::int64_t kTile = 16;

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
      std::clamp<std::int64_t>((elements + kThreads - 1) / kThreads, 1, kMostBlocks));
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
// element is summed by one thread, in the order of the updates.
constexpr const char* kScatterAdd = R"(
struct Arguments {
  const STORED* updates;
  const INDEX* indices;
  VALUE* sums;
  STORED* to;
  int* status;
  long long outer, count, size, inner, rows;
};
extern "C" __global__ void __launch_bounds__(256, 1) scatter_add(const Arguments a) {
  __shared__ long long row[256];
  const long long row_blocks = (a.size + a.rows - 1) / a.rows;
  const long long column_blocks = (a.inner + 255) / 256;
  const long long blocks = a.outer * row_blocks * column_blocks;
  for (long long block = blockIdx.x; block < blocks; block += gridDim.x) {
    const long long column = block % column_blocks * 256 + threadIdx.x;
    const long long first = block / column_blocks % row_blocks * a.rows;
    const long long o = block / column_blocks / row_blocks;
    const long long last = first + a.rows < a.size ? first + a.rows : a.size;
    VALUE* const sums = a.sums + o * a.size * a.inner;
    if (column < a.inner)
      for (long long r = first; r < last; ++r) sums[r * a.inner + column] = 0;
    for (long long base = 0; base < a.count; base += 256) {
      const long long i = base + threadIdx.x;
      const long long index = i < a.count ? (long long)(a.indices[i]) : -1;
      if (i < a.count && (index < 0 || index >= a.size)) atomicMax(a.status, 1);
      __syncthreads();
      row[threadIdx.x] = index;
      __syncthreads();
      if (column >= a.inner) continue;
      for (int k = 0; k < 256; ++k) {
        if (row[k] < first || row[k] >= last) continue;
        sums[row[k] * a.inner + column] +=
            LOADED(a.updates[(o * a.count + base + k) * a.inner + column]);
      }
    }
    if (KEEP && column < a.inner)
      for (long long r = first; r < last; ++r)
        a.to[(o * a.size + r) * a.inner + column] = KEPT(sums[r * a.inner + column]);
  }
}
)";

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
  if (sizes.size() > kMostAxes)
    throw UsageError(fmt::format(
        "a view of {} axes that cannot be joined cannot be copied on a GPU; at most {} can",
        sizes.size(), kMostAxes));
  const std::string type = element_bytes == 1   ? "unsigned char"
                           : element_bytes == 2 ? "unsigned short"
                           : element_bytes == 4 ? "unsigned"
                                                : "unsigned long long";
  const std::int64_t count = num_elements(sizes);
  std::vector<std::int64_t> words = {count, static_cast<std::int64_t>(sizes.size())};
  for (const std::vector<std::int64_t>* part : {&sizes, &strides}) {
    words.insert(words.end(), part->begin(), part->end());
    words.resize(words.size() + kMostAxes - part->size(), 1);
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

LibraryLaunch scatter_add_launch(DType dtype, DType indices, const ScatterSizes& s,
                                 int multiprocessors) {
  const bool half = size_of(dtype) == 2;
  std::string text = replaced(kScatterAdd, "INDEX", compiler::cuda_element(indices).stored);
  text = replaced(std::move(text), "KEEP", half ? "true" : "false");
  // A block goes through all indices: as few as still fill the device.
  const std::int64_t columns = (s.inner + kThreads - 1) / kThreads;
  const std::int64_t others = std::max<std::int64_t>(1, s.outer * columns);
  const std::int64_t row_blocks =
      std::clamp<std::int64_t>(2 * multiprocessors / others, 1, std::max<std::int64_t>(s.size, 1));
  const std::int64_t rows = std::max<std::int64_t>(1, (s.size + row_blocks - 1) / row_blocks);
  LibraryLaunch launch = launch_of("scatter_add", with_types(std::move(text), dtype), 5,
                                   {s.outer, s.count, s.size, s.inner, rows});
  launch.grid = {static_cast<unsigned>(std::clamp<std::int64_t>(
                     others * ((s.size + rows - 1) / rows), 1, kMostBlocks)),
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
  launch.grid = {static_cast<unsigned>(std::clamp<std::int64_t>(tiles, 1, kMostBlocks)), 1, 1};
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
