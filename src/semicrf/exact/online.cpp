// Decoding of a row that arrives in pieces. Two lattices run over a window of the last frames, one
// for the log-partition, one for the best path; of the latter the choices at every boundary are
// kept from the last decided one on. What is decided is the common beginning of all paths that may
// still become the best.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "base/sizes.h"
#include "segfuse/error.h"
#include "semicrf/exact/frame_piece.h"
#include "semicrf/exact/inference.h"
#include "semicrf/exact/segment_list.h"

namespace segfuse::semicrf {
namespace {

/// A boundary and the label of the segment that ends there; boundary 0 has label -1.
struct Junction {
  std::int64_t t = 0;
  std::int64_t c = -1;
  bool operator==(const Junction&) const = default;
};

/// The best way into every junction and every start since the last decided junction.
class History {
 public:
  History(std::int64_t classes) : classes_(classes) { restart(); }
  void restart() {
    duration_.clear();
    before_.clear();
    first_ = 0;
    push_starts();
  }
  /// Rows for one more boundary.
  void push_starts() {
    duration_.resize(duration_.size() + at(classes_), 0);
    before_.resize(before_.size() + at(classes_), 0);
  }
  /// Frames of the last segment in the best way into a junction.
  std::int32_t& duration(std::int64_t t, std::int64_t c) { return duration_[index(t, c)]; }
  /// The label before a segment of c that starts at t > 0.
  std::int32_t& before(std::int64_t t, std::int64_t c) { return before_[index(t, c)]; }
  /// The junction before a segment of label c that starts at t.
  Junction entry(std::int64_t t, std::int64_t c) {
    return t == 0 ? Junction{} : Junction{t, before(t, c)};
  }
  Junction previous(const Junction& j) { return entry(j.t - duration(j.t, j.c), j.c); }
  /// Forgets boundaries before t, now and then.
  void forget(std::int64_t t) {
    const auto drop = static_cast<std::ptrdiff_t>((t - first_) * classes_);
    if (2 * drop < static_cast<std::ptrdiff_t>(duration_.size())) return;
    duration_.erase(duration_.begin(), duration_.begin() + drop);
    before_.erase(before_.begin(), before_.begin() + drop);
    first_ = t;
  }

 private:
  std::size_t index(std::int64_t t, std::int64_t c) const {
    return at((t - first_) * classes_ + c);
  }
  std::int64_t classes_;
  std::int64_t first_ = 0;
  std::vector<std::int32_t> duration_;
  std::vector<std::int32_t> before_;
};

}  // namespace

struct OnlineDecoder::State {
  State(ScopedModel m, const OnlineOptions& o)
      : options(o), model(std::move(m)), history(model.model.dims.classes) {
    const Dims& dims = model.model.dims;
    capacity = 2 * dims.max_duration + 64;
    for (AlignedDoubles* b : {&buffers.emission, &buffers.start, &buffers.end})
      b->assign(capacity * dims.stride, 0.0);
    // The best score of any duration above k frames.
    longer.assign((dims.max_duration + 1) * dims.stride, kNegInf);
    const double* duration = model.model.duration.data();
    for (std::int64_t k = dims.max_duration - 1; k >= 0; --k)
      for (std::int64_t c = 0; c < dims.classes; ++c)
        longer[k * dims.stride + c] =
            std::max(longer[(k + 1) * dims.stride + c], duration[k * dims.stride + c]);
    restart();
  }

  OnlineOptions options;
  ScopedModel model;
  RowBuffers buffers;
  Row row;
  std::int64_t capacity = 0;
  Lattice sum;
  Lattice best;
  std::array<Lattice*, 2> both{&sum, &best};
  AlignedDoubles longer;
  History history;
  std::vector<std::int64_t> open_frames;  ///< of the best segment beyond K, by label
  std::int64_t frames = 0;                ///< that have arrived
  std::int64_t offset = 0;                ///< frames - offset is the window's last boundary
  std::int64_t next_check = 0;
  Junction decided;

  const Dims& dims() const { return model.model.dims; }
  std::int64_t local(std::int64_t t) const { return t - offset; }
  LatticeInput input() const { return {model.model, row, model.tail_or_null(), nullptr}; }
  double value(std::int64_t t, std::int64_t c) const {
    return best.value[local(t) * dims().stride + c];
  }
  double open(std::int64_t t, std::int64_t c) const {
    return model.tail.size() == 0 ? kNegInf : best.open[local(t) * dims().stride + c];
  }

  std::span<Lattice* const> lattices() const {
    return std::span(both).subspan(options.log_partition ? 0 : 1);
  }

  void restart();
  void advance(Segmentations& out);
  void make_room();
  void choose_before();
  void choose_durations();
  template <class Visit>
  void for_open_segments(const Visit& visit);
  Junction common_beginning();
  Junction likeliest();
  void decide(const Junction& until, Segmentations& out);
  void decide_what_is_due(Segmentations& out);
  void drop_others(std::int64_t due);
  double total(const Lattice& lattice) const;
};

void OnlineDecoder::State::restart() {
  frames = offset = next_check = 0;
  decided = {};
  row = {capacity, buffers.emission.data(), buffers.start.data(), buffers.end.data()};
  if (options.log_partition) lattice_begin(input(), Sum::kLog, sum);
  lattice_begin(input(), Sum::kMax, best);
  open_frames.assign(at(dims().classes), 0);
  history.restart();
}

/// Moves the window when it is full. K + 1 boundaries stay, so the first is in no window again.
void OnlineDecoder::State::make_room() {
  if (local(frames) < capacity) return;
  const std::int64_t keep = dims().max_duration + 1;
  const std::int64_t first = local(frames) + 1 - keep;
  for (Lattice* lattice : lattices()) lattice_move(input(), *lattice, first, local(frames));
  for (AlignedDoubles* b : {&buffers.emission, &buffers.start, &buffers.end})
    std::copy(b->data() + first * dims().stride, b->data() + local(frames) * dims().stride,
              b->data());
  offset += first;
}

/// The label before each segment that starts at the last boundary. Ties: the smallest duration,
/// then the smallest label.
void OnlineDecoder::State::choose_before() {
  if (frames == 0) return;
  for (std::int64_t c = 0; c < dims().classes; ++c) {
    double top = kNegInf;
    std::int64_t chosen = 0;
    for (std::int64_t from = 0; from < dims().classes; ++from) {
      const double score = value(frames, from) + model.model.transition[from * dims().stride + c];
      if (score > top ||
          (score == top && history.duration(frames, from) < history.duration(frames, chosen))) {
        top = score;
        chosen = from;
      }
    }
    history.before(frames, c) = static_cast<std::int32_t>(chosen);
  }
}

/// The duration of each segment that ends at the last boundary, from the terms of its sum.
void OnlineDecoder::State::choose_durations() {
  const std::int64_t n = std::min(local(frames), dims().max_duration);
  const std::int64_t stride = dims().stride;
  std::vector<double> top(at(dims().classes), kNegInf);
  for (std::int64_t k = 0; k < n; ++k) {
    const double* terms = best.terms.data() + k * stride;
    for (std::int64_t c = 0; c < dims().classes; ++c) {
      if (terms[c] <= top[at(c)]) continue;
      top[at(c)] = terms[c];
      history.duration(frames, c) = static_cast<std::int32_t>(k + 1);
    }
  }
  if (model.tail.size() == 0) return;
  const double* goes_on = best.terms.data() + n * stride;
  for (std::int64_t c = 0; c < dims().classes; ++c) {
    const bool fresh = n == dims().max_duration && goes_on[c] <= goes_on[c - stride];
    open_frames[at(c)] = fresh ? n : open_frames[at(c)] + 1;
    if (goes_on[c] > top[at(c)])
      history.duration(frames, c) = static_cast<std::int32_t>(open_frames[at(c)]);
  }
}

/// One frame more, which is in the buffers.
void OnlineDecoder::State::advance(Segmentations& out) {
  const std::int64_t t = local(frames);
  choose_before();
  for (Lattice* lattice : lattices()) {
    lattice_leave(input(), *lattice, t);
    lattice_arrive(input(), *lattice, t + 1);
  }
  ++frames;
  history.push_starts();
  choose_durations();
  if (frames >= next_check) {
    decide(common_beginning(), out);
    next_check = frames + 1 + (frames - decided.t) / 16;
  }
  if (options.max_delay > 0) decide_what_is_due(out);
}

/// Calls visit(s, c, score) for the segments that have begun and may go on: first frame, label, and
/// their score with the best duration that is left, relative to base[frames].
template <class Visit>
void OnlineDecoder::State::for_open_segments(const Visit& visit) {
  const std::int64_t stride = dims().stride;
  const std::int64_t t = local(frames);
  for (std::int64_t c = 0; c < dims().classes; ++c) {
    if (open(frames, c) > kNegInf && model.tail[c] > kNegInf)
      visit(frames - open_frames[at(c)], c, open(frames, c));
    double content = 0.0;
    for (std::int64_t k = 1; k <= std::min(t, dims().max_duration - 1); ++k) {
      content += row.emission[(t - k) * stride + c];
      if (content == kNegInf) break;
      const double score = best.source[(t - k) * stride + c] + content + longer[k * stride + c] +
                           (best.base[at(t - k)] - best.base[at(t)]);
      if (score > kNegInf) visit(frames - k, c, score);
    }
  }
}

/// The last junction that all paths share which may still become the best.
Junction OnlineDecoder::State::common_beginning() {
  const std::int64_t classes = dims().classes;
  std::vector<std::uint8_t> marked(at((frames - decided.t + 1) * classes), 0);
  std::int64_t open_ends = 0;  // marked junctions that are not yet followed back
  bool at_decided = false;
  const auto mark = [&](const Junction& j) {
    if (j == decided) {
      at_decided = true;
      return;
    }
    std::uint8_t& seen = marked[at((j.t - decided.t) * classes + j.c)];
    open_ends += seen == 0 ? 1 : 0;
    seen = 1;
  };
  for (std::int64_t c = 0; c < classes; ++c)
    if (value(frames, c) > kNegInf) mark({frames, c});
  for_open_segments([&](std::int64_t s, std::int64_t c, double) { mark(history.entry(s, c)); });
  for (std::int64_t t = frames; t > decided.t && !at_decided; --t) {
    for (std::int64_t c = 0; c < classes; ++c) {
      if (marked[at((t - decided.t) * classes + c)] == 0) continue;
      if (open_ends == 1 && !at_decided) return {t, c};
      --open_ends;
      mark(history.previous({t, c}));
    }
  }
  return decided;
}

/// The junction before the open segment, or the one just made, that looks best now.
Junction OnlineDecoder::State::likeliest() {
  double top = kNegInf;
  Junction chosen = decided;
  for (std::int64_t c = 0; c < dims().classes; ++c) {
    if (value(frames, c) <= top) continue;
    top = value(frames, c);
    chosen = {frames, c};
  }
  for_open_segments([&](std::int64_t s, std::int64_t c, double score) {
    if (score <= top) return;
    top = score;
    chosen = history.entry(s, c);
  });
  return chosen;
}

/// Appends the segments from the last decided junction up to another.
void OnlineDecoder::State::decide(const Junction& until, Segmentations& out) {
  std::vector<Piece> path;
  for (Junction j = until; j != decided;) {
    const std::int32_t d = history.duration(j.t, j.c);
    path.push_back({static_cast<std::int32_t>(j.t - d), d, static_cast<std::int32_t>(j.c)});
    j = history.previous(j);
  }
  for (std::size_t i = path.size(); i-- > 0;)
    out.append(path[i].start, path[i].duration, path[i].label);
  decided = until;
  history.forget(decided.t);
}

/// Decides every boundary that is max_delay old, as the most probable path has it.
void OnlineDecoder::State::decide_what_is_due(Segmentations& out) {
  const std::int64_t due = frames - options.max_delay;
  if (due <= decided.t) return;
  Junction j = likeliest();
  while (j != decided && j.t > due) j = history.previous(j);
  decide(j, out);
  drop_others(due);
}

/// Forbids all paths that do not pass the decided junction, or make another up to `due`.
void OnlineDecoder::State::drop_others(std::int64_t due) {
  const std::int64_t classes = dims().classes;
  const std::int64_t stride = dims().stride;
  std::vector<std::uint8_t> passes(at((frames - decided.t + 1) * classes), 0);
  const auto may_start = [&](std::int64_t s, std::int64_t c) {
    if (s < decided.t) return false;
    const Junction entry = history.entry(s, c);
    return entry == decided || passes[at((s - decided.t) * classes + entry.c)] != 0;
  };
  for (std::int64_t t = due + 1; t <= frames; ++t)
    for (std::int64_t c = 0; c < classes; ++c)
      passes[at((t - decided.t) * classes + c)] = may_start(t - history.duration(t, c), c) ? 1 : 0;
  for (std::int64_t c = 0; c < classes; ++c) {
    if (passes[at((frames - decided.t) * classes + c)] == 0)
      best.value[local(frames) * stride + c] = kNegInf;
    for (std::int64_t t = std::max<std::int64_t>(0, local(frames) - dims().max_duration);
         t < local(frames); ++t)
      if (!may_start(t + offset, c)) best.source[t * stride + c] = kNegInf;
    if (open(frames, c) > kNegInf && !may_start(frames - open_frames[at(c)], c))
      best.open[local(frames) * stride + c] = kNegInf;
  }
}

/// The log-partition, or the best score, of a row that ended now.
double OnlineDecoder::State::total(const Lattice& lattice) const {
  if (frames == 0) return 0.0;
  double max = kNegInf;
  const auto term = [&](std::int64_t c) {
    return lattice.value[local(frames) * dims().stride + c] + model.model.final[c];
  };
  for (std::int64_t c = 0; c < dims().classes; ++c) max = std::max(max, term(c));
  if (max == kNegInf) return max;
  double terms = 0.0;
  for (std::int64_t c = 0; c < dims().classes; ++c) terms += std::exp(term(c) - max);
  return max + (lattice.sum == Sum::kLog ? std::log(terms) : 0.0) + lattice.base[at(local(frames))];
}

template <class T>
OnlineDecoder::OnlineDecoder(const Potentials<T>& shared, const OnlineOptions& options,
                             const View<const double, 1>& tail) {
  Potentials<T> p = shared_scores(shared);
  const Dims dims = check_potentials(p);
  if (dims.by_duration)
    throw UsageError("semicrf: online decoding takes transitions that do not depend on duration");
  if (options.max_delay != 0 && options.max_delay < dims.max_duration)
    throw UsageError(
        fmt::format("semicrf: a delay of {} frames is shorter than the longest duration, {}",
                    options.max_delay, dims.max_duration));
  const Scope scope{{}, tail};
  check_scope(scope, dims, {});
  ScopedModel model;
  load_scoped(p, scope, dims, model);
  state_ = std::make_unique<State>(std::move(model), options);
}

OnlineDecoder::~OnlineDecoder() = default;
OnlineDecoder::OnlineDecoder(OnlineDecoder&&) noexcept = default;
OnlineDecoder& OnlineDecoder::operator=(OnlineDecoder&&) noexcept = default;

template <class T>
void OnlineDecoder::push(const View<const T, 2>& emission, Segmentations& decided,
                         const View<const T, 2>& start, const View<const T, 2>& end) {
  State& x = *state_;
  const FramePiece<T> piece({emission, start, end}, x.dims().classes, x.frames);
  for (std::int64_t t = 0; t < piece.frames(); ++t) {
    x.make_room();
    piece.load(t, x.dims().stride, x.buffers, x.local(x.frames));
    x.advance(decided);
  }
}

std::int64_t OnlineDecoder::frames() const { return state_->frames; }
std::int64_t OnlineDecoder::decided_frames() const { return state_->decided.t; }
double OnlineDecoder::log_partition() const {
  return state_->options.log_partition ? state_->total(state_->sum)
                                       : std::numeric_limits<double>::quiet_NaN();
}
double OnlineDecoder::best_score() const { return state_->total(state_->best); }

RowStatus OnlineDecoder::finish(Segmentations& decided) {
  State& x = *state_;
  Junction last = x.decided;
  double top = kNegInf;
  for (std::int64_t c = 0; x.frames > 0 && c < x.dims().classes; ++c) {
    const double score = x.value(x.frames, c) + x.model.model.final[c];
    if (score < top || score == kNegInf) continue;
    if (score == top && x.history.duration(x.frames, c) >= x.history.duration(x.frames, last.c))
      continue;
    top = score;
    last = {x.frames, c};
  }
  const bool possible = x.frames == 0 || top > kNegInf;
  if (possible) x.decide(last, decided);
  decided.end_row();
  x.restart();
  return possible ? RowStatus::kOk : RowStatus::kNoPath;
}

#define SEGFUSE_INSTANTIATE(T)                                                      \
  template OnlineDecoder::OnlineDecoder(const Potentials<T>&, const OnlineOptions&, \
                                        const View<const double, 1>&);              \
  template void OnlineDecoder::push(const View<const T, 2>&, Segmentations&,        \
                                    const View<const T, 2>&, const View<const T, 2>&);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
