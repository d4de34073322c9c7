#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <utility>

#include "learn/data/features/sample_rows.h"
#include "learn/data/recordings.h"
#include "learn/data/values/values.h"
#include "learn/train/decode/loaded_model.h"
#include "learn/train/live/live_decoding.h"
#include "segfuse/error.h"
#include "segfuse/model.h"

namespace segfuse {
namespace {

/// What the network takes at a time: short pieces, and few enough of them to keep up.
constexpr double kPieceSeconds = 0.05;

/// What the features look ahead: those of n frames are there when (n + frames) hops and `seconds`
/// have come.
struct FeatureDelay {
  explicit FeatureDelay(const FeatureConfig& config) {
    frames = 2.0 * config.deltas;
    if (config.kind == FeatureKind::kValues) return;
    const bool begins = config.kind == FeatureKind::kKaldiFbank && config.snip_edges;
    frames -= begins ? 1 : 0.5;
    seconds = config.window_ms / (begins ? 1000 : 2000);
    seconds += 2.0 / config.sample_rate;  // what is rounded
  }
  double frames = 0;
  double seconds = 0;
};

}  // namespace

struct LiveDecoder::State {
  State(const Model& of, const LiveOptions& options);

  std::vector<LabelSegment> push(std::span<const float> rows, std::int64_t width, bool last);
  std::vector<LabelSegment> in_seconds(const std::vector<FrameSegment>& found) const;
  void check_open() const;
  void check_piece(const Audio& audio);
  std::optional<std::int64_t> lookahead_frames(double lookahead, std::int64_t piece) const;
  const FeatureConfig& features() const { return model.features(); }

  Model model;
  std::unique_ptr<learn::LiveDecoding> decoding;
  std::string name = "the stream";
  std::optional<Audio> format;  ///< of the pieces, without samples
  std::optional<data::SampleRows> samples;
  std::optional<data::DeltaFrames> deltas;
  std::vector<float> rows;
  std::int64_t columns = 0;  ///< of values
  std::int64_t arrived = 0;  ///< samples of each channel, or rows of values
  bool ended = false;
  std::mutex mutex;  // calls run one after another
};

namespace {

/// Whatever is thrown on the way ends a stream.
class EndsUnlessKept {
 public:
  explicit EndsUnlessKept(bool& ended) : ended_(ended) { ended_ = true; }
  void keep() { ended_ = false; }

 private:
  bool& ended_;
};

}  // namespace

LiveDecoder::State::State(const Model& of, const LiveOptions& options) : model(of) {
  if (features().normalise_recording)
    throw UsageError(
        "the model normalises its features over the whole recording, which a stream does not have; "
        "decode whole recordings, or train a model with features.normalise_recording = false");
  if (needs_whole_recording(features()))
    throw UsageError(
        fmt::format("the model's features are {}, which depend on the loudest frame of the whole "
                    "recording, which a stream does not have; decode whole recordings, or train a "
                    "model with another features.kind",
                    name_of(features().kind)));
  const double hop = model.hop_seconds();
  const std::int64_t piece = std::max<std::int64_t>(1, std::llround(kPieceSeconds / hop));
  Model::State& shared = *model.state();
  const std::lock_guard lock(shared.mutex);
  std::optional<std::int64_t> frames;
  if (options.lookahead) frames = lookahead_frames(*options.lookahead, piece);
  decoding = shared.loaded.live("live decoding", piece, frames);
}

std::optional<std::int64_t> LiveDecoder::State::lookahead_frames(double lookahead,
                                                                 std::int64_t piece) const {
  const FeatureDelay delay(features());
  const double hop = model.hop_seconds();
  const std::int64_t needed = model.state()->loaded.least_lookahead(piece);
  const double least = (static_cast<double>(needed) + delay.frames) * hop + delay.seconds;
  if (!(lookahead >= least - 1e-9) || !std::isfinite(lookahead))
    throw UsageError(
        fmt::format("the lookahead is {} s; expected at least {:.3f} s, which is the model's "
                    "longest segment plus the lookahead of its network and features",
                    lookahead, std::ceil(least * 1000) / 1000));
  const double frames = std::floor((lookahead - delay.seconds) / hop - delay.frames + 1e-6);
  constexpr double kMax = 1 << 30;  // as good as none
  return std::max(needed, static_cast<std::int64_t>(std::min(frames, kMax)));
}

void LiveDecoder::State::check_open() const {
  if (ended) throw UsageError("the stream has ended; start another one");
}

void LiveDecoder::State::check_piece(const Audio& audio) {
  if (features().kind == FeatureKind::kValues)
    throw UsageError("the model was trained on values, and these are samples of audio");
  if (audio.sample_rate < 1 || audio.stacked < 1)
    throw UsageError(fmt::format("a piece has {} channels of {} Hz; expected at least one of each",
                                 audio.stacked, audio.sample_rate));
  if (!format) {
    Audio first = audio;
    first.samples.clear();
    samples.emplace(first, model.state()->loaded.extractor());
    format = std::move(first);
    if (!audio.source.empty()) name = audio.source;
    deltas.emplace(features().deltas, samples->width());
  }
  if (audio.sample_rate != format->sample_rate || audio.stacked != format->stacked)
    throw UsageError(
        fmt::format("{}: a piece has {} Hz and {} channels; those before it had {} Hz and {}", name,
                    audio.sample_rate, audio.stacked, format->sample_rate, format->stacked));
  if (audio.samples.size() % static_cast<std::size_t>(audio.stacked) != 0)
    throw UsageError(
        fmt::format("{}: a piece ends between the samples of {} channels", name, audio.stacked));
  data::check_finite(audio, arrived * audio.stacked);
}

std::vector<LabelSegment> LiveDecoder::State::in_seconds(
    const std::vector<FrameSegment>& found) const {
  std::vector<LabelSegment> out;
  for (const FrameSegment& segment : found)
    out.push_back(data::to_seconds(segment, model.labels(), model.hop_seconds()));
  return out;
}

std::vector<LabelSegment> LiveDecoder::State::push(std::span<const float> some, std::int64_t width,
                                                   bool last) {
  if (!deltas) deltas.emplace(features().deltas, width);
  Tensor now = deltas->push(some, last);
  Model::State& shared = *model.state();
  const std::lock_guard lock(shared.mutex);
  std::vector<FrameSegment> found;
  if (now.shape()[0] > 0) {
    shared.loaded.normalise(name, now);
    found = decoding->push(now);
  }
  if (last) {
    const std::vector<FrameSegment> rest = decoding->finish();
    found.insert(found.end(), rest.begin(), rest.end());
  }
  return in_seconds(found);
}

LiveDecoder::LiveDecoder(const Model& model, const LiveOptions& options)
    : state_(std::make_unique<State>(model, options)) {}
LiveDecoder::~LiveDecoder() = default;
LiveDecoder::LiveDecoder(LiveDecoder&&) noexcept = default;
LiveDecoder& LiveDecoder::operator=(LiveDecoder&&) noexcept = default;

std::vector<LabelSegment> LiveDecoder::push(const Audio& samples) {
  State& x = *state_;
  const std::lock_guard one(x.mutex);
  x.check_open();
  x.check_piece(samples);
  EndsUnlessKept ends(x.ended);
  x.arrived += samples.frames();
  x.rows.clear();
  x.samples->push(samples.samples, x.rows);
  std::vector<LabelSegment> found = x.push(x.rows, x.samples->width(), false);
  ends.keep();
  return found;
}

std::vector<LabelSegment> LiveDecoder::push_values(const Tensor& rows) {
  State& x = *state_;
  const std::lock_guard one(x.mutex);
  x.check_open();
  if (x.features().kind != FeatureKind::kValues)
    throw UsageError("the model was trained on audio, and these are rows of values");
  if (rows.shape().at(0) == 0) return {};
  const std::int64_t columns = rows.shape().at(1);
  data::check_size(static_cast<double>(rows.shape()[0]), static_cast<double>(columns), x.name);
  if (x.columns != 0 && x.columns != columns)
    throw DataError(fmt::format("{}: row {} has {} columns; those before it have {}", x.name,
                                x.arrived, columns, x.columns));
  data::check_finite(rows, x.name, x.arrived);
  EndsUnlessKept ends(x.ended);
  x.columns = columns;
  x.arrived += rows.shape()[0];
  std::vector<LabelSegment> found = x.push(rows.span<float>(), columns, false);
  ends.keep();
  return found;
}

std::vector<LabelSegment> LiveDecoder::finish() {
  State& x = *state_;
  const std::lock_guard one(x.mutex);
  x.check_open();
  x.ended = true;
  if (x.arrived == 0)
    throw DataError(fmt::format("{}: the stream was empty; expected at least one sample", x.name));
  x.rows.clear();
  if (x.samples) x.samples->end(x.rows);
  std::vector<LabelSegment> found = x.push(x.rows, x.columns, true);
  if (!found.empty() && seconds() > found.back().start && seconds() < found.back().end)
    found.back().end = seconds();
  return found;
}

double LiveDecoder::seconds() const {
  const State& x = *state_;
  const auto count = static_cast<double>(x.arrived);
  return x.format ? count / x.format->sample_rate : count * x.model.hop_seconds();
}

}  // namespace segfuse
