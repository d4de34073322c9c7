#include "semicrf/cpu/sum/chunked.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <utility>

#include "base/thread_pool.h"

namespace segfuse::semicrf {
namespace {

constexpr std::int64_t kShortestChunk = 4096;
constexpr std::int64_t kWindowsInChunk = 32;  // so that starting up costs a twentieth
constexpr std::int64_t kWindowsToForget = 2;
constexpr int kRounds = 4;                // then the row is done in one piece
constexpr double kTolerance = 1e-12;      // relative, of window entries
constexpr double kNegligible = 0x1p-300;  // beside the largest entry

std::int64_t chunk_length(const Dims& dims) {
  return std::max(kShortestChunk, kWindowsInChunk * dims.max_duration);
}

void copy(const AlignedDoubles& from, std::int64_t size, AlignedDoubles& to) {
  to.resize(from.size());
  std::copy_n(from.data(), size, to.data());
}

void copy_window(const ScaledWindow& from, std::int64_t stride, ScaledWindow& to) {
  copy(from.entries, (from.newest + 1) * stride, to.entries);
  copy(from.reference, from.reference.size(), to.reference);
  copy(from.inverse, from.inverse.size(), to.inverse);
  copy(from.ahead, from.ahead.size(), to.ahead);
  copy(from.dropped, from.dropped.size(), to.dropped);
  copy(from.extremes, from.extremes.size(), to.extremes);
  to.capacity = from.capacity;
  to.kept = from.kept;
  to.newest = from.newest;
  to.steps = from.steps;
  to.tile_done = from.tile_done;
  to.exponent = from.exponent;
  to.lag = from.lag;
  to.failed = from.failed;
}

/// Whether two windows are the same but for their scale; log_ratio becomes log(a / b).
bool same_direction(const AlignedDoubles& a, const AlignedDoubles& b, double& log_ratio) {
  const double* top = std::max_element(a.data(), a.data() + a.size());
  const double other = b[top - a.data()];
  if (!(*top > 0.0) || !(other > 0.0)) return false;
  const double ratio = *top / other;
  const double floor = *top * kNegligible;
  log_ratio = std::log(ratio);
  bool same = true;
  for (std::int64_t i = 0; i < a.size(); ++i) {
    const double scaled = b[i] * ratio;
    const double larger = std::max(a[i], scaled);
    same &= std::abs(a[i] - scaled) <= std::max(kTolerance * larger, floor);
  }
  return same;
}

/// The frames of one part, its neighbours' ends included.
void cut(const ScaledRow& whole, std::int64_t i, std::int64_t count, RowChunk& chunk) {
  const Dims& dims = whole.model->dims;
  const std::int64_t total = whole.row.length;
  const std::int64_t forget = kWindowsToForget * dims.max_duration + kCountTile;
  const std::int64_t begin = total * i / count;
  const std::int64_t end = total * (i + 1) / count;
  const std::int64_t first = std::max<std::int64_t>(0, begin - forget);
  const std::int64_t last = std::min(total, end + forget);
  const auto frames = [&](const double* scores) {
    return scores == nullptr ? nullptr : scores + first * dims.stride;
  };
  chunk.row = whole;
  chunk.row.state = &chunk.state;
  chunk.row.row = {last - first, frames(whole.row.emission), frames(whole.row.start),
                   frames(whole.row.end)};
  chunk.row.part = {.origin = first,
                    .begin = begin - first,
                    .end = end - first,
                    .total = total,
                    .guess_start = first > 0,
                    .guess_end = last < total};
}

/// Calls solve(rows, n) for chunks [begin, end) that are to be done, in pairs where there are
/// chunks enough for all threads.
using Solve = void (*)(ScaledRow* const*, std::int64_t);
void run_range(ChunkedState& state, std::int64_t begin, std::int64_t end, ThreadPool& pool,
               Solve solve) {
  const std::int64_t size = end - begin >= kLockstep * pool.size() ? kLockstep : 1;
  const auto task = [&](std::int64_t group) {
    const std::int64_t first = begin + group * size;
    ScaledRow* rows[kLockstep];
    std::int64_t n = 0;
    for (std::int64_t i = first; i < std::min(first + size, end); ++i)
      rows[n++] = &state.chunks[static_cast<std::size_t>(i)]->row;
    solve(rows, n);
  };
  pool.run((end - begin + size - 1) / size, std::ref(task));
}

/// Does the marked chunks again, one by one: their windows are at different steps.
void run_again(ChunkedState& state, ThreadPool& pool, Solve solve) {
  const auto task = [&](std::int64_t i) {
    RowChunk& chunk = *state.chunks[static_cast<std::size_t>(i)];
    if (!std::exchange(chunk.again, false)) return;
    ScaledRow* const row = &chunk.row;
    std::swap(chunk.state.window, chunk.neighbour);
    row->part.resume = true;
    solve(&row, 1);
    row->part.resume = false;
  };
  pool.run(state.count, std::ref(task));
}

bool all_ok(const ChunkedState& state) {
  bool ok = true;
  for (std::int64_t i = 0; i < state.count; ++i)
    ok &= state.chunks[static_cast<std::size_t>(i)]->row.ok;
  return ok;
}

/// Where a pass goes from one part into the next.
struct Crossing {
  RowChunk& from;
  RowChunk& into;
  ScaledPass& from_pass;
  ScaledPass& into_pass;
  const AlignedDoubles& outgoing;
  std::int64_t from_boundary;
  std::int64_t into_boundary;
};

/// Whether the part that is entered went on from the right window, and how the scales differ.
bool agrees(const Crossing& x, double& log_difference) {
  if (!same_direction(x.outgoing, x.into.state.incoming, log_difference)) return false;
  log_difference += static_cast<double>(x.from_pass.exponent[x.from_boundary] -
                                        x.into_pass.exponent[x.into_boundary]) *
                    std::numbers::ln2;
  return true;
}

/// Copies what the part that is entered needs to start at the boundary from its neighbour's state.
void hand_over(const Crossing& x, std::int64_t stride) {
  copy_window(x.from.state.window, stride, x.into.neighbour);
  copy(x.outgoing, x.outgoing.size(), x.into.state.incoming);
  x.into.neighbour_value.resize(2 * stride);
  const std::int64_t at = x.from_pass.row(x.from_boundary) * stride;
  std::copy_n(x.from_pass.value.data() + at, stride, x.into.neighbour_value.data());
  std::copy_n(x.from_pass.linked.data() + at, stride, x.into.neighbour_value.data() + stride);
  x.into.again = true;
}

/// After all are handed over: the shared boundary becomes the part's own.
void take_over(const Crossing& x, std::int64_t exponent, std::int64_t stride) {
  const std::int64_t at = x.into_pass.row(x.into_boundary) * stride;
  std::copy_n(x.into.neighbour_value.data(), stride, x.into_pass.value.data() + at);
  std::copy_n(x.into.neighbour_value.data() + stride, stride, x.into_pass.linked.data() + at);
  x.into_pass.exponent[x.into_boundary] = exponent;
}

Crossing forward_crossing(ChunkedState& state, std::int64_t into) {
  RowChunk& a = *state.chunks[static_cast<std::size_t>(into - 1)];
  RowChunk& b = *state.chunks[static_cast<std::size_t>(into)];
  return {
      a, b, a.state.forward, b.state.forward, a.state.outgoing, a.row.part.end, b.row.part.begin};
}

Crossing backward_crossing(ChunkedState& state, std::int64_t into) {
  RowChunk& a = *state.chunks[static_cast<std::size_t>(into + 1)];
  RowChunk& b = *state.chunks[static_cast<std::size_t>(into)];
  const Dims& dims = a.row.model->dims;
  window_at_boundary(a.state.window, dims.max_duration, dims.stride, a.backward_outgoing);
  return {a,
          b,
          a.state.backward,
          b.state.backward,
          a.backward_outgoing,
          a.row.part.begin,
          b.row.part.end};
}

/// Checks the crossings and does parts again until all agree; false when they do not.
template <class CrossingInto>
bool settle(ChunkedState& state, std::int64_t stride, ThreadPool& pool, Solve solve, bool forward,
            const CrossingInto& crossing_into) {
  for (int round = 0; all_ok(state); ++round) {
    std::vector<std::pair<Crossing, std::int64_t>> wrong;
    for (std::int64_t i = 1; i < state.count; ++i) {
      const Crossing x = crossing_into(state, forward ? i : state.count - 1 - i);
      double log_difference = 0.0;
      if (!agrees(x, log_difference))
        wrong.emplace_back(x, x.from_pass.exponent[x.from_boundary]);
      else if (forward)
        x.into.forward_log = x.from.forward_log + log_difference;
      else
        x.into.backward_log = x.from.backward_log + log_difference;
    }
    if (wrong.empty()) return true;
    if (round == kRounds) return false;
    for (const auto& [x, exponent] : wrong) hand_over(x, stride);
    for (const auto& [x, exponent] : wrong) take_over(x, exponent, stride);
    run_again(state, pool, solve);
  }
  return false;
}

}  // namespace

bool is_chunked(const Dims& dims, std::int64_t length) {
  return !dims.by_duration && length >= 2 * chunk_length(dims);
}

bool chunked_forward(ScaledRow& row, ChunkedState& state, ThreadPool& pool) {
  const Dims& dims = row.model->dims;
  state.count = row.row.length / chunk_length(dims);
  while (std::ssize(state.chunks) < state.count)
    state.chunks.push_back(std::make_unique<RowChunk>());
  for (std::int64_t i = 0; i < state.count; ++i)
    cut(row, i, state.count, *state.chunks[static_cast<std::size_t>(i)]);
  // The first starts from the row's start, the others from guesses.
  run_range(state, 0, 1, pool, scaled_forward);
  run_range(state, 1, state.count, pool, scaled_forward);
  state.chunks[0]->forward_log = 0.0;
  if (!settle(state, dims.stride, pool, scaled_forward, true, forward_crossing)) return false;
  const RowChunk& last = *state.chunks[static_cast<std::size_t>(state.count - 1)];
  row.log_partition = last.row.log_partition + last.forward_log;
  return row.log_partition > kNegInf;
}

bool chunked_expectations(ScaledRow& row, ChunkedState& state, ThreadPool& pool) {
  const Dims& dims = row.model->dims;
  RowExpectations& out = *row.out;
  for (AlignedDoubles* frames : {&out.label, &out.start, &out.end})
    frames->resize(row.row.length * dims.stride);
  for (std::int64_t i = 0; i < state.count; ++i)
    state.chunks[static_cast<std::size_t>(i)]->row.keep_backward = row.keep_backward;
  run_range(state, state.count - 1, state.count, pool, scaled_expectations);
  run_range(state, 0, state.count - 1, pool, scaled_expectations);
  state.chunks[static_cast<std::size_t>(state.count - 1)]->backward_log = 0.0;
  if (!settle(state, dims.stride, pool, scaled_expectations, false, backward_crossing))
    return false;
  const auto add_up = [&](AlignedDoubles ScaledState::* counts, const AlignedDoubles& factors,
                          std::int64_t size, AlignedDoubles& sum) {
    sum.assign(size, 0.0);
    for (std::int64_t i = 0; i < state.count; ++i) {
      const AlignedDoubles& part = state.chunks[static_cast<std::size_t>(i)]->state.*counts;
      for (std::int64_t j = 0; j < size; ++j) sum[j] += part[j] * factors[j];
    }
  };
  if (out.want_duration)
    add_up(&ScaledState::duration_counts, row.tables->duration, dims.max_duration * dims.stride,
           out.duration);
  if (out.want_transition)
    add_up(&ScaledState::transition_counts, row.tables->into, dims.classes * dims.stride,
           out.transition);
  return true;
}

double chunked_segment(const ScaledRow& row, const ChunkedState& state, std::int64_t start,
                       std::int64_t duration, std::int64_t label) {
  const Dims& dims = row.model->dims;
  const std::int64_t end = start + duration;
  const RowChunk* from = nullptr;
  const RowChunk* into = nullptr;
  for (std::int64_t i = 0; i < state.count; ++i) {
    const RowChunk* chunk = state.chunks[static_cast<std::size_t>(i)].get();
    const std::int64_t first = chunk->row.part.origin + chunk->row.part.begin;
    if (first <= start) from = chunk;
    if (first <= end) into = chunk;
  }
  double content = row.model->duration[(duration - 1) * dims.stride + label];
  for (std::int64_t t = start; t < end; ++t) content += row.row.emission[t * dims.stride + label];
  if (row.row.start != nullptr) content += row.row.start[start * dims.stride + label];
  if (row.row.end != nullptr) content += row.row.end[(end - 1) * dims.stride + label];
  const auto log_of = [&](const ScaledPass& pass, std::int64_t t) {
    return std::log(pass.linked[t * dims.stride + label]) +
           static_cast<double>(pass.exponent[t]) * std::numbers::ln2;
  };
  const double before =
      log_of(from->state.forward, start - from->row.part.origin) + from->forward_log;
  const double behind =
      log_of(into->state.backward, end - into->row.part.origin) + into->backward_log;
  return before + content + behind - row.log_partition;
}

}  // namespace segfuse::semicrf
