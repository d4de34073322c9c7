#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "learn/data/audio/parsers.h"
#include "learn/data/text.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

std::uint32_t little(const char* bytes, int count) {
  std::uint32_t value = 0;
  for (int i = count; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

/// libsndfile reads a data chunk that announces no bytes where the file announces none either.
bool read_to_the_end(const std::array<char, 12>& head) { return little(&head[4], 4) == 8; }

/// Bytes behind the sound that are neither chunks nor padding: more sound, of which the header says
/// nothing.
void check_rest(std::ifstream& file, std::uint64_t data, std::uint64_t length,
                std::uint32_t announced, const std::string& name) {
  constexpr std::uint64_t kSome = 4096;
  std::uint64_t at = data + 8 + announced + (announced & 1U);
  std::array<char, kSome> bytes{};
  const auto read = [&](std::size_t count) {
    file.clear();
    file.seekg(static_cast<std::streamoff>(at));
    file.read(bytes.data(), static_cast<std::streamsize>(count));
    return std::string_view(bytes.data(), static_cast<std::size_t>(file.gcount()));
  };
  while (at + 8 <= length) {
    const std::string_view head = read(8);
    const bool is_name = std::ranges::all_of(head.substr(0, 4), [](char c) { return c >= ' '; });
    const std::uint32_t size = little(head.data() + 4, 4);
    if (head.size() < 8 || !is_name || size > length - at - 8) break;
    at += 8 + std::uint64_t{size} + (size & 1U);
  }
  const std::uint64_t rest = length - std::min(at, length);
  if (rest <= kSome || rest <= announced / 16) return;
  if (read(kSome).find_first_not_of('\0') == std::string_view::npos) return;
  throw DataError(fmt::format(
      "{}: byte {}: the data chunk announces {} bytes, and behind it are {} that belong to no "
      "chunk; its size is wrong, as it is in files of more than 4 GiB; write the file again, as "
      "with ffmpeg -ignore_length 1 -i FILE NEW.wav",
      name, data, announced, rest));
}

/// Returns the bytes of one frame.
std::uint32_t check_format(std::ifstream& file, std::uint64_t at, std::uint32_t size,
                           const std::string& name) {
  std::array<char, 16> format{};
  if (size >= format.size() && !file.read(format.data(), format.size()))
    throw DataError(fmt::format("{}: byte {}: the file ends within the fmt chunk", name, at));
  if (size < format.size())
    throw DataError(fmt::format("{}: byte {}: the fmt chunk has {} bytes; expected at least 16",
                                name, at, size));
  const std::uint32_t channels = little(&format[2], 2);
  const std::uint32_t rate = little(&format[4], 4);
  const std::uint32_t frame = little(&format[12], 2);
  const std::uint32_t bits = little(&format[14], 2);
  if (channels == 0)
    throw DataError(
        fmt::format("{}: byte {}: the header gives 0 channels; expected at least 1", name, at + 2));
  if (rate == 0)
    throw DataError(
        fmt::format("{}: byte {}: the header gives a sample rate of 0 Hz", name, at + 4));
  if (frame == 0 || (bits > 0 && frame < channels))
    throw DataError(fmt::format("{}: byte {}: {} bytes for a sample of {} channels", name, at + 12,
                                frame, channels));
  return frame;
}

}  // namespace

void check_wav_chunks(const std::filesystem::path& path, const std::string& name) {
  std::ifstream file(path, std::ios::binary);
  const std::uint64_t length = std::filesystem::file_size(path);
  std::array<char, 12> head{};
  if (!file.read(head.data(), head.size()))
    throw DataError(fmt::format("{}: byte {}: the file ends inside the RIFF header", name, length));
  if (std::memcmp(&head[8], "WAVE", 4) != 0)
    throw DataError(
        fmt::format("{}: byte 8: RIFF type {}; expected WAVE", name, shown({&head[8], 4})));
  std::uint32_t frame = 0;
  for (std::uint64_t at = 12; at + 8 <= length;) {
    std::array<char, 8> chunk{};
    file.seekg(static_cast<std::streamoff>(at));
    if (!file.read(chunk.data(), chunk.size())) break;
    const std::uint32_t size = little(&chunk[4], 4);
    const std::string_view id(chunk.data(), 4);
    const std::uint64_t left = length - at - 8;
    if (id == "fmt ") frame = check_format(file, at + 8, size, name);
    if (id == "data") {
      if (frame == 0)
        throw DataError(fmt::format("{}: byte {}: data before a fmt chunk", name, at));
      // What programs write that cannot go back to the header.
      const bool streamed = size == 0xFFFFFFFFU || size == 0x7FFFF000U || (size == 0 && left > 0);
      if (size == 0 && left > 0 && !read_to_the_end(head))
        throw DataError(
            fmt::format("{}: byte {}: the data chunk announces 0 bytes, {} follow; the program "
                        "that wrote the file did not finish its header; write the file again, as "
                        "with ffmpeg -ignore_length 1 -i FILE NEW.wav",
                        name, at, left));
      if (!streamed && size > left)
        throw DataError(
            fmt::format("{}: byte {}: the data chunk announces {} bytes, {} follow; the file was "
                        "cut off",
                        name, at, size, left));
      if ((streamed ? left : size) < frame)
        throw DataError(
            fmt::format("{}: byte {}: the file holds no samples; expected at least one", name, at));
      if (!streamed) check_rest(file, at, length, size, name);
      return;
    }
    at += 8 + std::uint64_t{size} + (size & 1U);
  }
  throw DataError(fmt::format(
      "{}: byte {}: the file ends without a data chunk; it was cut off or is not a WAV file", name,
      length));
}

}  // namespace segfuse::data
