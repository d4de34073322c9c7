#pragma once
// All parameters of a model in one vector, and so their gradients and moments: an update is a pass
// over few long vectors instead of many short ones, and what is sent to other ranks is a range.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ir/fusion.h"
#include "learn/nn/layers.h"
#include "segfuse/tensor.h"

namespace segfuse::optim {

/// Where each parameter lies: those with decay first, then the others, then those of which
/// `last_of` holds, each in the order of their specs. What lies between them is 0 and stays 0.
struct FlatLayout {
  static constexpr std::int64_t kAlignment = 64;  ///< elements; 256 bytes of f32
  static constexpr std::int64_t kBlock = 4096;    ///< elements that the norm adds up by themselves

  FlatLayout(const std::vector<nn::ParameterSpec>& specs,
             const std::function<bool(const nn::ParameterSpec&)>& last_of);

  std::vector<Shape> shapes;        ///< of the parameters
  std::vector<std::int64_t> begin;  ///< their first elements, multiples of kAlignment
  std::int64_t decayed = 0;         ///< elements [0, decayed) are those with decay
  std::int64_t last = 0;            ///< elements [last, size) are those that come last
  std::int64_t size = 0;            ///< a multiple of kBlock

  /// "decayed" and "other", [0, decayed) and [decayed, size), as parameters of adamw_update(); a
  /// range without elements is none.
  std::vector<nn::ParameterSpec> ranges() const;
};

/// A vector in that layout, on the host or a device, and its parts, which share its memory.
struct FlatTensors {
  FlatTensors() = default;
  FlatTensors(const FlatLayout& layout, Tensor vector);
  static FlatTensors zeros(const FlatLayout& layout);
  /// Copies of tensors in host memory.
  static FlatTensors copy(const FlatLayout& layout, const std::vector<Tensor>& parts);

  Tensor whole;
  std::vector<Tensor> parts;  ///< one for each parameter; none in an object without a layout
};

/// Elements [begin, end) of a vector in that layout.
struct FlatPiece {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::vector<std::size_t> parameters;  ///< that lie there
};

/// Cuts the vector between parameters into pieces of `elements` or, but for the largest parameters,
/// little more. The pieces come in the order in which they are complete where parameter p is as
/// `order[p]` says. A function of the arguments alone.
std::vector<FlatPiece> cut_into_pieces(const FlatLayout& layout, std::span<const std::size_t> order,
                                       std::int64_t elements);

/// "12 with hash 01ab...", the same for equal pieces in the same order.
std::string text_of(std::span<const FlatPiece> pieces);

/// Inputs "to" and "from", whole vectors: to += from.
ir::Fusion addition(const FlatLayout& layout);
/// Inputs "gradient" and "parameters", both [last, size): gradient += strength * parameters, which
/// is what strength / 2 times the parameters' squares add to the loss.
ir::Fusion regulariser(const FlatLayout& layout, double strength);
/// Input "gradient", the whole vector. Output: the sums of squares of its blocks, f32
/// [size / kBlock].
ir::Fusion squares_of_blocks(const FlatLayout& layout);

}  // namespace segfuse::optim
