// Groups of recordings stay together, however they are dealt.
#include "learn/data/splits/splits.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/rng.h"
#include "learn/data/splits/group_rule.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"
#include "support/files.h"
#include "support/message_of.h"

namespace segfuse::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using test::message_of;

/// Groups of 1 to `most` recordings, shuffled.
std::vector<std::string> some_groups(Rng& rng, std::int64_t count, std::uint64_t most) {
  std::vector<std::string> groups;
  for (std::int64_t g = 0; g < count; ++g)
    for (std::uint64_t i = 0; i <= rng.below(most); ++i) groups.push_back(fmt::format("g{}", g));
  rng.shuffle(groups);
  return groups;
}

std::vector<Recording> recordings_with(const std::vector<std::string>& groups) {
  std::vector<Recording> out(groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    out[i].id = fmt::format("r{:04}", i);
    out[i].group = groups[i];
  }
  return out;
}

/// Each group's set; a failure where one has several.
std::map<std::string, Split> set_of(const std::vector<Recording>& recordings) {
  std::map<std::string, Split> sets;
  for (const Recording& recording : recordings)
    EXPECT_EQ(sets.emplace(recording.group, recording.split).first->second, recording.split)
        << recording.group << " is torn apart";
  return sets;
}

std::int64_t groups_in(const std::map<std::string, Split>& sets, Split split) {
  return std::ranges::count_if(sets, [&](const auto& one) { return one.second == split; });
}

TEST(Groups, ComeWholeIntoBinsThatAreAsEvenAsTheyAllow) {
  Rng rng(5);
  for (int trial = 0; trial < 200; ++trial) {
    const auto count = static_cast<std::int64_t>(1 + rng.below(20));
    const std::vector<std::string> groups = some_groups(rng, count, 1 + rng.below(9));
    const std::int64_t bins =
        1 + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(count)));
    const std::vector<std::int64_t> bin_of = deal_groups(groups, bins);
    std::map<std::string, std::int64_t> bin_of_group, size_of_group;
    std::vector<std::int64_t> filled(static_cast<std::size_t>(bins), 0);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      EXPECT_EQ(bin_of_group.emplace(groups[i], bin_of[i]).first->second, bin_of[i]);
      ++size_of_group[groups[i]];
      ++filled.at(static_cast<std::size_t>(bin_of[i]));
    }
    std::int64_t largest = 0;
    for (const auto& [group, size] : size_of_group) largest = std::max(largest, size);
    EXPECT_GT(*std::ranges::min_element(filled), 0) << "as many groups as bins: none is empty";
    EXPECT_LE(*std::ranges::max_element(filled) - *std::ranges::min_element(filled), largest);
    std::vector<std::string> others = groups;  // in any other order the same
    rng.shuffle(others);
    const std::vector<std::int64_t> again = deal_groups(others, bins);
    for (std::size_t i = 0; i < others.size(); ++i) EXPECT_EQ(again[i], bin_of_group[others[i]]);
  }
}

TEST(Groups, OfOneRecordingEachAreDealtAsRecordingsAre) {
  std::vector<std::string> groups;
  for (int i = 0; i < 37; ++i) groups.push_back(fmt::format("{:02}", i));
  const std::vector<std::int64_t> bin_of = deal_groups(groups, 5);
  for (std::size_t i = 0; i < groups.size(); ++i)
    EXPECT_EQ(bin_of[i], static_cast<std::int64_t>(i % 5));
}

TEST(Groups, EachGoesWhereTheFewestRecordingsAre) {
  std::vector<std::string> groups;
  for (const auto& [group, count] :
       std::map<std::string, int>{{"anna", 5}, {"bert", 4}, {"carl", 3}, {"dora", 2}, {"emil", 2}})
    groups.insert(groups.end(), static_cast<std::size_t>(count), group);
  // 5 | 4 | 3, then two to the third and two to the second.
  EXPECT_THAT(deal_groups(groups, 3), ElementsAre(0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 1, 1));
}

TEST(Groups, ASplitPartsNoneAndLeavesSomethingForEachSet) {
  Rng rng(6);
  for (int trial = 0; trial < 200; ++trial) {
    const auto count = static_cast<std::int64_t>(2 + rng.below(30));
    const std::vector<std::string> groups = some_groups(rng, count, 5);
    std::vector<std::optional<Split>> splits(groups.size());
    EXPECT_FALSE(deal_splits(splits, groups));
    std::vector<Recording> recordings = recordings_with(groups);
    std::map<Split, std::int64_t> sizes;
    for (std::size_t i = 0; i < groups.size(); ++i) ++sizes[recordings[i].split = *splits[i]];
    const std::map<std::string, Split> sets = set_of(recordings);
    EXPECT_EQ(torn_groups(recordings), "");
    EXPECT_GT(groups_in(sets, Split::kTrain), 0);
    EXPECT_GT(groups_in(sets, Split::kTest), 0);
    EXPECT_EQ(groups_in(sets, Split::kDev) > 0, count > 2) << count << " groups";
    if (count >= 10) {
      EXPECT_LE(10 * sizes[Split::kTest], std::ssize(groups)) << "the smallest of ten parts";
    }
  }
}

TEST(Groups, OfATrainingSetThatIsGivenSomeAreForDevelopment) {
  const std::vector<std::string> groups{"a", "a", "a", "b", "b", "c", "c", "c", "d"};
  std::vector<std::optional<Split>> splits(groups.size(), Split::kTrain);
  for (const std::size_t i : {5, 6, 7}) splits[i] = Split::kTest;
  EXPECT_TRUE(deal_splits(splits, groups));
  EXPECT_EQ(splits[8], Split::kDev) << "the smallest";
  for (const std::size_t i : {0, 1, 2, 3, 4}) EXPECT_EQ(splits[i], Split::kTrain);
  for (const std::size_t i : {5, 6, 7}) EXPECT_EQ(splits[i], Split::kTest);
}

TEST(Groups, OneAloneCannotBeSplit) {
  const std::vector<std::string> groups(4, "finch");
  std::vector<std::optional<Split>> splits(4);
  EXPECT_THAT(message_of([&] { deal_splits(splits, groups); }),
              HasSubstr("all 4 recordings are of one group, \"finch\""));
}

TEST(Groups, EachIsInOneTestFoldAndTornByNone) {
  Rng rng(7);
  for (int trial = 0; trial < 50; ++trial) {
    const auto count = static_cast<std::int64_t>(2 + rng.below(20));
    std::vector<Recording> recordings = recordings_with(some_groups(rng, count, 6));
    const std::int64_t folds =
        2 + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(count - 1)));
    std::multiset<std::string> tested;
    for (std::int64_t fold = 1; fold <= folds; ++fold) {
      deal_folds(recordings, folds, fold);
      const std::map<std::string, Split> sets = set_of(recordings);
      for (const auto& [group, split] : sets)
        if (split == Split::kTest) tested.insert(group);
      EXPECT_GT(groups_in(sets, Split::kTrain), 0);
      EXPECT_GT(groups_in(sets, Split::kTest), 0);
      if (count - groups_in(sets, Split::kTest) > 1) {
        EXPECT_GT(groups_in(sets, Split::kDev), 0);
      }
    }
    EXPECT_EQ(std::ssize(tested), count);
    EXPECT_EQ(std::ssize(std::set<std::string>(tested.begin(), tested.end())), count);
  }
}

TEST(Groups, FewerThanFoldsAreRefused) {
  std::vector<Recording> recordings = recordings_with({"a", "a", "b", "b", "c"});
  EXPECT_THAT(message_of([&] { deal_folds(recordings, 4, 1); }),
              HasSubstr("there are 3 groups of recordings for 4 folds"));
  EXPECT_EQ(count_groups(recordings), 3);
}

TEST(Groups, WithoutAnyFoldsAreDealtByNumber) {
  std::vector<Recording> recordings(7);
  deal_folds(recordings, 3, 2);
  for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(recordings[i].split == Split::kTest, i % 3 == 1);
  EXPECT_EQ(count_groups(recordings), 0);
}

// ------------------------------------------------------------------------------------- rules

std::string group_of(const std::string& rule, const std::string& id,
                     const CorpusPlace& place = {}) {
  Recording recording;
  recording.id = id;
  return message_of(
      [&]() -> void { throw DataError("= " + GroupRule(rule).group_of(recording, place)); });
}

TEST(GroupRule, APairOfParenthesesNamesTheGroup) {
  EXPECT_EQ(group_of("^(bird[0-9]+)_", "bird12_003"), "= bird12");
  EXPECT_EQ(group_of("(?:^|/)([a-z]+)-", "day3/anna-17"), "= anna");
  EXPECT_EQ(group_of("/([^/]+)/[^/]*$", "train/dr1/fcjf0/sa1"), "= fcjf0");
  EXPECT_THAT(group_of("^(bird[0-9]+)_", "finch_003"),
              HasSubstr("the recording \"finch_003\" does not fit data.group, which is "
                        "\"^(bird[0-9]+)_\""));
  EXPECT_THAT(group_of("^(b*)_", "_003"), HasSubstr("nothing stands where the parentheses are"));
  EXPECT_THAT(group_of("(a)(b)", "ab"), HasSubstr("has 2 pairs of parentheses; expected one"));
  EXPECT_THAT(group_of("(?:a)", "ab"), HasSubstr("has 0 pairs of parentheses"));
  EXPECT_THAT(group_of("(a", "ab"), HasSubstr("\"(a\" is not a regular expression"));
  EXPECT_THAT(group_of("(" + std::string(300, 'a') + ")", "ab"), HasSubstr("at most 200"));
  EXPECT_THAT(group_of("(a)", std::string(1001, 'a')), HasSubstr("names of at most 1000"));
}

TEST(GroupRule, AnExpressionEndsWhateverTheNameIs) {
  // By trying all ways through the name, each of these would take longer than there is time.
  const std::string name = fmt::format("{:a>60}c", "");
  EXPECT_THAT(group_of("(a*)*b", name), HasSubstr("does not fit"));
  EXPECT_THAT(group_of("^(?:a|aa)+([0-9])", name), HasSubstr("does not fit"));
}

TEST(GroupRule, AFolderIsThatBelowTheCorpusAndItsSplits) {
  EXPECT_EQ(folder_in_corpus("/c/anna/day1/x.wav", "/c"), "anna/day1");
  EXPECT_EQ(folder_in_corpus("/c/TRAIN/anna/x.wav", "/c"), "anna");
  EXPECT_EQ(folder_in_corpus("c/test/x.wav", "c"), "");
  EXPECT_EQ(folder_in_corpus("/c/x.wav", "/c"), "");
  EXPECT_EQ(folder_in_corpus("anna/x.wav", ""), "anna");
  EXPECT_EQ(folder_in_corpus("/d/anna/x.wav", "/c"), "../d/anna");
  EXPECT_EQ(group_of("folder", "x", {"anna"}), "= anna");
  EXPECT_THAT(group_of("folder", "x"), HasSubstr("\"x\" lies in no folder of its own"));
}

// --------------------------------------------------------------------------------- manifests

std::vector<std::string> grouped(const std::filesystem::path& path, const std::string& group) {
  ManifestOptions options;
  options.group = group;
  std::vector<std::string> out;
  for (const Recording& recording : load_manifest(path, options))
    out.push_back(fmt::format("{}:{}:{}", recording.id, recording.group, name_of(recording.split)));
  return out;
}

TEST(GroupsOfACorpus, AFolderOfEachSpeaker) {
  const test::TemporaryDirectory directory;
  for (const char* name : {"anna/a", "anna/b", "anna/c", "bert/a", "bert/b", "carl/a"})
    for (const char* ending : {"wav", "phn"})
      directory.write(fmt::format("{}.{}", name, ending), "");
  EXPECT_THAT(grouped(directory.path(), "folder"),
              ElementsAre("anna/a:anna:train", "anna/b:anna:train", "anna/c:anna:train",
                          "bert/a:bert:dev", "bert/b:bert:dev", "carl/a:carl:test"));
  EXPECT_THAT(
      message_of([&] { grouped(directory.path(), "speaker"); }),
      HasSubstr("data.group is \"speaker\", a column of a manifest, but there is no manifest"));
  directory.write("z.wav", "");
  directory.write("z.phn", "");
  EXPECT_THAT(message_of([&] { grouped(directory.path(), "folder"); }),
              HasSubstr("\"z\" lies in no folder of its own"));
}

TEST(GroupsOfACorpus, OneSpeakerInTwoSplitsThatAreGivenIsOneGroup) {
  const test::TemporaryDirectory directory;
  for (const char* name : {"train/anna/a", "train/bert/a", "test/anna/b"})
    for (const char* ending : {"wav", "phn"})
      directory.write(fmt::format("{}.{}", name, ending), "");
  ManifestOptions options;
  options.group = "folder";
  const std::vector<Recording> recordings = load_manifest(directory.path(), options);
  EXPECT_EQ(count_groups(recordings), 2);
  EXPECT_EQ(
      torn_groups(recordings),
      "the given split separates recordings of one group: \"anna\" is in the dev set and in the "
      "test set");
}

TEST(GroupsOfACorpus, AColumnOfTheManifest) {
  const test::TemporaryDirectory directory;
  for (const char* name : {"a", "b", "c", "d"})
    for (const char* ending : {"wav", "phn"})
      directory.write(fmt::format("{}.{}", name, ending), "");
  const auto path = directory.write("list.tsv", "id\tBird\na\tx\nb\ty\nc\tx\nd\ty\n");
  EXPECT_THAT(grouped(path, "bird"), ElementsAre("a:x:test", "b:y:train", "c:x:test", "d:y:train"));
  EXPECT_THAT(
      message_of([&] { grouped(path, "speaker"); }),
      HasSubstr("list.tsv:1: no column \"speaker\" in the header, which data.group names; it "
                "has id, Bird"));
  directory.write("list.tsv", "id\tbird\na\tx\nb\t\n");
  EXPECT_THAT(message_of([&] { grouped(path, "bird"); }),
              HasSubstr("the recording \"b\" has nothing in the column \"bird\""));
}

TEST(GroupsOfACorpus, OfRecordingsInMemory) {
  std::vector<HeldRecording> held;
  for (const char* group : {"x", "y", "x", "z", "z", "z"}) {
    HeldRecording& one = held.emplace_back();
    one.name = fmt::format("recording {}", held.size() - 1);
    one.content = Tensor::zeros(DType::kF32, {4, 1});
    one.group = group;
  }
  const std::vector<Recording> recordings = hold(held);
  const std::map<std::string, Split> sets = set_of(recordings);
  EXPECT_EQ(sets.at("y"), Split::kTest);
  EXPECT_EQ(sets.at("x"), Split::kDev);
  EXPECT_EQ(sets.at("z"), Split::kTrain);
  held[3].group.clear();
  EXPECT_THAT(message_of([&] { hold(held); }),
              HasSubstr("recording 3 has no group, and others have one"));
}

}  // namespace
}  // namespace segfuse::data
