#include "learn/data/feature_reader.h"

#include <utility>

#include "base/os/scratch_file.h"
#include "learn/data/features/sample_rows.h"

namespace segfuse::data {
namespace {

/// Rows that wait for the statistics of all of them.
class WaitingRows {
 public:
  WaitingRows(std::int64_t width, const std::filesystem::path& scratch)
      : width_(static_cast<std::size_t>(width)), file_(scratch) {}
  void add(std::span<const float> rows) { file_.append(std::as_bytes(rows)); }
  /// Calls visit(rows) for some at a time, from the first one on.
  template <class Visit>
  void for_rows(const Visit& visit) {
    next_ = 0;
    for (std::vector<float> rows; !(rows = next()).empty();) visit(std::span<float>(rows));
  }
  void rewind() { next_ = 0; }
  bool at_end() const { return next_ == file_.size(); }
  /// The next ones; empty at the end.
  std::vector<float> next() {
    constexpr std::size_t kRows = 4096;
    const std::size_t left = (file_.size() - next_) / sizeof(float);
    std::vector<float> rows(std::min(left, kRows * width_));
    file_.read(next_, std::as_writable_bytes(std::span(rows)));
    next_ += rows.size() * sizeof(float);
    return rows;
  }

 private:
  std::size_t width_;
  ScratchFile file_;
  std::uint64_t next_ = 0;
};

/// The samples of a recording, block by block.
class Samples {
 public:
  /// Of a file; ok() is false for one that can only be read whole.
  Samples(const std::filesystem::path& audio, const AudioOptions& how)
      : reader_(AudioReader::open(audio, audio.string(), how)) {}
  /// Of what comes through a pipe, whatever it is.
  Samples(const std::filesystem::path& pipe, const AudioOptions& how,
          const std::filesystem::path& scratch)
      : copy_(scratch) {
    copy_->append_file(pipe);
    reader_ = AudioReader::open(copy_->path(), pipe.string(), how);
    if (!reader_) held_ = read_audio_file(copy_->path(), pipe.string(), how);
  }
  bool ok() const { return reader_ != nullptr || held_; }
  /// Its samples are those of the block that was read last.
  const Audio& audio() const { return reader_ ? reader_->audio() : *held_; }
  bool next() {
    if (reader_) return reader_->next();
    frames_ = std::ssize(held_->samples) / held_->stacked;
    return !std::exchange(given_, true);
  }
  std::optional<std::int64_t> announced() const {
    return reader_ ? reader_->announced() : std::nullopt;
  }
  std::int64_t frames() const { return reader_ ? reader_->frames() : frames_; }

 private:
  std::optional<ScratchFile> copy_;
  std::unique_ptr<AudioReader> reader_;
  std::optional<Audio> held_;
  bool given_ = false;
  std::int64_t frames_ = 0;
};

}  // namespace

struct FeatureReader::State {
  State(Samples from, const FeatureExtractor& with, std::filesystem::path folder)
      : samples(std::move(from)),
        extractor(with),
        scratch(std::move(folder)),
        base(samples.audio(), with),
        deltas(with.config().deltas, base.width()) {}

  Samples samples;
  const FeatureExtractor& extractor;
  std::filesystem::path scratch;
  SampleRows base;
  DeltaFrames deltas;
  std::vector<float> rows;
  std::optional<WaitingRows> waiting;
  ColumnScale scale;
  bool read_all = false;
  bool given_all = false;

  void next_rows();
  void wait_for_all();
  void next_settled();
};

/// The next rows without slopes; `read_all` says whether they are the last.
void FeatureReader::State::next_rows() {
  rows.clear();
  read_all = !samples.next();
  read_all ? base.end(rows) : base.push(samples.audio().samples, rows);
}

/// Reads everything, for what depends on all of it.
void FeatureReader::State::wait_for_all() {
  waiting.emplace(base.width(), scratch);
  while (!read_all) {
    next_rows();
    waiting->add(rows);
  }
  const auto width = static_cast<std::size_t>(base.width());
  if (!extractor.config().normalise_recording) return waiting->rewind();
  scale = scale_of_columns(width, [&](const RowVisitor& visit) {
    waiting->for_rows([&](std::span<float> some) {
      base.settle(some);
      for (std::size_t at = 0; at < some.size(); at += width) visit(&some[at]);
    });
  });
  waiting->rewind();
}

/// The next ones of those that waited for all.
void FeatureReader::State::next_settled() {
  rows = waiting->next();
  base.settle(rows);
  if (extractor.config().normalise_recording) scale.apply(rows, base.width());
}

std::unique_ptr<FeatureReader> FeatureReader::open(const std::filesystem::path& audio,
                                                   const FeatureExtractor& extractor,
                                                   const std::filesystem::path& scratch) {
  AudioOptions how;
  how.channel = extractor.config().channel;
  return open(audio, extractor, scratch, how);
}

std::unique_ptr<FeatureReader> FeatureReader::open(const std::filesystem::path& audio,
                                                   const FeatureExtractor& extractor,
                                                   const std::filesystem::path& scratch,
                                                   const AudioOptions& how) {
  if (extractor.config().kind == FeatureKind::kValues) return nullptr;
  std::error_code failure;
  Samples samples =
      std::filesystem::is_fifo(audio, failure) ? Samples(audio, how, scratch) : Samples(audio, how);
  if (!samples.ok()) return nullptr;
  return std::unique_ptr<FeatureReader>(
      new FeatureReader(std::make_unique<State>(std::move(samples), extractor, scratch)));
}

FeatureReader::FeatureReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
FeatureReader::~FeatureReader() = default;

std::optional<std::int64_t> FeatureReader::announced() const {
  const std::optional<std::int64_t> samples = state_->samples.announced();
  if (!samples) return std::nullopt;
  return state_->extractor.num_frames(length_at(*samples, state_->samples.audio().sample_rate,
                                                state_->extractor.config().sample_rate));
}

Tensor FeatureReader::next() {
  State& x = *state_;
  const bool waits = needs_whole_recording(x.extractor.config());
  if (waits && !x.waiting) x.wait_for_all();
  for (;;) {
    if (x.given_all) return x.deltas.push({}, true);
    if (waits) {
      x.next_settled();
    } else {
      x.next_rows();
    }
    x.given_all = waits ? x.waiting->at_end() : x.read_all;
    Tensor out = x.deltas.push(x.rows, x.given_all);
    if (out.shape()[0] > 0) return out;
  }
}

double FeatureReader::seconds() const {
  return static_cast<double>(state_->samples.frames()) / sample_rate();
}
double FeatureReader::sample_rate() const { return state_->samples.audio().sample_rate; }

}  // namespace segfuse::data
