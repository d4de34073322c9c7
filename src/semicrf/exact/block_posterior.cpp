// The posterior of a row in blocks of frames. A forward pass keeps of each block what the next one
// starts from; the backward pass does the forward pass of a block again.
//
// The backward half is settled at every so many boundaries, counted from the row's beginning: what
// does not matter of it (the size of all suffixes together) is taken off, the rest is rounded, and
// running sums begin again. Two rows that begin with the same frames then have the same bits before
// the first of these boundaries where what follows is forgotten.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "base/check.h"
#include "base/sizes.h"
#include "segfuse/error.h"
#include "semicrf/exact/frame_piece.h"
#include "semicrf/exact/segments_across.h"
#include "semicrf/exact/short_segments.h"

namespace segfuse::semicrf {
namespace {

/// Rows of some boundaries of a lattice.
struct Boundaries {
  std::vector<double> rows;   ///< (n, stride) source, or sink
  std::vector<double> value;  ///< (stride) of one boundary: value of the last, or rest of the first
  std::vector<double> base;   ///< (n + 1)
  /// Calls visit(part), one after the other.
  template <class Visit>
  void for_parts(const Visit& visit) {
    for (std::vector<double>* part : {&rows, &value, &base}) visit(std::span<double>(*part));
  }
  std::int64_t size() const { return std::ssize(rows) + std::ssize(value) + std::ssize(base); }
};

class HeldNumbers : public NumberStore {
 public:
  void append(std::span<const double> numbers) override {
    numbers_.insert(numbers_.end(), numbers.begin(), numbers.end());
  }
  void read(std::int64_t first, std::span<double> numbers) override {
    std::copy_n(numbers_.begin() + first, numbers.size(), numbers.begin());
  }
  std::int64_t size() const { return std::ssize(numbers_); }

 private:
  std::vector<double> numbers_;
};

/// A long sum of scores. Whole numbers are kept apart, so that what is rounded stays small.
class PathScore {
 public:
  void add(double score) {
    left_ += score;
    if (!std::isfinite(left_)) return;
    const double whole = std::nearbyint(left_);
    left_ -= whole;
    whole_ += whole;
  }
  double total() const { return whole_ + left_; }

 private:
  double whole_ = 0.0;
  double left_ = 0.0;
};

/// Frames [first, end) of the row: those of a block [own, own_end) and what its segments reach.
struct Window {
  std::int64_t first = 0, own = 0, own_end = 0, end = 0;
  std::int64_t local(std::int64_t t) const { return t - first; }
};

/// Goes over the boundaries of a row from behind and says what the posterior has of its segments.
class Description {
 public:
  /// `round` makes of a probability what the scores' type holds of it.
  Description(const SegmentationsView& segments, std::int64_t length, const Dims& dims,
              std::int64_t tolerance, double (*round)(double),
              const BlockPosterior::FrameVisitor& visit)
      : y_(segments),
        round_(round),
        visit_(visit),
        length_(length),
        stride_(dims.stride),
        classes_(dims.classes),
        reach_(std::min(tolerance, length)),
        most_(std::min(2 * reach_ + 1, length)),
        next_(segments.start.extent(0)),
        next_start_(next_),
        out_(at(next_)) {
    until_.assign(at(most_ + 1), 0.0);
    short_.assign(at(most_), 0.0);
    for (AlignedDoubles* b : {&cover_, &starts_, &ends_}) b->assign(stride_, 0.0);
    if (visit_) labels_.assign(at(classes_), 0.0);
    for (SegmentPosterior& of : out_) of.start = 1;
  }

  std::int64_t most() const { return most_; }
  /// P(a segment of c starts at s), and P(one has frame s as its last), to be filled.
  AlignedDoubles& starts() { return starts_; }
  AlignedDoubles& ends() { return ends_; }
  /// P(segment (s, d)), to be filled; 0 where there is none.
  std::span<double> shorts() { return short_; }
  /// The segment that the next frame from behind is in.
  std::int64_t segment() const { return next_ - 1; }

  /// Frame s, whose emission scores are given; the frames behind it are done. `segment` gives
  /// P(segment (s, duration, label)).
  template <class Segment>
  void add_frame(std::int64_t s, const double* emission, const Segment& segment) {
    add_labels(s, emission);
    add_starts(s);
    if (y_.start(next_ - 1) != s) return;
    --next_;
    SegmentPosterior& of = out_[at(next_)];
    of.label /= static_cast<double>(y_.duration(next_));
    of.segment = segment(y_.duration(next_), y_.label(next_));
  }
  /// The running sums at the boundary before the last frame that was added: P(a segment of c goes
  /// across it), and P(one does and ends most() or more frames behind it).
  void settle(std::span<const double> across, double late) {
    std::ranges::copy(across, cover_.data());
    covered_ = late;
  }
  std::vector<SegmentPosterior> take() { return std::move(out_); }

 private:
  void add_labels(std::int64_t s, const double* emission);
  void add_starts(std::int64_t s);

  const SegmentationsView& y_;
  double (*round_)(double);
  const BlockPosterior::FrameVisitor& visit_;
  std::int64_t length_, stride_, classes_;
  std::int64_t reach_;  ///< w: frames of the tolerance
  std::int64_t most_;   ///< m: a segment of more frames than that covers a window and frames on
                        ///< both sides of it
  std::int64_t next_;   ///< segments from here on have begun
  std::int64_t next_start_;    ///< and have a `start`
  std::vector<double> until_;  ///< P(a segment of more than m frames ends at a boundary), a ring
  std::vector<double> short_;
  AlignedDoubles cover_;  ///< running label posterior
  AlignedDoubles starts_, ends_;
  double covered_ = 0.0;        ///< P(one segment covers the window and the frame before it)
  double last_ = 0.0;           ///< P(the last segment starts within a window that reaches the end)
  std::vector<double> labels_;  ///< of a frame, for the visitor
  std::vector<SegmentPosterior> out_;
};

/// A forbidden frame is exactly 0, and no rounding is negative.
void Description::add_labels(std::int64_t s, const double* emission) {
  const auto label = [&](std::int64_t c) { return round_(std::max(0.0, cover_[c])); };
  for (std::int64_t c = 0; c < stride_; ++c)
    cover_[c] = emission[c] == kNegInf ? 0.0 : cover_[c] + ends_[c];
  out_[at(next_ - 1)].label += label(y_.label(next_ - 1));
  if (visit_) {
    for (std::int64_t c = 0; c < classes_; ++c) labels_[at(c)] = label(c);
    visit_(s, labels_, round_(sum_over(starts_.data(), classes_)));
  }
  for (std::int64_t c = 0; c < stride_; ++c) cover_[c] -= starts_[c];
}

/// The window around s + w: the same sums as starts_within() has, from behind.
void Description::add_starts(std::int64_t s) {
  const auto ring = [&](std::int64_t boundary) -> double& {
    return until_[at(boundary % (most_ + 1))];
  };
  double from = sum_over(starts_.data(), stride_);
  ring(s + 1) = sum_over(ends_.data(), stride_);
  const std::int64_t shorts = std::min(most_, length_ - s);
  for (std::int64_t d = 1; d <= shorts; ++d) {
    ring(s + d) -= short_[at(d - 1)];
    from -= short_[at(d - 1)];
  }
  double within = 0.0;
  if (s + 2 * reach_ + 1 <= length_) {
    covered_ += ring(s + most_) - from;
    within = std::clamp(1.0 - covered_, 0.0, 1.0);  // only rounding is beyond
  } else {
    last_ += short_[at(length_ - s - 1)];
    within = std::min(1.0, last_);
  }
  if (s == 0 || next_start_ == 0) return;
  if (y_.start(next_start_ - 1) != s + reach_) return;
  out_[at(--next_start_)].start = round_(within);
}

/// Boundaries at multiples of this are settled: often next to what a recording has, seldom next to
/// the K^2 / 2 segments that may go across each.
std::int64_t settling_period(std::int64_t longest) {
  constexpr std::int64_t kMin = 512;
  const auto period =
      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(4 * longest)));
  return std::max(kMin, period);
}

/// Takes `shift` off, and leaves multiples of 2^-32; the largest that is left.
double settle_row(double* row, std::int64_t classes, double shift) {
  constexpr double kSteps = 4294967296.0;
  double max = kNegInf;
  for (std::int64_t c = 0; c < classes; ++c) {
    row[c] = std::nearbyint((row[c] - shift) * kSteps) / kSteps;
    max = std::max(max, row[c]);
  }
  return max;
}

double largest_of(const double* row, std::int64_t classes) {
  return *std::max_element(row, row + classes);
}

/// log sum_c exp(a[c] + b[c]).
double log_dot(const double* a, const double* b, std::int64_t classes) {
  double max = kNegInf;
  for (std::int64_t c = 0; c < classes; ++c) max = std::max(max, a[c] + b[c]);
  if (max == kNegInf) return max;
  double sum = 0.0;
  for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(a[c] + b[c] - max);
  return max + std::log(sum);
}

}  // namespace

struct BlockPosterior::State {
  State(std::int64_t frames_of_block, NumberStore* store)
      : block(frames_of_block), kept(store == nullptr ? &held : store) {}

  Model model;
  std::int64_t block;
  std::int64_t frames = 0;
  RowBuffers buffers;
  Row row;
  Lattice lattice;
  Window window;
  HeldNumbers held;
  NumberStore* kept;            ///< what blocks start from, but the first, one after the other
  std::optional<double> ended;  ///< the log-partition, once the row is described
  PathScore score;
  std::vector<std::uint8_t> forced;  ///< empty, or of all frames of the row and a window behind
                                     ///< it: not 0 where a segment must start
  std::int64_t period = 0;
  std::optional<SegmentsAcross> across;

  const Dims& dims() const { return model.dims; }
  std::int64_t stride() const { return model.dims.stride; }
  LatticeInput input() const {
    return {model, row, nullptr, forced.empty() ? nullptr : forced.data() + window.first};
  }
  double scale(std::int64_t from, std::int64_t to) const {
    return lattice.base[at(window.local(from))] + lattice.rest_base[at(window.local(to))] -
           lattice.log_partition;
  }
  const double* of(const AlignedDoubles& buffer, std::int64_t t) const {
    return buffer.data() + window.local(t) * stride();
  }
  double* of(AlignedDoubles& buffer, std::int64_t t) const {
    return buffer.data() + window.local(t) * stride();
  }

  std::int64_t first_of(std::int64_t own) const { return own - std::min(dims().max_duration, own); }
  void make_room(std::int64_t length);
  void enter_block(std::int64_t own, std::int64_t length);
  void leave_block();
  void shorten();
  void step(std::int64_t t);
  template <class T>
  void load(const FramePiece<T>& piece, std::int64_t first);
  double ending() const {
    return log_dot(of(lattice.value, frames), model.final.data(), dims().classes);
  }
  double total() const;
  void begin_backward(const Boundaries& behind);
  bool settle_rest(std::int64_t g);
  void settle(std::int64_t g, Description& out);
  void keep_behind(Boundaries& behind) const;
  void describe_block(Description& out, const SegmentationsView& y);
  void add_score(std::int64_t s, std::int64_t i, const SegmentationsView& y);
  double segment(std::int64_t s, std::int64_t d, std::int64_t c) const;
};

/// Buffers for a window of so many frames, whose content stays.
void BlockPosterior::State::make_room(std::int64_t length) {
  for (AlignedDoubles* b : {&buffers.emission, &buffers.start, &buffers.end}) {
    if (b->size() >= length * stride()) continue;
    AlignedDoubles larger;
    larger.assign(length * stride(), 0.0);
    std::copy_n(b->data(), b->size(), larger.data());
    *b = std::move(larger);
  }
  row = {length, buffers.emission.data(), buffers.start.data(), buffers.end.data()};
}

/// The block that begins at `own`, in a window of some frames.
void BlockPosterior::State::enter_block(std::int64_t own, std::int64_t length) {
  window = {first_of(own), own, own, first_of(own) + length};
  make_room(length);
  lattice_begin(input(), Sum::kLog, lattice);
  if (own == 0) return;
  Boundaries start;
  start.rows.resize(at(dims().max_duration * stride()));
  start.value.resize(at(stride()));
  start.base.resize(at(dims().max_duration) + 1);
  std::int64_t next = (own / block - 1) * start.size();
  start.for_parts([&](std::span<double> part) {
    kept->read(next, part);
    next += std::ssize(part);
  });
  std::copy(start.rows.begin(), start.rows.end(), lattice.source.data());
  std::copy(start.value.begin(), start.value.end(), of(lattice.value, own));
  std::copy(start.base.begin(), start.base.end(), lattice.base.begin());
}

/// Keeps what the next block starts from, and moves its frames to the front.
void BlockPosterior::State::leave_block() {
  const std::int64_t first = first_of(frames);
  Boundaries next;
  next.rows.assign(of(lattice.source, first), of(lattice.source, frames));
  next.value.assign(of(lattice.value, frames), of(lattice.value, frames) + stride());
  next.base.assign(lattice.base.begin() + window.local(first),
                   lattice.base.begin() + window.local(frames) + 1);
  next.for_parts([&](std::span<const double> part) { kept->append(part); });
  for (AlignedDoubles* b : {&buffers.emission, &buffers.start, &buffers.end})
    std::copy(of(*b, first), of(*b, frames), b->data());
}

/// The window ends with the row.
void BlockPosterior::State::shorten() {
  window.end = frames;
  row.length = frames - window.first;
  lattice.last_end.resize(at(row.length));
  for (std::int64_t& end : lattice.last_end) end = std::min(end, row.length);
}

/// From boundary t to the next one; frame t is there.
void BlockPosterior::State::step(std::int64_t t) {
  lattice_leave(input(), lattice, window.local(t));
  lattice_arrive(input(), lattice, window.local(t) + 1);
}

template <class T>
void BlockPosterior::State::load(const FramePiece<T>& piece, std::int64_t first) {
  for (std::int64_t t = 0; t < piece.frames(); ++t)
    piece.load(t, stride(), buffers, window.local(first + t));
}

double BlockPosterior::State::total() const {
  if (ended) return *ended;
  if (frames == 0) return 0.0;
  return ending() + lattice.base[at(window.local(frames))];
}

template <class T>
BlockPosterior::BlockPosterior(const Potentials<T>& shared, std::int64_t block, NumberStore* kept,
                               const View<const std::uint8_t, 1>& must_start) {
  if (block < 1) throw UsageError(fmt::format("semicrf: a block has {} frames", block));
  Potentials<T> p = shared_scores(shared);
  const Dims dims = check_potentials(p);
  if (dims.by_duration)
    throw UsageError("semicrf: blocks take transitions that do not depend on duration");
  state_ = std::make_unique<State>(std::max(block, dims.max_duration), kept);
  load_model(p, dims, state_->model);
  state_->period = settling_period(dims.max_duration);
  if (!must_start.empty()) {
    // What goes across a boundary depends on those that are known: nothing is settled.
    state_->period = std::numeric_limits<std::int64_t>::max();
    const std::int64_t frames = must_start.extent(0);
    state_->forced.assign(at(frames + state_->block + dims.max_duration), 0);
    for (std::int64_t t = 0; t < frames; ++t) state_->forced[at(t)] = must_start(t);
  }
  state_->across.emplace(dims);
  state_->enter_block(0, state_->block);
}

BlockPosterior::~BlockPosterior() = default;
BlockPosterior::BlockPosterior(BlockPosterior&&) noexcept = default;
BlockPosterior& BlockPosterior::operator=(BlockPosterior&&) noexcept = default;

template <class T>
void BlockPosterior::push(const FrameScores<T>& scores) {
  State& x = *state_;
  SEGFUSE_CHECK(!x.ended, "the row of {} frames has ended", x.frames);
  const FramePiece<T> piece(scores, x.dims().classes, x.frames);
  if (!x.forced.empty() &&
      x.frames + piece.frames() > std::ssize(x.forced) - x.block - x.dims().max_duration)
    throw UsageError(
        fmt::format("semicrf: found frames beyond the {} frames for which segment starts are given",
                    std::ssize(x.forced) - x.block - x.dims().max_duration));
  for (std::int64_t t = 0; t < piece.frames(); ++t) {
    if (x.frames == x.window.end) {
      x.leave_block();
      x.enter_block(x.frames, x.frames - x.first_of(x.frames) + x.block);
    }
    piece.load(t, x.stride(), x.buffers, x.window.local(x.frames));
    x.step(x.frames++);
  }
}

std::int64_t BlockPosterior::frames() const { return state_->frames; }
double BlockPosterior::log_partition() const { return state_->total(); }
double BlockPosterior::score() const { return state_->score.total(); }

std::int64_t BlockPosterior::bytes() const {
  const State& x = *state_;
  std::int64_t doubles = 0;
  for (const AlignedDoubles* b :
       {&x.buffers.emission, &x.buffers.start, &x.buffers.end, &x.lattice.value, &x.lattice.source,
        &x.lattice.rest, &x.lattice.sink, &x.lattice.inner})
    doubles += b->size();
  return (doubles + x.held.size()) * static_cast<std::int64_t>(sizeof(double));
}

/// The suffixes from the boundary that ends the block, from what the block behind it has kept.
/// Their base is such that the log-partition next to both bases is small.
void BlockPosterior::State::begin_backward(const Boundaries& behind) {
  lattice_begin_backward(input(), lattice, window.own_end == frames);
  if (window.own_end == frames) {
    lattice.rest_base[at(row.length)] = -lattice.base[at(row.length)];
    lattice.log_partition = ending();
    return;
  }
  std::copy(behind.rows.begin(), behind.rows.end(), of(lattice.sink, window.own_end));
  std::copy(behind.value.begin(), behind.value.end(), of(lattice.rest, window.own_end));
  std::copy(behind.base.begin(), behind.base.end(),
            lattice.rest_base.begin() + window.local(window.own_end));
}

/// The suffixes that segments before boundary g and around it may have, relative to the largest at
/// the first boundary that has any; false where none has.
bool BlockPosterior::State::settle_rest(std::int64_t g) {
  const std::int64_t classes = dims().classes;
  const std::int64_t last = std::min(g + dims().max_duration, frames);
  const auto row_of = [&](std::int64_t e) { return of(e == g ? lattice.rest : lattice.sink, e); };
  const auto base_of = [&](std::int64_t e) -> double& {
    return lattice.rest_base[at(window.local(e))];
  };
  std::int64_t first = g;
  while (first <= last && largest_of(row_of(first), classes) == kNegInf) ++first;
  if (first > last) return false;
  const double shift = largest_of(row_of(first), classes);
  const double base = -lattice.base[at(window.local(g))];
  const double shift_of_base = base - base_of(first);
  for (std::int64_t e = g; e <= last; ++e) {
    double* values = row_of(e);
    const double max = settle_row(values, classes, shift);
    // Of a half, the next greater one: whatever whole numbers stood here before.
    const double whole = std::floor(max + 0.5);
    base_of(e) = max == kNegInf ? base : base_of(e) + shift_of_base + whole;
    for (std::int64_t c = 0; max != kNegInf && c < classes; ++c) values[c] -= whole;
  }
  const double* end = of(buffers.end, g - 1);
  for (std::int64_t c = 0; c < classes; ++c)
    of(lattice.sink, g)[c] = of(lattice.rest, g)[c] + end[c];
  return true;
}

/// Boundary g, once its frame is described.
void BlockPosterior::State::settle(std::int64_t g, Description& out) {
  if (!settle_rest(g)) return;
  const std::int64_t classes = dims().classes;
  across->find(input(), lattice, window.local(g), out.most());
  const std::vector<double> none(at(std::max<std::int64_t>(classes, 2)), 0.0);
  const double terms[] = {log_dot(of(lattice.value, g), of(lattice.rest, g), classes),
                          log_dot(across->all(), none.data(), classes)};
  const double sum = log_dot(terms, none.data(), 2);
  lattice.log_partition =
      sum + lattice.base[at(window.local(g))] + lattice.rest_base[at(window.local(g))];
  std::vector<double> share(at(classes));
  double late = 0.0;
  for (std::int64_t c = 0; c < classes; ++c) {
    share[at(c)] = std::exp(across->all()[c] - sum);
    late += std::exp(across->late()[c] - sum);
  }
  out.settle(share, late);
}

/// What the block before it needs of its suffixes.
void BlockPosterior::State::keep_behind(Boundaries& behind) const {
  const std::int64_t own = window.own;
  const std::int64_t rows = std::min(dims().max_duration, frames - own) + 1;
  behind.rows.assign(of(lattice.sink, own), of(lattice.sink, own) + rows * stride());
  behind.value.assign(of(lattice.rest, own), of(lattice.rest, own) + stride());
  behind.base.assign(lattice.rest_base.begin() + window.local(own),
                     lattice.rest_base.begin() + window.local(own) + rows);
}

/// P(segment (s, d, c)).
double BlockPosterior::State::segment(std::int64_t s, std::int64_t d, std::int64_t c) const {
  if (d > dims().max_duration) return 0.0;
  double log = of(lattice.source, s)[c] + model.duration[(d - 1) * stride() + c] +
               of(lattice.sink, s + d)[c] + scale(s, s + d);
  for (std::int64_t t = s; t < s + d; ++t) log += of(buffers.emission, t)[c];
  return std::exp(log);
}

/// What frame s, which is in segment i, adds to the score of the path. Where K is 1 each of its
/// frames is a segment.
void BlockPosterior::State::add_score(std::int64_t s, std::int64_t i, const SegmentationsView& y) {
  const std::int64_t c = y.label(i);
  const bool by_frame = dims().max_duration == 1;
  const std::int64_t start = by_frame ? s : y.start(i);
  const std::int64_t d = by_frame ? 1 : y.duration(i);
  double sum = of(buffers.emission, s)[c];
  if (s + 1 == frames) sum += model.final[c];
  if (s + 1 == start + d) sum += of(buffers.end, s)[c];
  if (s == start) {
    const std::int64_t before = start > y.start(i) || i == 0 ? c : y.label(i - 1);
    sum += d > dims().max_duration ? kNegInf : model.duration[(d - 1) * stride() + c];
    sum += of(buffers.start, s)[c];
    sum += s == 0 ? model.initial[c] : model.transition[before * stride() + c];
  }
  score.add(sum);
}

/// The frames of a block, from behind.
void BlockPosterior::State::describe_block(Description& out, const SegmentationsView& y) {
  const LatticeInput in = input();
  ShortSegments shorts(in, lattice, out.most());
  for (std::int64_t s = window.own_end - 1; s >= window.own; --s) {
    lattice_back(in, lattice, window.local(s));
    for (AlignedDoubles* b : {&out.starts(), &out.ends()}) b->assign(stride(), 0.0);
    add_exp_rows(of(lattice.inner, s), of(lattice.source, s), scale(s, s), 1, stride(),
                 out.starts().data());
    add_exp_rows(of(lattice.value, s + 1), of(lattice.rest, s + 1), scale(s + 1, s + 1), 1,
                 stride(), out.ends().data());
    std::ranges::fill(out.shorts(), 0.0);
    shorts.starting_at(window.local(s), out.shorts());
    add_score(s, out.segment(), y);
    out.add_frame(s, of(buffers.emission, s),
                  [&](std::int64_t d, std::int64_t c) { return segment(s, d, c); });
    if (s > 0 && s % period == 0) settle(s, out);
  }
}

template <class T>
std::vector<SegmentPosterior> BlockPosterior::describe(const SegmentationsView& segments,
                                                       std::int64_t tolerance,
                                                       const Reader<T>& read,
                                                       const FrameVisitor& visit) {
  State& x = *state_;
  SEGFUSE_CHECK(x.frames > 0, "a row without frames has no segments");
  SEGFUSE_CHECK(!x.ended, "the row of {} frames has been described", x.frames);
  x.ended = x.total();
  Description out(
      segments, x.frames, x.dims(), tolerance,
      [](double p) { return static_cast<double>(static_cast<T>(p)); }, visit);
  Boundaries behind;
  for (std::int64_t own = (x.frames - 1) / x.block * x.block; own >= 0; own -= x.block) {
    const std::int64_t own_end = std::min(own + x.block, x.frames);
    const std::int64_t end = std::min(own_end + x.dims().max_duration, x.frames);
    if (own_end == x.frames) {
      x.shorten();
    } else {
      x.enter_block(own, end - x.first_of(own));
      const FrameScores<T> scores = read(x.window.first, end - x.window.first);
      x.load(FramePiece<T>(scores, x.dims().classes, x.window.first), x.window.first);
      for (std::int64_t t = own; t < own_end; ++t) x.step(t);
    }
    x.window.own_end = own_end;
    x.begin_backward(behind);
    x.describe_block(out, segments);
    x.keep_behind(behind);
  }
  return out.take();
}

#define SEGFUSE_INSTANTIATE(T)                                                              \
  template BlockPosterior::BlockPosterior(const Potentials<T>&, std::int64_t, NumberStore*, \
                                          const View<const std::uint8_t, 1>&);              \
  template void BlockPosterior::push(const FrameScores<T>&);                                \
  template std::vector<SegmentPosterior> BlockPosterior::describe(                          \
      const SegmentationsView&, std::int64_t, const Reader<T>&, const FrameVisitor&);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
