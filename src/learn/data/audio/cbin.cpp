#include <fmt/core.h>

#include <cmath>
#include <optional>

#include "base/os/file.h"
#include "base/text.h"
#include "learn/data/audio/parsers.h"
#include "learn/data/text.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

/// The number behind "KEY =" in the .rec file; nothing where there is no such line.
std::optional<double> setting(std::string_view rec, std::string_view key, const std::string& name) {
  std::int64_t number = 0;
  for (const std::string_view line : split_lines(rec)) {
    ++number;
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos || lower(trim(line.substr(0, equals))) != key) continue;
    const std::string_view text = trim(line.substr(equals + 1));
    const std::optional<double> value = parse_double(text);
    if (!value || *value != std::floor(*value) || *value < 1 || *value > 1e12)
      throw DataError(fmt::format("{}: line {} of its .rec file: {} is {}; expected a whole number",
                                  name, number, key, shown(text)));
    return value;
  }
  return std::nullopt;
}

}  // namespace

Audio read_cbin(const std::filesystem::path& path, const std::string& name,
                const AudioOptions& options) {
  std::filesystem::path rec = path;
  rec.replace_extension(".rec");
  if (!path_exists(rec))
    throw DataError(fmt::format("{}: no file {} beside it, which has the sample rate", name,
                                rec.filename().string()));
  return parse_cbin(read_file(path), read_file(rec), name, options);
}

Audio parse_cbin(std::string_view bytes, std::string_view rec, const std::string& name,
                 const AudioOptions& options) {
  constexpr double kMaxRate = 1e8;
  const std::optional<double> rate = setting(rec, "adfreq", name);
  if (!rate || *rate > kMaxRate)
    throw DataError(fmt::format("{}: its .rec file has no line \"ADFREQ = RATE\" with 1 to {} Hz",
                                name, kMaxRate));
  const double channels = setting(rec, "chans", name).value_or(1);
  if (channels > 1024)
    throw DataError(fmt::format("{}: its .rec file says {} channels", name, channels));
  Audio audio{static_cast<int>(*rate), static_cast<int>(channels), 32768, {}, name};
  check_channel(options.channel, audio.channels, name);
  const std::size_t frame = 2 * static_cast<std::size_t>(audio.channels);
  if (bytes.size() < frame || bytes.size() % frame != 0)
    throw DataError(fmt::format(
        "{}: {} bytes; expected a multiple of {}, for {} channels of 16 bits; the file was cut off",
        name, bytes.size(), frame, audio.channels));
  const double announced = setting(rec, "samples", name).value_or(0);
  if (announced > static_cast<double>(bytes.size() / 2))
    throw DataError(
        fmt::format("{}: its .rec file announces {} samples, the file has {}; it was cut off", name,
                    announced, bytes.size() / 2));
  std::vector<float> values(bytes.size() / 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto high = static_cast<unsigned char>(bytes[2 * i]);
    const auto low = static_cast<unsigned char>(bytes[2 * i + 1]);
    values[i] = static_cast<float>(static_cast<std::int16_t>(high << 8 | low)) / 32768.0F;
  }
  ChannelMixer(audio, options).add(values);
  return audio;
}

}  // namespace segfuse::data
