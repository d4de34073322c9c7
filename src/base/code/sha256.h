#pragma once
// SHA-256 (FIPS 180-4) and HMAC over it (RFC 2104): what two sides that know one key prove to each
// other without saying it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace segfuse {

class Sha256 {
 public:
  void update(std::string_view bytes);
  /// The 32 bytes of the digest of all that came; once.
  std::string finish();

 private:
  void compress(const unsigned char* block);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667U, 0xbb67ae85U, 0x3c6ef372U, 0xa54ff53aU,
                                         0x510e527fU, 0x9b05688cU, 0x1f83d9abU, 0x5be0cd19U};
  std::array<unsigned char, 64> block_{};
  std::size_t filled_ = 0;
  std::uint64_t counted_ = 0;
};

/// 32 bytes.
std::string sha256(std::string_view bytes);
/// The same as hexadecimal digits, as `sha256sum` prints it.
std::string sha256_hex(std::string_view bytes);
/// 32 bytes that nobody without the key can compute.
std::string hmac_sha256(std::string_view key, std::string_view bytes);

}  // namespace segfuse
