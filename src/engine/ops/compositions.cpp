// What users expect to have a name, written over the operations of the table.

#include <fmt/core.h>

#include <cmath>

#include "base/half_types.h"
#include "engine/ops/state.h"

namespace segfuse::ops {
namespace {

/// sqrt(2 / pi)
constexpr double kTanhScale = 0.7978845608028654;

void need_least_rank(std::string_view operation, const Value& a, std::int64_t least,
                     std::string_view axes) {
  if (a.rank() < least)
    throw UsageError(
        fmt::format("{}: found {}, expected a value of shape {}", operation, a.text(), axes));
}

void need_float(std::string_view operation, const Value& a) {
  if (!is_float(a.dtype()))
    throw UsageError(fmt::format("{}: found {}, expected floating point", operation, a.text()));
}

/// Compositions of 16-bit values are computed in f32 and rounded once.
Value raised(const Value& a) {
  return !a.is_number() && is_half(a.dtype()) ? cast(a, DType::kF32) : a;
}
Value rounded(const Value& result, const Value& like) {
  return raised(like).dtype() == like.dtype() ? result : cast(result, like.dtype());
}

/// Mean and variance over the axes, in one pass.
std::pair<Value, Value> moments(const Value& a, const Axes& axes, bool keep) {
  const Moments both = welford(a, axes, keep);
  Size count = 1;
  for (const std::int64_t axis : axes) count = count * a.size(axis);
  return {both.mean, both.m2 / a.fusion().size(count, a.dtype())};
}

/// (a - mean) / sqrt(variance + epsilon) over the axes.
Value standardised(const Value& a, const Axes& axes, double epsilon) {
  const auto [mean, variance] = moments(a, axes, true);
  return (a - mean) * rsqrt(variance + epsilon);
}

/// A value of (C) that meets the second axis of (B, C, ...).
Value per_channel(std::string_view operation, const Value& a, const Value& channels) {
  if (channels.is_number()) return channels;
  if (channels.rank() != 1)
    throw UsageError(
        fmt::format("{}: found {} beside {}, expected one value for each channel, shape (C)",
                    operation, channels.text(), a.text()));
  Sizes shape(static_cast<std::size_t>(a.rank() - 1), Size(1));
  shape[0] = channels.size(0);
  return reshape(channels, shape);
}

Axes axes_after(std::int64_t rank, std::int64_t first) {
  Axes axes;
  for (std::int64_t axis = first; axis < rank; ++axis) axes.push_back(axis);
  return axes;
}

}  // namespace

Value softmax(const Value& a, std::int64_t axis) {
  Call call("softmax", {a});
  return call.make([&](ir::Builder& b) { return b.softmax(call.id(0), axis); });
}

Value log_softmax(const Value& a, std::int64_t axis) {
  Call call("log_softmax", {a});
  return call.make([&](ir::Builder& b) { return b.log_softmax(call.id(0), axis); });
}

Value gelu(const Value& a) {
  Call call("gelu", {a});
  return call.make([&](ir::Builder& b) { return b.gelu(call.id(0)); });
}

Value gelu_tanh(const Value& a) {
  need_float("gelu_tanh", a);
  const Value x = raised(a);
  return rounded(x * (tanh((x + square(x) * x * 0.044715) * kTanhScale) * 0.5 + 0.5), a);
}

Value silu(const Value& a) {
  Call call("silu", {a});
  return call.make([&](ir::Builder& b) { return b.silu(call.id(0)); });
}

Value clamp(const Value& a, const Value& low, const Value& high) {
  return minimum(maximum(a, low), high);
}

Value dropout(const Value& a, const Value& seed, double rate) {
  Call call("dropout", {a, seed});
  return call.make([&](ir::Builder& b) { return b.dropout(call.id(0), call.id(1), rate); });
}

Value layer_norm(const Value& a, double epsilon) {
  need_float("layer_norm", a);
  need_least_rank("layer_norm", a, 1, "(..., C)");
  return rounded(standardised(raised(a), {-1}, epsilon), a);
}

Value layer_norm(const Value& a, const Value& scale, const Value& shift, double epsilon) {
  return rounded(layer_norm(raised(a), epsilon) * raised(scale) + raised(shift), a);
}

Value rms_norm(const Value& a, double epsilon) {
  need_float("rms_norm", a);
  need_least_rank("rms_norm", a, 1, "(..., C)");
  const Value x = raised(a);
  return rounded(x * rsqrt(mean(square(x), Axes{-1}, true) + epsilon), a);
}

Value rms_norm(const Value& a, const Value& scale, double epsilon) {
  return rounded(rms_norm(raised(a), epsilon) * raised(scale), a);
}

BatchNorm batch_norm(const Value& a, const Value& scale, const Value& shift, double epsilon) {
  need_float("batch_norm", a);
  need_least_rank("batch_norm", a, 2, "(B, C, ...)");
  Axes axes = axes_after(a.rank(), 2);
  axes.insert(axes.begin(), 0);
  const auto [mean, variance] = moments(raised(a), axes, false);
  const Value result = batch_norm(raised(a), mean, variance, raised(scale), raised(shift), epsilon);
  return {rounded(result, a), rounded(mean, a), rounded(variance, a)};
}

Value batch_norm(const Value& a, const Value& mean, const Value& variance, const Value& scale,
                 const Value& shift, double epsilon) {
  need_float("batch_norm", a);
  need_least_rank("batch_norm", a, 2, "(B, C, ...)");
  auto channels = [&](const Value& value) { return per_channel("batch_norm", a, raised(value)); };
  const Value inverse = rsqrt(raised(variance) + epsilon);
  const Value standard = (raised(a) - channels(mean)) * channels(inverse);
  return rounded(standard * channels(scale) + channels(shift), a);
}

Value instance_norm(const Value& a, double epsilon) {
  need_float("instance_norm", a);
  need_least_rank("instance_norm", a, 3, "(B, C, ...) with at least one axis after C");
  return rounded(standardised(raised(a), axes_after(a.rank(), 2), epsilon), a);
}

Value instance_norm(const Value& a, const Value& scale, const Value& shift, double epsilon) {
  const Value standard = instance_norm(raised(a), epsilon);
  auto channels = [&](const Value& v) { return per_channel("instance_norm", a, raised(v)); };
  return rounded(standard * channels(scale) + channels(shift), a);
}

}  // namespace segfuse::ops
