#include "learn/train/decode/decoder.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/context/pool.h"
#include "base/sizes.h"
#include "engine/device/accelerator.h"
#include "learn/train/decode/decoder_state.h"
#include "segfuse/error.h"
#include "segfuse/semicrf.h"
#include "segfuse/semicrf_tools.h"

namespace segfuse::learn {
namespace {

semicrf::View<const float, 3> view3(const Tensor& t) {
  return {t.span<float>().data(), {t.shape()[0], t.shape()[1], t.shape()[2]}};
}

/// Rows sorted by length, cut into batches of at most `frames` with padding; 0: of one row. Rows
/// with known boundaries take other algorithms, and so batches of their own: no row's result
/// depends on what is known of another.
std::vector<std::vector<std::int64_t>> batches_by_length(const std::vector<Sequence>& sequences,
                                                         std::int64_t frames) {
  std::vector<std::int64_t> order(sequences.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    const Sequence& x = sequences[at(a)];
    const Sequence& y = sequences[at(b)];
    return std::pair(x.known.starts.empty(), x.frames()) <
           std::pair(y.known.starts.empty(), y.frames());
  });
  std::vector<std::vector<std::int64_t>> batches;
  for (const std::int64_t row : order) {
    const std::int64_t longest = sequences[at(row)].frames();
    if (batches.empty() || frames == 0 ||
        sequences[at(row)].known.starts.empty() !=
            sequences[at(batches.back().front())].known.starts.empty() ||
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

void refuse_recording(const std::string& id, const Known& known) {
  throw DataError(
      fmt::format("{}: the model's durations and grammar allow no segmentation of this recording{}",
                  id, known.empty() ? "" : " with what is known of it"));
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
      how(execution),
      forward(model.inference(), pool_of(execution.context), execution),
      inputs(forward.fusion()),
      engine(execution.context),
      inference(execution.context),
      limits(std::move(limit)) {
  for (std::size_t i = 0; i < values.size(); ++i)
    parameters.emplace(model.parameters()[i].name, values[i]);
  for (const auto& [name, value] : model.constants()) parameters.emplace(name, value);
  if (!accelerator) bind(inputs);
}

void Decoder::State::bind(BoundInputs& to) const {
  for (const auto& [name, value] : parameters)
    if (to.has(name)) to.set(name, accelerator ? accelerator->upload(value, "parameters") : value);
}

void Decoder::State::refresh() {
  if (!accelerator) return;
  bind(inputs);
  if (going_on) bind(going_on->inputs);
}

void Decoder::State::for_batches(const std::vector<Sequence>& sequences, std::int64_t frames,
                                 std::int64_t round, BatchShare share,
                                 const std::function<void(const Batch&)>& work) {
  refresh();
  at_batch = -1;
  for (const auto& rows : batches_by_length(sequences, config.given ? 0 : frames))
    if (share.has(++at_batch)) work(make_batch(sequences, rows, config, round));
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
  duration = semi ? sum_of(duration_scores(config, parameters.at("crf.duration")), limits.duration)
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

std::vector<std::pair<std::int64_t, Decoded>> Decoder::decode_share(
    const std::vector<Sequence>& sequences, const Options& options, BatchShare share) {
  const HeadKind head = state_->config.head;
  if (options.minimum_risk && head != HeadKind::kSemiMarkov)
    throw UsageError("decoding with least risk needs a semi-Markov head; this model has none");
  if ((options.k_best > 0 || options.samples > 0) && head == HeadKind::kSoftmax)
    throw UsageError("alternative segmentations need a CRF head; this model has a softmax");
  if (head != HeadKind::kSemiMarkov)
    for (const Sequence& sequence : sequences)
      if (!sequence.known.starts.empty())
        throw UsageError(
            "known boundaries need a semi-Markov head; segments of this model are runs of frames "
            "with one label");
  std::vector<Decoded> results(sequences.size());
  std::vector<std::pair<std::int64_t, Decoded>> own;
  state_->for_batches(sequences, options.batch_frames, 1, share, [&](const Batch& batch) {
    std::vector<Tensor> scores = state_->scores(sequences, batch);
    state_->hold_labels(sequences, batch, scores[0]);
    if (head == HeadKind::kSoftmax) {
      state_->decode_frames(sequences, batch, scores[0], options, results);
    } else {
      state_->decode_crf(sequences, batch, scores, options, results);
    }
    for (const std::int64_t row : batch.rows) {
      Decoded& result = results[at(row)];
      if (!state_->config.joins_neighbours.empty() && head == HeadKind::kSemiMarkov)
        state_->join(result, sequences[at(row)].known);
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
  state_->for_batches(sequences, batch_frames, 1, share, [&](const Batch& batch) {
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
