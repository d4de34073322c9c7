#include "learn/data/wfdb/packing.h"

namespace segfuse::data {

Packing packing_of(int format) {
  switch (format) {
    case 8: return {1, 1, 8, false};
    case 80: return {1, 1, 8, true};
    case 16:
    case 61: return {2, 1, 16, false};
    case 160: return {2, 1, 16, true};
    case 24: return {3, 1, 24, false};
    case 32: return {4, 1, 32, false};
    case 212: return {3, 2, 12, false};
    default: return {4, 3, 10, false};  // 310, 311
  }
}

std::size_t bytes_for(int format, std::size_t samples) {
  const Packing packing = packing_of(format);
  const std::size_t rest = samples % packing.count;
  std::size_t tail = 0;
  if (rest == 1) tail = 2;
  if (rest == 2) tail = format == 311 ? 3 : 4;
  return samples / packing.count * packing.bytes + tail;
}

std::size_t samples_in(int format, std::size_t bytes) {
  const Packing packing = packing_of(format);
  std::size_t samples = bytes / packing.bytes * packing.count;
  while (packing.count > 1 && bytes_for(format, samples + 1) <= bytes) ++samples;
  return samples;
}

std::int32_t signed_value(std::uint32_t value, int bits) {
  const std::uint32_t sign = std::uint32_t{1} << (bits - 1);
  const std::uint32_t mask = bits == 32 ? ~std::uint32_t{0} : (std::uint32_t{1} << bits) - 1;
  return static_cast<std::int32_t>(((value & mask) ^ sign) - sign);
}

std::int32_t PackedSamples::at(std::size_t i) const {
  const std::size_t group = i / packing_.count * packing_.bytes;
  const std::size_t place = i % packing_.count;
  switch (format_) {
    case 61: return signed_value(byte(group) << 8 | byte(group + 1), 16);
    case 212: {
      const std::uint32_t middle = byte(group + 1);
      return place == 0 ? signed_value(byte(group) | (middle & 0xFU) << 8, 12)
                        : signed_value(byte(group + 2) | (middle & 0xF0U) << 4, 12);
    }
    case 310: {
      const std::uint32_t left = little(group, 2);
      const std::uint32_t right = little(group + 2, 2);
      if (place == 0) return signed_value(left >> 1, 10);
      if (place == 1) return signed_value(right >> 1, 10);
      return signed_value(left >> 11 | right >> 11 << 5, 10);
    }
    case 311: return signed_value(little(group, 4) >> (10 * place), 10);
    default: break;
  }
  const std::uint32_t value = little(group, packing_.bytes);
  const std::uint32_t half = std::uint32_t{1} << (packing_.bits - 1);
  return signed_value(packing_.offset ? value - half : value, packing_.bits);
}

std::uint32_t PackedSamples::little(std::size_t at, std::size_t count) const {
  std::uint32_t value = 0;
  for (std::size_t i = count; i-- > 0;) value = value << 8 | byte(at + i);
  return value;
}

}  // namespace segfuse::data
