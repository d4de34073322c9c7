#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "engine/device/device_planner.h"
#include "engine/exec/matmul.h"
#include "segfuse/error.h"

namespace segfuse::engine {

namespace {

runtime::GpuMatrix gpu_matrix(const Matrix& matrix, std::uint32_t alignment) {
  return {matrix.batch > 1 ? matrix.batch_stride : 0, matrix.leading, matrix.by_columns, alignment};
}

}  // namespace

void DevicePlanner::plan_library(ir::ExprId id) {
  const ir::Op op = fusion_.expr(id).op;
  if (ir::adds(op)) return ir::has_indices(op) ? add_scatter_add(id) : add_fold(id);
  switch (ir::as<ir::OpaqueOp>(op)) {
    case ir::OpaqueOp::matmul: return add_product(id);
    case ir::OpaqueOp::cumsum:
    case ir::OpaqueOp::cumprod:
    case ir::OpaqueOp::cummax:
    case ir::OpaqueOp::cummin:
    case ir::OpaqueOp::cumlogsumexp:
    case ir::OpaqueOp::linear_scan: return add_scan(id);
    case ir::OpaqueOp::scan: return add_steps(id);
    case ir::OpaqueOp::sort: return add_sort(id);
    case ir::OpaqueOp::attention: return add_attention(id);
    case ir::OpaqueOp::attention_grad: return add_attention_grad(id);
    case ir::OpaqueOp::semicrf_loss:
    case ir::OpaqueOp::semicrf_loss_grad: return add_crf(id);
  }
  throw InternalError(
      fmt::format("'{}' was not written out for a device", ir::info(fusion_.expr(id).op).name));
}

void DevicePlanner::add_product(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  const auto matrix = [&](Ref& operand, const char* transpose) {
    const bool transposed = fusion_.attr<std::int64_t>(id, transpose) != 0;
    std::optional<Matrix> direct = as_matrix(operand.layout, transposed);
    // Rows that overlap are for the CPU's library only.
    if (direct && (direct->leading >= (direct->by_columns ? direct->rows : direct->columns)))
      return *direct;
    operand = packed(operand);
    return as_matrix(operand.layout, transposed).value();
  };
  Ref a = ref(expr.operands[0]);
  Ref b = ref(expr.operands[1]);
  Matrix left = matrix(a, "transpose_a");
  const Matrix right = matrix(b, "transpose_b");
  const Ref out = place(expr.results[0]);
  // A sum of nothing is 0.
  if (num_elements(out.layout.shape) == 0 || left.columns == 0) return touch(out);
  // One matrix on the right for all: their rows are those of one.
  if (right.batch == 1 && left.batch > 1 && !left.by_columns &&
      left.batch_stride == left.rows * left.leading) {
    left.rows *= left.batch;
    left.batch = 1;
  }
  const runtime::GpuProduct product{out.dtype,
                                    left.batch,
                                    left.rows,
                                    right.columns,
                                    left.columns,
                                    gpu_matrix(left, alignment_of(a)),
                                    gpu_matrix(right, alignment_of(b)),
                                    alignment_of(out),
                                    device_options_.tf32};
  std::shared_ptr<runtime::GpuMatmul> library = accelerator_.kernels()->matmul(product);
  if (!library) return add_library("matmul", matmul_launch(product), {a, b, out}, 1);
  StepOperands operands;
  operands.read(a);
  operands.read(b);
  operands.write(out);
  std::optional<Ref> workspace;
  if (const std::size_t bytes = library->workspace_bytes(); bytes > 0) {
    workspace = scratch(DType::kBool, {static_cast<std::int64_t>(bytes)}, "matmul workspace");
    operands.write(*workspace);
  }
  add_step("matmul", operands,
           [library = std::move(library), at_a = operands.of(a), at_b = operands.of(b),
            at_out = operands.of(out), has_workspace = workspace.has_value(),
            at_workspace = workspace ? operands.of(*workspace) : StepAddress{}](
               runtime::StreamHandle stream, std::span<std::byte* const> addresses) {
             library->run(stream, at_a.in(addresses), at_b.in(addresses), at_out.in(addresses),
                          has_workspace ? at_workspace.in(addresses) : nullptr);
           });
}

void DevicePlanner::add_fold(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  const auto axis = static_cast<std::ptrdiff_t>(fusion_.attr<std::int64_t>(id, "axis"));
  const Ref from = packed(ref(expr.operands[0]));
  const Ref to = place(expr.results[0]);
  if (num_elements(to.layout.shape) == 0) return touch(to);
  const Shape& shape = from.layout.shape;
  const FoldSizes sizes{num_elements({shape.begin(), shape.begin() + axis}),
                        to.layout.shape[static_cast<std::size_t>(axis)],
                        shape[static_cast<std::size_t>(axis)],
                        shape[static_cast<std::size_t>(axis) + 1],
                        fusion_.attr<std::int64_t>(id, "stride"),
                        fusion_.attr<std::int64_t>(id, "dilation"),
                        num_elements({shape.begin() + axis + 2, shape.end()})};
  add_library("fold", fold_launch(to.dtype, sizes), {from, to}, 1);
}

void DevicePlanner::add_scatter_add(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  const auto axis = static_cast<std::ptrdiff_t>(fusion_.attr<std::int64_t>(id, "axis"));
  const Ref updates = packed(ref(expr.operands[0]));
  const Ref indices = packed(ref(expr.operands[1]));
  const Ref to = place(expr.results[0]);
  if (num_elements(to.layout.shape) == 0) return touch(to);
  const Shape& shape = to.layout.shape;
  const ScatterSizes sizes{
      num_elements({shape.begin(), shape.begin() + axis}), num_elements(indices.layout.shape),
      shape[static_cast<std::size_t>(axis)], num_elements({shape.begin() + axis + 1, shape.end()})};
  const std::int64_t chunk = scatter_chunk(sizes);
  const std::int64_t chunks = std::max<std::int64_t>(1, (sizes.count + chunk - 1) / chunk);
  const bool half = size_of(to.dtype) == 2;
  Shape stored = shape;
  if (chunks > 1) stored.insert(stored.begin(), chunks);
  const Ref sums = half || chunks > 1 ? scratch(half ? DType::kF32 : to.dtype, stored, "sums") : to;
  const Ref status = status_word({"an index of scatter_add"});
  add_library(
      "scatter_add",
      scatter_add_launch(to.dtype, indices.dtype, sizes, accelerator_.kernels()->multiprocessors()),
      {updates, indices, sums, to, status}, 3);
  if (chunks > 1)
    add_library("join_chunks", join_chunks_launch(to.dtype, chunks, num_elements(shape)),
                {sums, to}, 1);
}

void DevicePlanner::add_scan(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  const Ref from = packed(ref(expr.operands[0]));
  const Ref second = packed(ref(expr.operands.back()));
  const Ref to = place(expr.results[0]);
  if (num_elements(to.layout.shape) == 0) return touch(to);
  add_library(std::string(ir::info(expr.op).name),
              scan_launch(to.dtype, expr.op, line_sizes(id, to.layout.shape),
                          fusion_.attr<std::int64_t>(id, "reverse") != 0),
              {from, second, to}, 1);
}

void DevicePlanner::add_sort(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  const Ref from = packed(ref(expr.operands[0]));
  const Ref values = place(expr.results[0]);
  const Ref places = place(expr.results[1]);
  if (num_elements(values.layout.shape) == 0) {
    touch(values);
    return touch(places);
  }
  add_library("sort",
              sort_launch(values.dtype, line_sizes(id, values.layout.shape),
                          fusion_.attr<std::int64_t>(id, "descending") != 0),
              {from, values, places}, 2);
}

LineSizes DevicePlanner::line_sizes(ir::ExprId id, const Shape& shape) const {
  const auto axis = static_cast<std::ptrdiff_t>(fusion_.attr<std::int64_t>(id, "axis"));
  return {num_elements({shape.begin(), shape.begin() + axis}),
          shape[static_cast<std::size_t>(axis)],
          num_elements({shape.begin() + axis + 1, shape.end()})};
}

void DevicePlanner::add_crf(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  const bool gradient = expr.op == ir::Op::semicrf_loss_grad;
  StepOperands operands;
  std::vector<Ref> in;
  for (const ir::ValId operand : expr.operands) in.push_back(ref(operand));
  if (gradient) in.back() = packed(in.back());
  for (const Ref& operand : in) operands.read(operand);
  std::vector<std::optional<Ref>> out;
  for (const ir::ValId result : expr.results) {
    out.push_back(wanted(result) ? std::optional(place(result)) : std::nullopt);
    if (out.back()) operands.write(*out.back());
  }

  const auto arrays = [](std::span<const Ref> refs, const auto& data) {
    std::vector<Array> all;
    for (std::size_t i = 0; i < refs.size(); ++i)
      all.push_back({data(i), &refs[i].layout, refs[i].dtype});
    return all;
  };
  std::vector<Ref> results;
  for (const std::optional<Ref>& ref : out) results.push_back(ref.value_or(Ref{}));
  auto* const anywhere = reinterpret_cast<std::byte*>(std::uintptr_t{256});
  const std::vector<Array> some_in = arrays(in, [&](std::size_t) { return anywhere; });
  const std::vector<Array> some_out =
      arrays(results, [&](std::size_t i) { return out[i] ? anywhere : nullptr; });
  const CrfMemory memory = gradient ? crf_.measure_loss_grad(some_in, some_out)
                                    : crf_.measure_loss(some_in, some_out[0]);
  std::vector<Ref> spaces;
  for (const std::size_t bytes : {memory.row_pointer, memory.segments, memory.segments,
                                  memory.segments, memory.values, memory.workspace}) {
    spaces.push_back(scratch(DType::kBool, {static_cast<std::int64_t>(bytes)}, "crf workspace"));
    operands.write(spaces.back());
  }
  const auto addresses_of = [&](const std::vector<Ref>& refs) {
    std::vector<StepAddress> all;
    for (const Ref& ref : refs) all.push_back(operands.of(ref));
    return all;
  };
  std::vector<bool> has;
  for (const std::optional<Ref>& ref : out) has.push_back(ref.has_value());
  const std::vector<StepAddress> at_in = addresses_of(in);
  const std::vector<StepAddress> at_out = addresses_of(results);
  const std::vector<StepAddress> at = addresses_of(spaces);
  add_step(
      name_of(id), operands,
      [this_crf = &crf_, gradient, in, results, has, at_in, at_out, at, arrays](
          runtime::StreamHandle stream, std::span<std::byte* const> addresses) {
        const CrfScratch scratch{at[0].in(addresses), at[1].in(addresses), at[2].in(addresses),
                                 at[3].in(addresses), at[4].in(addresses), at[5].in(addresses)};
        const std::vector<Array> from =
            arrays(in, [&](std::size_t i) { return at_in[i].in(addresses); });
        const std::vector<Array> to = arrays(
            results, [&](std::size_t i) { return has[i] ? at_out[i].in(addresses) : nullptr; });
        if (gradient) {
          this_crf->loss_grad(from, to, scratch, stream);
        } else {
          this_crf->loss(from, to[0], scratch, stream);
        }
      });
}

}  // namespace segfuse::engine
