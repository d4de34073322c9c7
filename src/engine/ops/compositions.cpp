// What users expect to have a name, written over the operations of the table.

#include <cmath>

#include "engine/ops/state.h"

namespace segfuse::ops {
namespace {

/// sqrt(2 / pi)
constexpr double kTanhScale = 0.7978845608028654;

void need_least_rank(std::string_view operation, const Value& a, std::int64_t least,
                     std::string_view axes) {
  if (a.rank() < least)
    throw UsageError("{}: found {}, expected a value of shape {}", operation, a.text(), axes);
}

void need_float(std::string_view operation, const Value& a) {
  if (!is_float(a.dtype()))
    throw UsageError("{}: found {}, expected floating point", operation, a.text());
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
    throw UsageError("{}: found {} beside {}, expected one value for each channel, shape (C)",
                     operation, channels.text(), a.text());
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
  return a * (tanh((a + square(a) * a * 0.044715) * kTanhScale) * 0.5 + 0.5);
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
  return standardised(a, {-1}, epsilon);
}

Value layer_norm(const Value& a, const Value& scale, const Value& shift, double epsilon) {
  return layer_norm(a, epsilon) * scale + shift;
}

Value rms_norm(const Value& a, double epsilon) {
  need_float("rms_norm", a);
  need_least_rank("rms_norm", a, 1, "(..., C)");
  return a * rsqrt(mean(square(a), Axes{-1}, true) + epsilon);
}

Value rms_norm(const Value& a, const Value& scale, double epsilon) {
  return rms_norm(a, epsilon) * scale;
}

BatchNorm batch_norm(const Value& a, const Value& scale, const Value& shift, double epsilon) {
  need_float("batch_norm", a);
  need_least_rank("batch_norm", a, 2, "(B, C, ...)");
  Axes axes = axes_after(a.rank(), 2);
  axes.insert(axes.begin(), 0);
  const auto [mean, variance] = moments(a, axes, false);
  return {batch_norm(a, mean, variance, scale, shift, epsilon), mean, variance};
}

Value batch_norm(const Value& a, const Value& mean, const Value& variance, const Value& scale,
                 const Value& shift, double epsilon) {
  need_float("batch_norm", a);
  need_least_rank("batch_norm", a, 2, "(B, C, ...)");
  auto channels = [&](const Value& value) { return per_channel("batch_norm", a, value); };
  const Value inverse = rsqrt(variance + epsilon);
  return (a - channels(mean)) * channels(inverse) * channels(scale) + channels(shift);
}

Value instance_norm(const Value& a, double epsilon) {
  need_float("instance_norm", a);
  need_least_rank("instance_norm", a, 3, "(B, C, ...) with at least one axis after C");
  return standardised(a, axes_after(a.rank(), 2), epsilon);
}

Value instance_norm(const Value& a, const Value& scale, const Value& shift, double epsilon) {
  const Value standard = instance_norm(a, epsilon);
  return standard * per_channel("instance_norm", a, scale) + per_channel("instance_norm", a, shift);
}

}  // namespace segfuse::ops
