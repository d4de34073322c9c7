// Messages: what is said arrives, and nothing else is believed.

#include "comm/meet/wire/message.h"

#include <gtest/gtest.h>

#include <limits>

#include "comm/meet/wire/handshake.h"
#include "segfuse/error.h"

namespace segfuse::comm::meet {
namespace {

const std::string kNasty("\0\xff\n\"x", 5);

State some_state() {
  return {.generation = 2,
          .step = 1201,
          .shard = 3,
          .bucket = -1,
          .phase = Phase::kReadingData,
          .seconds = 1.5,
          .free_bytes = std::int64_t{1} << 40,
          .doing = kNasty};
}

std::vector<Message> one_of_each() {
  return {Here{"node", 812, {{"a", kNasty}, {"b", ""}}},
          Beat{some_state()},
          Text{7, kNasty, 3},
          Trouble{true, "why", 0, 3, 2},
          Bye{3},
          Agreed{"node", 1, true},
          Texts{7, 3, {"", kNasty, "x"}, 3},
          Ended{{true, 4, "because"}},
          Rows{2, "failed", {{0, "a", 1, some_state(), 0.5, true, false, true, false}, {}}, 3},
          Changed{3, {false, 4, "it was lost"}, {0, 2, 7}},
          Knock{},
          Admit{3},
          Note{"a", kNasty}};
}

TEST(Message, EachComesBackAsItWent) {
  EXPECT_EQ(one_of_each().size(), std::variant_size_v<Message>);
  for (const Message& message : one_of_each()) {
    const std::string bytes = encode(message);
    const Message back = decode(bytes);
    EXPECT_EQ(back.index(), message.index());
    EXPECT_EQ(encode(back), bytes);
  }
  const auto here = std::get<Here>(decode(encode(one_of_each()[0])));
  EXPECT_EQ(here.host, "node");
  EXPECT_EQ(here.values.at("a"), kNasty);
  const State state = std::get<Beat>(decode(encode(one_of_each()[1]))).state;
  EXPECT_TRUE(state.same_place(some_state()));
  EXPECT_EQ(state.seconds, 1.5);
  EXPECT_EQ(state.free_bytes, std::int64_t{1} << 40);
}

TEST(Message, NoPartOfAMessageIsOne) {
  for (const Message& message : one_of_each()) {
    const std::string bytes = encode(message);
    for (std::size_t size = 0; size < bytes.size(); ++size)
      EXPECT_THROW(decode(bytes.substr(0, size)), DataError) << message.index() << " " << size;
    EXPECT_THROW(decode(bytes + "x"), DataError);
  }
}

TEST(Message, WhatCannotBeIsRefused) {
  EXPECT_THROW(decode(std::string(1, static_cast<char>(std::variant_size_v<Message>))), DataError);
  EXPECT_THROW(decode("\xff"), DataError);
  std::string ended = encode(Ended{{false, 1, ""}});
  ended[1] = 2;  // neither yes nor no
  EXPECT_THROW(decode(ended), DataError);
  std::string beat = encode(Beat{{.phase = Phase::kSaving}});
  beat[1 + 4 * 8] = kPhases;
  EXPECT_THROW(decode(beat), DataError);
  EXPECT_THROW(decode(encode(Beat{{.seconds = std::numeric_limits<double>::infinity()}})),
               DataError);
  EXPECT_THROW(decode(encode(Beat{{.doing = std::string(kLongestDoing + 1, 'x')}})), DataError);
  EXPECT_THROW(decode(encode(Here{std::string(kLongestHost + 1, 'x'), 1, {}})), DataError);
  EXPECT_THROW(decode(encode(Text{0, std::string(kLongestText + 1, 'x')})), DataError);
  EXPECT_THROW(decode(encode(Note{"", std::string(kLongestText + 1, 'x')})), DataError);
  // A name that is there twice: "a" and "b" of the first message.
  std::string here = encode(one_of_each()[0]);
  here[here.rfind('b')] = 'a';
  EXPECT_THROW(decode(here), DataError);
  EXPECT_THROW(encode(Text{0, std::string(kLongestMessage, 'x')}), InternalError);
}

TEST(Message, ACountThatNothingFollowsTakesNoMemory) {
  std::string texts = encode(Texts{0, 0, {}});
  texts.replace(texts.size() - 12, 4, "\xff\xff\xff\xff");
  EXPECT_THROW(decode(texts), DataError);
}

TEST(Message, ALongTableComesInPieces) {
  Rows rows{1000, std::string(100'000, 'x'), {}};
  for (std::int64_t rank = 0; rank < 1000; ++rank)
    rows.rows.push_back({rank,
                         std::string(kLongestHost, 'h'),
                         1,
                         {.doing = std::string(kLongestDoing, 'd')},
                         0,
                         true,
                         false,
                         false,
                         false});
  std::int64_t next = 0;
  for (const Rows& piece : in_pieces(rows)) {
    EXPECT_LE(encode(piece).size(), kLongestMessage);
    EXPECT_EQ(piece.count, 1000);
    for (const Row& row : piece.rows) EXPECT_EQ(row.rank, next++);
  }
  EXPECT_EQ(next, 1000);
}

TEST(Handshake, TheRightKeyIsProvedAndOnlyThat) {
  const std::string hosts = new_nonce();
  const std::string own = new_nonce();
  EXPECT_NE(hosts, own);
  EXPECT_EQ(read_challenge(challenge(hosts)), hosts);
  const Visitor visitor{Role::kRank, 3, 4, 5};
  const std::string bytes = answer("key", hosts, visitor, own);
  const auto said = read_answer(bytes);
  ASSERT_TRUE(said);
  EXPECT_EQ(said->visitor.rank, 3U);
  EXPECT_EQ(said->visitor.count, 4U);
  EXPECT_EQ(said->visitor.generation, 5U);
  EXPECT_EQ(said->nonce, own);
  EXPECT_TRUE(proves_key(*said, "key", hosts));
  EXPECT_FALSE(proves_key(*said, "Key", hosts));
  EXPECT_FALSE(proves_key(*said, "key", own)) << "an answer to another challenge";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    const auto other = read_answer(changed);
    EXPECT_FALSE(other && proves_key(*other, "key", hosts)) << i;
  }
  EXPECT_FALSE(read_answer(bytes + "x"));
  EXPECT_FALSE(read_answer(bytes.substr(1)));
}

TEST(Handshake, RankZeroProvesTheKeyToo) {
  const std::string hosts = new_nonce();
  const std::string own = new_nonce();
  for (const Verdict each : {Verdict::kWelcome, Verdict::kWrongKey, Verdict::kWrongCount,
                             Verdict::kTaken, Verdict::kClosed, Verdict::kOver})
    EXPECT_EQ(read_verdict(verdict("key", each, hosts, own), "key", hosts, own), each);
  const std::string bytes = verdict("key", Verdict::kWelcome, hosts, own);
  EXPECT_FALSE(read_verdict(bytes, "Key", hosts, own));
  EXPECT_FALSE(read_verdict(bytes, "key", own, hosts));
  std::string changed = bytes;
  changed[0] = static_cast<char>(Verdict::kTaken);
  EXPECT_FALSE(read_verdict(changed, "key", hosts, own));
  // A visitor's own proof, sent back.
  const std::string reflected = bytes.substr(0, 1) + answer("key", own, {}, hosts).substr(13 + 32);
  EXPECT_FALSE(read_verdict(reflected, "key", hosts, own));
  EXPECT_FALSE(read_challenge("HTTP/1.1 400 Bad Request"));
}

}  // namespace
}  // namespace segfuse::comm::meet
