// Decoding of recordings that are held: paths, posteriors and alternatives from the scores of a
// batch.

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "base/context/pool.h"
#include "base/sizes.h"
#include "learn/train/decode/decoder_state.h"
#include "learn/train/decode/posterior/path_posterior.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Row b by itself.
semicrf::Potentials<float> row_of(const semicrf::Potentials<float>& all, std::int64_t b,
                                  const std::int64_t* length) {
  semicrf::Potentials<float> p = all;
  for (semicrf::View<const float, 3>* view : {&p.emission, &p.start, &p.end}) {
    if (view->empty()) continue;
    *view = {
        view->data() + b * view->stride(0), {1, view->extent(1), view->extent(2)}, view->strides()};
  }
  p.lengths = semicrf::View<const std::int64_t, 1>(length, {1});
  return p;
}

/// The starts that are known in some rows, as a constraint on them.
class KnownStarts {
 public:
  KnownStarts(const std::vector<Sequence>& sequences, std::span<const std::int64_t> rows,
              std::int64_t frames)
      : rows_(std::ssize(rows)), frames_(frames) {
    const auto known = [&](std::int64_t row) -> const std::vector<std::uint8_t>& {
      return sequences[at(row)].known.starts;
    };
    if (std::ranges::all_of(rows, [&](std::int64_t row) { return known(row).empty(); })) return;
    boundary_.assign(at(rows_ * frames_), -1);
    for (std::int64_t row = 0; row < rows_; ++row)
      for (std::size_t t = 0; t < known(rows[at(row)]).size(); ++t)
        if (known(rows[at(row)])[t] != 0) boundary_[at(row * frames_) + t] = 1;
  }
  bool empty() const { return boundary_.empty(); }
  semicrf::Scope scope() const {
    semicrf::Scope scope;
    if (!empty()) scope.constraints.boundary = {boundary_.data(), {rows_, frames_}};
    return scope;
  }

 private:
  std::int64_t rows_, frames_;
  std::vector<std::int8_t> boundary_;
};

/// The most probable segmentation of each row and its score; rows that have none are empty.
void best_paths(semicrf::Inference& inference, const semicrf::Potentials<float>& p,
                const semicrf::Scope& scope, semicrf::Segmentations& best,
                std::vector<double>& score) {
  semicrf::SegmentationLists lists;
  inference.k_best(p, scope, 1, lists);
  const semicrf::Segmentations& all = lists.segmentations;
  best.clear();
  for (std::size_t row = 0; row < score.size(); ++row) {
    const auto list = at(lists.list_pointer[row]);
    const bool some = lists.list_pointer[row + 1] > lists.list_pointer[row];
    score[row] = some ? lists.score[list] : -std::numeric_limits<double>::infinity();
    for (std::int64_t i = some ? all.row_pointer[list] : 0; some && i < all.row_pointer[list + 1];
         ++i)
      best.append(all.start[at(i)], all.duration[at(i)], all.label[at(i)]);
    best.end_row();
  }
}

/// Segments [first, last); frames of one label are one segment where they are not `semi`.
std::vector<FrameSegment> frame_segments(const semicrf::Segmentations& y, std::int64_t first,
                                         std::int64_t last, bool semi) {
  std::vector<FrameSegment> segments;
  std::vector<std::int32_t> labels;
  for (std::int64_t i = first; i < last; ++i) {
    if (semi)
      segments.push_back({y.start[at(i)], y.duration[at(i)], y.label[at(i)]});
    else
      labels.push_back(y.label[at(i)]);
  }
  return semi ? segments : runs_of(labels);
}

/// Of what value(t) is at the segment's frames; NaN where its label is not known.
template <class Value>
double mean_over(const FrameSegment& segment, const Value& value) {
  if (segment.label == kUnknownLabel) return kNaN;
  double sum = 0;
  for (std::int64_t t = segment.start; t < segment.start + segment.duration; ++t) sum += value(t);
  return sum / static_cast<double>(segment.duration);
}

/// The lists of one row.
std::vector<Alternative> alternatives_of(const semicrf::SegmentationLists& lists, double log_z,
                                         bool semi) {
  std::vector<Alternative> out;
  const auto& pointer = lists.segmentations.row_pointer;
  for (std::size_t i = 0; i < lists.score.size(); ++i)
    out.push_back({frame_segments(lists.segmentations, pointer[i], pointer[i + 1], semi),
                   lists.score[i] - log_z});
  return out;
}

/// Frames [first, first + n) of row b.
semicrf::FrameScores<float> frames_of(const semicrf::Potentials<float>& p, std::int64_t b,
                                      std::int64_t first, std::int64_t n) {
  const auto view = [&](const semicrf::View<const float, 3>& all) -> semicrf::View<const float, 2> {
    if (all.empty()) return {};
    return {all.data() + b * all.stride(0) + first * all.stride(1),
            {n, all.extent(2)},
            {all.stride(1), all.stride(2)}};
  };
  return {view(p.emission), view(p.start), view(p.end)};
}

/// Of the gold segments, from the posterior of frames (T, C).
std::vector<double> gold_means(const Sequence& sequence, const std::vector<float>& label,
                               std::int64_t classes) {
  std::vector<double> means;
  for (const FrameSegment& gold : sequence.segments)
    means.push_back(mean_over(
        gold, [&](std::int64_t t) { return double{label[at(t * classes + gold.label)]}; }));
  return means;
}

}  // namespace

void Decoder::State::decode_frames(const std::vector<Sequence>& sequences, const Batch& batch,
                                   const Tensor& log_p, const Options& options,
                                   std::vector<Decoded>& out) const {
  const std::int64_t row_size = log_p.shape()[1] * config.classes;
  for (std::size_t row = 0; row < batch.rows.size(); ++row) {
    const std::int64_t length = batch.lengths.span<std::int64_t>()[row];
    const Sequence& sequence = sequences[at(batch.rows[row])];
    const float* scores = log_p.span<float>().data() + static_cast<std::int64_t>(row) * row_size;
    Decoded& result = out[at(batch.rows[row])];
    FramePosterior frames(config.classes, frames_into(result, length, config.classes, true));
    frames.push({length, scores, nullptr, nullptr});
    result.segments = frames.finish();
    for (const FrameSegment& gold : sequence.segments)
      result.gold.push_back(mean_over(gold, [&](std::int64_t t) {
        return std::exp(double{scores[t * config.classes + gold.label]});
      }));
    if (!options.frame_posteriors) result.label.clear();
  }
}

/// Of each row with its path; a row's result does not depend on its company.
void Decoder::State::add_posteriors(const std::vector<Sequence>& sequences, const Batch& batch,
                                    const semicrf::Potentials<float>& p, const Options& options,
                                    std::vector<double>& log_z, std::vector<Decoded>& out) {
  const bool semi = config.head == HeadKind::kSemiMarkov;
  const std::int64_t classes = config.classes;
  pool_of(context).run(std::ssize(batch.rows), [&](std::int64_t row) {
    Decoded& result = out[at(batch.rows[at(row)])];
    const Sequence& sequence = sequences[at(batch.rows[at(row)])];
    const std::int64_t length = sequence.frames();
    if (length == 0) return;
    semicrf::Segmentations path;
    for (const DecodedSegment& d : result.segments)
      path.append(d.segment.start, d.segment.duration, d.segment.label);
    path.end_row();
    semicrf::View<const std::uint8_t, 1> starts;
    if (!sequence.known.starts.empty()) starts = sequence.known.starts;
    PathPosterior posterior(p, semi, options.tolerance_frames,
                            std::min(options.block_frames, length), nullptr, starts);
    posterior.push(frames_of(p, row, 0, length));
    const bool by_frame = options.frame_posteriors || !sequence.segments.empty();
    FrameVisitor visit;
    if (by_frame) visit = frames_into(result, length, classes, semi);
    const PathPosterior::Reader read = [&](std::int64_t first, std::int64_t n) {
      return frames_of(p, row, first, n);
    };
    posterior.describe(path.view(), read, visit, result);
    log_z[at(row)] = posterior.log_partition();
    if (by_frame) result.gold = gold_means(sequence, result.label, classes);
    if (!options.frame_posteriors) result.label.clear();
  });
  if (!semi || !options.durations) return;
  const std::int64_t k = config.max_duration;
  const std::int64_t rows = std::ssize(batch.rows);
  Tensor expected = Tensor::zeros(DType::kF32, {rows, k, classes});
  semicrf::Posteriors<float> posteriors;
  posteriors.duration = {expected.span<float>().data(), {rows, k, classes}};
  const KnownStarts known(sequences, batch.rows, p.emission.extent(1));
  if (known.empty())
    engine.posteriors(p, posteriors);
  else
    inference.posteriors(p, known.scope(), posteriors);
  for (std::size_t row = 0; row < batch.rows.size(); ++row) {
    const auto counts = expected.span<float>().subspan(row * at(k * classes), at(k * classes));
    out[at(batch.rows[row])].duration.assign(counts.begin(), counts.end());
  }
}

void Decoder::State::decode_crf(const std::vector<Sequence>& sequences, const Batch& batch,
                                const std::vector<Tensor>& scores, const Options& options,
                                std::vector<Decoded>& out) {
  const semicrf::Potentials<float> p = potentials(scores, batch);
  semicrf::Segmentations best;
  std::vector<double> score(batch.rows.size());
  const KnownStarts known(sequences, batch.rows, p.emission.extent(1));
  if (options.minimum_risk) {
    inference.minimum_risk(p, known.scope(), options.tolerance_frames, best);
    engine.score(p, best, semicrf::View<double, 1>(score));
  } else if (!known.empty()) {
    best_paths(inference, p, known.scope(), best, score);
  } else {
    engine.viterbi(p, best, {semicrf::View<double, 1>(score), {}});
  }
  const bool semi = config.head == HeadKind::kSemiMarkov;
  for (std::size_t row = 0; row < batch.rows.size(); ++row) {
    // Scores of epochs come without posteriors, and count such recordings as wrong.
    if (options.posteriors && std::isinf(score[row]))
      refuse_recording(sequences[at(batch.rows[row])].id, sequences[at(batch.rows[row])].known);
    Decoded& decoded = out[at(batch.rows[row])];
    const std::vector<FrameSegment> segments =
        frame_segments(best, best.row_pointer[row], best.row_pointer[row + 1], semi);
    for (const FrameSegment& segment : segments) decoded.segments.push_back({segment, 0, 0, 0});
    decoded.log_probability = score[row];
  }
  if (!options.posteriors) return;
  std::vector<double> log_z(batch.rows.size());
  add_posteriors(sequences, batch, p, options, log_z, out);
  add_alternatives(sequences, batch, p, log_z, options, out);
}

/// Row by row, so that the draws of a sequence do not depend on its company.
void Decoder::State::add_alternatives(const std::vector<Sequence>& sequences, const Batch& batch,
                                      const semicrf::Potentials<float>& p,
                                      const std::vector<double>& log_z, const Options& options,
                                      std::vector<Decoded>& out) {
  const bool semi = config.head == HeadKind::kSemiMarkov;
  const auto lengths = batch.lengths.span<std::int64_t>();
  for (std::size_t row = 0; row < batch.rows.size(); ++row) {
    Decoded& decoded = out[at(batch.rows[row])];
    const semicrf::Potentials<float> one = row_of(p, static_cast<std::int64_t>(row), &lengths[row]);
    const KnownStarts known(sequences, std::span(batch.rows).subspan(row, 1), p.emission.extent(1));
    semicrf::SegmentationLists lists;
    if (options.k_best > 0) {
      inference.k_best(one, known.scope(), options.k_best, lists);
      decoded.best = alternatives_of(lists, log_z[row], semi);
    }
    if (options.samples > 0) {
      inference.sample(one, known.scope(), options.samples, options.seed, lists);
      decoded.samples = alternatives_of(lists, log_z[row], semi);
    }
  }
}

/// Of the softmax head scores are log-probabilities, and a label that is known has all of it.
void Decoder::State::hold_labels(const std::vector<Sequence>& sequences, const Batch& batch,
                                 Tensor& scores) const {
  const std::int64_t classes = config.classes;
  bool own = false;
  for (std::size_t row = 0; row < batch.rows.size(); ++row) {
    const std::vector<std::int32_t>& label = sequences[at(batch.rows[row])].known.label;
    if (label.empty()) continue;
    if (!std::exchange(own, true)) scores = scores.clone();
    float* frames = scores.span<float>().data() + row * at(scores.shape()[1] * classes);
    for (std::size_t t = 0; t < label.size(); ++t)
      for (std::int64_t c = 0; label[t] >= 0 && c < classes; ++c)
        if (float& score = frames[at(classes) * t + at(c)]; c != label[t])
          score = -std::numeric_limits<float>::infinity();
        else if (config.head == HeadKind::kSoftmax)
          score = 0;
  }
}

/// Puts the pieces of segments that are longer than K together.
void Decoder::State::join(Decoded& decoded, const Known& known) const {
  const std::vector<std::int64_t> longest = limits_of(limits.duration);
  const auto is_start = [&](const FrameSegment& piece) {
    return !known.starts.empty() && known.starts[at(piece.start)] != 0;
  };
  const auto joined = [&](const std::vector<FrameSegment>& pieces) {
    std::vector<FrameSegment> all;
    for (auto first = pieces.begin(); first != pieces.end();) {
      const auto end = std::find_if(first + 1, pieces.end(), is_start);
      const auto some = join_pieces({first, end}, config.joins_neighbours, longest);
      all.insert(all.end(), some.begin(), some.end());
      first = end;
    }
    return all;
  };
  std::vector<FrameSegment> pieces;
  for (const DecodedSegment& piece : decoded.segments) pieces.push_back(piece.segment);
  std::vector<DecodedSegment> whole;
  auto piece = decoded.segments.begin();
  for (const FrameSegment& segment : joined(pieces)) {
    DecodedSegment one = *piece;
    const bool single = one.segment == segment;
    double sum = 0;
    for (;
         piece != decoded.segments.end() && piece->segment.start < segment.start + segment.duration;
         ++piece)
      sum += piece->label_posterior * static_cast<double>(piece->segment.duration);
    one.segment = segment;
    if (!single) one.posterior = one.label_posterior = sum / static_cast<double>(segment.duration);
    whole.push_back(one);
  }
  decoded.segments = std::move(whole);
  for (auto* list : {&decoded.best, &decoded.samples})
    for (Alternative& alternative : *list) alternative.segments = joined(alternative.segments);
}

}  // namespace segfuse::learn
