#include <algorithm>
#include <cmath>

#include "semicrf/cpu/sum/factored.h"

namespace segfuse::semicrf {
namespace {

double max_of_column(const double* table, std::int64_t rows, std::int64_t stride, std::int64_t c) {
  double max = kNegInf;
  for (std::int64_t i = 0; i < rows; ++i) max = std::max(max, table[i * stride + c]);
  return max == kNegInf ? 0.0 : max;
}

/// out = exp(table - column maximum), padding and `extra` more rows 0.
void scaled_columns(const double* table, std::int64_t rows, std::int64_t extra, const Dims& dims,
                    AlignedDoubles& out, AlignedDoubles& max) {
  out.assign((rows + extra) * dims.stride, 0.0);
  max.assign(dims.stride, 0.0);
  for (std::int64_t c = 0; c < dims.classes; ++c) {
    max[c] = max_of_column(table, rows, dims.stride, c);
    for (std::int64_t i = 0; i < rows; ++i)
      out[i * dims.stride + c] = std::exp(table[i * dims.stride + c] - max[c]);
  }
}

/// Calls visit(k, score) for k = 1.. over the window of boundary t, where score is that of the
/// sources' class c with content and duration, relative to base[t + step]; stops at a frame that
/// forbids the label.
template <class Visit>
void for_window(const Model& model, const Row& row, const Pass& pass, std::int64_t t,
                std::int64_t c, const Visit& visit) {
  const std::int64_t stride = model.dims.stride;
  const std::int64_t available = pass.step < 0 ? t : row.length - t;
  const double base = pass.base[t + pass.step];
  double content = 0.0;
  for (std::int64_t k = 1; k <= std::min(model.dims.max_duration, available); ++k) {
    const std::int64_t at = t + pass.step * k;
    content += row.emission[pass.frame(at - pass.step) * stride + c];
    if (content == kNegInf) return;
    visit(k, pass.sources()[at * stride + c] + (pass.base[at] - base) + content);
  }
}

}  // namespace

void make_tables(const Model& model, FactoredTables& tables) {
  const Dims& dims = model.dims;
  scaled_columns(model.duration.data(), dims.max_duration, kTile, dims, tables.duration,
                 tables.duration_max);
  scaled_columns(model.transition.data(), dims.classes, 0, dims, tables.into, tables.into_max);
  tables.transposed.assign(dims.classes * dims.stride, kNegInf);
  tables.transition_max = kNegInf;
  for (std::int64_t from = 0; from < dims.classes; ++from) {
    for (std::int64_t to = 0; to < dims.classes; ++to) {
      const double score = model.transition[from * dims.stride + to];
      tables.transposed[to * dims.stride + from] = score;
      tables.transition_max = std::max(tables.transition_max, score);
    }
  }
  if (tables.transition_max == kNegInf) tables.transition_max = 0.0;
  tables.transition.resize(dims.classes * dims.stride);
  for (std::int64_t i = 0; i < dims.classes * dims.stride; ++i)
    tables.transition[i] = std::exp(model.transition[i] - tables.transition_max);
  scaled_columns(tables.transposed.data(), dims.classes, 0, dims, tables.out_of, tables.out_of_max);
}

void add_enter(Pass& pass, std::int64_t t, std::int64_t stride) {
  if (pass.enter == nullptr) return;
  const double* enter = pass.enter + pass.frame(t - pass.step) * stride;
  for (std::int64_t c = 0; c < stride; ++c)
    pass.source[t * stride + c] = pass.linked[t * stride + c] + enter[c];
}

double exact_window(const Model& model, const Row& row, const Pass& pass, std::int64_t t,
                    std::int64_t c, Window& window) {
  const std::int64_t stride = model.dims.stride;
  double max_source = kNegInf;
  double max = kNegInf;
  for_window(model, row, pass, t, c, [&](std::int64_t k, double score) {
    max_source = std::max(max_source, score);
    max = std::max(max, score + model.duration[(k - 1) * stride + c]);
  });
  if (max_source > kNegInf) window.reference[c] = max_source;
  double sum = 0.0;
  for_window(model, row, pass, t, c, [&](std::int64_t k, double score) {
    window.rows[(t + pass.step * k) * stride + c] = std::exp(score - window.reference[c]);
    if (max > kNegInf) sum += std::exp(score + model.duration[(k - 1) * stride + c] - max);
  });
  return max == kNegInf ? kNegInf : max + std::log(sum);
}

double exact_link(const Model& model, const Pass& pass, std::int64_t t, std::int64_t c) {
  const auto [classes, stride] = std::pair(model.dims.classes, model.dims.stride);
  const double* value = pass.value.data() + t * stride;
  const bool forward = pass.step < 0;
  const double* transition = model.transition.data() + (forward ? c : c * stride);
  const std::int64_t hop = forward ? stride : 1;
  double max = kNegInf;
  for (std::int64_t i = 0; i < classes; ++i) max = std::max(max, value[i] + transition[i * hop]);
  if (max == kNegInf) return max;
  double sum = 0.0;
  for (std::int64_t i = 0; i < classes; ++i) sum += std::exp(value[i] + transition[i * hop] - max);
  return max + std::log(sum);
}

void exact_durations(const Model& model, const Row& row, const FactoredState& state, std::int64_t s,
                     std::int64_t c, double* duration) {
  const std::int64_t stride = model.dims.stride;
  const Pass& backward = state.backward;
  const double before = state.forward.sources()[s * stride + c] + offset(state, s) +
                        (backward.base[s + 1] - backward.base[s]);
  for_window(model, row, backward, s, c, [&](std::int64_t k, double score) {
    duration[(k - 1) * stride + c] +=
        std::exp(before + score + model.duration[(k - 1) * stride + c]);
  });
}

void exact_transitions(const Model& model, const FactoredState& state, std::int64_t s,
                       double* transition) {
  const auto [classes, stride] = std::pair(model.dims.classes, model.dims.stride);
  for (std::int64_t from = 0; from < classes; ++from) {
    const double before = state.forward.value[s * stride + from] + offset(state, s);
    if (before == kNegInf) continue;
    for (std::int64_t to = 0; to < classes; ++to)
      transition[from * stride + to] += std::exp(before + model.transition[from * stride + to] +
                                                 state.backward.value[s * stride + to]);
  }
}

double factored_segment(const Model& model, const Row& row, const FactoredState& state,
                        std::int64_t start, std::int64_t duration, std::int64_t label) {
  const std::int64_t stride = model.dims.stride;
  const std::int64_t end = start + duration;
  const Pass& forward = state.forward;
  const Pass& backward = state.backward;
  double content = 0.0;
  for (std::int64_t t = start; t < end; ++t) content += row.emission[t * stride + label];
  // Base differences are integers; the order below keeps large ones from meeting small scores.
  const double base = forward.base[start] + backward.base[end] - forward.base[row.length];
  return forward.sources()[start * stride + label] + backward.sources()[end * stride + label] +
         (base + content) + model.duration[(duration - 1) * stride + label] - state.log_rest;
}

}  // namespace segfuse::semicrf
