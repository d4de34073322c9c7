#include "semicrf/model/gradients.h"

#include <algorithm>

namespace segfuse::semicrf {

void subtract_counts(const Dims& dims, const SegmentationsView& gold, std::int64_t b,
                     RowExpectations& e) {
  const std::int64_t first = gold.row_pointer(b);
  for (std::int64_t i = first; i < gold.row_pointer(b + 1); ++i) {
    const std::int64_t c = gold.label(i);
    const std::int64_t start = gold.start(i);
    const std::int64_t k = gold.duration(i) - 1;
    e.start[start * dims.stride + c] -= 1.0;
    e.end[(start + k) * dims.stride + c] -= 1.0;
    for (std::int64_t t = start; t <= start + k; ++t) e.label[t * dims.stride + c] -= 1.0;
    if (e.want_duration) e.duration[k * dims.stride + c] -= 1.0;
    if (!e.want_transition || i == first) continue;
    const std::int64_t slice = dims.by_duration ? k : 0;
    e.transition[(slice * dims.classes + gold.label(i - 1)) * dims.stride + c] -= 1.0;
  }
}

template <class T>
void store_frames(const View<T, 3>& view, std::int64_t b, const Dims& dims, std::int64_t length,
                  const double* frames, double weight, ThreadPool* pool) {
  if (view.empty()) return;
  const std::int64_t hop = view.stride(2);
  for_frames(pool, dims.frames, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      T* to = &view(b, t, 0);
      if (t < length) {
        const double* from = frames + t * dims.stride;
        for (std::int64_t c = 0; c < dims.classes; ++c)
          to[c * hop] = static_cast<T>(weight * from[c]);
      } else {
        for (std::int64_t c = 0; c < dims.classes; ++c) to[c * hop] = T{0};
      }
    }
  });
}

template <class T>
void store_row_gradients(const Gradients<T>& g, const Dims& dims, std::int64_t b,
                         std::int64_t length, const RowExpectations* e, double weight,
                         ThreadPool* pool) {
  const bool none = e == nullptr;
  store_frames(g.emission, b, dims, length, none ? nullptr : e->label.data(), weight, pool);
  store_frames(g.start, b, dims, length, none ? nullptr : e->start.data(), weight, pool);
  store_frames(g.end, b, dims, length, none ? nullptr : e->end.data(), weight, pool);
}

template <class T>
void TableGradients<T>::clear(std::int64_t length, double* shared) {
  shared_ = shared;
  const View<T, 4>& by_segment = gradients_.segment_scores;
  for (std::int64_t s = length; want_segments && s < dims_.frames; ++s)
    for (std::int64_t k = 0; k < dims_.max_duration; ++k)
      for (std::int64_t c = 0; c < dims_.classes; ++c) by_segment(b_, s, k, c) = T{0};
  const View<T, 4>& by_change = gradients_.transition_scores;
  for (std::int64_t s = 0; want_transitions && s < dims_.frames; ++s) {
    if (s > 0 && s < length) continue;
    if (dims_.shared_transition_scores) {
      if (shared != nullptr)
        std::fill_n(shared + s * dims_.classes * dims_.stride, dims_.classes * dims_.stride, 0.0);
      continue;
    }
    for (std::int64_t i = 0; i < dims_.classes; ++i)
      for (std::int64_t c = 0; c < dims_.classes; ++c) by_change(b_, s, i, c) = T{0};
  }
}

template <class T>
std::int64_t TableGradients<T>::gold_at(std::int64_t s) const {
  if (gold_ == nullptr) return -1;
  std::int64_t first = gold_->row_pointer(b_);
  std::int64_t last = gold_->row_pointer(b_ + 1);
  while (first < last) {  // the segments tile the row
    const std::int64_t middle = first + (last - first) / 2;
    if (gold_->start(middle) < s)
      first = middle + 1;
    else
      last = middle;
  }
  return first < gold_->row_pointer(b_ + 1) && gold_->start(first) == s ? first : -1;
}

template <class T>
void TableGradients<T>::segments(std::int64_t s, std::int64_t n, double* counts) {
  if (const std::int64_t i = gold_at(s); i >= 0)
    counts[(gold_->duration(i) - 1) * dims_.stride + gold_->label(i)] -= 1.0;
  const View<T, 4>& view = gradients_.segment_scores;
  const std::int64_t hop = view.stride(3);
  for (std::int64_t k = 0; k < dims_.max_duration; ++k) {
    T* to = &view(b_, s, k, 0);
    const double* from = counts + k * dims_.stride;
    for (std::int64_t c = 0; c < dims_.classes; ++c)
      to[c * hop] = k < n ? static_cast<T>(weight_ * from[c]) : T{0};
  }
}

template <class T>
void TableGradients<T>::transitions(std::int64_t s, double* counts) {
  const std::int64_t stride = dims_.stride;
  if (const std::int64_t i = gold_at(s); i >= 0)
    counts[gold_->label(i - 1) * stride + gold_->label(i)] -= 1.0;
  if (dims_.shared_transition_scores) {  // weighted when rows are added up
    std::copy_n(counts, dims_.classes * stride, shared_ + s * dims_.classes * stride);
    return;
  }
  for (std::int64_t i = 0; i < dims_.classes; ++i)
    for (std::int64_t c = 0; c < dims_.classes; ++c)
      gradients_.transition_scores(b_, s, i, c) = static_cast<T>(weight_ * counts[i * stride + c]);
}

void GradientReducer::begin(const Dims& dims, bool want_transition, bool want_duration,
                            bool want_table) {
  constexpr std::int64_t kWaveDoubles = std::int64_t{1} << 23;  // 64 MiB of slots
  dims_ = dims;
  transition_ = want_transition ? dims.slices() * dims.classes * dims.stride : 0;
  duration_ = want_duration ? dims.max_duration * dims.stride : 0;
  table_ =
      want_table && dims.shared_transition_scores ? dims.frames * dims.classes * dims.stride : 0;
  slot_size_ = padded(transition_ + duration_ + 2 * dims.stride + table_ + 1);
  const std::int64_t least = table_ > 0 && slot_size_ > kWaveDoubles ? 2 : 8;
  wave_ = std::clamp<std::int64_t>(kWaveDoubles / slot_size_, least,
                                   std::max<std::int64_t>(least, dims.batch));
  slots_.resize(std::min(wave_, dims.batch) * slot_size_);
  total_.assign(slot_size_, 0.0);
}

void GradientReducer::fill(double* slot, const RowExpectations& e, std::int64_t length) const {
  double* to = slot;
  if (transition_ > 0) to = std::copy_n(e.transition.data(), transition_, to);
  if (duration_ > 0) to = std::copy_n(e.duration.data(), duration_, to);
  to = std::copy_n(e.start.data(), dims_.stride, to);
  std::copy_n(e.end.data() + (length - 1) * dims_.stride, dims_.stride, to);
  slot[slot_size_ - 1] = 1.0;
}

void GradientReducer::reduce(std::int64_t begin, std::int64_t end,
                             const View<const double, 1>& weights) {
  const std::int64_t used = transition_ + duration_ + 2 * dims_.stride + table_;
  for (std::int64_t b = begin; b < end; ++b) {
    const double* from = slot(b - begin);
    if (from[slot_size_ - 1] == 0.0) continue;
    const double weight = weights.empty() ? 1.0 : weights(b);
    for (std::int64_t i = 0; i < used; ++i) total_[i] += weight * from[i];
  }
}

template <class T>
void GradientReducer::store(const Gradients<T>& g) const {
  const double* from = total_.data();
  const std::int64_t stride = dims_.stride;
  for (std::int64_t i = 0; transition_ > 0 && i < dims_.slices() * dims_.classes;
       ++i, from += stride)
    for (std::int64_t c = 0; c < dims_.classes; ++c)
      g.transition(i / dims_.classes, i % dims_.classes, c) = static_cast<T>(from[c]);
  for (std::int64_t k = 0; duration_ > 0 && k < dims_.max_duration; ++k, from += stride)
    for (std::int64_t c = 0; c < dims_.classes; ++c) g.duration(k, c) = static_cast<T>(from[c]);
  for (std::int64_t c = 0; c < dims_.classes; ++c) {
    if (!g.initial.empty()) g.initial(c) = static_cast<T>(from[c]);
    if (!g.final.empty()) g.final(c) = static_cast<T>(from[stride + c]);
  }
  from += 2 * stride;
  for (std::int64_t i = 0; table_ > 0 && i < dims_.frames * dims_.classes; ++i, from += stride)
    for (std::int64_t c = 0; c < dims_.classes; ++c)
      g.transition_scores(0, i / dims_.classes, i % dims_.classes, c) = static_cast<T>(from[c]);
}

#define SEGFUSE_INSTANTIATE(T)                                                                    \
  template class TableGradients<T>;                                                               \
  template void store_frames(const View<T, 3>&, std::int64_t, const Dims&, std::int64_t,          \
                             const double*, double, ThreadPool*);                                 \
  template void store_row_gradients(const Gradients<T>&, const Dims&, std::int64_t, std::int64_t, \
                                    const RowExpectations*, double, ThreadPool*);                 \
  template void GradientReducer::store(const Gradients<T>&) const;

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
SEGFUSE_INSTANTIATE(Half)
SEGFUSE_INSTANTIATE(BFloat16)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
