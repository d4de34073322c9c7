// Decoding of recordings that are held: paths, posteriors and alternatives from the scores of a
// batch.

#include <algorithm>
#include <cmath>
#include <limits>

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
    PathPosterior posterior(p, semi, options.tolerance_frames,
                            std::min(options.block_frames, length));
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
  engine.posteriors(p, posteriors);
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
  if (options.minimum_risk) {
    inference.minimum_risk(p, {}, options.tolerance_frames, best);
    engine.score(p, best, semicrf::View<double, 1>(score));
  } else {
    engine.viterbi(p, best, {semicrf::View<double, 1>(score), {}});
  }
  const bool semi = config.head == HeadKind::kSemiMarkov;
  for (std::size_t row = 0; row < batch.rows.size(); ++row) {
    // Scores of epochs come without posteriors, and count such recordings as wrong.
    if (options.posteriors && std::isinf(score[row]))
      refuse_recording(sequences[at(batch.rows[row])].id);
    Decoded& decoded = out[at(batch.rows[row])];
    const std::vector<FrameSegment> segments =
        frame_segments(best, best.row_pointer[row], best.row_pointer[row + 1], semi);
    for (const FrameSegment& segment : segments) decoded.segments.push_back({segment, 0, 0, 0});
    decoded.log_probability = score[row];
  }
  if (!options.posteriors) return;
  std::vector<double> log_z(batch.rows.size());
  add_posteriors(sequences, batch, p, options, log_z, out);
  add_alternatives(batch, p, log_z, options, out);
}

/// Row by row, so that the draws of a sequence do not depend on its company.
void Decoder::State::add_alternatives(const Batch& batch, const semicrf::Potentials<float>& p,
                                      const std::vector<double>& log_z, const Options& options,
                                      std::vector<Decoded>& out) {
  const bool semi = config.head == HeadKind::kSemiMarkov;
  const auto lengths = batch.lengths.span<std::int64_t>();
  for (std::size_t row = 0; row < batch.rows.size(); ++row) {
    Decoded& decoded = out[at(batch.rows[row])];
    const semicrf::Potentials<float> one = row_of(p, static_cast<std::int64_t>(row), &lengths[row]);
    semicrf::SegmentationLists lists;
    if (options.k_best > 0) {
      inference.k_best(one, {}, options.k_best, lists);
      decoded.best = alternatives_of(lists, log_z[row], semi);
    }
    if (options.samples > 0) {
      inference.sample(one, {}, options.samples, options.seed, lists);
      decoded.samples = alternatives_of(lists, log_z[row], semi);
    }
  }
}

/// Puts the pieces of segments that are longer than K together.
void Decoder::State::join(Decoded& decoded) const {
  const std::vector<std::int64_t> longest = limits_of(limits.duration);
  const auto joined = [&](const std::vector<FrameSegment>& pieces) {
    return join_pieces(pieces, config.joins_neighbours, longest);
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
