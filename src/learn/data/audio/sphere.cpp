// NIST SPHERE: "NIST_1A\n", the header size on a line of eight bytes, lines "name -type value" up
// to "end_head", then samples.

#include <fmt/core.h>

#include <map>

#include "base/text.h"
#include "learn/data/audio/parsers.h"
#include "learn/data/text.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"

namespace segfuse {
namespace data {
namespace {

struct HeaderField {
  std::string value;
  std::size_t offset = 0;
};

class SphereHeader {
 public:
  SphereHeader(std::string_view bytes, std::string_view name) : name_(name) {
    if (!bytes.starts_with("NIST_1A\n"))
      throw DataError(fmt::format("{}: byte 0: found {}; expected \"NIST_1A\"", name,
                                  shown(bytes.substr(0, 7))));
    const std::optional<std::int64_t> size = parse_int(trim(line_at(bytes, 8)));
    if (!size || *size < 16 || *size > (1 << 20))
      throw DataError(fmt::format("{}: byte 8: header size {}; expected a number such as 1024",
                                  name, shown(trim(line_at(bytes, 8)))));
    if (static_cast<std::size_t>(*size) > bytes.size())
      throw DataError(
          fmt::format("{}: byte {}: the file ends inside its header of {} bytes; it was cut off",
                      name, bytes.size(), *size));
    size_ = static_cast<std::size_t>(*size);
    parse(bytes.substr(0, size_));
  }

  std::size_t size() const { return size_; }

  const HeaderField* find(const std::string& key) const {
    const auto found = fields_.find(key);
    return found == fields_.end() ? nullptr : &found->second;
  }

  std::string text(const std::string& key, const std::string& otherwise) const {
    const HeaderField* field = find(key);
    return field == nullptr ? otherwise : field->value;
  }

  /// A whole number in [low, high]; `otherwise` (when not negative) where the field is missing.
  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high,
                       std::int64_t otherwise = -1) const {
    const HeaderField* field = find(key);
    if (field == nullptr && otherwise >= 0) return otherwise;
    if (field == nullptr)
      throw DataError(fmt::format("{}: the SPHERE header has no {}", name_, key));
    const std::optional<std::int64_t> value = parse_int(field->value);
    if (!value || *value < low || *value > high)
      throw DataError(fmt::format("{}: byte {}: {} is {}; expected a whole number from {} to {}",
                                  name_, field->offset, key, shown(field->value), low, high));
    return *value;
  }

 private:
  static std::string_view line_at(std::string_view bytes, std::size_t at) {
    return bytes.substr(std::min(at, bytes.size()), bytes.find('\n', at) - at);
  }

  void parse(std::string_view header) {
    std::size_t at = 16;
    while (at < header.size()) {
      const std::string_view line = line_at(header, at);
      const std::vector<segfuse::Field> words = split_fields(line);
      if (!words.empty() && words[0].text == "end_head") return;
      if (!words.empty() && !words[0].text.starts_with(';')) {
        if (words.size() < 3 || !words[1].text.starts_with('-'))
          throw DataError(fmt::format("{}: byte {}: header line {}; expected \"name -type value\"",
                                      name_, at, shown(line)));
        fields_[std::string(words[0].text)] = {std::string(words[2].text), at};
      }
      at += line.size() + 1;
    }
    throw DataError(
        fmt::format("{}: byte {}: the SPHERE header has no end_head", name_, header.size()));
  }

  std::string name_;
  std::size_t size_ = 0;
  std::map<std::string, HeaderField> fields_;
};

void check_coding(const SphereHeader& header, std::string_view name) {
  const std::string coding = header.text("sample_coding", "pcm");
  const std::size_t offset = coding == "pcm" ? 0 : header.find("sample_coding")->offset;
  if (coding.find("shorten") != std::string::npos)
    throw DataError(
        fmt::format("{}: byte {}: the samples are compressed with shorten; unpack them first "
                    "(sph2pipe or w_decode -o pcm)",
                    name, offset));
  if (coding != "pcm")
    throw DataError(fmt::format("{}: byte {}: sample coding {}; only pcm can be read", name, offset,
                                shown(coding)));
}

/// True for the most significant byte first.
bool is_big_endian(const SphereHeader& header, std::string_view name) {
  const std::string order = header.text("sample_byte_format", "01");
  if (order != "01" && order != "10")
    throw DataError(fmt::format("{}: byte {}: sample_byte_format {}; expected 01 or 10", name,
                                header.find("sample_byte_format")->offset, shown(order)));
  return order == "10";
}

}  // namespace
}  // namespace data

Audio parse_sphere(std::string_view bytes, std::string_view name, const AudioOptions& options) {
  const data::SphereHeader header(bytes, name);
  data::check_coding(header, name);
  header.integer("sample_n_bytes", 2, 2, 2);
  const bool big_endian = data::is_big_endian(header, name);
  Audio audio;
  audio.source = name;
  audio.full_scale = 32768;
  audio.channels = static_cast<int>(header.integer("channel_count", 1, 1024, 1));
  audio.sample_rate = static_cast<int>(header.integer("sample_rate", 1, 100'000'000));
  data::check_channel(options.channel, audio.channels, name);
  const std::int64_t count = header.integer("sample_count", 1, std::int64_t{1} << 40);
  const std::string_view body = bytes.substr(header.size());
  const std::uint64_t wanted = 2 * static_cast<std::uint64_t>(count * audio.channels);
  if (wanted > body.size())
    throw DataError(fmt::format(
        "{}: byte {}: the header announces {} bytes of samples, {} follow; the file was "
        "cut off",
        name, header.size(), wanted, body.size()));
  std::vector<float> values(wanted / 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto first = static_cast<unsigned char>(body[2 * i]);
    const auto second = static_cast<unsigned char>(body[2 * i + 1]);
    const int word = big_endian ? first << 8 | second : second << 8 | first;
    values[i] = static_cast<float>(static_cast<std::int16_t>(word)) / 32768.0F;
  }
  data::ChannelMixer(audio, options).add(values);
  return audio;
}

}  // namespace segfuse
