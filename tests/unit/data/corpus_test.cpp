// Alphabets, folding, frames, manifests, batches.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "learn/data/buckets.h"
#include "segfuse/data.h"
#include "segfuse/error.h"
#include "support/files.h"
#include "support/message_of.h"

namespace segfuse {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Annotation annotation(const std::vector<double>& times, const std::vector<std::string>& labels) {
  Annotation out;
  out.source = "x.phn";
  for (std::size_t i = 0; i < labels.size(); ++i)
    out.segments.push_back({times[i], times[i + 1], labels[i], static_cast<std::int64_t>(i) + 1});
  out.duration = times.back();
  return out;
}

using test::message_of;

// --------------------------------------------------------------------------------- alphabet

TEST(Alphabet, IsSortedByBytesAndInvertible) {
  const Annotation all[] = {annotation({0, 1, 2, 3}, {"b", "a", "B"}),
                            annotation({0, 1}, {"\xD1\x89"})};
  const Alphabet alphabet = Alphabet::of(all);
  EXPECT_THAT(alphabet.labels(), ElementsAre("B", "a", "b", "\xD1\x89"));
  for (std::int32_t i = 0; i < 4; ++i) EXPECT_EQ(alphabet.find(alphabet.label(i)), i);
  EXPECT_EQ(alphabet.find("c"), std::nullopt);
  EXPECT_THROW(alphabet.label(4), UsageError);
  EXPECT_THROW(Alphabet({"a", "a"}), UsageError);
}

TEST(Folding, RenamesDeletesAndJoinsWhatItMadeEqual) {
  FoldingMap map;
  map.set("q", std::nullopt);
  map.set("bcl", "sil");
  JoinedCounts joined;
  const Annotation folded =
      fold(annotation({0, 1, 2, 3, 4, 5, 6}, {"q", "sil", "bcl", "b", "q", "b"}), map, &joined);
  ASSERT_EQ(folded.segments.size(), 3);
  EXPECT_EQ(folded.segments[0].label, "sil");
  EXPECT_EQ(folded.segments[0].start, 0);
  EXPECT_EQ(folded.segments[0].end, 3);
  // What stood between two segments of one label was deleted; they were two, and still are.
  EXPECT_EQ(folded.segments[1].label, "b");
  EXPECT_EQ(folded.segments[1].end, 5);
  EXPECT_EQ(folded.segments[2].label, "b");
  EXPECT_EQ(folded.segments[2].end, 6);
  EXPECT_EQ(joined, (JoinedCounts{{"sil", 1}}));
  map.set("a", std::nullopt);
  EXPECT_THROW(fold(annotation({0, 1}, {"a"}), map), DataError);
}

TEST(Folding, NeighboursOfOneLabelStayApart) {
  FoldingMap map;
  const Annotation phrases = annotation({0, 1, 2, 3}, {"NP", "NP", "NP"});
  EXPECT_EQ(fold(phrases, {}).segments.size(), 3);
  map.set("NP", "phrase");
  EXPECT_EQ(fold(phrases, map).segments.size(), 3) << "renamed alike, nothing becomes one";
  map.set("VP", "phrase");
  const Annotation mixed = annotation({0, 1, 2, 3, 4}, {"NP", "VP", "VP", "NP"});
  EXPECT_EQ(fold(mixed, map).segments.size(), 2);
}

TEST(Folding, ReadsTsvAndToml) {
  const test::TemporaryDirectory directory;
  for (const FoldingMap& map :
       {read_folding_map(directory.write("m.tsv", "# comment\nao\taa\nq\t\nepi\n")),
        read_folding_map(
            directory.write("m.toml", "[fold]\nao = \"aa\"\nq = \"\"\nepi = \"\"\n"))}) {
    EXPECT_EQ(map.fold("ao"), "aa");
    EXPECT_EQ(map.fold("q"), std::nullopt);
    EXPECT_EQ(map.fold("epi"), std::nullopt);
    EXPECT_EQ(map.fold("b"), "b");
  }
}

// ----------------------------------------------------------------------------------- frames

std::vector<std::int64_t> starts_of(const FrameLabels& frames) {
  std::vector<std::int64_t> out;
  for (const FrameSegment& segment : frames.segments) out.push_back(segment.start);
  return out;
}

TEST(ToFrames, RoundsToTheNearestEdgeHalvesUp) {
  const Alphabet alphabet({"a", "b"});
  const FrameLabels frames = to_frames(
      annotation({0, 0.0149, 0.025, 0.0449999, 0.1}, {"a", "b", "a", "b"}), alphabet, 0.01, 10);
  EXPECT_THAT(starts_of(frames), ElementsAre(0, 1, 3, 4));
  EXPECT_EQ(frames.segments.back().duration, 6);
}

TEST(ToFrames, AVanishingSegmentKeepsOneFrame) {
  const Alphabet alphabet({"a", "b", "c"});
  EXPECT_THAT(
      starts_of(to_frames(annotation({0, 0.021, 0.024, 0.1}, {"a", "b", "c"}), alphabet, 0.01, 10)),
      ElementsAre(0, 2, 3));
  EXPECT_THAT(
      starts_of(to_frames(annotation({0, 0.096, 0.098, 0.1}, {"a", "b", "c"}), alphabet, 0.01, 10)),
      ElementsAre(0, 8, 9));
}

TEST(ToFrames, TheShortestAreDroppedWhenFramesRunOut) {
  const Alphabet alphabet({"a", "b", "c", "d"});
  const FrameLabels frames = to_frames(
      annotation({0, 0.002, 0.010, 0.011, 0.02}, {"a", "b", "c", "d"}), alphabet, 0.01, 2);
  EXPECT_EQ(frames.dropped, 2);
  EXPECT_EQ(frames.segments, (std::vector<FrameSegment>{{0, 1, 1}, {1, 1, 3}}));
}

TEST(ToFrames, OfEquallyShortOnesTheEarliestGoesAndItsTimeStays) {
  const Alphabet alphabet({"a", "b", "c", "d"});
  const auto labels = [&](const std::vector<double>& times, const std::vector<std::string>& names) {
    std::vector<std::int32_t> out;
    for (const FrameSegment& s : to_frames(annotation(times, names), alphabet, 0.01, 2).segments)
      out.push_back(s.label);
    return out;
  };
  EXPECT_THAT(labels({0, 0.005, 0.01, 0.02}, {"a", "b", "c"}), ElementsAre(1, 2));
  // b gets a's time at the start, so c is the next that goes.
  EXPECT_THAT(labels({0, 0.002, 0.004, 0.0075, 0.02}, {"a", "b", "c", "d"}), ElementsAre(1, 3));
}

TEST(ToFrames, AlwaysTilesAndMovesNoBoundaryFurtherThanItMust) {
  Rng rng(5);
  const Alphabet alphabet({"a", "b", "c"});
  for (int round = 0; round < 500; ++round) {
    std::vector<double> times = {0};
    std::vector<std::string> labels;
    for (std::uint64_t i = 1 + rng.below(12); i > 0; --i) {
      times.push_back(times.back() + 0.03 * rng.uniform() + 1e-6);
      labels.push_back(alphabet.label(static_cast<std::int64_t>(rng.below(3))));
    }
    const auto frames = static_cast<std::int64_t>(std::ceil(times.back() / 0.01));
    const FrameLabels found = to_frames(annotation(times, labels), alphabet, 0.01, frames);
    EXPECT_EQ(found.dropped,
              std::max<std::int64_t>(0, static_cast<std::int64_t>(labels.size()) - frames));
    std::int64_t at = 0;
    bool crowded = found.dropped > 0;
    for (std::size_t i = 0; i + 1 < times.size(); ++i)
      crowded = crowded || times[i + 1] - times[i] < 0.0101;
    for (std::size_t i = 0; i < found.segments.size(); ++i) {
      ASSERT_EQ(found.segments[i].start, at);
      ASSERT_GE(found.segments[i].duration, 1);
      if (!crowded) {
        ASSERT_LE(std::abs(static_cast<double>(at) * 0.01 - times[i]), 0.00501);
      }
      at += found.segments[i].duration;
    }
    ASSERT_EQ(at, frames);
  }
}

TEST(ToFrames, LabelsThatEndElsewhereThanTheAudio) {
  const Alphabet alphabet({"a", "b"});
  FrameOptions options;
  options.slack_seconds = 0.05;
  const Annotation gold = annotation({0, 0.5, 1}, {"a", "b"});
  EXPECT_EQ(to_frames(gold, alphabet, 0.01, 105, options).segments.back().duration, 55);
  EXPECT_EQ(to_frames(gold, alphabet, 0.01, 95, options).segments.back().duration, 45);
  EXPECT_THAT(message_of([&] { to_frames(gold, alphabet, 0.01, 120, options); }),
              HasSubstr("x.phn: no label between 1 s and 1.2 s"));
  EXPECT_THAT(message_of([&] { to_frames(gold, alphabet, 0.01, 80, options); }),
              HasSubstr("x.phn:2: the labels end at 1 s, the recording at 0.8 s"));
  options.fill_label = "a";
  EXPECT_THAT(starts_of(to_frames(gold, alphabet, 0.01, 120, options)), ElementsAre(0, 50, 100));
}

TEST(Covering, LabelsOfAWholeRowTooManyAreRefused) {
  const Alphabet alphabet({"a", "b"});
  const Annotation gold = annotation({0, 50, 100}, {"a", "b"});
  EXPECT_EQ(to_frames(gold, alphabet, 1, 100).segments.back().duration, 50);
  EXPECT_THAT(message_of([&] { to_frames(gold, alphabet, 1, 99); }),
              HasSubstr("x.phn:2: the labels end at 100 s, the recording at 99 s"));
  const Annotation longer = annotation({0, 50, 100.5}, {"a", "b"});
  EXPECT_EQ(to_frames(longer, alphabet, 1, 100).segments.back().duration, 50);
}

TEST(Covering, HasTheBoundariesThatFramesAreMadeOf) {
  Rng rng(7);
  const Alphabet alphabet({"a", "b", "c"});
  FrameOptions options;
  options.fill_label = "c";
  int filled = 0;
  for (int round = 0; round < 500; ++round) {
    std::vector<double> times = {round % 3 == 0 ? 0.3 * rng.uniform() : 0};
    std::vector<std::string> labels;
    for (std::uint64_t i = 1 + rng.below(6); i > 0; --i) {
      times.push_back(times.back() + 0.02 + 0.1 * rng.uniform());
      labels.push_back(alphabet.label(static_cast<std::int64_t>(rng.below(2))));
    }
    const Annotation gold = annotation(times, labels);
    const double seconds = std::max(0.02, gold.duration - 0.09 + 0.4 * rng.uniform());
    const auto frames = static_cast<std::int64_t>(std::ceil(seconds / 0.01 - 1e-6));
    const Annotation whole = covering(gold, 0.01, frames, seconds, options);
    EXPECT_EQ(to_frames(whole, alphabet, 0.01, frames, options).segments,
              to_frames(gold, alphabet, 0.01, frames, options).segments);
    EXPECT_EQ(whole.segments.front().start, 0);
    if (seconds > whole.segments.back().start) {
      EXPECT_EQ(whole.duration, seconds);
      EXPECT_EQ(whole.segments.back().end, seconds);
    }
    filled += whole.segments.back().label == "c";
  }
  EXPECT_GT(filled, 100);
}

TEST(ToFrames, AnUnknownLabelNamesFileAndLine) {
  EXPECT_THAT(message_of([] {
                to_frames(annotation({0, 1, 2}, {"a", "zz"}), Alphabet({"a", "b"}), 0.01, 200);
              }),
              HasSubstr("x.phn:2: label \"zz\" is not among the 2 labels"));
  FrameOptions options;
  options.allow_unknown = true;
  EXPECT_EQ(to_frames(annotation({0, 1, 2}, {"a", "zz"}), Alphabet({"a", "b"}), 0.01, 200, options)
                .segments,
            (std::vector<FrameSegment>{{0, 100, 0}, {100, 100, kUnknownLabel}}));
}

TEST(ToAnnotation, IsTheInverseOfToFrames) {
  const Alphabet alphabet({"a", "b"});
  const std::vector<FrameSegment> segments = {{0, 3, 1}, {3, 1, 0}, {4, 96, 1}};
  const Annotation back = to_annotation(segments, alphabet, 0.01, 0.996);
  EXPECT_EQ(back.segments.back().end, 0.996);
  EXPECT_EQ(to_frames(back, alphabet, 0.01, 100).segments, segments);
  EXPECT_THROW(to_annotation(std::vector<FrameSegment>{{1, 2, 0}}, alphabet, 0.01, 1), UsageError);
}

// -------------------------------------------------------------------------------- manifests

/// "id:split" of each recording.
std::vector<std::string> listing(const std::filesystem::path& path) {
  std::vector<std::string> out;
  for (const Recording& recording : load_manifest(path))
    out.push_back(recording.id + ":" + std::string(name_of(recording.split)));
  return out;
}

TEST(Manifest, ColumnsByNameRelativeToTheFile) {
  const test::TemporaryDirectory directory;
  directory.write("set/audio/a.wav", "");
  directory.write("set/b.flac", "");
  directory.write("set/labels/a.lab", "");
  directory.write("set/b.TextGrid", "");
  const auto path = directory.write(
      "set/list.csv",
      "note,labels,audio,split\nx,labels/a.lab,audio/a.wav,test\ny,,b.flac,train\n");
  const std::vector<Recording> recordings = load_manifest(path);
  ASSERT_EQ(recordings.size(), 2);
  EXPECT_EQ(recordings[0].id, "audio/a.wav");
  EXPECT_EQ(recordings[0].split, Split::kTest);
  EXPECT_EQ(recordings[0].labels, directory / "set/labels/a.lab");
  EXPECT_EQ(recordings[1].labels, directory / "set/b.TextGrid");
}

TEST(Manifest, IdsAreSoughtUnderTheirSplit) {
  const test::TemporaryDirectory directory;
  for (const char* name : {"train/a.wav", "train/a.phn", "test/b.WAV", "test/b.PHN"})
    directory.write(name, "");
  directory.write("manifest.tsv", "id\tsplit\tsamples\nb\ttest\t3\na\ttrain\t4\n");
  EXPECT_THAT(listing(directory.path()), ElementsAre("a:train", "b:test"));
}

TEST(Manifest, TheSplitRuleCountsTheSortedList) {
  const test::TemporaryDirectory directory;
  for (int i = 0; i < 23; ++i) {
    directory.write(fmt::format("wav/u{:02}.wav", 22 - i), "");
    directory.write(fmt::format("lab/u{:02}.lab", 22 - i), "");
  }
  const std::vector<Recording> recordings = load_manifest(directory.path());
  ASSERT_EQ(recordings.size(), 23);
  for (std::size_t i = 0; i < 23; ++i) {
    EXPECT_EQ(recordings[i].id, fmt::format("u{:02}", i));
    EXPECT_EQ(recordings[i].split, i % 10 == 0   ? Split::kTest
                                   : i % 10 == 5 ? Split::kDev
                                                 : Split::kTrain);
  }
}

TEST(Manifest, NestedUpperCaseTrainAndTest) {
  const test::TemporaryDirectory directory;
  for (const char* name : {"TRAIN/DR1/SA1.WAV", "TRAIN/DR1/SA1.PHN", "TRAIN/DR2/SA1.WAV",
                           "TRAIN/DR2/SA1.PHN", "TEST/DR1/SI2.WAV", "TEST/DR1/SI2.PHN"})
    directory.write(name, "");
  EXPECT_THAT(listing(directory.path()),
              ElementsAre("test/DR1/SI2:test", "train/DR1/SA1:train", "train/DR2/SA1:train"));
}

TEST(Manifest, AGivenTrainingSetLosesEveryTenthToDev) {
  const test::TemporaryDirectory directory;
  for (int i = 0; i < 12; ++i)
    for (const char* extension : {"wav", "phn"}) {
      directory.write(fmt::format("train/u{:02}.{}", i, extension), "");
      directory.write(fmt::format("test/u{:02}.{}", i, extension), "");
    }
  const std::vector<Recording> all = load_manifest(directory.path());
  EXPECT_EQ(recordings_of(all, Split::kTest).size(), 12);
  const std::vector<Recording> dev = recordings_of(all, Split::kDev);
  ASSERT_EQ(dev.size(), 1);
  EXPECT_EQ(dev[0].id, "train/u05");
}

// ---------------------------------------------------------------------------------- batches

TEST(Buckets, EveryIndexOnceWithinTheLimits) {
  Rng rng(8);
  std::vector<std::int64_t> lengths(200);
  for (std::int64_t& length : lengths) length = 1 + static_cast<std::int64_t>(rng.below(900));
  BucketConfig config;
  config.batch_size = 7;
  config.max_frames = 2000;
  std::multiset<std::int64_t> seen;
  for (const std::vector<std::int64_t>& batch : make_buckets(lengths, config, 3)) {
    std::int64_t longest = 0;
    for (const std::int64_t index : batch) {
      seen.insert(index);
      longest = std::max(longest, lengths[static_cast<std::size_t>(index)]);
    }
    EXPECT_LE(batch.size(), 7);
    EXPECT_LE(longest * static_cast<std::int64_t>(batch.size()), 2000);
  }
  ASSERT_EQ(seen.size(), 200);
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), 199);
  EXPECT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(), 200);
}

TEST(Buckets, AreAsFullAsTheyMayBe) {
  BucketConfig config;
  config.batch_size = 7;
  std::vector<std::int64_t> lengths(21);
  std::iota(lengths.begin(), lengths.end(), 1);
  for (const std::vector<std::int64_t>& batch : make_buckets(lengths, config, 0))
    EXPECT_EQ(batch.size(), 7);
  config.max_frames = 40;
  lengths.assign(8, 10);
  for (const std::vector<std::int64_t>& batch : make_buckets(lengths, config, 0))
    EXPECT_EQ(batch.size(), 4);
}

TEST(Buckets, JitterMixesLengthsThatAreATenthOffEitherWay) {
  const auto mixed = [](std::int64_t shorter, std::int64_t longer) {
    BucketConfig config;
    config.batch_size = 2;
    const std::vector<std::int64_t> lengths = {shorter, shorter, longer, longer};
    int count = 0;
    for (std::int64_t epoch = 0; epoch < 400; ++epoch)
      for (const std::vector<std::int64_t>& batch : make_buckets(lengths, config, epoch))
        count += (batch[0] < 2) != (batch[1] < 2);
    return count;
  };
  EXPECT_GT(mixed(100, 118), 0);
  EXPECT_EQ(mixed(100, 123), 0) << "beyond 1.1 / 0.9";
}

TEST(Buckets, PureInSeedAndEpochAndLittlePadding) {
  std::vector<std::int64_t> lengths(300);
  Rng rng(1);
  for (std::int64_t& length : lengths) length = 50 + static_cast<std::int64_t>(rng.below(1000));
  BucketConfig config;
  EXPECT_EQ(make_buckets(lengths, config, 1), make_buckets(lengths, config, 1));
  EXPECT_NE(make_buckets(lengths, config, 1), make_buckets(lengths, config, 2));
  double padded = 0;
  for (const std::vector<std::int64_t>& batch : make_buckets(lengths, config, 1)) {
    std::int64_t longest = 0;
    for (const std::int64_t index : batch)
      longest = std::max(longest, lengths[static_cast<std::size_t>(index)]);
    padded += static_cast<double>(longest) * static_cast<double>(batch.size());
  }
  const double used = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), 0LL));
  EXPECT_LT(padded / used, 1.2);
}

TEST(Buckets, StepsHaveShardsOfNeighbouringLengths) {
  std::vector<std::int64_t> lengths(211);
  Rng rng(3);
  for (std::int64_t& length : lengths) length = 50 + static_cast<std::int64_t>(rng.below(1000));
  BucketConfig config;
  config.batch_size = 3;
  std::vector<std::vector<std::int64_t>> alone;
  for (const auto& step : make_steps(lengths, config, 1, 2)) {
    ASSERT_EQ(step.size(), 1U);
    alone.push_back(step[0]);
  }
  EXPECT_EQ(alone, make_buckets(lengths, config, 2));
  std::vector<int> seen(lengths.size(), 0);
  int shorter = 0;
  double slowest = 0;
  double all = 0;
  for (const auto& step : make_steps(lengths, config, 8, 2)) {
    shorter += step.size() != 8;
    double most = 0;
    for (const std::vector<std::int64_t>& shard : step) {
      std::int64_t longest = 0;
      for (const std::int64_t index : shard) {
        ++seen[static_cast<std::size_t>(index)];
        longest = std::max(longest, lengths[static_cast<std::size_t>(index)]);
      }
      most = std::max(most, static_cast<double>(longest));
      all += static_cast<double>(longest);
    }
    slowest += most * static_cast<double>(step.size());
  }
  EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
  EXPECT_EQ(shorter, 1);
  EXPECT_GT(all / slowest, 0.8) << "the shards of a step take about as long";
  EXPECT_THROW(static_cast<void>(make_steps(lengths, config, 0, 0)), UsageError);
}

TEST(Buckets, ALongSequenceIsABatchOfItsOwn) {
  BucketConfig config;
  config.max_frames = 10;
  const std::vector<std::int64_t> lengths = {3, 50, 3};
  std::size_t alone = 0;
  for (const std::vector<std::int64_t>& batch : make_buckets(lengths, config, 0))
    alone += batch == std::vector<std::int64_t>{1} ? 1 : 0;
  EXPECT_EQ(alone, 1);
}

}  // namespace
}  // namespace segfuse
