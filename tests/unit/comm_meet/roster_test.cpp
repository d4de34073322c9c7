// Who is blamed for what, without a socket or a clock.

#include "comm/meet/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/meet/agreement.h"

namespace segfuse::comm::meet {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

const Time kBegin{std::chrono::hours(1)};

Time at(double when) { return kBegin + duration_of(when); }

struct Book {
  Roster roster;
  explicit Book(std::int64_t count) : roster(count, Timings{}) {
    for (std::int64_t rank = 0; rank < count; ++rank)
      roster.came(rank, {std::string(1, static_cast<char>('a' + rank)), 800 + rank, {}}, kBegin);
  }
  /// Everybody is heard but `silent`.
  void hear_all(double when, std::int64_t silent = -1) {
    for (std::int64_t rank = 0; rank < roster.count(); ++rank)
      if (rank != silent) roster.heard(rank, at(when));
  }
  std::string blame(double when) const {
    const auto failure = roster.judge(at(when));
    return failure ? failure->sentence : "nobody";
  }
};

State exchange(std::int64_t step, std::int64_t bucket) {
  return {.step = step, .bucket = bucket, .phase = Phase::kExchange};
}

TEST(Roster, ThreeMissingHeartbeatsAreALoss) {
  Book book(4);
  book.roster.moved(3, {.step = 1201, .phase = Phase::kBackward}, at(1));
  book.hear_all(5, 3);
  EXPECT_EQ(book.blame(5), "nobody");
  EXPECT_EQ(
      book.blame(5.5),
      "rank 3 (host d, pid 803) was lost in step 1201, backward, 4.5 s after its last report: "
      "3 heartbeats are missing");
  EXPECT_EQ(book.roster.judge(at(5.5))->rank, 3);
  book.roster.left(3, at(2));
  EXPECT_EQ(book.blame(5.5), "nobody") << "its work was done";
}

TEST(Roster, AClosedConnectionIsALossInItsPlace) {
  Book book(2);
  book.roster.moved(1, exchange(7, 2), at(1));
  EXPECT_EQ(
      book.roster.lost(1, at(13), "its connection closed").sentence,
      "rank 1 (host b, pid 801) was lost in step 7, exchange of bucket 2, 12 s after its last "
      "report: its connection closed");
}

TEST(Roster, WhoDoesNotMoveWhileOthersWaitIsNamedWithWhatItDoes) {
  Book book(4);
  for (const std::int64_t rank : {0, 1, 3}) book.roster.moved(rank, exchange(1201, 2), at(10));
  book.roster.moved(2, {.step = 1201, .phase = Phase::kReadingData, .doing = "recording 'x.flac'"},
                    at(7));
  book.hear_all(69.5);
  EXPECT_EQ(book.blame(69.5), "nobody");
  book.hear_all(70);
  EXPECT_EQ(book.blame(70),
            "rank 2 (host c, pid 802) has been reading data (recording 'x.flac') for 63 s and has "
            "not joined bucket 2 of step 1201; 3 ranks wait");
}

TEST(Roster, AfterALossNobodyHasWaitedAndNobodyLeft) {
  Book book(3);
  for (const std::int64_t rank : {0, 1}) book.roster.moved(rank, exchange(7, 2), at(10));
  book.roster.moved(2, {.step = 7, .phase = Phase::kForward}, at(10));
  book.roster.left(1, at(60));
  book.hear_all(75);
  book.roster.lose(2, at(75));
  EXPECT_EQ(book.roster.ranks(), (std::vector<std::int64_t>{0, 1}));
  EXPECT_FALSE(book.roster.has_left(1));
  EXPECT_EQ(book.blame(75), "nobody");
  book.hear_all(130, 2);
  EXPECT_EQ(book.blame(130), "nobody") << "the lost one is silent, and is none of them";
  book.hear_all(135, 2);
  EXPECT_EQ(book.blame(135),
            "bucket 2 of step 7 has not ended for 60 s, and all 2 ranks have joined it");
  const Rows rows = book.roster.rows(at(135));
  EXPECT_TRUE(rows.rows[2].lost);
  EXPECT_FALSE(rows.rows[2].awaited);
  for (const std::int64_t rank : {0, 1}) book.roster.left(rank, at(136));
  EXPECT_TRUE(book.roster.all_left());
}

TEST(Roster, NobodyIsStuckWhereNobodyWaits) {
  Book book(2);
  for (const std::int64_t rank : {0, 1}) book.roster.moved(rank, {.phase = Phase::kScoring}, at(1));
  book.hear_all(1000);
  EXPECT_EQ(book.blame(1000), "nobody");
}

TEST(Roster, WhoMovesIsSlowAndNoFailure) {
  Book book(2);
  book.roster.moved(0, exchange(5, 0), at(1));
  book.roster.moved(1, {.step = 5, .shard = 1, .phase = Phase::kForward}, at(1));
  book.hear_all(90);
  book.roster.moved(1, {.step = 5, .shard = 2, .phase = Phase::kForward}, at(90));
  EXPECT_EQ(book.blame(90), "nobody");
  book.hear_all(149);
  EXPECT_EQ(book.blame(149), "nobody");
  book.hear_all(150);
  EXPECT_THAT(book.blame(150), HasSubstr("rank 1 (host b, pid 801) has been in the forward pass"));
}

TEST(Roster, MemoryAndTimeAreNoMovement) {
  Book book(2);
  book.roster.moved(0, exchange(5, 0), at(1));
  book.roster.moved(1, {.step = 5, .phase = Phase::kForward}, at(1));
  book.roster.moved(1, {.step = 5, .phase = Phase::kForward, .seconds = 60, .free_bytes = 3},
                    at(61));
  book.hear_all(61);
  EXPECT_THAT(book.blame(61), HasSubstr("for 60 s"));
}

TEST(Roster, TheTimeInAPlaceBeginsBeforeItsHeartbeat) {
  Book book(2);
  book.roster.moved(1, {.step = 5, .phase = Phase::kForward, .seconds = 0.75}, at(2));
  EXPECT_DOUBLE_EQ(book.roster.rows(at(3)).rows[1].state.seconds, 1.75);
}

TEST(Roster, TheFurthestBehindInTheExchangeIsAwaited) {
  Book book(3);
  book.roster.moved(0, exchange(5, 2), at(1));
  book.roster.moved(1, exchange(5, 1), at(1));
  book.roster.moved(2, exchange(5, 2), at(1));
  const Rows rows = book.roster.rows(at(2));
  EXPECT_FALSE(rows.rows[0].awaited);
  EXPECT_TRUE(rows.rows[1].awaited);
  book.hear_all(61);
  EXPECT_EQ(book.blame(61),
            "rank 1 (host b, pid 801) has been in the exchange of bucket 1 for 60 s and has not "
            "joined bucket 2 of step 5; 2 ranks wait");
}

TEST(Roster, AnExchangeThatAllHaveJoinedAndThatDoesNotEndIsNoRanksFault) {
  Book book(2);
  for (const std::int64_t rank : {0, 1}) book.roster.moved(rank, exchange(5, 2), at(1));
  book.hear_all(61);
  const auto failure = book.roster.judge(at(61));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, -1);
  EXPECT_EQ(failure->sentence,
            "bucket 2 of step 5 has not ended for 60 s, and all 2 ranks have joined it");
}

TEST(Roster, WhoHasLeftIsNotAwaitedForEver) {
  Book book(2);
  book.roster.moved(0, exchange(5, -1), at(1));
  book.roster.left(1, at(1));
  book.hear_all(61);
  EXPECT_EQ(
      book.blame(61),
      "rank 1 (host b, pid 801) has ended its work and has not joined the exchange of step 5; "
      "1 rank waits");
}

Roster with(const std::vector<Values>& values) {
  Roster roster(static_cast<std::int64_t>(values.size()), Timings{});
  for (std::size_t rank = 0; rank < values.size(); ++rank)
    roster.came(static_cast<std::int64_t>(rank), {"h", 1, values[rank]}, kBegin);
  return roster;
}

std::string difference(const std::vector<Values>& values) {
  const auto failure = difference_in(with(values));
  if (!failure) return "none";
  EXPECT_TRUE(failure->usage);
  return failure->sentence;
}

TEST(Agreement, EqualValuesAreNoDifference) {
  EXPECT_EQ(difference({{}}), "none");
  EXPECT_EQ(difference({{{"a", "1"}}, {{"a", "1"}}, {{"a", "1"}}}), "none");
}

TEST(Agreement, TheOddOneIsNamedWithItsValue) {
  EXPECT_EQ(difference({{{"data", "x"}}, {{"data", "x"}}, {{"data", "y"}}}),
            "the ranks do not agree on data: rank 2 (host h, pid 1) has y; ranks 0 and 1 have x; "
            "start all ranks with the same");
  EXPECT_THAT(difference({{{"data", "y"}}, {{"data", "x"}}, {{"data", "x"}}}),
              HasSubstr("rank 0 (host h, pid 1) has y; ranks 1 and 2 have x"));
  EXPECT_THAT(difference({{{"data", "x"}}, {{"data", "y"}}}),
              HasSubstr("rank 1 (host h, pid 1) has y; rank 0 has x"));
  EXPECT_THAT(difference({{{"data", "x"}}, {}}), HasSubstr("rank 1 (host h, pid 1) has none"));
}

TEST(Agreement, ManyDifferencesAreOneSentence) {
  EXPECT_THAT(
      difference({{{"a", "1"}, {"b", "1"}, {"c", "1"}}, {{"a", "1"}, {"b", "2"}, {"c", "2"}}}),
      HasSubstr("rank 0 has 1; nor on c; start"));
  std::vector<Values> many(9, {{"a", "1"}});
  for (std::size_t rank = 0; rank < 4; ++rank) many[rank]["a"] = std::to_string(10 + rank);
  EXPECT_THAT(
      difference(many),
      HasSubstr("rank 2 (host h, pid 1) has 12, 1 more differ; ranks 4, 5, 6, 7 and 8 have 1"));
}

TEST(Agreement, ValuesThatDifferBeyondWhatIsShownDiffer) {
  const std::string same(100, 'x');
  EXPECT_NE(difference({{{"a", same + "1"}}, {{"a", same + "2"}}}), "none");
}

TEST(Roster, NamesOfManyRanksAreShortened) {
  EXPECT_EQ(list_of({2}), "rank 2");
  EXPECT_EQ(list_of({2, 3, 5}), "ranks 2, 3 and 5");
  EXPECT_EQ(list_of({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
}

}  // namespace
}  // namespace segfuse::comm::meet
