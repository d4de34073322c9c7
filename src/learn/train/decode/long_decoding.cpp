// Decoding of a recording that is not held: the network over pieces on a fixed grid, the best path
// as it is decided, and the posterior from behind, over scores that were kept.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>

#include "base/os/scratch_file.h"
#include "learn/train/decode/decoder_state.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Steps of the encoder on each side that a step of its output depends on.
std::int64_t reach_of(const ModelConfig& config) {
  const std::int64_t dilations =
      std::accumulate(config.dilations.begin(), config.dilations.end(), std::int64_t{0});
  return (config.stem_kernel - 1) / 2 + dilations * ((config.kernel - 1) / 2);
}

/// The network's scores of some frames: (n, C) each, start and end null where it has none.
struct PieceScores {
  std::int64_t frames = 0;
  const float* emission = nullptr;
  const float* start = nullptr;
  const float* end = nullptr;
};

/// The network over a recording that comes in pieces. Its own pieces lie on a grid of positions and
/// have one shape, so that a frame's scores have the same bits however the features come.
class PieceNetwork {
 public:
  PieceNetwork(const ModelConfig& config, std::string id, std::int64_t frames)
      : id_(std::move(id)),
        columns_(config.features),
        classes_(config.classes),
        piece_((frames + config.subsample - 1) / config.subsample * config.subsample),
        reach_(reach_of(config) * config.subsample) {}

  /// The next features; calls run(features, lengths) for the network's scores, and
  /// take(PieceScores) with those of the next frames.
  template <class Run, class Take>
  void push(const Tensor& features, const Run& run, const Take& take) {
    const auto values = features.span<float>();
    if (features.shape()[1] != columns_)
      throw InternalError(fmt::format("{}: {} columns of features, the model has {}", id_,
                                      features.shape()[1], columns_));
    held_.insert(held_.end(), values.begin(), values.end());
    largest_ = largest_size(values, largest_);
    arrived_ += features.shape()[0];
    while (arrived_ >= next_ + piece_ + reach_) work(next_ + piece_ + reach_, run, take);
  }
  template <class Run, class Take>
  void finish(const Run& run, const Take& take) {
    while (next_ < arrived_) work(std::min(arrived_, next_ + piece_ + reach_), run, take);
  }
  std::int64_t arrived() const { return arrived_; }

 private:
  template <class Run, class Take>
  void work(std::int64_t end, const Run& run, const Take& take);

  std::string id_;
  std::int64_t columns_, classes_;
  std::int64_t piece_;        ///< frames of a piece
  std::int64_t reach_;        ///< frames on each side that it depends on
  std::int64_t arrived_ = 0;  ///< frames
  std::int64_t next_ = 0;     ///< first frame without scores
  std::int64_t first_ = 0;    ///< first frame that is held
  std::vector<float> held_;
  float largest_ = 0;
};

/// The piece at next_, which may look at frames before `end`.
template <class Run, class Take>
void PieceNetwork::work(std::int64_t end, const Run& run, const Take& take) {
  const std::int64_t begin = std::max<std::int64_t>(0, next_ - reach_);
  Tensor features = Tensor::zeros(DType::kF32, {1, piece_ + 2 * reach_, columns_});
  std::copy_n(held_.begin() + (begin - first_) * columns_, (end - begin) * columns_,
              features.span<float>().begin());
  const std::vector<Tensor> scores =
      run(features, Tensor::from(std::vector<std::int64_t>{end - begin}, {1}));
  const std::int64_t frames = std::min(piece_, end - next_);
  const float* own[3] = {};
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const auto values = std::as_const(scores[i]).span<float>().subspan(
        at((next_ - begin) * classes_), at(frames * classes_));
    if (const auto bad = first_not_finite(values); bad != values.end())
      refuse_score(id_, classes_,
                   {at(next_ * classes_) + at(bad - values.begin()), *bad, largest_});
    own[i] = values.data();
  }
  take(PieceScores{frames, own[0], own[1], own[2]});
  next_ += frames;
  const std::int64_t needed = std::max<std::int64_t>(0, next_ - reach_);
  held_.erase(held_.begin(), held_.begin() + (needed - first_) * columns_);
  first_ = needed;
}

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
      const float* frame = scores.emission + t * classes_;
      const auto label =
          static_cast<std::int32_t>(std::max_element(frame, frame + classes_) - frame);
      if (segments_.empty() || segments_.back().segment.label != label)
        segments_.push_back({{frames_, 0, label}, 0, 0, 1});
      ++segments_.back().segment.duration;
      segments_.back().label_posterior += std::exp(double{frame[label]});
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
  PieceNetwork network(config, id, options.piece_frames);
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
  for (Tensor piece = next(); piece.shape()[0] > 0; piece = next()) {
    network.push(piece, run, take);
    if (network.arrived() > std::numeric_limits<std::int32_t>::max())
      throw DataError(fmt::format("{}: the recording has more than {} frames", id,
                                  std::numeric_limits<std::int32_t>::max()));
  }
  network.finish(run, take);
  Decoded out = frames ? frames->finish() : crf->finish(id);
  if (!config.joins_neighbours.empty() && semi) state.join(out);
  return out;
}

}  // namespace segfuse::learn
