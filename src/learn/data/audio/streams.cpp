#include <fmt/core.h>

#include <array>
#include <cstring>
#include <fstream>
#include <set>

#include "learn/data/audio/parsers.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

using Bytes = std::vector<unsigned char>;

/// Up to `size` bytes from `at` on.
Bytes bytes_at(std::ifstream& file, std::uint64_t at, std::size_t size) {
  Bytes bytes(size);
  file.clear();
  file.seekg(static_cast<std::streamoff>(at));
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  bytes.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return bytes;
}

bool begins(const Bytes& bytes, std::size_t at, std::string_view text) {
  return bytes.size() >= at + text.size() &&
         std::memcmp(bytes.data() + at, text.data(), text.size()) == 0;
}

// --- MPEG audio (ISO 11172-3, 13818-3) ---------------------------------------------------------

struct MpegFrame {
  std::uint64_t bytes = 0;
  std::int64_t samples = 0;
  std::size_t side = 0;  ///< where a Xing header would stand
};

/// The frame that begins with these four bytes, of layer 1, 2 or 3 and a known bit rate.
std::optional<MpegFrame> mpeg_frame(const Bytes& b) {
  if (b.size() < 4 || b[0] != 0xFF || (b[1] & 0xE0) != 0xE0) return std::nullopt;
  const int version = b[1] >> 3 & 3;  // 3: MPEG 1, 2: MPEG 2, 0: MPEG 2.5
  const int layer = 4 - (b[1] >> 1 & 3);
  const int rate_index = b[2] >> 2 & 3;
  const int bit_index = b[2] >> 4;
  if (version == 1 || layer == 4 || rate_index == 3 || bit_index == 0 || bit_index == 15)
    return std::nullopt;
  constexpr int kRates[] = {44100, 48000, 32000};
  constexpr int kKilobits[5][15] = {
      {0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448},
      {0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384},
      {0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320},
      {0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256},
      {0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160}};
  const bool first = version == 3;
  const int rate = kRates[rate_index] >> (first ? 0 : version == 2 ? 1 : 2);
  const int bits = 1000 * kKilobits[first ? layer - 1 : layer == 1 ? 3 : 4][bit_index];
  const int padding = b[2] >> 1 & 1;
  const bool mono = b[3] >> 6 == 3;
  MpegFrame frame;
  frame.samples = layer == 1 ? 384 : layer == 3 && !first ? 576 : 1152;
  const std::int64_t slot = layer == 1 ? 4 : 1;
  frame.bytes =
      static_cast<std::uint64_t>(slot * (frame.samples / 8 / slot * bits / rate + padding));
  frame.side = 4 + (first ? (mono ? 17U : 32U) : (mono ? 9U : 17U));
  return frame.bytes < 4 ? std::nullopt : std::optional(frame);
}

}  // namespace

std::optional<std::int64_t> mpeg_samples(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::uint64_t at = 0;
  for (Bytes tag = bytes_at(file, 0, 10); begins(tag, 0, "ID3") && tag.size() == 10;
       tag = bytes_at(file, at, 10)) {
    std::uint64_t size = 0;
    for (int i = 6; i < 10; ++i) size = size << 7 | (tag[static_cast<std::size_t>(i)] & 0x7FU);
    at += 10 + size + ((tag[5] & 0x10U) != 0 ? 10 : 0);
  }
  std::int64_t samples = 0;
  for (bool is_first = true;; is_first = false) {
    const Bytes head = bytes_at(file, at, is_first ? 64 : 4);
    const std::optional<MpegFrame> frame = mpeg_frame(head);
    if (!frame) break;
    if (is_first && (begins(head, frame->side, "Xing") || begins(head, frame->side, "Info") ||
                     begins(head, 36, "VBRI")))
      return std::nullopt;
    samples += frame->samples;
    at += frame->bytes;
  }
  if (samples == 0) return std::nullopt;
  return samples;
}

// --- Ogg (RFC 3533) ----------------------------------------------------------------------------

void check_ogg_pages(const std::filesystem::path& path, const std::string& name) {
  constexpr unsigned kFirst = 2;
  constexpr unsigned kLast = 4;
  std::ifstream file(path, std::ios::binary);
  std::set<std::uint32_t> open;
  bool begun = false;  // a page that is no first one was seen
  for (std::uint64_t at = 0;;) {
    const Bytes page = bytes_at(file, at, 27 + 255);
    if (!begins(page, 0, "OggS") || page.size() < 27 || page.size() < 27U + page[26]) break;
    std::uint32_t serial = 0;
    for (std::size_t i = 18; i-- > 14;) serial = serial << 8 | page[i];
    if ((page[5] & kFirst) != 0) {
      if (begun)
        throw DataError(fmt::format(
            "{}: byte {}: another stream begins here, after the first one; expected one Ogg "
            "stream; convert the file, as with ffmpeg -i FILE NEW.wav",
            name, at));
      open.insert(serial);
    } else {
      begun = true;
    }
    if ((page[5] & kLast) != 0) open.erase(serial);
    at += 27U + page[26];
    for (std::size_t i = 0; i < page[26]; ++i) at += page[27 + i];
  }
  if (!open.empty())
    throw DataError(
        fmt::format("{}: the last page of its Ogg stream is missing; the file was cut off", name));
}

}  // namespace segfuse::data
