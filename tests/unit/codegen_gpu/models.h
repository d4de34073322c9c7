#pragma once
// Programs of every plan kind, in the types that kernels come in.

#include <functional>
#include <string>
#include <vector>

#include "compiler/schedule/choose.h"
#include "unit/compiler/segment_models.h"

namespace segfuse::testing {

struct NamedModel {
  std::string name;
  std::function<void(compiler::Model&)> build;
};
inline void PrintTo(const NamedModel& model, std::ostream* out) { *out << model.name; }

/// What choose_cuda() says to lengths that are those of the hints.
inline compiler::Schedule chosen_for_cuda(const compiler::Space& space) {
  std::vector<std::int64_t> lengths;
  for (const compiler::SpaceAxis& axis : space.axes) lengths.push_back(axis.hint);
  return compiler::choose_cuda(space, lengths);
}

/// Softmax over the last axis: from and to `dtype`, in f32 between.
inline void softmax_rows(compiler::Model& m, DType dtype) {
  ir::Builder& b = m.b;
  const ir::ValId x = m.input("x", {m.size("N"), m.size("C")}, dtype);
  m.output(b.cast(b.softmax(b.cast(x, DType::kF32), 1), dtype), "y");
}

inline void layer_norm_rows(compiler::Model& m, DType dtype, bool added = false) {
  ir::Builder& b = m.b;
  const ir::ValId x = m.input("x", {m.size("N"), m.size("C")}, dtype);
  ir::ValId v = b.cast(x, DType::kF32);
  if (added) {
    v = b.add(v, b.cast(m.input("r", {m.size("N"), m.size("C")}, dtype), DType::kF32));
    m.output(b.cast(v, dtype), "sum");
  }
  const ir::ValId scale = b.cast(m.input("scale", {m.size("C")}, dtype), DType::kF32);
  const ir::ValId shift = b.cast(m.input("shift", {m.size("C")}, dtype), DType::kF32);
  m.output(b.cast(b.layer_norm(v, scale, shift), dtype), "y");
}

inline void rms_norm_rows(compiler::Model& m, DType dtype) {
  ir::Builder& b = m.b;
  const ir::ValId x = b.cast(m.input("x", {m.size("N"), m.size("C")}, dtype), DType::kF32);
  const ir::ValId scale = b.cast(m.input("scale", {m.size("C")}, dtype), DType::kF32);
  const ir::ValId mean = b.mean(b.square(x), {1}, true);
  m.output(b.cast(b.mul(b.mul(x, b.rsqrt(b.add(mean, b.constant(1e-6)))), scale), dtype), "y");
}

inline void pointwise_flat(compiler::Model& m, DType dtype) {
  ir::Builder& b = m.b;
  const ir::ValId x = m.input("x", {m.size("N"), m.size("C")}, dtype);
  const ir::ValId y = m.input("y", {m.size("N"), m.size("C")}, dtype);
  m.output(b.add(b.mul(b.tanh(x), y), b.maximum(x, y)), "z");
}

/// Gradients of a layer norm from and to `dtype`, in f32 between.
inline void layer_norm_gradients(compiler::Model& m, DType dtype) {
  ir::Builder& b = m.b;
  const ir::ValId x = m.input("x", {m.size("N"), m.size("C")}, dtype);
  const ir::ValId scale = m.input("scale", {m.size("C")});
  m.wrt = {x, scale, m.input("shift", {m.size("C")})};
  m.backward(b.cast(b.layer_norm(b.cast(x, DType::kF32), scale, m.wrt[2]), dtype));
}

inline void instance_norm(compiler::Model& m, DType dtype) {
  ir::Builder& b = m.b;
  const ir::Extents shape{m.size("N"), m.size("T"), m.size("H"), m.size("W")};
  const ir::ValId x = b.cast(m.input("x", shape, dtype), DType::kF32);
  const ir::Builder::Moments found = b.welford(x, {2, 3});
  const ir::ValId variance = b.div(found.m2, b.extent(shape[2] * shape[3]));
  const ir::ValId inverse = b.rsqrt(b.add(variance, b.constant(1e-5)));
  const ir::ValId centred = b.sub(x, b.broadcast(found.mean, {0, 1}, shape));
  m.output(b.cast(b.mul(centred, b.broadcast(inverse, {0, 1}, shape)), dtype), "y");
}

/// A column less its mean, by its standard deviation.
inline void standardized_columns(compiler::Model& m, DType dtype) {
  ir::Builder& b = m.b;
  const ir::Extents shape{m.size("N"), m.size("C")};
  const ir::ValId x = m.input("x", shape, dtype);
  const ir::ValId wide = b.cast(x, dtype == DType::kF64 ? dtype : DType::kF32);
  const ir::Builder::Moments found = b.welford(wide, {0});
  const ir::ValId variance = b.div(found.m2, b.extent(shape[0], m.fusion.val(wide).dtype));
  const ir::ValId scale = b.rsqrt(b.add(variance, b.constant(1e-5, m.fusion.val(wide).dtype)));
  const ir::ValId centred = b.sub(wide, b.broadcast(found.mean, {1}, shape));
  m.output(b.cast(b.mul(centred, b.broadcast(scale, {1}, shape)), dtype), "y");
}

inline void column_sums(compiler::Model& m, DType dtype) {
  const ir::ValId x = m.input("x", {m.size("N"), m.size("C")}, dtype);
  m.output(m.b.sum(m.b.cast(x, DType::kF32), {0}), "y");
}

inline void transposed_rows(compiler::Model& m, DType dtype) {
  const ir::ValId x = m.input("x", {m.size("N"), m.size("C")}, dtype);
  m.output(m.b.mul(m.b.permute(x, {1, 0}), m.b.constant(0.5, dtype)), "y");
}

inline std::vector<NamedModel> named_models() {
  using compiler::Model;
  return {
      {"pointwise_f32", [](Model& m) { pointwise_flat(m, DType::kF32); }},
      {"pointwise_bf16", [](Model& m) { pointwise_flat(m, DType::kBF16); }},
      {"pointwise_f16", [](Model& m) { pointwise_flat(m, DType::kF16); }},
      {"pointwise_f64", [](Model& m) { pointwise_flat(m, DType::kF64); }},
      {"bias",
       [](Model& m) {
         m.output(m.b.add(m.input("x", {m.size("N"), m.size("T"), m.size("C")}),
                          m.input("b", {m.size("C")})));
       }},
      {"softmax_f32", [](Model& m) { softmax_rows(m, DType::kF32); }},
      {"softmax_bf16", [](Model& m) { softmax_rows(m, DType::kBF16); }},
      {"layer_norm_f32", [](Model& m) { layer_norm_rows(m, DType::kF32); }},
      {"add_norm_f16", [](Model& m) { layer_norm_rows(m, DType::kF16, true); }},
      {"rms_norm_bf16", [](Model& m) { rms_norm_rows(m, DType::kBF16); }},
      {"layer_norm_backward",
       [](Model& m) {
         const ir::ValId x = m.parameter("x", {m.size("N"), m.size("C")});
         const ir::ValId scale = m.parameter("scale", {m.size("C")});
         m.backward(m.b.layer_norm(x, scale, m.parameter("shift", {m.size("C")})));
       }},
      {"rms_norm_backward", [](Model& m) { m.backward(rms_norm_layer(m)); }},
      {"rows_of_two_axes",
       [](Model& m) {
         ir::Builder& b = m.b;
         const ir::ValId x = m.input("x", {m.size("B"), m.size("N"), m.size("H")});
         const ir::ValId off = b.sub(x, b.mean(x, {0, 2}, true));
         m.output(off);
         m.output(b.sum(b.mul(off, x), {1}));
       }},
      {"column_sum",
       [](Model& m) { m.output(m.b.sum(m.input("x", {m.size("N"), m.size("C")}), {0})); }},
      {"softmax_of_columns",
       [](Model& m) { m.output(m.b.softmax(m.input("x", {m.size("N"), m.size("C")}), 0)); }},
      {"total",
       [](Model& m) { m.output(m.b.sum(m.input("x", {m.size("N"), m.size("C")}), {0, 1})); }},
      {"transposed",
       [](Model& m) {
         const ir::ValId x = m.input("x", {m.size("N"), m.size("C")});
         m.output(m.b.mul(m.b.permute(x, {1, 0}), m.b.constant(0.5)));
       }},
      {"layer_norm_backward_bf16", [](Model& m) { layer_norm_gradients(m, DType::kBF16); }},
      {"instance_norm_f16", [](Model& m) { instance_norm(m, DType::kF16); }},
      {"standardized_columns_bf16", [](Model& m) { standardized_columns(m, DType::kBF16); }},
      {"standardized_columns_f64", [](Model& m) { standardized_columns(m, DType::kF64); }},
      {"column_sum_bf16", [](Model& m) { column_sums(m, DType::kBF16); }},
      {"transposed_bf16", [](Model& m) { transposed_rows(m, DType::kBF16); }},
      {"argmax",
       [](Model& m) { m.output(m.b.argmax(m.input("x", {m.size("N"), m.size("C")}), 1)); }},
      {"integers",
       [](Model& m) {
         const ir::ValId x = m.input("x", {m.size("N"), m.size("C")}, DType::kI32);
         const ir::ValId y = m.b.mul(m.b.abs(m.b.neg(x)), m.b.square(x));
         m.output(m.b.sum(y, {1}));
         m.output(m.b.prod(m.b.cast(x, DType::kI64), {1}));
         m.output(m.b.max(y, {1}));
         m.output(m.b.min(y, {1}));
       }},
      {"taken",
       [](Model& m) {
         const ir::ValId table = m.input("table", {m.size("B"), m.size("C")});
         m.output(m.b.take(table, m.input("at", {m.size("N")}, DType::kI64), 0));
       }},
      {"padded",
       [](Model& m) {
         m.output(m.b.exp(m.b.pad(m.input("x", {m.size("N"), m.size("C")}), {0, 1}, {0, 2}, 0.5)));
       }},
      // Rows whose end lies within a vector of what they are written to.
      {"padded_rows",
       [](Model& m) {
         const ir::ValId x = m.b.pad(m.input("x", {6}), {0}, {2}, 0.5);
         m.output(m.b.add(m.input("y", {m.size("N"), 8}), x));
         const ir::ValId z = m.b.pad(m.input("z", {m.size("B")}), {0}, {5}, 0.25);
         m.output(m.b.mul(m.input("w", {m.size("N"), m.size("B") + 5}), z));
       }},
      {"tiled",
       [](Model& m) {
         const ir::Extent n = m.size("N");
         const ir::ValId six = m.b.broadcast(m.input("b", {6}), {1}, {n, 6});
         m.output(m.b.add(m.input("x", {n * 6}), m.b.reshape(six, {n * 6})));
       }},
      {"dropout",
       [](Model& m) {
         const ir::ValId x = m.input("x", {m.size("N"), m.size("C")});
         const ir::ValId seed = m.input("seed", {2}, DType::kI64);
         const ir::ValId u = m.b.random_uniform(seed, {m.size("N"), m.size("C")});
         m.output(m.b.where(m.b.lt(u, m.b.constant(0.3)), m.b.constant(0.0), x));
       }},
  };
}

}  // namespace segfuse::testing
