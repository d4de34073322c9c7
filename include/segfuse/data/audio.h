#pragma once
// Recordings: audio files in, WAV out, other sample rates. Whatever is wrong inside a file throws
// DataError naming the file; an option that cannot work throws UsageError.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace segfuse {

struct Audio {
  int sample_rate = 0;         ///< in Hz
  int channels = 0;            ///< of the file; `samples` holds one
  double full_scale = 1;       ///< the stored value that 1.0 stands for: 32768 for 16 bit
  std::vector<float> samples;  ///< in [-1, 1) unless AudioOptions::stored_scale
  std::string source;          ///< file name for messages
  int stacked = 1;             ///< channels in `samples`, which alternate; 1 but for kStack
  std::int64_t frames() const { return static_cast<std::int64_t>(samples.size()) / stacked; }
  double seconds() const { return static_cast<double>(frames()) / sample_rate; }
};

struct AudioOptions {
  static constexpr int kMean = -1;   ///< the mean of all channels
  static constexpr int kOnly = -2;   ///< the only one; files of several are a DataError
  static constexpr int kStack = -3;  ///< all of them, side by side
  int channel = kOnly;               ///< from 0 on, or one of these
  bool stored_scale = false;         ///< give the stored values (1 unit of an integer file = 1.0)
};

/// WAV, FLAC and whatever else libsndfile reads; NIST SPHERE by its magic, whatever the extension
/// (16-bit PCM of both byte orders). Truncated files, files without samples, NaN and infinite
/// samples are errors.
Audio read_audio(const std::filesystem::path& path, const AudioOptions& options = {});
Audio parse_sphere(std::string_view bytes, std::string_view name, const AudioOptions& options = {});
/// AudioOptions::channel from "mean", "stack" or a number from 0 on; `what` begins the DataError.
int audio_channel(std::string_view text, std::string_view what);
/// The same at another sample rate: N samples become N times the ratio of the rates, rounded, at
/// least one, and the recording begins at the same moment. Linear phase, the band up to 0.91 of the
/// lower half rate is kept; one thread, the same bits on every run. DataError where the rates
/// differ by more than a factor of kMostResampling.
Audio resample(Audio audio, int sample_rate);
inline constexpr int kMostResampling = 256;

/// Mono, 16 bit; values are clipped to [-1, 1).
void write_wav(const std::filesystem::path& path, std::span<const float> samples, int sample_rate);

}  // namespace segfuse
