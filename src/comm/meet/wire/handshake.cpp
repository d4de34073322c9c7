#include "comm/meet/wire/handshake.h"

#include "base/code/blake2b.h"
#include "base/code/sha256.h"
#include "base/os/folder.h"

namespace segfuse::comm::meet {
namespace {

constexpr std::size_t kBytes = 32;  // of a nonce, and of a proof
constexpr std::size_t kWords = 13;  // bytes of what a visitor says of itself
/// With the version of all messages.
constexpr std::string_view kMagic = "segfuse meets 4\n";

std::string text_of(std::uint32_t number) {
  std::string text;
  for (int shift = 0; shift < 32; shift += 8) text += static_cast<char>(number >> shift & 0xff);
  return text;
}
std::uint32_t number_of(std::string_view text) {
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < 4; ++i)
    number |= std::uint32_t{static_cast<unsigned char>(text[i])} << 8 * i;
  return number;
}

std::string words_of(const Visitor& visitor) {
  return std::string(1, static_cast<char>(visitor.role)) + text_of(visitor.rank) +
         text_of(visitor.count) + text_of(visitor.generation);
}

// The first words differ, so that no side's proof is ever one of the other's.
std::string visitors_proof(std::string_view key, const std::string& challenge_nonce,
                           const Visitor& visitor, const std::string& nonce) {
  return hmac_sha256(key, "visitor" + challenge_nonce + words_of(visitor) + nonce);
}
std::string hosts_proof(std::string_view key, Verdict verdict, const std::string& challenge_nonce,
                        const std::string& nonce) {
  return hmac_sha256(key,
                     "host" + std::string(1, static_cast<char>(verdict)) + nonce + challenge_nonce);
}

}  // namespace

std::string new_nonce() { return random_bytes(kBytes); }

std::string challenge(const std::string& nonce) { return std::string(kMagic) + nonce; }

std::optional<std::string> read_challenge(std::string_view bytes) {
  if (bytes.size() != kMagic.size() + kBytes || !bytes.starts_with(kMagic)) return {};
  return std::string(bytes.substr(kMagic.size()));
}

std::string answer(std::string_view key, const std::string& challenge_nonce, const Visitor& visitor,
                   const std::string& nonce) {
  return words_of(visitor) + nonce + visitors_proof(key, challenge_nonce, visitor, nonce);
}

std::optional<Answer> read_answer(std::string_view bytes) {
  if (bytes.size() != kWords + 2 * kBytes || bytes[0] > static_cast<char>(Role::kLook) ||
      bytes[0] < 0)
    return {};
  Answer answer;
  answer.visitor = {static_cast<Role>(bytes[0]), number_of(bytes.substr(1)),
                    number_of(bytes.substr(5)), number_of(bytes.substr(9))};
  answer.nonce = bytes.substr(kWords, kBytes);
  answer.proof = bytes.substr(kWords + kBytes);
  return answer;
}

bool proves_key(const Answer& answer, std::string_view key, const std::string& challenge_nonce) {
  return equal_in_constant_time(answer.proof,
                                visitors_proof(key, challenge_nonce, answer.visitor, answer.nonce));
}

std::string verdict(std::string_view key, Verdict verdict, const std::string& challenge_nonce,
                    const std::string& nonce) {
  const std::string proof = verdict == Verdict::kWrongKey
                                ? std::string(kBytes, '\0')
                                : hosts_proof(key, verdict, challenge_nonce, nonce);
  return std::string(1, static_cast<char>(verdict)) + proof;
}

std::optional<Verdict> read_verdict(std::string_view bytes, std::string_view key,
                                    const std::string& challenge_nonce, const std::string& nonce) {
  if (bytes.size() != 1 + kBytes || bytes[0] < 0 || bytes[0] > static_cast<char>(Verdict::kOver))
    return {};
  const auto said = static_cast<Verdict>(bytes[0]);
  if (said != Verdict::kWrongKey &&
      !equal_in_constant_time(bytes.substr(1), hosts_proof(key, said, challenge_nonce, nonce)))
    return {};
  return said;
}

}  // namespace segfuse::comm::meet
