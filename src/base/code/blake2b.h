#pragma once
// BLAKE2b (RFC 7693): a hash that nobody can find collisions of, and with a key one that nobody
// without the key can compute.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace segfuse {

class Blake2b {
 public:
  /// `digest_bytes` is 1 to 64, the key 0 to 64 bytes long.
  explicit Blake2b(std::size_t digest_bytes = 32, std::string_view key = {});
  void update(std::string_view bytes);
  /// The digest of all that came; once.
  std::string finish();
  /// The same as hexadecimal digits.
  std::string finish_hex();

 private:
  void compress(bool last);

  std::array<std::uint64_t, 8> state_;
  std::array<unsigned char, 128> block_{};
  std::size_t filled_ = 0;
  std::uint64_t counted_[2] = {0, 0};
  std::size_t digest_bytes_;
};

/// The digest of one text as hexadecimal digits, as `b2sum -l 256` prints it.
std::string blake2b_hex(std::string_view bytes);

/// Whether two texts of one length are equal, in a time that does not tell where they differ.
bool equal_in_constant_time(std::string_view a, std::string_view b) noexcept;

}  // namespace segfuse
