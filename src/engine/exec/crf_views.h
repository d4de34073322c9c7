#pragma once
// Operands of the CRF operations as views of segfuse/semicrf.h.

#include <algorithm>
#include <span>

#include "engine/exec/array.h"
#include "segfuse/semicrf.h"

namespace segfuse::engine {

/// Empty for an array without data.
template <class T, int N>
semicrf::View<T, N> crf_view(const Array& array) {
  typename semicrf::View<T, N>::Axes extents{};
  typename semicrf::View<T, N>::Axes strides{};
  if (array.data == nullptr) return {};
  std::copy_n(array.shape().begin(), N, extents.begin());
  std::copy_n(array.layout->strides.begin(), N, strides.begin());
  return {array.as<T>(), extents, strides};
}

/// `scores` is 5, or 7 with start and end scores; lengths follow them.
template <class T>
semicrf::Potentials<T> crf_potentials(std::span<const Array> operands, std::size_t scores) {
  semicrf::Potentials<T> p;
  p.emission = crf_view<const T, 3>(operands[0]);
  p.transition = crf_view<const T, 3>(operands[1]);
  p.duration = crf_view<const T, 2>(operands[2]);
  p.initial = crf_view<const T, 1>(operands[3]);
  p.final = crf_view<const T, 1>(operands[4]);
  if (scores == 7) {
    p.start = crf_view<const T, 3>(operands[5]);
    p.end = crf_view<const T, 3>(operands[6]);
  }
  p.lengths = semicrf::Lengths(crf_view<const std::int64_t, 1>(operands[scores]));
  return p;
}

template <class T>
semicrf::Gradients<T> crf_gradients(std::span<const Array> gradients, std::size_t scores) {
  semicrf::Gradients<T> g;
  g.emission = crf_view<T, 3>(gradients[0]);
  g.transition = crf_view<T, 3>(gradients[1]);
  g.duration = crf_view<T, 2>(gradients[2]);
  g.initial = crf_view<T, 1>(gradients[3]);
  g.final = crf_view<T, 1>(gradients[4]);
  if (scores == 7) {
    g.start = crf_view<T, 3>(gradients[5]);
    g.end = crf_view<T, 3>(gradients[6]);
  }
  return g;
}

}  // namespace segfuse::engine
