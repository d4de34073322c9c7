#pragma once
// Parts of the audio readers.

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "segfuse/data.h"

namespace segfuse::data {

/// Walks the chunks of a RIFF WAVE file. libsndfile reads truncated files without a word and
/// guesses at broken ones; here they are DataErrors with the byte offset.
void check_wav_chunks(const std::filesystem::path& path, const std::string& name);

/// The samples of each channel in an MPEG audio file, by the headers of its frames. Nothing where
/// the file has a header with its length (Xing, Info, VBRI), or no frame of a known bit rate.
std::optional<std::int64_t> mpeg_samples(const std::filesystem::path& path);

/// libsndfile reads one stream of an Ogg file, as far as it goes. DataError where the last page is
/// missing or a second stream follows.
void check_ogg_pages(const std::filesystem::path& path, const std::string& name);

/// read_audio() of a file that messages call `name`.
Audio read_audio_file(const std::filesystem::path& path, const std::string& name,
                      const AudioOptions& options);

/// The output of a command of a manifest.
Audio read_command(const AudioCommand& command, const AudioOptions& options);

/// evTAF: samples of 16 bits, the high byte first, and a text file .rec beside them that says how
/// many channels and what rate.
Audio read_cbin(const std::filesystem::path& path, const std::string& name,
                const AudioOptions& options);
Audio parse_cbin(std::string_view bytes, std::string_view rec, const std::string& name,
                 const AudioOptions& options);

/// The same of a file's content.
Audio read_audio_bytes(std::string_view bytes, const std::string& name,
                       const AudioOptions& options);

/// The header of a file, without its samples.
struct AudioInfo {
  int sample_rate = 0;
  int channels = 0;
  std::int64_t frames = 0;  ///< samples of each channel
  double seconds() const { return static_cast<double>(frames) / sample_rate; }
};
AudioInfo audio_info(const std::filesystem::path& path);

/// The file that write_wav() writes; messages call it `name`.
std::string format_wav(std::string_view name, std::span<const float> samples, int sample_rate);

/// DataError unless `channel`, as AudioOptions has it, can be taken of a file with so many.
void check_channel(int channel, int channels, std::string_view name);

/// Appends interleaved samples in [-1, 1) to audio.samples: one channel, or all of them.
class ChannelMixer {
 public:
  ChannelMixer(Audio& audio, const AudioOptions& options);
  void add(std::span<const float> interleaved);

 private:
  void push(float value);

  Audio& audio_;
  int channel_;
  float scale_;
  std::int64_t pushed_ = 0;
};

class WfdbReader;

/// A recording that is read block by block.
class AudioReader {
 public:
  /// Nothing for files that can only be read whole: pipes, NIST SPHERE, .cbin. DataError as
  /// read_audio_file().
  static std::unique_ptr<AudioReader> open(const std::filesystem::path& path,
                                           const std::string& name, const AudioOptions& options);
  ~AudioReader();
  AudioReader(const AudioReader&) = delete;
  AudioReader& operator=(const AudioReader&) = delete;

  /// What the file says, and in `samples` the block that was read last.
  const Audio& audio() const;
  /// False at the end. DataError where the file ends before what its header announces.
  bool next();
  /// Samples of each channel that the header announces; nothing where it does not know.
  std::optional<std::int64_t> announced() const;
  std::int64_t frames() const { return frames_; }  ///< of each channel, read so far

 private:
  struct File;
  AudioReader(const std::filesystem::path& path, const std::string& name,
              const AudioOptions& options);
  explicit AudioReader(std::unique_ptr<WfdbReader> record);
  void check_count() const;

  std::unique_ptr<WfdbReader> record_;  ///< of WFDB, instead of all but frames_
  std::unique_ptr<File> file_;
  Audio audio_;
  std::optional<ChannelMixer> mixer_;
  std::vector<float> block_;
  std::int64_t frames_ = 0;
  std::optional<std::int64_t> counted_;  ///< of an MP3 without a header that says its length
};

/// N samples at `from` Hz last as long as so many at `to` Hz.
std::int64_t length_at(std::int64_t samples, std::int64_t from, std::int64_t to);

/// resample() of a recording that comes block by block.
class Resampler {
 public:
  /// `audio` says what comes; DataError where the rates are too far apart.
  Resampler(const Audio& audio, int sample_rate);
  ~Resampler();
  Resampler(const Resampler&) = delete;
  Resampler& operator=(const Resampler&) = delete;

  /// Appends to `out` what the samples, of all channels, have become.
  void push(std::span<const float> samples, std::vector<float>& out);
  void end(std::vector<float>& out);

 private:
  struct Filter;
  void process(std::span<const float> samples, bool last, std::vector<float>& out);

  std::string source_;
  std::int64_t from_, to_;
  std::size_t channels_;
  std::unique_ptr<Filter> filter_;  ///< null where the rates are equal
  std::int64_t arrived_ = 0;        ///< samples of each channel
  std::int64_t made_ = 0;
};

}  // namespace segfuse::data
