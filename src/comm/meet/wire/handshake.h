#pragma once
// How two sides prove to each other that they know the key, before either believes a word.
//
// Rank 0 sends 32 random bytes; who comes answers with 32 of its own, with what it is, and with the
// HMAC of all that; rank 0 sends its HMAC over the same back. All three have one length each, so a
// stranger's bytes reach no parser.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace segfuse::comm::meet {

/// Beyond this the other side is a stranger.
inline constexpr std::size_t kLongestGreeting = 128;

enum class Role : std::uint8_t { kRank, kLook };

struct Visitor {
  Role role = Role::kRank;
  std::uint32_t rank = 0;
  std::uint32_t count = 1;       ///< of ranks, as its environment says
  std::uint32_t generation = 0;  ///< of the group of ranks
};

enum class Verdict : std::uint8_t {
  kWelcome,
  kWrongKey,
  kWrongCount,  ///< another number of ranks, or no rank of them
  kTaken,       ///< that rank is there already
  kClosed,      ///< all have come, or the time is over
  kOver         ///< the ranks' work is done
};

std::string new_nonce();

std::string challenge(const std::string& nonce);
/// The nonce; nothing for what is no challenge of this version.
std::optional<std::string> read_challenge(std::string_view bytes);

struct Answer {
  Visitor visitor;
  std::string nonce;
  std::string proof;
};
std::string answer(std::string_view key, const std::string& challenge_nonce, const Visitor& visitor,
                   const std::string& nonce);
std::optional<Answer> read_answer(std::string_view bytes);
bool proves_key(const Answer& answer, std::string_view key, const std::string& challenge_nonce);

/// With the HMAC where the other side has proved the key.
std::string verdict(std::string_view key, Verdict verdict, const std::string& challenge_nonce,
                    const std::string& nonce);
/// Nothing for what is no verdict, and for a welcome of somebody who does not know the key.
std::optional<Verdict> read_verdict(std::string_view bytes, std::string_view key,
                                    const std::string& challenge_nonce, const std::string& nonce);

}  // namespace segfuse::comm::meet
