#include "learn/train/decode/decoder.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/context/pool.h"
#include "engine/device/accelerator.h"
#include "learn/train/decode/decoder_state.h"
#include "segfuse/error.h"
#include "segfuse/semicrf.h"
#include "segfuse/semicrf/orders.h"
#include "segfuse/semicrf_tools.h"

namespace segfuse::learn {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

semicrf::View<const float, 3> view3(const Tensor& t) {
  return {t.span<float>().data(), {t.shape()[0], t.shape()[1], t.shape()[2]}};
}

/// Rows sorted by length, cut into batches of at most `frames` with padding; 0: of one row.
std::vector<std::vector<std::int64_t>> batches_by_length(const std::vector<Sequence>& sequences,
                                                         std::int64_t frames) {
  std::vector<std::int64_t> order(sequences.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return sequences[at(a)].frames() < sequences[at(b)].frames();
  });
  std::vector<std::vector<std::int64_t>> batches;
  for (const std::int64_t row : order) {
    const std::int64_t longest = sequences[at(row)].frames();
    if (batches.empty() || frames == 0 ||
        static_cast<std::int64_t>(batches.back().size() + 1) * longest > frames)
      batches.emplace_back();
    batches.back().push_back(row);
  }
  return batches;
}

/// DataError that names the recording whose scores (B, T, C) are not finite, and what it is like.
void check_scores(const std::vector<Sequence>& sequences, const Batch& batch, const Tensor& scores,
                  const std::string& source) {
  const std::int64_t classes = scores.shape()[2];
  for (std::size_t row = 0; row < batch.rows.size(); ++row) {
    const Sequence& sequence = sequences[at(batch.rows[row])];
    const auto values = scores.span<float>().subspan(row * at(scores.shape()[1] * classes),
                                                     at(sequence.frames() * classes));
    const auto bad = first_not_finite(values);
    if (bad == values.end()) continue;
    const auto features = std::as_const(sequence.features).span<float>();
    refuse_score(source, sequence.id, classes,
                 {at(bad - values.begin()), *bad, largest_size(features)});
  }
}

/// What the model learnt, and what it may not do.
Tensor sum_of(const Tensor& learned, const Tensor& limit) {
  Tensor sum = Tensor::zeros(DType::kF32, learned.shape());
  const auto values = sum.span<float>();
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = learned.span<float>()[i] + limit.span<float>()[i];
  return sum;
}

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

}  // namespace

std::span<const float>::iterator first_not_finite(std::span<const float> values) {
  return std::ranges::find_if_not(values, [](float value) { return std::isfinite(value); });
}

float largest_size(std::span<const float> values, float largest) {
  for (const float value : values)
    if (!(std::abs(value) <= largest)) largest = std::abs(value);
  return largest;
}

void refuse_score(const std::string& source, const std::string& id, std::int64_t classes,
                  const BadScore& bad) {
  constexpr float kUsual = 1e6F;  // no weights that a training finds make infinities of it
  const std::string score = fmt::format("score of frame {} and label {}", bad.index / at(classes),
                                        bad.index % at(classes));
  const std::string features = fmt::format(
      "the largest of the recording's features is {:g} times the training set's deviation",
      bad.largest);
  if (!source.empty() && bad.largest < kUsual)
    throw DataError(fmt::format(
        "{}: its {} of {} is {}, and {}; the training diverged or the model's file is damaged",
        source, score, id, bad.value, features));
  throw DataError(fmt::format("{}: the network's {} is {}; {}{}", id, score, bad.value, features,
                              source.empty() ? "" : fmt::format(" of the model {}", source)));
}

void refuse_recording(const std::string& id) {
  throw DataError(fmt::format(
      "{}: the model's durations and grammar allow no segmentation of this recording", id));
}

std::vector<std::int64_t> limits_of(const Tensor& table) {
  const auto values = table.span<float>();
  const auto classes = static_cast<std::size_t>(table.shape()[1]);
  std::vector<std::int64_t> limits(classes, 0);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] == 0) limits[i % classes] = static_cast<std::int64_t>(i / classes) + 1;
  return limits;
}

Decoder::State::State(const Segmenter& model, std::vector<Tensor> values, Limits limit,
                      const engine::ExecutableOptions& execution, std::string file)
    : config(model.config()),
      source(std::move(file)),
      context(execution.context),
      accelerator(execution.accelerator),
      forward(model.inference(), pool_of(execution.context), execution),
      inputs(forward.fusion()),
      engine(execution.context),
      inference(execution.context),
      limits(std::move(limit)) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string& name = model.parameters()[i].name;
    if (inputs.has(name)) inputs.set(name, values[i]);
    parameters.emplace(name, values[i]);
  }
  for (const auto& [name, value] : model.constants()) {
    if (inputs.has(name)) inputs.set(name, value);
    parameters.emplace(name, value);
  }
}

void Decoder::State::refresh() {
  if (!accelerator) return;
  for (const auto& [name, value] : parameters)
    if (inputs.has(name)) inputs.set(name, accelerator->upload(value, "parameters"));
}

void Decoder::State::for_batches(const std::vector<Sequence>& sequences, std::int64_t frames,
                                 BatchShare share, const std::function<void(const Batch&)>& work) {
  refresh();
  at_batch = -1;
  for (const auto& rows : batches_by_length(sequences, config.given ? 0 : frames))
    if (share.has(++at_batch)) work(make_batch(sequences, rows, config));
}

std::vector<Tensor> Decoder::State::scores(const std::vector<Sequence>& sequences,
                                           const Batch& batch) {
  if (!accelerator) check_attention(config, sequences, batch);
  std::vector<Tensor> results = run(batch.features, batch.lengths);
  for (const Tensor& result : results) check_scores(sequences, batch, result, source);
  return results;
}

semicrf::Potentials<float> Decoder::State::shared() {
  semicrf::Potentials<float> p;
  const auto vector = [&](const char* name) -> semicrf::View<const float, 1> {
    return std::span<const float>(std::as_const(parameters.at(name)).span<float>());
  };
  p.transition = view3(parameters.at("crf.transition"));
  p.initial = vector("crf.initial");
  p.final = vector("crf.final");
  if (!limits.order.empty()) {
    ordered.transition = sum_of(parameters.at("crf.transition"), limits.order.transition);
    ordered.initial = sum_of(parameters.at("crf.initial"), limits.order.initial);
    ordered.final = sum_of(parameters.at("crf.final"), limits.order.final);
    p.transition = view3(ordered.transition);
    p.initial = std::as_const(ordered.initial).span<float>();
    p.final = std::as_const(ordered.final).span<float>();
  }
  const bool semi = config.head == HeadKind::kSemiMarkov;
  const std::int64_t k = semi ? config.max_duration : 1;
  duration = semi ? sum_of(parameters.at("crf.duration"), limits.duration)
                  : Tensor::zeros(DType::kF32, {k, config.classes});
  p.duration = {duration.span<float>().data(), {k, config.classes}};
  return p;
}

semicrf::Potentials<float> Decoder::State::independent() {
  semicrf::Potentials<float> p;
  ordered.transition = Tensor::zeros(DType::kF32, {1, config.classes, config.classes});
  p.transition = view3(ordered.transition);
  duration = Tensor::zeros(DType::kF32, {1, config.classes});
  p.duration = {duration.span<float>().data(), {1, config.classes}};
  return p;
}

semicrf::Potentials<float> Decoder::State::potentials(const std::vector<Tensor>& scores,
                                                      const Batch& batch) {
  semicrf::Potentials<float> p = config.head == HeadKind::kSoftmax ? independent() : shared();
  p.emission = view3(scores[0]);
  if (scores.size() > 1) {
    p.start = view3(scores[1]);
    p.end = view3(scores[2]);
  }
  p.lengths =
      semicrf::View<const std::int64_t, 1>(std::as_const(batch.lengths).span<std::int64_t>());
  return p;
}

Decoder::Decoder(const Segmenter& segmenter, std::vector<Tensor> parameters, Limits limits,
                 const engine::ExecutableOptions& execution, std::string source)
    : state_(std::make_unique<State>(segmenter, std::move(parameters), std::move(limits), execution,
                                     std::move(source))) {}
Decoder::~Decoder() = default;

/// The softmax head: frames are independent, so P(boundary at t) = 1 - sum_c p_{t-1}(c) p_t(c).
void Decoder::State::decode_frames(const std::vector<Sequence>& sequences, const Batch& batch,
                                   const Tensor& log_p, const Options& options,
                                   std::vector<Decoded>& out) const {
  const std::int64_t time = log_p.shape()[1];
  const std::int64_t classes = log_p.shape()[2];
  const auto values = log_p.span<float>();
  for (std::size_t row = 0; row < batch.rows.size(); ++row) {
    const std::int64_t length = batch.lengths.span<std::int64_t>()[row];
    const auto scores_tc = values.subspan(row * at(time * classes), at(time * classes));
    std::vector<std::int32_t> labels(at(length));
    Decoded& result = out[at(batch.rows[row])];
    for (std::int64_t i = 0; options.frame_posteriors && i < length * classes; ++i)
      result.label.push_back(std::exp(scores_tc[at(i)]));
    result.boundary.assign(at(length), 1);
    for (std::int64_t t = 0; t < length; ++t) {
      const auto frame = scores_tc.subspan(at(t * classes), at(classes));
      labels[at(t)] =
          static_cast<std::int32_t>(std::max_element(frame.begin(), frame.end()) - frame.begin());
      if (t == 0) continue;
      double stay = 0;
      for (std::size_t c = 0; c < frame.size(); ++c)
        stay += std::exp(double{frame[c]} + scores_tc[at((t - 1) * classes) + c]);
      result.boundary[at(t)] = static_cast<float>(std::max(0.0, 1 - stay));
    }
    const auto mean_of = [&](const FrameSegment& segment) {
      return mean_over(segment, [&](std::int64_t t) {
        return std::exp(double{scores_tc[at(t * classes + segment.label)]});
      });
    };
    for (const FrameSegment& segment : runs_of(labels)) {
      const double mean = mean_of(segment);
      result.segments.push_back({segment, mean, mean, 1});
    }
    for (const FrameSegment& gold : sequences[at(batch.rows[row])].segments)
      result.gold.push_back(mean_of(gold));
  }
}

void Decoder::State::add_posteriors(const std::vector<Sequence>& sequences, const Batch& batch,
                                    const semicrf::Potentials<float>& p,
                                    const semicrf::Segmentations& best, const Options& options,
                                    std::vector<Decoded>& out) {
  const auto& shape = p.emission.extents();
  const bool semi = config.head == HeadKind::kSemiMarkov;
  Tensor label = Tensor::zeros(DType::kF32, {shape[0], shape[1], shape[2]});
  Tensor boundary = Tensor::zeros(DType::kF32, {shape[0], shape[1]});
  const std::int64_t k = p.duration.extent(0);
  Tensor expected = Tensor::zeros(DType::kF32, {shape[0], k, shape[2]});
  semicrf::Posteriors<float> posteriors;
  posteriors.label = {label.span<float>().data(), shape};
  if (semi) {
    posteriors.boundary = {boundary.span<float>().data(), {shape[0], shape[1]}};
    posteriors.duration = {expected.span<float>().data(), {shape[0], k, shape[2]}};
  }
  engine.posteriors(p, posteriors);
  Tensor within = Tensor::zeros(DType::kF32, {shape[0], shape[1]});
  if (semi)
    inference.boundary_within(
        p, {}, options.tolerance_frames,
        semicrf::View<float, 2>(within.span<float>().data(), {shape[0], shape[1]}));
  std::vector<double> exact(at(best.segments()));
  if (semi) engine.segment_posteriors<float>(p, best, semicrf::View<double, 1>(exact));

  for (std::size_t row = 0; row < batch.rows.size(); ++row) {
    Decoded& result = out[at(batch.rows[row])];
    const std::int64_t length = batch.lengths.span<std::int64_t>()[row];
    const float* label_tc =
        posteriors.label.data() + static_cast<std::int64_t>(row) * shape[1] * shape[2];
    if (options.frame_posteriors) result.label.assign(label_tc, label_tc + length * shape[2]);
    const float* boundary_t =
        boundary.span<float>().data() + static_cast<std::int64_t>(row) * shape[1];
    if (semi) {
      result.boundary.assign(boundary_t, boundary_t + length);
      const auto counts = expected.span<float>().subspan(row * at(k * shape[2]), at(k * shape[2]));
      result.duration.assign(counts.begin(), counts.end());
    }
    const auto mean_of = [&](const FrameSegment& s) {
      return mean_over(s, [&](std::int64_t t) { return double{label_tc[t * shape[2] + s.label]}; });
    };
    for (const FrameSegment& gold : sequences[at(batch.rows[row])].segments)
      result.gold.push_back(mean_of(gold));
    std::size_t index = at(best.row_pointer[row]);
    for (DecodedSegment& decoded : result.segments) {
      const FrameSegment& s = decoded.segment;
      decoded.label_posterior = mean_of(s);
      decoded.posterior = semi ? exact[index++] : decoded.label_posterior;
      decoded.start_confidence = kNaN;
      if (semi) decoded.start_confidence = within.span<float>()[row * at(shape[1]) + at(s.start)];
    }
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
  engine.log_partition<float>(p, {semicrf::View<double, 1>(log_z), {}});
  for (std::size_t row = 0; row < batch.rows.size(); ++row)
    out[at(batch.rows[row])].log_probability -= log_z[row];
  add_posteriors(sequences, batch, p, best, options, out);
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

std::vector<std::pair<std::int64_t, Decoded>> Decoder::decode_share(
    const std::vector<Sequence>& sequences, const Options& options, BatchShare share) {
  const HeadKind head = state_->config.head;
  if (options.minimum_risk && head != HeadKind::kSemiMarkov)
    throw UsageError("a decoder of least risk needs a semi-Markov head; this model has none");
  if ((options.k_best > 0 || options.samples > 0) && head == HeadKind::kSoftmax)
    throw UsageError("alternative segmentations need a CRF head; this model has a softmax");
  std::vector<Decoded> results(sequences.size());
  std::vector<std::pair<std::int64_t, Decoded>> own;
  state_->for_batches(sequences, options.batch_frames, share, [&](const Batch& batch) {
    const std::vector<Tensor> scores = state_->scores(sequences, batch);
    if (head == HeadKind::kSoftmax) {
      state_->decode_frames(sequences, batch, scores[0], options, results);
    } else {
      state_->decode_crf(sequences, batch, scores, options, results);
    }
    for (const std::int64_t row : batch.rows) {
      Decoded& result = results[at(row)];
      if (!state_->config.joins_neighbours.empty() && head == HeadKind::kSemiMarkov)
        state_->join(result);
      own.emplace_back(row, std::move(result));
    }
  });
  return own;
}

std::vector<Decoded> Decoder::decode(const std::vector<Sequence>& sequences,
                                     const Options& options) {
  std::vector<Decoded> results(sequences.size());
  for (auto& [row, decoded] : decode_share(sequences, options, {}))
    results[at(row)] = std::move(decoded);
  return results;
}

std::vector<Decoded> Decoder::align(const std::vector<Sequence>& sequences,
                                    const std::vector<semicrf::LabelOrders>& orders,
                                    const std::vector<semicrf::PieceRule>& pieces,
                                    std::int64_t batch_frames) {
  semicrf::AlignOptions options;
  options.pieces = pieces;
  std::vector<Decoded> results(sequences.size());
  state_->for_batches(sequences, batch_frames, {}, [&](const Batch& batch) {
    const std::vector<Tensor> scores = state_->scores(sequences, batch);
    std::vector<semicrf::LabelOrders> of_rows;
    for (const std::int64_t row : batch.rows) of_rows.push_back(orders[at(row)]);
    const std::vector<semicrf::Alignment> found =
        semicrf::align(state_->context, state_->potentials(scores, batch),
                       std::span<const semicrf::LabelOrders>(of_rows), options);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const semicrf::Alignment& alignment = found[i];
      if (alignment.status != semicrf::RowStatus::kOk)
        throw DataError(
            "the model's durations and grammar allow no segmentation with labels in this order");
      Decoded& result = results[at(batch.rows[i])];
      result.log_probability = alignment.score - alignment.log_partition;
      for (const semicrf::AlignedSegment& s : alignment.segments)
        result.segments.push_back(
            {{s.start, s.duration, s.label}, s.posterior, s.label_posterior, kNaN});
    }
  });
  return results;
}

std::int64_t Decoder::batch() const { return state_->at_batch; }

namespace {

semicrf::Segmentations gold_of(const std::vector<Sequence>& sequences, const Batch& batch,
                               bool every_frame) {
  semicrf::Segmentations gold;
  for (const std::int64_t row : batch.rows) {
    for (const FrameSegment& s : sequences[at(row)].segments) {
      if (!every_frame) {
        gold.append(s.start, s.duration, s.label);
        continue;
      }
      for (std::int64_t t = 0; t < s.duration; ++t) gold.append(s.start + t, 1, s.label);
    }
    gold.end_row();
  }
  return gold;
}

double frame_loss(const std::vector<Sequence>& sequences, const Batch& batch, const Tensor& log_p) {
  double sum = 0;
  const std::int64_t classes = log_p.shape()[2];
  for (std::size_t row = 0; row < batch.rows.size(); ++row)
    for (const FrameSegment& s : sequences[at(batch.rows[row])].segments)
      for (std::int64_t t = s.start; t < s.start + s.duration; ++t)
        sum -=
            log_p.span<float>()[row * at(log_p.shape()[1] * classes) + at(t * classes + s.label)];
  return sum;
}

}  // namespace

std::vector<BatchLosses> Decoder::loss_share(const std::vector<Sequence>& sequences,
                                             BatchShare share, std::int64_t batch_frames) {
  std::vector<BatchLosses> all;
  state_->for_batches(sequences, batch_frames, share, [&](const Batch& batch) {
    const std::vector<Tensor> scores = state_->scores(sequences, batch);
    BatchLosses& own = all.emplace_back(BatchLosses{state_->at_batch, {}});
    if (state_->config.head == HeadKind::kSoftmax) {
      own.losses = {frame_loss(sequences, batch, scores[0])};
      return;
    }
    own.losses.resize(batch.rows.size());
    semicrf::LossResult result;
    result.loss = semicrf::View<double, 1>(own.losses);
    const semicrf::Segmentations gold =
        gold_of(sequences, batch, state_->config.head == HeadKind::kLinearChain);
    state_->engine.loss(state_->potentials(scores, batch), gold, result);
  });
  return all;
}

double Decoder::loss(const std::vector<Sequence>& sequences, std::int64_t batch_frames) {
  return sum_of(loss_share(sequences, {}, batch_frames));
}

std::vector<std::vector<FrameSegment>> segments_of(const std::vector<Decoded>& decoded) {
  std::vector<std::vector<FrameSegment>> all;
  for (const Decoded& d : decoded) {
    all.emplace_back();
    for (const DecodedSegment& s : d.segments) all.back().push_back(s.segment);
  }
  return all;
}

double sum_of(std::vector<BatchLosses> all) {
  std::ranges::sort(all, {}, &BatchLosses::batch);
  double total = 0;
  for (const BatchLosses& batch : all)
    for (const double loss : batch.losses) total += loss;
  return total;
}

}  // namespace segfuse::learn
