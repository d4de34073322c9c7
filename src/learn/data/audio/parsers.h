#pragma once
// Parts of the audio readers.

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "segfuse/data.h"

namespace segfuse::data {

/// Walks the chunks of a RIFF WAVE file. libsndfile reads truncated files without a word and
/// guesses at broken ones; here they are DataErrors with the byte offset.
void check_wav_chunks(const std::filesystem::path& path, const std::string& name);

/// read_audio() of a file that messages call `name`.
Audio read_audio_file(const std::filesystem::path& path, const std::string& name,
                      const AudioOptions& options);

/// What a command of a manifest writes.
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

/// What a file says of its samples, without reading them.
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
};

}  // namespace segfuse::data
