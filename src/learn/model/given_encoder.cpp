#include "learn/model/given_encoder.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/code/fnv.h"
#include "ir/text.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

using ir::Extent;
using ir::Extents;

std::string prefixed(const std::string& name) { return std::string(kEncoderPrefix) + name; }

ir::Extents extents_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

const std::pair<std::string, Tensor>* find(
    const std::vector<std::pair<std::string, Tensor>>& tensors, const std::string& name) {
  for (const auto& one : tensors)
    if (prefixed(one.first) == name) return &one;
  return nullptr;
}

[[noreturn]] void refuse(const ir::Fusion& fusion, const std::string& what, const ir::Val& found,
                         const std::string& expected) {
  throw UsageError(fmt::format("the encoder's program '{}': {} is {}{}, expected {}", fusion.name(),
                               what, name_of(found.dtype), fusion.to_string(found.shape),
                               expected));
}

void check_finite(const std::string& name, const Tensor& tensor) {
  if (tensor.dtype() != DType::kF32) return;
  const auto values = tensor.span<float>();
  const auto bad = std::ranges::find_if(values, [](float v) { return !std::isfinite(v); });
  if (bad != values.end())
    throw UsageError(fmt::format("the encoder's '{}' holds {}; expected finite numbers", name,
                                 static_cast<double>(*bad)));
}

void check(const Encoder& encoder, bool checks_values) {
  if (encoder.stride < 1 || encoder.most_steps < 0)
    throw UsageError(
        fmt::format("an encoder has the stride {} and at most {} steps; expected positive numbers",
                    encoder.stride, encoder.most_steps));
  std::set<std::string> names;
  for (const auto* tensors : {&encoder.parameters, &encoder.constants})
    for (const auto& [name, tensor] : *tensors) {
      if (!names.insert(name).second)
        throw UsageError(fmt::format("an encoder has two tensors named '{}'", name));
      if (checks_values) check_finite(name, tensor);
    }
  for (const auto& [name, tensor] : encoder.parameters)
    if (tensor.dtype() != DType::kF32)
      throw UsageError(fmt::format("the encoder's parameter '{}' is {}; expected f32", name,
                                   name_of(tensor.dtype())));
}

}  // namespace

GivenEncoder::GivenEncoder(Encoder encoder, bool checks_values) : encoder_(std::move(encoder)) {
  check(encoder_, checks_values);
  for (const auto& [name, tensor] : encoder_.parameters)
    specs_.push_back({prefixed(name), tensor.shape(), {}, tensor.shape().size() > 1});
  inference_ = read(encoder_.inference, false);
  const std::int64_t columns = columns_;
  const std::int64_t width = width_;
  training_ = read(encoder_.training, true);
  if (columns != columns_ || width != width_)
    throw UsageError(fmt::format(
        "the encoder maps {} columns to {} for training and {} to {} for inference; expected the "
        "same",
        columns_, width_, columns, width));
}

/// Sets columns_ and width_.
ir::Fusion GivenEncoder::read(const std::string& text, bool training) {
  ir::Fusion fusion = ir::parse(text, training ? "the encoder for training" : "the encoder");
  const Extent steps = fusion.symbol("H");
  bool has_features = false;
  for (const ir::Input& input : fusion.inputs()) {
    const ir::Val& val = fusion.val(input.val);
    if (input.name == "features") {
      has_features = true;
      const bool right =
          val.dtype == DType::kF32 && val.shape.size() == 3 && val.shape[2].is_constant() &&
          fusion.equal(val.shape,
                       Extents{Extent(1), steps * Extent(encoder_.stride), val.shape[2]});
      if (!right)
        refuse(fusion, "'features'", val, fmt::format("f32[1, {}*H, D]", encoder_.stride));
      columns_ = val.shape[2].constant();
    } else if (training && input.name == "seed") {
      if (val.dtype != DType::kI64 || !fusion.equal(val.shape, Extents{Extent(2)}))
        refuse(fusion, "'seed'", val, "i64[2]");
    } else {
      const auto* known = find(encoder_.parameters, input.name);
      if (known == nullptr) known = find(encoder_.constants, input.name);
      if (known == nullptr)
        throw UsageError(
            fmt::format("the encoder's program '{}' has an input '{}'; expected "
                        "'features', a parameter or a constant",
                        fusion.name(), input.name));
      if (val.dtype != known->second.dtype() ||
          !fusion.equal(val.shape, extents_of(known->second.shape())))
        refuse(fusion, "'" + input.name + "'", val,
               std::string(name_of(known->second.dtype())) + to_string(known->second.shape()));
    }
  }
  if (!has_features || fusion.outputs().size() != 1 || !fusion.aliases().empty())
    throw UsageError(
        fmt::format("the encoder's program '{}' has {} outputs; expected the input "
                    "'features', one output and no aliases",
                    fusion.name(), fusion.outputs().size()));
  const ir::Val& out = fusion.val(fusion.outputs()[0].val);
  const bool right = out.dtype == DType::kF32 && out.shape.size() == 3 &&
                     fusion.canonical(out.shape[2]).is_constant() &&
                     fusion.equal(out.shape, Extents{Extent(1), steps, out.shape[2]});
  if (!right) refuse(fusion, "its result", out, "f32[1, H, W]");
  width_ = fusion.canonical(out.shape[2]).constant();
  return fusion;
}

std::vector<std::pair<std::string, Tensor>> GivenEncoder::constants() const {
  std::vector<std::pair<std::string, Tensor>> all;
  for (const auto& [name, tensor] : encoder_.constants) all.emplace_back(prefixed(name), tensor);
  return all;
}

Tensor GivenEncoder::initial(std::size_t i) const {
  const Tensor& from = encoder_.parameters.at(i).second;
  Tensor copy(from.dtype(), from.shape());
  std::memcpy(copy.data(), from.data(), from.bytes());
  return copy;
}

GivenEncoder::Start GivenEncoder::start(bool training) const {
  Start start{training ? training_ : inference_};
  start.steps = start.fusion.outputs()[0].val;
  start.fusion.remove_output(0);
  const auto input = [&](const std::string& name) {
    const auto found = std::ranges::find(start.fusion.inputs(), name, &ir::Input::name);
    return found == start.fusion.inputs().end() ? ir::ValId{} : found->val;
  };
  start.features = input("features");
  for (const nn::ParameterSpec& spec : specs_) {
    const ir::ValId known = input(spec.name);
    start.parameters.push_back(
        known.valid() ? known
                      : start.fusion.add_input(spec.name, DType::kF32, extents_of(spec.shape)));
  }
  return start;
}

std::string GivenEncoder::hash() const {
  std::uint64_t hash = fnv1a(encoder_.inference, fnv1a(encoder_.training));
  for (const auto& [name, tensor] : encoder_.constants)
    hash = fnv1a({static_cast<const char*>(tensor.data()), tensor.bytes()}, fnv1a(name, hash));
  return fmt::format("{:016x}", fnv1a(encoder_.scores ? "scores" : "features", hash));
}

}  // namespace segfuse::learn
