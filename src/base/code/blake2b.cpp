#include "base/code/blake2b.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace segfuse {
namespace {

using Word = std::uint64_t;

constexpr std::array<Word, 8> kStart = {
    0x6a09e667f3bcc908U, 0xbb67ae8584caa73bU, 0x3c6ef372fe94f82bU, 0xa54ff53a5f1d36f1U,
    0x510e527fade682d1U, 0x9b05688c2b3e6c1fU, 0x1f83d9abfb41bd6bU, 0x5be0cd19137e2179U};

/// The order of the message's words in each round; rounds 10 and 11 repeat the first two.
constexpr unsigned char kOrder[10][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                          {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                          {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                          {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                          {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                          {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                          {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                          {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                          {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                          {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

Word load(const unsigned char* bytes) {
  Word word = 0;
  for (int i = 7; i >= 0; --i) word = word << 8 | bytes[i];
  return word;
}

void mix(Word& a, Word& b, Word& c, Word& d, Word x, Word y) {
  a += b + x;
  d = std::rotr(d ^ a, 32);
  c += d;
  b = std::rotr(b ^ c, 24);
  a += b + y;
  d = std::rotr(d ^ a, 16);
  c += d;
  b = std::rotr(b ^ c, 63);
}

}  // namespace

Blake2b::Blake2b(std::size_t digest_bytes, std::string_view key)
    : state_(kStart), digest_bytes_(digest_bytes) {
  SEGFUSE_CHECK(digest_bytes >= 1 && digest_bytes <= 64 && key.size() <= 64,
                "{} bytes of digest, {} of key", digest_bytes, key.size());
  state_[0] ^= 0x01010000U ^ key.size() << 8 ^ digest_bytes;
  if (key.empty()) return;
  std::memcpy(block_.data(), key.data(), key.size());
  filled_ = block_.size();
}

void Blake2b::update(std::string_view bytes) {
  while (!bytes.empty()) {
    // The last block is kept until it is known to be the last.
    if (filled_ == block_.size()) compress(false);
    const std::size_t count = std::min(bytes.size(), block_.size() - filled_);
    std::memcpy(block_.data() + filled_, bytes.data(), count);
    filled_ += count;
    bytes.remove_prefix(count);
  }
}

std::string Blake2b::finish() {
  std::fill(block_.begin() + static_cast<std::ptrdiff_t>(filled_), block_.end(), 0);
  compress(true);
  std::string digest(digest_bytes_, '\0');
  for (std::size_t i = 0; i < digest_bytes_; ++i)
    digest[i] = static_cast<char>(state_[i / 8] >> 8 * (i % 8) & 0xff);
  return digest;
}

void Blake2b::compress(bool last) {
  counted_[0] += filled_;
  if (counted_[0] < filled_) ++counted_[1];
  std::array<Word, 16> m;
  for (std::size_t i = 0; i < 16; ++i) m[i] = load(block_.data() + 8 * i);
  std::array<Word, 16> v;
  std::copy(state_.begin(), state_.end(), v.begin());
  std::copy(kStart.begin(), kStart.end(), v.begin() + 8);
  v[12] ^= counted_[0];
  v[13] ^= counted_[1];
  if (last) v[14] = ~v[14];
  for (int round = 0; round < 12; ++round) {
    const unsigned char* s = kOrder[round % 10];
    for (std::size_t i = 0; i < 4; ++i)
      mix(v[i], v[4 + i], v[8 + i], v[12 + i], m[s[2 * i]], m[s[2 * i + 1]]);
    for (std::size_t i = 0; i < 4; ++i)
      mix(v[i], v[4 + (i + 1) % 4], v[8 + (i + 2) % 4], v[12 + (i + 3) % 4], m[s[8 + 2 * i]],
          m[s[9 + 2 * i]]);
  }
  for (std::size_t i = 0; i < 8; ++i) state_[i] ^= v[i] ^ v[8 + i];
  filled_ = 0;
}

std::string Blake2b::finish_hex() {
  std::string hex;
  for (const char c : finish()) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

std::string blake2b_hex(std::string_view bytes) {
  Blake2b hash;
  hash.update(bytes);
  return hash.finish_hex();
}

bool equal_in_constant_time(std::string_view a, std::string_view b) noexcept {
  if (a.size() != b.size()) return false;
  unsigned differing = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    differing |=
        static_cast<unsigned char>(a[i]) ^ static_cast<unsigned>(static_cast<unsigned char>(b[i]));
  return differing == 0;
}

}  // namespace segfuse
