#pragma once
// Programs whose segmentation the tests know.

#include <functional>
#include <string>
#include <vector>

#include "compiler/autodiff.h"
#include "compiler/passes/pass.h"
#include "compiler/segment/report.h"
#include "compiler/segment/segmenter.h"
#include "ir/builder.h"
#include "ir/rules/verify.h"

namespace segfuse::compiler {

using ir::Builder;
using ir::Extent;
using ir::Extents;
using ir::ValId;

/// The group of the first such expression that is in one.
inline GroupId group_with(const SegmentedFusion& cut, ir::Op op) {
  for (const ir::ExprId id : cut.fusion().exprs())
    if (cut.fusion().expr(id).op == op && cut.group_of(id).valid()) return cut.group_of(id);
  return {};
}

/// A program in the making.
struct Model {
  ir::Fusion fusion{"model"};
  Builder b{fusion};
  std::vector<ValId> wrt;  ///< the inputs to differentiate for

  Extent size(const char* name) { return fusion.symbol(name); }
  ValId input(const std::string& name, Extents shape, DType dtype = DType::kF32) {
    return fusion.add_input(name, dtype, std::move(shape));
  }
  ValId parameter(const std::string& name, Extents shape) {
    wrt.push_back(input(name, std::move(shape)));
    return wrt.back();
  }
  void output(ValId val, const std::string& name = "") { fusion.add_output(val, name); }
  /// Gradients of `y` for all of `wrt`, weighted by an input of y's shape.
  void backward(ValId y) {
    const ValId g = input("g", fusion.val(y).shape, fusion.val(y).dtype);
    const ValId outputs[] = {y};
    const ValId cotangents[] = {g};
    for (const ValId gradient : vjp(fusion, outputs, cotangents, wrt)) output(gradient);
  }
  SegmentedFusion cut(const SegmentOptions& options = {}) const {
    ir::Fusion copy = fusion;
    run_passes(copy, {.verify = true});
    SegmentedFusion result = segment(std::move(copy), options);
    result.verify();
    ir::verify(result.fusion());
    return result;
  }
};

/// x -> y and the inputs to differentiate for.
using Layer = std::function<ValId(Model&)>;

inline ValId softmax_layer(Model& m, std::int64_t axis) {
  return m.b.softmax(m.parameter("x", {m.size("B"), m.size("T"), m.size("C")}), axis);
}

inline ValId layer_norm_layer(Model& m) {
  const ValId x = m.parameter("x", {m.size("B"), m.size("T"), m.size("C")});
  const ValId scale = m.parameter("scale", {m.size("C")});
  return m.b.layer_norm(x, scale, m.parameter("shift", {m.size("C")}));
}

inline ValId rms_norm_layer(Model& m) {
  Builder& b = m.b;
  const ValId x = m.parameter("x", {m.size("N"), m.size("C")});
  const ValId scale = m.parameter("scale", {m.size("C")});
  const ValId mean = b.mean(b.square(x), {1}, true);
  return b.mul(b.mul(x, b.rsqrt(b.add(mean, b.constant(1e-6)))), scale);
}

/// Over all axes but `channel`, with scale and shift; the moments of each channel come back too.
inline ValId batch_norm_layer(Model& m, const Extents& shape, std::size_t channel,
                              Builder::Moments* moments = nullptr) {
  Builder& b = m.b;
  const ValId x = m.parameter("x", shape);
  const ValId scale = m.parameter("scale", {shape[channel]});
  const ValId shift = m.parameter("shift", {shape[channel]});
  std::vector<std::int64_t> axes;
  Extent count = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i == channel) continue;
    axes.push_back(static_cast<std::int64_t>(i));
    count = count * shape[i];
  }
  const Builder::Moments found = b.welford(x, axes);
  if (moments) *moments = found;
  const ValId variance = b.div(found.m2, b.extent(count));
  const ValId inverse = b.rsqrt(b.add(variance, b.constant(1e-5)));
  auto spread = [&](ValId v) {
    return b.broadcast(v, {static_cast<std::int64_t>(channel)}, shape);
  };
  const ValId normal = b.mul(b.sub(x, spread(found.mean)), spread(inverse));
  return b.add(b.mul(normal, spread(scale)), spread(shift));
}

}  // namespace segfuse::compiler
