// Features of recordings that are read piece by piece: the bits of those that are read whole.

#include "learn/data/feature_reader.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"
#include "support/files.h"

namespace segfuse::data {
namespace {

struct Case {
  std::string name;
  FeatureConfig config;
  int sample_rate = 8000;  ///< of the file
};

std::vector<Case> cases() {
  FeatureConfig plain;
  plain.sample_rate = 8000;
  plain.n_mels = 6;
  std::vector<Case> all = {{"log_mel", plain}};
  const auto add = [&](std::string name, const auto& change, int rate = 8000) {
    FeatureConfig config = plain;
    change(config);
    all.push_back({std::move(name), config, rate});
  };
  add("mfcc with slopes", [](FeatureConfig& c) {
    c.kind = FeatureKind::kMfcc;
    c.n_mfcc = 4;
    c.deltas = 2;
  });
  add("raw", [](FeatureConfig& c) {
    c.kind = FeatureKind::kRaw;
    c.raw_bins = 3;
    c.deltas = 1;
  });
  add("windows shorter than their distance", [](FeatureConfig& c) {
    c.window_ms = 4;
    c.n_mels = 3;
    c.hop_ms = 9.7;
  });
  add("normalised over the recording", [](FeatureConfig& c) {
    c.normalise_recording = true;
    c.deltas = 1;
  });
  add("another rate", [](FeatureConfig&) {}, 11025);
  const auto kind = [&](std::string name, FeatureKind which, const auto& change, int rate) {
    FeatureConfig config = default_features(which);
    change(config);
    all.push_back({std::move(name), config, rate});
  };
  kind("kaldi_fbank", FeatureKind::kKaldiFbank, [](FeatureConfig& c) { c.deltas = 1; }, 16000);
  kind(
      "kaldi_fbank without snip_edges, of another rate", FeatureKind::kKaldiFbank,
      [](FeatureConfig& c) { c.snip_edges = false; }, 11025);
  kind("whisper", FeatureKind::kWhisper, [](FeatureConfig& c) { c.deltas = 1; }, 16000);
  kind(
      "whisper, normalised", FeatureKind::kWhisper,
      [](FeatureConfig& c) { c.normalise_recording = true; }, 16000);
  return all;
}

TEST(FeatureReader, GivesTheBitsOfTheWholeRecording) {
  const test::TemporaryDirectory folder;
  const std::filesystem::path path = folder / "x.wav";
  for (const Case& c : cases()) {
    const FeatureExtractor extractor(c.config);
    // Around a window, a frame, a block of the reader, and what is held of the signal.
    for (const std::int64_t samples :
         {1, 2, 79, 80, 81, 199, 200, 201, 16383, 16384, 16385, 90001}) {
      SCOPED_TRACE(c.name + ", " + std::to_string(samples));
      Rng rng(static_cast<std::uint64_t>(samples), 0);
      std::vector<float> signal;
      for (std::int64_t i = 0; i < samples; ++i)
        signal.push_back(static_cast<float>(rng.uniform() - 0.5));
      write_wav(path, signal, c.sample_rate);
      Recording recording;
      recording.audio = path;
      const RecordingFeatures whole = read_features(recording, extractor);
      const auto reader = FeatureReader::open(path, extractor, folder.path());
      ASSERT_TRUE(reader);
      EXPECT_EQ(reader->announced(), whole.features.shape()[0]);
      std::vector<float> values;
      for (;;) {
        const Tensor piece = reader->next();
        EXPECT_EQ(piece.shape()[1], whole.features.shape()[1]);
        if (piece.shape()[0] == 0) break;
        EXPECT_LE(piece.shape()[0], 5000);
        values.insert(values.end(), piece.span<float>().begin(), piece.span<float>().end());
      }
      EXPECT_TRUE(std::ranges::equal(values, whole.features.span<float>()));
      EXPECT_EQ(reader->seconds(), whole.seconds);
      EXPECT_EQ(reader->sample_rate(), whole.sample_rate);
    }
  }
}

TEST(FeatureReader, GivesTheBitsOfWholeWfdbRecords) {
  const test::TemporaryDirectory folder;
  FeatureConfig config;
  config.kind = FeatureKind::kRaw;
  config.sample_rate = 200;
  config.window_ms = 20;
  config.deltas = 1;
  config.channel = AudioOptions::kStack;
  for (const bool normalise : {false, true}) {
    config.normalise_recording = normalise;
    const FeatureExtractor extractor(config);
    Rng rng(3, 0);
    std::string bytes;
    for (int i = 0; i < 2 * 50000; ++i) {
      const auto value = static_cast<unsigned>(rng.below(65535)) - 32767U;
      bytes += static_cast<char>(value & 0xFFU);
      bytes += static_cast<char>(value >> 8 & 0xFFU);
    }
    // In two segments, at another rate than that of the features.
    folder.write("a.dat", bytes.substr(0, 4 * 30001));
    folder.write("b.dat", bytes.substr(4 * 30001));
    folder.write("a.hea", "a 2 250 30001\na.dat 16 200\na.dat 16 100(7)\n");
    folder.write("b.hea", "b 2 250 19999\nb.dat 16 200\nb.dat 16 100(7)\n");
    folder.write("x.hea", "x/2 2 250 50000\na 30001\nb 19999\n");
    Recording recording;
    recording.audio = folder / "x.hea";
    const RecordingFeatures whole = read_features(recording, extractor);
    const auto reader = FeatureReader::open(recording.audio, extractor, folder.path());
    ASSERT_TRUE(reader);
    EXPECT_EQ(reader->announced(), whole.features.shape()[0]);
    std::vector<float> values;
    int pieces = 0;
    for (;; ++pieces) {
      const Tensor piece = reader->next();
      if (piece.shape()[0] == 0) break;
      values.insert(values.end(), piece.span<float>().begin(), piece.span<float>().end());
    }
    EXPECT_GT(pieces, 1);
    EXPECT_TRUE(std::ranges::equal(values, whole.features.span<float>()));
    EXPECT_EQ(reader->seconds(), whole.seconds);
  }
}

TEST(FeatureReader, LeavesWhatIsReadWholeAndRefusesWhatIsRefusedThere) {
  const test::TemporaryDirectory folder;
  FeatureConfig config;
  const FeatureExtractor extractor(config);
  folder.write("x.sph", "NIST_1A\n   1024\nend_head\n");
  EXPECT_FALSE(FeatureReader::open(folder / "x.sph", extractor, folder.path()));
  folder.write("x.wav", "RIFF and nothing else");
  EXPECT_THROW((void)FeatureReader::open(folder / "x.wav", extractor, folder.path()), DataError);
  config.kind = FeatureKind::kValues;
  config.frame_rate = 10;
  EXPECT_FALSE(FeatureReader::open(folder / "x.wav", FeatureExtractor(config), folder.path()));
}

}  // namespace
}  // namespace segfuse::data
