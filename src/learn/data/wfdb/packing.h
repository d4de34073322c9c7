#pragma once
// How the formats of WFDB's signal files pack samples.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace segfuse::data {

/// `count` samples in `bytes`.
struct Packing {
  std::size_t bytes = 0;
  std::size_t count = 1;
  int bits = 0;         ///< of the value; the least value marks a missing sample
  bool offset = false;  ///< the stored number is the value plus half of its range
};
Packing packing_of(int format);

/// Bytes that hold so many samples; the last group may be cut behind its last sample.
std::size_t bytes_for(int format, std::size_t samples);
std::size_t samples_in(int format, std::size_t bytes);
/// The lowest bits as a number in two's complement.
std::int32_t signed_value(std::uint32_t value, int bits);

/// Samples one after another, from the beginning of a group on.
class PackedSamples {
 public:
  PackedSamples(std::string_view bytes, int format)
      : bytes_(bytes), format_(format), packing_(packing_of(format)) {}
  std::int32_t at(std::size_t i) const;

 private:
  std::uint32_t byte(std::size_t i) const {
    return i < bytes_.size() ? static_cast<unsigned char>(bytes_[i]) : 0U;
  }
  std::uint32_t little(std::size_t at, std::size_t count) const;

  std::string_view bytes_;
  int format_;
  Packing packing_;
};

}  // namespace segfuse::data
