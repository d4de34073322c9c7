#include "engine/attention/gpu/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <span>

#include "base/check.h"
#include "compiler/compile.h"
#include "engine/attention/gpu/source.h"
#include "segfuse/error.h"

namespace segfuse::engine {
namespace {

constexpr std::size_t kAxes = 6;  // as in kernels/common.cuh
constexpr int kWarpLanes = 32;
constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;  // places fit into an int, and their sums

std::int64_t up_to(std::int64_t size, std::int64_t multiple) {
  return std::max<std::int64_t>(1, (size + multiple - 1) / multiple) * multiple;
}

bool on_tensor_cores(DType dtype) { return dtype == DType::kBF16; }
/// Of sums and scores.
DType sums_of(DType dtype) { return on_tensor_cores(dtype) ? DType::kF32 : dtype; }
std::string types_of(DType dtype) {
  return fmt::format("typedef {} ELEMENT;\ntypedef {} REAL;\n",
                     compiler::cuda_element(dtype).stored,
                     compiler::cuda_element(sums_of(dtype)).value);
}

/// Sizes that are constants of a kernel.
struct Shaped {
  std::int64_t pack, column_lanes, tile_rows, tile_columns, stages;
  std::int64_t inner, inner_wide, outer, outer_wide;

  Shaped(AttentionKernel kernel, DType dtype, std::int64_t inner_size, std::int64_t outer_size,
         const AttentionTiles& tiles)
      : pack(16 / static_cast<std::int64_t>(size_of(dtype))),
        column_lanes(kWarpLanes / tiles.row_lanes),
        tile_rows(std::int64_t{tiles.warps} * tiles.row_lanes * tiles.rows),
        tile_columns(column_lanes * tiles.columns),
        stages(on_tensor_cores(dtype) ? 2 : 1),
        inner(up_to(inner_size, 16)),
        inner_wide(inner),
        outer(up_to(outer_size, 16)),
        outer_wide(outer) {
    if (on_tensor_cores(dtype)) return;
    if (gradient(kernel)) inner_wide = up_to(inner_size, column_lanes * pack);
    outer_wide = up_to(outer_size, column_lanes * pack);
    // What is read in rows is as wide as what is read in columns.
    inner_wide = std::max(inner_wide, inner);
    outer_wide = std::max(outer_wide, outer);
  }
  static bool gradient(AttentionKernel kernel) {
    return kernel == AttentionKernel::kQueries || kernel == AttentionKernel::kKeys;
  }
};

const char* file_of(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::kResult: return "attention.cuh";
    case AttentionKernel::kLogarithms: return "logarithms.cuh";
    case AttentionKernel::kQueries:
    case AttentionKernel::kKeys: return "gradients.cuh";
  }
  return "";
}

const char* entry_of(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::kResult: return "attention";
    case AttentionKernel::kLogarithms: return "attention_logarithms";
    case AttentionKernel::kQueries:
    case AttentionKernel::kKeys: return "attention_gradients";
  }
  return "";
}

std::string text_of(AttentionKernel kernel, DType dtype, const Shaped& s,
                    const AttentionTiles& tiles) {
  std::string text = types_of(dtype);
  const auto constant = [&](const char* name, std::int64_t value) {
    text += fmt::format("constexpr int {} = {};\n", name, value);
  };
  constant("kPack", s.pack);
  constant("kWarps", tiles.warps);
  constant("kRowLanes", tiles.row_lanes);
  constant("kColumnLanes", s.column_lanes);
  constant("kRows", tiles.rows);
  constant("kColumns", tiles.columns);
  constant("kParts", tiles.parts);
  constant("kResident", tiles.resident);
  constant("kStages", s.stages);
  constant("kHeld", tiles.held);
  constant("kInner", s.inner);
  constant("kInnerWide", s.inner_wide);
  constant("kOuter", s.outer);
  constant("kOuterWide", s.outer_wide);
  if (Shaped::gradient(kernel))
    text += fmt::format("constexpr bool kKeys = {};\n", kernel == AttentionKernel::kKeys);
  return text + attention_kernel_source("common.cuh") +
         attention_kernel_source(on_tensor_cores(dtype) ? "tensor.cuh" : "fma.cuh") +
         attention_kernel_source(file_of(kernel));
}

/// A launch of 8-byte words.
class Words {
 public:
  explicit Words(std::size_t addresses) : words(addresses, 0) {}
  void add(std::int64_t number) { words.push_back(static_cast<std::uint64_t>(number)); }
  void add(double number) { words.push_back(std::bit_cast<std::uint64_t>(number)); }
  void add_axes(std::span<const std::int64_t> of, std::int64_t else_value) {
    SEGFUSE_CHECK(of.size() <= kAxes, "{} leading axes of attention", of.size());
    for (std::size_t a = 0; a < kAxes; ++a) add(a < of.size() ? of[a] : else_value);
  }
  void add(const AttentionMatrices& m) {
    add_axes(m.steps, 0);
    add(m.row);
  }
  std::vector<std::uint64_t> words;
};

bool steps_by(const AttentionMatrices& m, std::int64_t pack) {
  const auto fits = [&](std::int64_t step) { return step % pack == 0; };
  return fits(m.row) && std::all_of(m.steps.begin(), m.steps.end(), fits);
}

unsigned grid_of(std::int64_t blocks) {
  SEGFUSE_CHECK(blocks <= std::numeric_limits<std::int32_t>::max(), "{} blocks of attention",
                blocks);
  return static_cast<unsigned>(std::max<std::int64_t>(1, blocks));
}

/// The first that a device has room for is taken; the last fits into each.
struct TileChoice {
  std::int64_t most;  ///< inner and outer sizes up to it
  AttentionTiles tiles;
};

std::span<const TileChoice> choices(AttentionKernel kernel, DType dtype) {
  static constexpr TileChoice kForward32[] = {{64, {4, 4, 8, 8, 2, 2}},
                                              {128, {8, 2, 8, 4, 2, 1}},
                                              {128, {4, 4, 4, 4, 1, 2}},
                                              {256, {8, 2, 4, 2, 1, 1}},
                                              {256, {8, 2, 2, 1, 1, 1}}};
  static constexpr TileChoice kBackward32[] = {{64, {4, 4, 4, 8, 1, 2}},
                                               {128, {4, 4, 4, 4, 1, 2}},
                                               {128, {4, 4, 2, 4, 1, 1}},
                                               {256, {8, 2, 2, 2, 1, 1}},
                                               {256, {4, 2, 2, 1, 1, 1}}};
  static constexpr TileChoice kForward64[] = {
      {64, {4, 4, 4, 4, 1, 1}}, {128, {4, 4, 2, 2, 1, 1}}, {256, {4, 4, 1, 1, 1, 1}}};
  static constexpr TileChoice kBackward64[] = {
      {64, {4, 4, 2, 4, 1, 1}}, {128, {4, 4, 1, 2, 1, 1}}, {256, {2, 2, 1, 1, 1, 1}}};
  static constexpr TileChoice kForward16[] = {
      {64, {4, 8, 2, 16, 1, 3, 1}}, {128, {8, 8, 2, 16, 1, 1, 1}}, {128, {4, 8, 2, 8, 1, 1, 1}}};
  static constexpr TileChoice kQueries16[] = {
      {64, {4, 8, 4, 8, 1, 2, 1}}, {128, {8, 8, 2, 8, 1, 1, 1}}, {128, {4, 8, 2, 8, 1, 1, 1}}};
  static constexpr TileChoice kKeys16[] = {
      {64, {4, 8, 2, 16, 1, 2, 1}}, {128, {8, 8, 2, 8, 1, 1, 1}}, {128, {4, 8, 2, 8, 1, 1, 1}}};
  if (on_tensor_cores(dtype)) {
    if (kernel == AttentionKernel::kQueries) return kQueries16;
    return kernel == AttentionKernel::kKeys ? std::span<const TileChoice>(kKeys16) : kForward16;
  }
  const bool wide = dtype == DType::kF64;
  if (Shaped::gradient(kernel)) {
    if (wide) return kBackward64;
    // Of queries the next is faster for small heads, too.
    return std::span<const TileChoice>(kBackward32).subspan(kernel == AttentionKernel::kQueries);
  }
  return wide ? std::span(kForward64) : std::span<const TileChoice>(kForward32);
}

}  // namespace

std::size_t attention_shared_bytes(AttentionKernel kernel, DType dtype, std::int64_t inner,
                                   std::int64_t outer, const AttentionTiles& tiles) {
  const Shaped s(kernel, dtype, inner, outer, tiles);
  const std::int64_t inner_step = s.inner_wide + s.pack;
  const std::int64_t outer_step = s.outer_wide + s.pack;
  const std::int64_t parts =
      on_tensor_cores(dtype) ? 0 : s.tile_rows * (s.tile_columns / tiles.parts + s.column_lanes);
  std::int64_t elements = s.tile_rows * inner_step;
  std::int64_t sums = 0;
  switch (kernel) {
    case AttentionKernel::kResult:
      elements += s.stages * s.tile_columns * (inner_step + outer_step);
      sums = s.stages * s.tile_columns + parts;
      break;
    case AttentionKernel::kLogarithms:
      elements += s.tile_columns * inner_step;
      sums = s.tile_columns;
      break;
    case AttentionKernel::kQueries:
    case AttentionKernel::kKeys:
      elements += s.tile_rows * outer_step + s.stages * s.tile_columns * (inner_step + outer_step);
      sums =
          parts + (kernel == AttentionKernel::kKeys ? 3 * s.stages * s.tile_columns
                                                    : 3 * s.tile_rows + s.stages * s.tile_columns);
  }
  return static_cast<std::size_t>(elements) * size_of(dtype) +
         static_cast<std::size_t>(sums) * size_of(sums_of(dtype));
}

AttentionTiles attention_tiles(AttentionKernel kernel, DType dtype, std::int64_t inner,
                               std::int64_t outer, std::size_t shared_bytes) {
  for (const TileChoice& choice : choices(kernel, dtype))
    if (std::max(inner, outer) <= choice.most &&
        attention_shared_bytes(kernel, dtype, inner, outer, choice.tiles) <= shared_bytes)
      return choice.tiles;
  throw InternalError(fmt::format("no kernel of attention for sizes {} and {} in {} bytes", inner,
                                  outer, shared_bytes));
}

LibraryLaunch attention_launch(AttentionKernel kernel, DType dtype, const AttentionPlan& plan,
                               bool aligned, const AttentionTiles& tiles) {
  if (std::max(plan.rows, plan.columns) > kMaxRows)
    throw UsageError(
        fmt::format("attention: {} queries and {} keys; a GPU takes at most {} of each", plan.rows,
                    plan.columns, kMaxRows));
  const Shaped s(kernel, dtype, plan.inner, plan.outer, tiles);
  Words words(static_cast<std::size_t>(AttentionAddress::kCount));
  for (const std::int64_t size : {plan.rows, plan.columns, plan.inner, plan.outer}) words.add(size);
  words.add(plan.scale);
  words.add(plan.fill);
  words.add(std::int64_t{plan.ahead.has_value()});
  words.add(std::clamp(plan.ahead.value_or(0), -kMaxRows, kMaxRows));
  words.add(std::int64_t{plan.skips()});
  bool packs = aligned && plan.inner % s.pack == 0 && plan.outer % s.pack == 0;
  for (const AttentionMatrices* m : {&plan.q, &plan.k, &plan.v, &plan.g})
    packs = packs && steps_by(*m, s.pack);
  words.add(std::int64_t{packs});
  words.add(static_cast<std::int64_t>(plan.leading.size()));
  words.add_axes(plan.leading, 1);
  for (const AttentionMatrices* m : {&plan.q, &plan.k, &plan.v, &plan.g}) words.add(*m);
  const AttentionMatrices none;
  words.add(plan.bias ? *plan.bias : none);
  words.add(plan.mask ? *plan.mask : none);
  words.add(plan.bias ? plan.bias->column : 0);
  words.add(plan.mask ? plan.mask->column : 0);

  LibraryLaunch launch;
  launch.entry = entry_of(kernel);
  launch.program = {launch.entry, compiler::complete_cuda(text_of(kernel, dtype, s, tiles)), {}};
  launch.addresses = static_cast<std::size_t>(AttentionAddress::kCount);
  launch.words = std::move(words.words);
  const std::int64_t own = kernel == AttentionKernel::kKeys ? plan.columns : plan.rows;
  launch.grid = {grid_of(plan.batch * ((own + s.tile_rows - 1) / s.tile_rows)), 1, 1};
  launch.block = {static_cast<unsigned>(tiles.warps * kWarpLanes), 1, 1};
  launch.shared_bytes = attention_shared_bytes(kernel, dtype, plan.inner, plan.outer, tiles);
  return launch;
}

LibraryLaunch attention_finite_launch(DType dtype, const AttentionPlan& plan, std::int64_t rows,
                                      const std::vector<FiniteMatrix>& matrices) {
  constexpr std::size_t kMaxMatrices = 3;
  SEGFUSE_CHECK(matrices.size() <= kMaxMatrices, "{} matrices", matrices.size());
  Words words(kMaxMatrices + 1);
  words.add(plan.batch);
  words.add(rows);
  words.add(static_cast<std::int64_t>(plan.leading.size()));
  words.add_axes(plan.leading, 1);
  const AttentionMatrices none;
  for (std::size_t i = 0; i < kMaxMatrices; ++i) {
    words.add(i < matrices.size() ? *matrices[i].matrices : none);
    words.add(i < matrices.size() ? matrices[i].width : 0);
    words.add(std::int64_t{i < matrices.size() && matrices[i].sums});
  }
  LibraryLaunch launch;
  launch.entry = "attention_finite";
  launch.program = {
      launch.entry,
      compiler::complete_cuda(types_of(dtype) + attention_kernel_source("finite.cuh")),
      {}};
  launch.addresses = kMaxMatrices + 1;
  launch.words = std::move(words.words);
  constexpr std::int64_t kWarps = 8;
  const std::int64_t flags = plan.batch * ((rows + kFlagRows - 1) / kFlagRows);
  launch.grid = {grid_of(std::min<std::int64_t>((flags + kWarps - 1) / kWarps, 1 << 16)), 1, 1};
  launch.block = {kWarps * kWarpLanes, 1, 1};
  return launch;
}

}  // namespace segfuse::engine
