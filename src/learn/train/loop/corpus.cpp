#include "learn/train/loop/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/thread_pool.h"
#include "learn/data/feature_store.h"
#include "learn/data/features/augmentation.h"
#include "learn/model/given_encoder.h"
#include "learn/train/loop/bound_inputs.h"

namespace segfuse::learn {
namespace {

void fill_row(Batch& batch, std::int64_t row, const Sequence& sequence, bool every_frame,
              std::int64_t time) {
  const std::int64_t width = sequence.features.shape()[1];
  std::memcpy(batch.features.span<float>().data() + row * time * width, sequence.features.data(),
              sequence.features.bytes());
  const auto labels =
      batch.labels.span<std::int32_t>().subspan(static_cast<std::size_t>(row * time));
  const auto starts =
      batch.segment_start.span<std::uint8_t>().subspan(static_cast<std::size_t>(row * time));
  for (const FrameSegment& segment : sequence.segments) {
    for (std::int64_t t = segment.start; t < segment.start + segment.duration; ++t) {
      const auto at = static_cast<std::size_t>(t);
      labels[at] = segment.label;
      starts[at] = every_frame || t == segment.start;
    }
  }
  batch.lengths.span<std::int64_t>()[static_cast<std::size_t>(row)] = sequence.frames();
  batch.segments += static_cast<std::int64_t>(sequence.segments.size());
}

void check_length(const Sequence& sequence, const ModelConfig& model) {
  if (!model.given) return;
  const std::int64_t most = model.given->encoder().most_steps * model.subsample;
  if (most > 0 && sequence.frames() > most)
    throw DataError(fmt::format("{}: {} frames; the encoder takes at most {}", sequence.id,
                                sequence.frames(), most));
}

}  // namespace

std::vector<FrameSegment> split_long(const std::vector<FrameSegment>& segments,
                                     const std::vector<std::int64_t>& limits, bool full,
                                     const std::vector<std::int64_t>& shortest) {
  std::vector<FrameSegment> parts;
  for (const FrameSegment& segment : segments) {
    if (segment.label == kUnknownLabel) {
      parts.push_back(segment);
      continue;
    }
    const std::int64_t max_duration = limits[static_cast<std::size_t>(segment.label)];
    const std::int64_t least =
        shortest.empty() ? 1 : shortest[static_cast<std::size_t>(segment.label)];
    const std::int64_t count = (segment.duration + max_duration - 1) / max_duration;
    std::int64_t start = segment.start;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t even = segment.duration / count + (i < segment.duration % count ? 1 : 0);
      const std::int64_t left = segment.start + segment.duration - start;
      std::int64_t length = full ? std::min(max_duration, left) : even;
      if (full && left > length && left - length < least) length = left - least;
      parts.push_back({start, length, segment.label});
      start += length;
    }
  }
  return parts;
}

void PieceJoiner::push(const FrameSegment& piece, std::vector<FrameSegment>& whole) {
  if (open_ && open_->label == piece.label) {
    open_->duration += piece.duration;
  } else {
    finish(whole);
    open_ = piece;
  }
  const auto label = static_cast<std::size_t>(piece.label);
  if (!joins_[label] && piece.duration < limits_[label]) finish(whole);
}

void PieceJoiner::finish(std::vector<FrameSegment>& whole) {
  if (open_) whole.push_back(*open_);
  open_.reset();
}

std::vector<FrameSegment> join_pieces(const std::vector<FrameSegment>& segments,
                                      const std::vector<bool>& joins,
                                      const std::vector<std::int64_t>& limits) {
  std::vector<FrameSegment> whole;
  PieceJoiner joiner(joins, limits);
  for (const FrameSegment& piece : segments) joiner.push(piece, whole);
  joiner.finish(whole);
  return whole;
}

std::vector<FrameSegment> runs_of(const std::vector<std::int32_t>& labels) {
  std::vector<FrameSegment> result;
  for (std::size_t t = 0; t < labels.size(); ++t) {
    if (t > 0 && labels[t] == labels[t - 1]) {
      ++result.back().duration;
    } else {
      result.push_back({static_cast<std::int64_t>(t), 1, labels[t]});
    }
  }
  return result;
}

std::vector<Sequence> pieces_of(const std::vector<Sequence>& sequences, std::int64_t frames) {
  std::vector<Sequence> pieces;
  for (const Sequence& whole : sequences) {
    for (std::int64_t at = 0; whole.frames() >= frames && at < whole.frames(); at += frames) {
      const std::int64_t first = std::min(at, whole.frames() - frames);
      Sequence piece{
          fmt::format("{}@{}", whole.id, first), data::rows_of(whole.features, first, frames), {}};
      for (const FrameSegment& segment : whole.segments) {
        const std::int64_t begin = std::max(segment.start, first);
        const std::int64_t end = std::min(segment.start + segment.duration, first + frames);
        if (begin < end) piece.segments.push_back({begin - first, end - begin, segment.label});
      }
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

Batch make_batch(const std::vector<Sequence>& sequences, const std::vector<std::int64_t>& rows,
                 const ModelConfig& model, std::int64_t round) {
  std::int64_t longest = 1;
  for (const std::int64_t row : rows) {
    check_length(sequences[static_cast<std::size_t>(row)], model);
    longest = std::max(longest, sequences[static_cast<std::size_t>(row)].frames());
  }
  const std::int64_t unit = std::lcm(round, model.subsample);
  const std::int64_t time = (longest + unit - 1) / unit * unit;
  const auto count = static_cast<std::int64_t>(rows.size());
  Batch batch{rows,
              Tensor::zeros(DType::kF32, {count, time, model.features}),
              Tensor::zeros(DType::kI64, {count}),
              Tensor::zeros(DType::kI32, {count, time}),
              Tensor::zeros(DType::kBool, {count, time}),
              0};
  const bool every_frame = model.head == HeadKind::kLinearChain;
  for (std::int64_t row = 0; row < count; ++row)
    fill_row(batch, row, sequences[static_cast<std::size_t>(rows[static_cast<std::size_t>(row)])],
             every_frame, time);
  return batch;
}

std::shared_ptr<const data::Augmenter> augmenter_of(const Augmentation& augmentation,
                                                    const FeatureConfig& features,
                                                    const Normalisation& normalisation,
                                                    std::uint64_t seed) {
  if (!augmentation.any()) return nullptr;
  return std::make_shared<const data::Augmenter>(augmentation, features, normalisation, seed);
}

void augment(Batch& batch, const data::Augmenter& augmenter, std::int64_t epoch, ThreadPool& pool) {
  const Shape& shape = batch.features.shape();
  const std::int64_t columns = shape[2];
  const std::span<float> all = batch.features.span<float>();
  pool.run(shape[0], [&](std::int64_t row) {
    const auto at = static_cast<std::size_t>(row);
    const std::int64_t frames = batch.lengths.span<std::int64_t>()[at];
    augmenter.apply(all.subspan(at * static_cast<std::size_t>(shape[1] * columns),
                                static_cast<std::size_t>(frames * columns)),
                    epoch, batch.rows[at]);
  });
}

void bind_batch(BoundInputs& inputs, const Batch& batch, const ShardPlace& place) {
  inputs.set("features", batch.features);
  inputs.set("lengths", batch.lengths);
  inputs.set("labels", batch.labels);
  if (inputs.has("segment_start")) inputs.set("segment_start", batch.segment_start);
  inputs.set("scale",
             Tensor::full(DType::kF32, {},
                          1 / static_cast<double>(std::max<std::int64_t>(place.segments, 1))));
  inputs.set("seed", Tensor::from(std::vector<std::int64_t>{static_cast<std::int64_t>(place.seed),
                                                            place.number},
                                  {2}));
}

LabelStatistics count_labels(const std::vector<Sequence>& sequences, std::int64_t classes,
                             std::int64_t max_duration) {
  const auto c = static_cast<std::size_t>(classes);
  LabelStatistics counts;
  counts.initial.assign(c, 0);
  counts.final.assign(c, 0);
  counts.longest.assign(c, 0);
  counts.transition.assign(c, std::vector<double>(c, 0));
  counts.duration.assign(static_cast<std::size_t>(max_duration), std::vector<double>(c, 0));
  for (const Sequence& sequence : sequences) {
    const std::vector<FrameSegment>& segments = sequence.segments;
    if (segments.empty()) continue;
    auto label = [&](std::size_t i) { return static_cast<std::size_t>(segments[i].label); };
    counts.initial[label(0)] += 1;
    counts.final[label(segments.size() - 1)] += 1;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      counts.longest[label(i)] = std::max(counts.longest[label(i)], segments[i].duration);
      if (i > 0) counts.transition[label(i - 1)][label(i)] += 1;
      counts.duration[static_cast<std::size_t>(std::min(segments[i].duration, max_duration) - 1)]
                     [label(i)] += 1;
    }
  }
  return counts;
}

}  // namespace segfuse::learn
