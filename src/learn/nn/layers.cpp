#include "learn/nn/layers.h"

#include <fmt/core.h>

#include <cmath>

#include "base/code/fnv.h"
#include "base/rng.h"
#include "ir/builder.h"
#include "segfuse/error.h"

namespace segfuse::nn {

using ir::Extent;
using ir::Extents;
using ir::ValId;

std::int64_t channels(const ir::Builder& b, ValId x) {
  const Extent last = b.fusion().canonical(b.val(x).shape.back());
  if (!last.is_constant())
    throw UsageError(fmt::format("a layer needs a fixed number of channels; found {}",
                                 b.fusion().to_string(last)));
  return last.constant();
}

namespace {

constexpr double kUnseen = -1e9;  // an attention score whose weight is 0

/// A stream number for each parameter that does not depend on the others.
std::uint64_t stream_of(const std::string& name) { return fnv1a(name); }

}  // namespace

Tensor initial_value(const ParameterSpec& spec, std::uint64_t seed) {
  if (spec.init.kind == Init::Kind::kConstant)
    return Tensor::full(DType::kF32, spec.shape, spec.init.value);
  if (spec.init.kind == Init::Kind::kSecond) {
    Tensor tensor = Tensor::zeros(DType::kF32, spec.shape);
    for (std::int64_t i = tensor.size() / 4; i < tensor.size() / 2; ++i)
      tensor.set(i, spec.init.value);
    return tensor;
  }
  Tensor tensor(DType::kF32, spec.shape);
  Rng rng(seed, stream_of(spec.name));
  if (spec.init.kind == Init::Kind::kUniform) {
    const double width = spec.init.value - spec.init.low;
    for (float& x : tensor.span<float>())
      x = static_cast<float>(spec.init.low + rng.uniform() * width);
    return tensor;
  }
  for (float& x : tensor.span<float>()) x = static_cast<float>(rng.normal() * spec.init.value);
  return tensor;
}

ValId Net::parameter(const std::string& name, Shape shape, Init init, bool decay) {
  ParameterSpec spec{prefix_ + name, std::move(shape), init, decay};
  const Extents extents(spec.shape.begin(), spec.shape.end());
  const ValId id = b_.fusion().add_input(spec.name, DType::kF32, extents);
  parameters_.push_back(std::move(spec));
  values_.push_back(id);
  return id;
}

void Net::adopt(ParameterSpec spec, ValId input) {
  parameters_.push_back(std::move(spec));
  values_.push_back(input);
}

ValId Net::linear(const std::string& name, ValId x, std::int64_t outputs, double gain) {
  const Scope scope(*this, name);
  const std::int64_t inputs = channels(b_, x);
  const double deviation = gain / std::sqrt(static_cast<double>(inputs));
  const ValId weight =
      parameter("weight", {inputs, outputs}, {Init::Kind::kNormal, deviation}, true);
  const ValId bias = parameter("bias", {outputs}, {});
  return b_.add(b_.matmul(x, weight), bias);
}

ValId Net::conv1d(const std::string& name, ValId x, std::int64_t outputs, std::int64_t kernel,
                  std::int64_t dilation, double gain, bool causal) {
  if (kernel % 2 == 0)
    throw UsageError(
        fmt::format("a convolution has kernel {}; it must be odd to keep the length", kernel));
  if (kernel == 1) return linear(name, x, outputs, gain);
  const Scope scope(*this, name);
  const std::int64_t inputs = channels(b_, x);
  const double deviation = gain / std::sqrt(static_cast<double>(inputs * kernel));
  const ValId weight =
      parameter("weight", {kernel * inputs, outputs}, {Init::Kind::kNormal, deviation}, true);
  const ValId bias = parameter("bias", {outputs}, {});
  const Extents shape = b_.val(x).shape;
  const std::int64_t reach = dilation * (kernel - 1);
  const std::int64_t ahead = causal ? 0 : reach / 2;
  const ValId windows = b_.unfold(b_.pad_axis(x, 1, reach - ahead, ahead), 1, kernel, 1, dilation);
  const ValId columns = b_.reshape(windows, {shape[0], shape[1], Extent(kernel * inputs)});
  return b_.add(b_.matmul(columns, weight), bias);
}

ValId Net::layer_norm(const std::string& name, ValId x) {
  const Scope scope(*this, name);
  const std::int64_t width = channels(b_, x);
  const ValId scale = parameter("scale", {width}, {Init::Kind::kConstant, 1});
  const ValId shift = parameter("shift", {width}, {});
  return b_.layer_norm(x, scale, shift);
}

ValId Net::dropout(ValId x, double rate) { return seed_.valid() ? b_.dropout(x, seed_, rate) : x; }

ValId Net::self_attention(const std::string& name, ValId x, std::int64_t heads, ValId key_bias,
                          bool causal) {
  const Scope scope(*this, name);
  const std::int64_t width = channels(b_, x);
  if (width % heads != 0)
    throw UsageError(
        fmt::format("self-attention splits {} channels into {} heads; the width must be a multiple",
                    width, heads));
  const std::int64_t depth = width / heads;
  const Extents shape = b_.val(x).shape;
  auto split = [&](ValId y) {
    return b_.permute(b_.reshape(y, {shape[0], shape[1], Extent(heads), Extent(depth)}),
                      {0, 2, 1, 3});
  };
  const ValId query = split(linear("query", x, width));
  const ValId key = split(linear("key", x, width));
  const ValId value = split(linear("value", x, width));
  const ValId scores = b_.mul(b_.matmul(query, key, false, true),
                              b_.constant(1 / std::sqrt(static_cast<double>(depth))));
  ValId seen = b_.add(scores, key_bias);
  if (causal) {
    const ValId step = b_.iota(shape[1]);
    const ValId past = b_.le(b_.unsqueeze(step, 0), b_.unsqueeze(step, 1));
    // Chosen, not added, so that no later frame changes a bit.
    seen = b_.where(past, seen, b_.constant(kUnseen));
  }
  const ValId weights = b_.softmax(seen, -1);
  const ValId mixed = b_.permute(b_.matmul(weights, value), {0, 2, 1, 3});
  return linear("out", b_.reshape(mixed, shape), width);
}

}  // namespace segfuse::nn
