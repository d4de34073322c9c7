// Decoding of a recording that is not held: the network over pieces on a fixed grid, the best path
// as it is decided, and the posterior from behind, over scores that were kept.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/os/scratch_file.h"
#include "learn/train/decode/decoder_state.h"
#include "learn/train/live/piece_network.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Rows of numbers that are appended, and read again in ranges.
class RowStore {
 public:
  RowStore(std::int64_t width, const std::filesystem::path& scratch) : width_(width) {
    if (!scratch.empty()) file_.emplace(scratch);
  }
  void append(const std::vector<float>& rows) {
    if (file_)
      file_->append(std::as_bytes(std::span(rows)));
    else
      held_.insert(held_.end(), rows.begin(), rows.end());
  }
  /// Rows [first, first + n), until the next call.
  const float* read(std::int64_t first, std::int64_t n) {
    if (!file_) return held_.data() + first * width_;
    held_.resize(at(n * width_));
    file_->read(at(first * width_) * sizeof(float), std::as_writable_bytes(std::span(held_)));
    return held_.data();
  }
  std::int64_t width() const { return width_; }

 private:
  std::int64_t width_;
  std::optional<ScratchFile> file_;
  std::vector<float> held_;
};

/// The softmax head, frame by frame.
class LongFrames {
 public:
  explicit LongFrames(std::int64_t classes) : classes_(classes) {}
  void take(const PieceScores& scores) {
    for (std::int64_t t = 0; t < scores.frames; ++t) {
      const std::int32_t label = scores.best(t, classes_);
      if (segments_.empty() || segments_.back().segment.label != label)
        segments_.push_back({{frames_, 0, label}, 0, 0, 1});
      ++segments_.back().segment.duration;
      segments_.back().label_posterior += std::exp(double{scores.emission[t * classes_ + label]});
      ++frames_;
    }
  }
  Decoded finish() {
    Decoded out;
    for (DecodedSegment& one : segments_)
      one.posterior = one.label_posterior /= static_cast<double>(one.segment.duration);
    out.segments = std::move(segments_);
    return out;
  }

 private:
  std::int64_t classes_;
  std::int64_t frames_ = 0;
  std::vector<DecodedSegment> segments_;
};

/// The CRF heads.
class LongCrf {
 public:
  LongCrf(const semicrf::Potentials<float>& shared, bool semi, const Decoder::Options& options,
          bool boundaries, const std::filesystem::path& scratch)
      : classes_(shared.duration.extent(1)),
        semi_(semi),
        tolerance_(options.tolerance_frames),
        best_(shared),
        store_(classes_ * (boundaries ? 3 : 1), options.posteriors ? scratch : "") {
    if (options.posteriors) posterior_.emplace(shared, options.block_frames);
  }
  void take(const PieceScores& scores);
  Decoded finish(const std::string& id);

 private:
  semicrf::FrameScores<float> views(const float* rows, std::int64_t n) const {
    const auto view = [&](std::int64_t i) -> semicrf::View<const float, 2> {
      if ((i + 1) * classes_ > store_.width()) return {};
      return {rows + i * classes_, {n, classes_}, {store_.width(), 1}};
    };
    return {view(0), view(1), view(2)};
  }
  void drain();

  std::int64_t classes_;
  bool semi_;
  std::int64_t tolerance_;
  semicrf::OnlineDecoder best_;
  std::optional<semicrf::BlockPosterior> posterior_;
  RowStore store_;
  std::vector<float> rows_;
  semicrf::Segmentations decided_;
  semicrf::Segmentations path_;
};

/// Adds what is decided to the path; frames of one label are one segment of a linear chain.
void LongCrf::drain() {
  for (std::size_t i = 0; i < decided_.label.size(); ++i) {
    if (!semi_ && !path_.label.empty() && path_.label.back() == decided_.label[i])
      path_.duration.back() += decided_.duration[i];
    else
      path_.append(decided_.start[i], decided_.duration[i], decided_.label[i]);
  }
  decided_.clear();
}

void LongCrf::take(const PieceScores& scores) {
  rows_.clear();
  for (std::int64_t t = 0; t < scores.frames; ++t)
    for (const float* part : {scores.emission, scores.start, scores.end})
      if (part != nullptr)
        rows_.insert(rows_.end(), part + t * classes_, part + (t + 1) * classes_);
  const semicrf::FrameScores<float> frames = views(rows_.data(), scores.frames);
  best_.push(frames.emission, decided_, frames.start, frames.end);
  drain();
  if (!posterior_) return;
  posterior_->push(frames);
  store_.append(rows_);
}

Decoded LongCrf::finish(const std::string& id) {
  Decoded out;
  out.log_probability = best_.best_score();
  if (best_.finish(decided_) != semicrf::RowStatus::kOk) refuse_recording(id);
  drain();
  path_.end_row();
  std::vector<semicrf::SegmentPosterior> posteriors(path_.label.size());
  if (posterior_) {
    out.log_probability -= posterior_->log_partition();
    const semicrf::BlockPosterior::Reader<float> read = [&](std::int64_t first, std::int64_t n) {
      return views(store_.read(first, n), n);
    };
    posteriors = posterior_->describe(path_.view(), tolerance_, read);
  }
  out.segments.reserve(posteriors.size());
  for (std::size_t i = 0; i < posteriors.size(); ++i) {
    const semicrf::SegmentPosterior& p = posteriors[i];
    out.segments.push_back(
        {{path_.start[i], path_.duration[i], path_.label[i]},
         semi_ ? p.segment : p.label,
         p.label,
         semi_ || !posterior_ ? p.start : std::numeric_limits<double>::quiet_NaN()});
  }
  return out;
}

}  // namespace

bool Decoder::can_decode_long(const Options& options) const {
  return !state_->config.sees_all() && !options.minimum_risk && options.k_best == 0 &&
         options.samples == 0 && !options.frame_posteriors;
}

Decoded Decoder::decode_long(const std::string& id, const FeaturePieces& next,
                             const Options& options, const std::filesystem::path& scratch) {
  State& state = *state_;
  const ModelConfig& config = state.config;
  if (!can_decode_long(options))
    throw UsageError(
        fmt::format("{}: a long recording is not decoded in pieces by this model, or "
                    "with these options",
                    id));
  state.refresh();
  PieceNetwork network(config, id, options.piece_frames, state.source);
  std::optional<LongFrames> frames;
  std::optional<LongCrf> crf;
  const bool semi = config.head == HeadKind::kSemiMarkov;
  if (config.head == HeadKind::kSoftmax)
    frames.emplace(config.classes);
  else
    crf.emplace(state.shared(), semi, options, semi && config.boundary_scores, scratch);
  const auto run = [&](const Tensor& x, const Tensor& lengths) { return state.run(x, lengths); };
  const auto take = [&](const PieceScores& scores) {
    frames ? frames->take(scores) : crf->take(scores);
  };
  for (Tensor piece = next(); piece.shape()[0] > 0; piece = next()) network.push(piece, run, take);
  network.finish(run, take);
  Decoded out = frames ? frames->finish() : crf->finish(id);
  if (!config.joins_neighbours.empty() && semi) state.join(out);
  return out;
}

}  // namespace segfuse::learn
