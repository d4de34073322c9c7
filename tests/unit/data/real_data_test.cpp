// Every file of the real corpora loads. Skipped where they are not installed.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>

#include "segfuse/data.h"
#include "support/source_dir.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;

const fs::path kFestvoxRu = "/usr/share/festival/voices/russian/msu_ru_nsh_clunits";

/// Further sets lie in the directory that SEGFUSE_TEST_DATA names.
fs::path shared_data(const char* name) {
  const char* base = std::getenv("SEGFUSE_TEST_DATA");
  return fs::path(base == nullptr ? SEGFUSE_SOURCE_DIR "/../shared/data" : base) / name;
}

std::size_t count(const std::vector<Recording>& recordings, Split split) {
  return recordings_of(recordings, split).size();
}

/// Loads all, checks that labels and audio fit and that each utterance tiles its frames.
void check_corpus(const std::vector<Recording>& recordings, const FeatureExtractor& extractor,
                  std::size_t labels) {
  const std::vector<Example> examples = load_examples(recordings, extractor, {}, {});
  std::vector<Annotation> gold;
  for (const Example& example : examples) gold.push_back(example.gold);
  const Alphabet alphabet = Alphabet::of(gold);
  EXPECT_EQ(alphabet.size(), labels);
  for (const Example& example : examples) {
    const std::int64_t frames = example.features.shape()[0];
    const FrameLabels tiles = to_frames(example.gold, alphabet, extractor.hop_seconds(), frames);
    EXPECT_EQ(tiles.dropped, 0) << example.id;
    EXPECT_EQ(tiles.segments.size(), example.gold.segments.size()) << example.id;
    std::int64_t at = 0;
    for (const FrameSegment& segment : tiles.segments) {
      ASSERT_EQ(segment.start, at) << example.id;
      ASSERT_GE(segment.duration, 1) << example.id;
      at += segment.duration;
    }
    EXPECT_EQ(at, frames) << example.id;
    for (const float x : example.features.span<float>()) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST(RealData, FestvoxRu) {
  if (!fs::exists(kFestvoxRu)) GTEST_SKIP() << kFestvoxRu << " is not installed (festvox-ru)";
  const std::vector<Recording> recordings = load_manifest(kFestvoxRu);
  ASSERT_EQ(recordings.size(), 620);
  EXPECT_EQ(count(recordings, Split::kTest), 62);
  EXPECT_EQ(count(recordings, Split::kDev), 62);
  EXPECT_EQ(recordings[0].id, "ru_0001");
  EXPECT_EQ(recordings[0].split, Split::kTest);
  EXPECT_EQ(recordings[5].split, Split::kDev);
  FeatureConfig config;
  config.deltas = 1;
  const auto start = std::chrono::steady_clock::now();
  check_corpus(recordings, FeatureExtractor(config), 51);
  RecordProperty(
      "seconds",
      fmt::format("{:.2f}",
                  std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()));
}

TEST(RealData, LudbLeadTwo) {
  const fs::path path = shared_data("ludb_lead_ii");
  if (!fs::exists(path)) GTEST_SKIP() << path << " is not there";
  const std::vector<Recording> recordings = load_manifest(path);
  ASSERT_EQ(recordings.size(), 197);
  EXPECT_EQ(count(recordings, Split::kTest), 39);
  EXPECT_EQ(count(recordings, Split::kDev), 16);
  FeatureConfig config;
  config.kind = FeatureKind::kRaw;
  config.sample_rate = 500;
  config.window_ms = 10;
  config.normalise_recording = true;
  check_corpus(recordings, FeatureExtractor(config), 4);
}

TEST(RealData, CmuTime) {
  const fs::path path = shared_data("cmu_time_awb");
  if (!fs::exists(path)) GTEST_SKIP() << path << " is not there";
  const std::vector<Recording> recordings = load_manifest(path);
  ASSERT_EQ(recordings.size(), 24);
  EXPECT_EQ(count(recordings, Split::kTest), 4);
  check_corpus(recordings, FeatureExtractor(FeatureConfig{}), 33);
}

}  // namespace
}  // namespace segfuse
