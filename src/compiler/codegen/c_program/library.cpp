#include "compiler/codegen/c_program/library.h"

#include <fmt/format.h>

#include "base/half_types.h"
#include "compiler/codegen/cpu/c_writer.h"
#include "segfuse/error.h"

namespace segfuse::compiler::cpu {

using ir::ExprId;
using ir::Extents;
using ir::Op;

namespace {

/// TYPE is the element, NAME the type's name. A side that is turned is stored column by column.
constexpr const char* kMatmul = R"(// c = a * b, `batch` times; b may be the same for all.
static void sf_matmul_NAME(int64_t batch, int64_t rows, int64_t inner, int64_t columns,
                           const TYPE *a, int a_turned, const TYPE *b, int b_turned,
                           int b_shared, TYPE *c) {
  for (int64_t g = 0; g < batch; ++g, a += rows * inner, c += rows * columns) {
    const TYPE *const right = b_shared ? b : b + g * inner * columns;
    for (int64_t i = 0; i < rows; ++i) {
      TYPE *const row = c + i * columns;
      for (int64_t j = 0; j < columns; ++j) row[j] = 0;
      for (int64_t k = 0; k < inner; ++k) {
        const TYPE x = a_turned ? a[k * rows + i] : a[i * inner + k];
        if (b_turned) {
          for (int64_t j = 0; j < columns; ++j) row[j] += x * right[j * inner + k];
        } else {
          for (int64_t j = 0; j < columns; ++j) row[j] += x * right[k * columns + j];
        }
      }
    }
  }
}
)";

constexpr const char* kHalfMatmul =
    R"(// c = a * b, `batch` times, summed in f32; b may be the same for all.
static void sf_matmul_NAME(int64_t batch, int64_t rows, int64_t inner, int64_t columns,
                           const TYPE *a, int a_turned, const TYPE *b, int b_turned,
                           int b_shared, TYPE *c) {
  for (int64_t g = 0; g < batch; ++g, a += rows * inner, c += rows * columns) {
    const TYPE *const right = b_shared ? b : b + g * inner * columns;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < inner; ++k)
          sum += sf_first_f32(sf_load_NAME_n(a + (a_turned ? k * rows + i : i * inner + k), 1)) *
                 sf_first_f32(
                     sf_load_NAME_n(right + (b_turned ? j * inner + k : k * columns + j), 1));
        sf_store_NAME_n(c + i * columns + j, sf_all_f32(sum), 1);
      }
  }
}
)";

/// SUM is the sum of to[i] and from[i].
constexpr const char* kScatterAdd =
    R"(// Adds `count` pieces to zeros; 1 if an index is out of range.
static int sf_scatter_add_NAME(int64_t outer, int64_t count, int64_t inner, int64_t size,
                               const TYPE *from, const INDEX *indices, TYPE *to) {
  for (int64_t c = 0; c < count; ++c)
    if (indices[c] < 0 || indices[c] >= size) return 1;
  for (int64_t i = 0; i < outer * size * inner; ++i) to[i] = 0;
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t c = 0; c < count; ++c, from += inner) {
      TYPE *const piece = to + (o * size + indices[c]) * inner;
      for (int64_t i = 0; i < inner; ++i) piece[i] = SUM(piece[i], from[i]);
    }
  return 0;
}
)";

constexpr const char* kFold = R"(// Adds windows of `width` back into `size` elements.
static void sf_fold_NAME(int64_t outer, int64_t windows, int64_t width, int64_t inner, int64_t size,
                         int64_t stride, int64_t dilation, const TYPE *from, TYPE *to) {
  for (int64_t i = 0; i < outer * size * inner; ++i) to[i] = 0;
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t w = 0; w < windows; ++w)
      for (int64_t j = 0; j < width; ++j, from += inner) {
        TYPE *const piece = to + (o * size + w * stride + j * dilation) * inner;
        for (int64_t i = 0; i < inner; ++i) piece[i] = SUM(piece[i], from[i]);
      }
}
)";

void replace(std::string& text, std::string_view word, std::string_view by) {
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + by.size()))
    text.replace(at, word.size(), by);
}

std::string filled(std::string text, DType dtype) {
  const std::size_t sum = text.find("SUM(piece[i], from[i])");
  if (sum != text.npos) {
    const bool whole = dtype == DType::kI32 || dtype == DType::kI64;
    const std::string bits = dtype == DType::kI32 ? "(uint32_t)" : "(uint64_t)";
    text.replace(
        sum, std::string_view("SUM(piece[i], from[i])").size(),
        whole ? fmt::format("(TYPE)({0}piece[i] + {0}from[i])", bits) : "piece[i] + from[i]");
  }
  replace(text, "NAME", memory_type(dtype));
  replace(text, "TYPE", element_type(dtype));
  return text;
}

}  // namespace

/// The number of elements of axes [begin, end).
std::string LibraryLoops::around(const Extents& shape, std::size_t begin, std::size_t end) {
  return sizes_.elements(Extents(shape.begin() + static_cast<std::ptrdiff_t>(begin),
                                 shape.begin() + static_cast<std::ptrdiff_t>(end)));
}

std::string LibraryLoops::matmul(ExprId id, const Pointer& pointer) {
  const ir::Expr& e = fusion_.expr(id);
  const Extents& a = fusion_.val(e.operands[0]).shape;
  const Extents& b = fusion_.val(e.operands[1]).shape;
  const Extents& c = fusion_.val(e.results[0]).shape;
  const bool turned = fusion_.attr<std::int64_t>(id, "transpose_a") != 0;
  const DType dtype = fusion_.val(e.results[0]).dtype;
  used_.insert(filled(is_half(dtype) ? kHalfMatmul : kMatmul, dtype));
  return fmt::format("sf_matmul_{}({}, {}, {}, {}, {}, {}, {}, {}, {}, {});", memory_type(dtype),
                     around(c, 0, c.size() - 2), sizes_.of(c[c.size() - 2]),
                     sizes_.of(a[a.size() - (turned ? 2 : 1)]), sizes_.of(c.back()),
                     pointer(e.operands[0]), turned ? 1 : 0, pointer(e.operands[1]),
                     fusion_.attr<std::int64_t>(id, "transpose_b"), b.size() == 2 ? 1 : 0,
                     pointer(e.results[0]));
}

std::string LibraryLoops::scatter_add(ExprId id, const Pointer& pointer) {
  const ir::Expr& e = fusion_.expr(id);
  const auto axis = static_cast<std::size_t>(fusion_.attr<std::int64_t>(id, "axis"));
  const Extents& result = fusion_.val(e.results[0]).shape;
  const ir::Val& indices = fusion_.val(e.operands[1]);
  const DType dtype = fusion_.val(e.results[0]).dtype;
  std::string function = filled(kScatterAdd, dtype);
  replace(function, "INDEX", element_type(indices.dtype));
  const std::string name =
      fmt::format("sf_scatter_add_{}_{}", memory_type(dtype), memory_type(indices.dtype));
  replace(function, fmt::format("sf_scatter_add_{}(", memory_type(dtype)), name + "(");
  used_.insert(std::move(function));
  return fmt::format("if ({}({}, {}, {}, {}, {}, {}, {})) status = 1;", name,
                     around(result, 0, axis), sizes_.elements(indices.shape),
                     around(result, axis + 1, result.size()), sizes_.of(result[axis]),
                     pointer(e.operands[0]), pointer(e.operands[1]), pointer(e.results[0]));
}

std::string LibraryLoops::fold(ExprId id, const Pointer& pointer) {
  const ir::Expr& e = fusion_.expr(id);
  const auto axis = static_cast<std::size_t>(fusion_.attr<std::int64_t>(id, "axis"));
  const Extents& from = fusion_.val(e.operands[0]).shape;
  const Extents& result = fusion_.val(e.results[0]).shape;
  const DType dtype = fusion_.val(e.results[0]).dtype;
  used_.insert(filled(kFold, dtype));
  return fmt::format("sf_fold_{}({}, {}, {}, {}, {}, {}, {}, {}, {});", memory_type(dtype),
                     around(result, 0, axis), sizes_.of(from[axis]), sizes_.of(from[axis + 1]),
                     around(result, axis + 1, result.size()), sizes_.of(result[axis]),
                     fusion_.attr<std::int64_t>(id, "stride"),
                     fusion_.attr<std::int64_t>(id, "dilation"), pointer(e.operands[0]),
                     pointer(e.results[0]));
}

std::string LibraryLoops::call(ExprId id, const Pointer& pointer) {
  const ir::Expr& e = fusion_.expr(id);
  const DType dtype = fusion_.val(e.results[0]).dtype;
  if (e.op == Op::matmul) return matmul(id, pointer);
  if (ir::adds(e.op) && !is_half(dtype) && dtype != DType::kBool)
    return ir::has_indices(e.op) ? scatter_add(id, pointer) : fold(id, pointer);
  throw UsageError(fmt::format(
      "{} of {} has no form in C without segfuse's library; --emit=kernels prints the kernels "
      "around it",
      ir::info(e.op).name, name_of(dtype)));
}

std::string LibraryLoops::functions() const {
  std::string all;
  for (const std::string& function : used_) all += function + "\n";
  return all;
}

}  // namespace segfuse::compiler::cpu
