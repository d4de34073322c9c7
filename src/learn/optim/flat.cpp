#include "learn/optim/flat.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/code/blake2b.h"
#include "engine/device/accelerator.h"
#include "ir/builder.h"

namespace segfuse::optim {

using ir::ValId;

namespace {

std::int64_t up_to(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace

FlatLayout::FlatLayout(const std::vector<nn::ParameterSpec>& specs,
                       const std::function<bool(const nn::ParameterSpec&)>& last_of)
    : begin(specs.size()) {
  for (const nn::ParameterSpec& spec : specs) shapes.push_back(spec.shape);
  const auto add = [&](const auto& belongs) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (!belongs(specs[i])) continue;
      begin[i] = size;
      size += up_to(num_elements(specs[i].shape), kAlignment);
    }
    return size;
  };
  decayed = add([&](const nn::ParameterSpec& spec) { return spec.decay && !last_of(spec); });
  last = add([&](const nn::ParameterSpec& spec) { return !spec.decay && !last_of(spec); });
  size = up_to(std::max(add(last_of), kBlock), kBlock);
}

std::vector<nn::ParameterSpec> FlatLayout::ranges() const {
  std::vector<nn::ParameterSpec> ranges;
  if (decayed > 0) ranges.push_back({"decayed", {decayed}, {}, true});
  if (decayed < size) ranges.push_back({"other", {size - decayed}, {}, false});
  return ranges;
}

FlatTensors::FlatTensors(const FlatLayout& layout, Tensor vector) : whole(std::move(vector)) {
  for (std::size_t i = 0; i < layout.begin.size(); ++i)
    parts.push_back(engine::part_of(whole, layout.begin[i], layout.shapes[i]));
}

FlatTensors FlatTensors::zeros(const FlatLayout& layout) {
  return {layout, Tensor::zeros(DType::kF32, {layout.size})};
}

FlatTensors FlatTensors::copy(const FlatLayout& layout, const std::vector<Tensor>& parts) {
  FlatTensors all = zeros(layout);
  for (std::size_t i = 0; i < parts.size(); ++i)
    std::memcpy(all.parts[i].data(), parts[i].data(), parts[i].bytes());
  return all;
}

std::vector<FlatPiece> cut_into_pieces(const FlatLayout& layout, std::span<const std::size_t> order,
                                       std::int64_t elements) {
  std::vector<std::size_t> by_place(layout.begin.size());
  std::iota(by_place.begin(), by_place.end(), 0);
  std::ranges::stable_sort(by_place, {}, [&](std::size_t p) { return layout.begin[p]; });
  if (layout.size <= elements) return {{0, layout.size, by_place}};
  std::vector<FlatPiece> pieces;
  for (const std::size_t p : by_place) {
    const std::int64_t begin = layout.begin[p];
    // Parameters without decay are short and of all layers, so they are complete last.
    const bool cut =
        pieces.empty() || begin == layout.decayed || begin - pieces.back().begin >= elements;
    if (cut && begin < layout.size && (pieces.empty() || begin > pieces.back().begin)) {
      if (!pieces.empty()) pieces.back().end = begin;
      pieces.push_back({begin, layout.size, {}});
    }
    pieces.back().parameters.push_back(p);
  }
  if (pieces.empty()) pieces.push_back({0, layout.size, {}});
  std::ranges::stable_sort(pieces, {}, [&](const FlatPiece& piece) {
    std::size_t last = 0;
    for (const std::size_t p : piece.parameters) last = std::max(last, order[p]);
    return last;
  });
  return pieces;
}

std::string text_of(std::span<const FlatPiece> pieces) {
  std::string all;
  for (const FlatPiece& piece : pieces) all += fmt::format("{} {};", piece.begin, piece.end);
  return fmt::format("{} with hash {}", pieces.size(), blake2b_hex(all).substr(0, 16));
}

ir::Fusion addition(const FlatLayout& layout) {
  ir::Fusion fusion("add_gradients");
  ir::Builder b(fusion);
  const ValId to = fusion.add_input("to", DType::kF32, {ir::Extent(layout.size)});
  const ValId from = fusion.add_input("from", DType::kF32, {ir::Extent(layout.size)});
  const ValId sum = b.add(to, from);
  fusion.add_output(sum);
  fusion.add_alias(sum, to);
  return fusion;
}

ir::Fusion regulariser(const FlatLayout& layout, double strength) {
  const ir::Extents size{ir::Extent(layout.size - layout.last)};
  ir::Fusion fusion("regularise");
  ir::Builder b(fusion);
  const ValId gradient = fusion.add_input("gradient", DType::kF32, size);
  const ValId parameters = fusion.add_input("parameters", DType::kF32, size);
  const ValId sum = b.add(gradient, b.mul(parameters, b.constant(strength)));
  fusion.add_output(sum);
  fusion.add_alias(sum, gradient);
  return fusion;
}

ir::Fusion squares_of_blocks(const FlatLayout& layout) {
  ir::Fusion fusion("gradient_norm");
  ir::Builder b(fusion);
  const ValId gradient = fusion.add_input("gradient", DType::kF32, {ir::Extent(layout.size)});
  const ValId blocks = b.reshape(
      gradient, {ir::Extent(layout.size / FlatLayout::kBlock), ir::Extent(FlatLayout::kBlock)});
  fusion.add_output(b.sum(b.square(blocks), {1}));
  return fusion;
}

}  // namespace segfuse::optim
