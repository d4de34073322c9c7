#pragma once
// Programs with an index out of range, and what is said of it.

#include <string>
#include <utility>
#include <vector>

#include "segfuse/tensor.h"

namespace segfuse::testing {

struct BadIndices {
  const char* name;
  const char* text;
  std::vector<Tensor> inputs;
  const char* message;
};

inline Tensor whole_numbers(Shape shape, const std::vector<double>& values) {
  Tensor tensor(DType::kI64, std::move(shape));
  for (std::size_t i = 0; i < values.size(); ++i)
    tensor.set(static_cast<std::int64_t>(i), values[i]);
  return tensor;
}

inline std::vector<BadIndices> bad_indices() {
  const Tensor table = Tensor::full(DType::kF32, {3}, 1);
  return {
      {"an input",
       R"(fusion "f" {
  symbols N, M
  %0 = input "x" : f32[N]
  %1 = input "i" : i64[M]
  %2 = take(%0, %1) {axis=0}
  output %2
})",
       {table, whole_numbers({3}, {0, 7, 9})},
       "take: index 7 is out of range; the axis has 3 elements"},
      {"numbers made of an input within the kernel",
       R"(fusion "f" {
  symbols N, M
  %0 = input "x" : f32[N]
  %1 = input "i" : i64[M]
  %2 = extent {size=[N], dtype=i64}
  %3 = broadcast(%2) {axes=[], shape=[M]}
  %4 = add(%1, %3)
  %5 = exp(%0)
  %6 = take(%5, %4) {axis=0}
  output %6
})",
       {table, whole_numbers({2}, {-1, -5})},
       "take: index -2 is out of range; the axis has 3 elements"},
      {"a part of an input: the numbers beside it do not matter",
       R"(fusion "f" {
  symbols N, M
  %0 = input "x" : f32[N]
  %1 = input "i" : i64[M, 2]
  %2 = slice(%1) {starts=[0, 0], sizes=[M, 1]}
  %3 = reshape(%2) {shape=[M]}
  %4 = take(%0, %3) {axis=0}
  output %4
  output %3
})",
       {table, whole_numbers({2, 2}, {0, 100, 7, 100})},
       "take: index 7 is out of range; the axis has 3 elements"},
      {"places of a sum",
       R"(fusion "f" {
  symbols M
  %0 = input "x" : f32[M]
  %1 = input "i" : i64[M]
  %2 = scatter_add(%0, %1) {axis=0, size=[4]}
  output %2
})",
       {table, whole_numbers({3}, {3, 4, 0})},
       "scatter_add: index 4 is out of range; the axis has 4 elements"},
      {"numbers made of fractions",
       R"(fusion "f" {
  symbols N, M
  %0 = input "x" : f32[N]
  %1 = input "i" : f32[M]
  %2 = cast(%1) {dtype=i64}
  %3 = take(%0, %2) {axis=0}
  output %3
})",
       {table, Tensor::full(DType::kF32, {2}, 7.5)},
       "out of range"},
  };
}

}  // namespace segfuse::testing
