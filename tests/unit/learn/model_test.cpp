// A trained model in memory: the same segments as from file to file, and what it refuses.

#include "segfuse/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "base/rng.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"
#include "segfuse/train.h"
#include "support/files.h"
#include "support/tiny_model.h"

namespace segfuse {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Audio noise(std::uint64_t seed, std::int64_t samples = 16000) {
  Audio audio{.sample_rate = 16000, .channels = 1, .samples = {}, .source = "noise"};
  Rng rng(seed, 0);
  for (std::int64_t i = 0; i < samples; ++i)
    audio.samples.push_back(static_cast<float>(rng.uniform() - 0.5));
  return audio;
}

class ModelTest : public ::testing::TestWithParam<learn::HeadKind> {
 protected:
  void SetUp() override { learn::write_model(path_, test::tiny_model(GetParam())); }
  bool is(learn::HeadKind head) const { return GetParam() == head; }

  const test::TemporaryDirectory folder_;
  const std::filesystem::path path_ = folder_ / "model.safetensors";
};

INSTANTIATE_TEST_SUITE_P(Heads, ModelTest,
                         ::testing::Values(learn::HeadKind::kSemiMarkov,
                                           learn::HeadKind::kLinearChain,
                                           learn::HeadKind::kSoftmax),
                         [](const auto& instance) { return learn::name_of(instance.param); });

void expect_equal(const Prediction& a, const Prediction& b) {
  ASSERT_EQ(a.segments.size(), b.segments.size());
  const auto same = [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); };
  for (std::size_t i = 0; i < a.segments.size(); ++i) {
    EXPECT_EQ(a.segments[i].start, b.segments[i].start);
    EXPECT_EQ(a.segments[i].end, b.segments[i].end);
    EXPECT_EQ(a.segments[i].label, b.segments[i].label);
    EXPECT_EQ(a.segments[i].posterior, b.segments[i].posterior);
    EXPECT_EQ(a.segments[i].label_posterior, b.segments[i].label_posterior);
    EXPECT_PRED2(same, a.segments[i].start_confidence, b.segments[i].start_confidence);
  }
  EXPECT_PRED2(same, a.log_probability, b.log_probability);
}

TEST_P(ModelTest, SaysWhatItIs) {
  const Model model = Model::load(folder_.path());
  EXPECT_EQ(model.labels().labels(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(model.features().sample_rate, 16000);
  EXPECT_EQ(model.hop_seconds(), 0.01);
  EXPECT_EQ(model.head(), learn::name_of(GetParam()));
  EXPECT_EQ(model.max_duration(), is(learn::HeadKind::kSemiMarkov) ? 5 : 1);
  EXPECT_GT(model.parameter_count(), 0);
  EXPECT_THAT(model.configuration(), HasSubstr("n_mels = 4"));
}

TEST_P(ModelTest, SegmentsTileTheRecordingAndPosteriorsAreDistributions) {
  const Model model = Model::load(path_);
  const Audio audio = noise(1, 16005);
  const Prediction found = model.decode(audio, {.posteriors = true});
  double end = 0;
  for (const PredictedSegment& s : found.segments) {
    EXPECT_EQ(s.start, end);
    EXPECT_LT(s.start, s.end);
    end = s.end;
  }
  EXPECT_EQ(end, audio.seconds());
  EXPECT_EQ(found.seconds, audio.seconds());
  ASSERT_EQ(found.label_posteriors.shape(), (Shape{101, 3}));
  for (std::int64_t t = 0; t < 101; ++t)
    EXPECT_NEAR(found.label_posteriors.at(3 * t) + found.label_posteriors.at(3 * t + 1) +
                    found.label_posteriors.at(3 * t + 2),
                1, 1e-5);
  if (is(learn::HeadKind::kSemiMarkov)) {
    ASSERT_EQ(found.boundary_posteriors.shape(), (Shape{101}));
    EXPECT_NEAR(found.boundary_posteriors.at(0), 1, 1e-5);
  }
  EXPECT_EQ(model.decode(audio).label_posteriors.size(), 0);
}

TEST_P(ModelTest, GivesWhatDecodingOfFilesWrites) {
  std::vector<std::filesystem::path> files;
  std::vector<Audio> recordings;
  for (const std::uint64_t i : {1, 2, 3}) {
    files.push_back(folder_ / ("r" + std::to_string(i) + ".wav"));
    write_wav(files.back(), noise(i, 4000 + 5000 * static_cast<std::int64_t>(i)).samples, 16000);
    recordings.push_back(read_audio(files.back()));
  }
  segfuse::decode(
      {.model = path_, .inputs = files, .out = folder_ / "out", .format = LabelFormat::kCsv});
  const Model model = Model::load(path_);
  const std::vector<Prediction> found = model.decode(recordings);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const Annotation written = read_labels(folder_ / ("out/r" + std::to_string(i + 1) + ".csv"));
    ASSERT_EQ(written.segments.size(), found[i].segments.size());
    for (std::size_t s = 0; s < written.segments.size(); ++s) {
      EXPECT_NEAR(written.segments[s].end, found[i].segments[s].end, 1e-6);
      EXPECT_EQ(written.segments[s].label, found[i].segments[s].label);
    }
    expect_equal(found[i], model.decode(recordings[i]));
    expect_equal(found[i], model.decode_file(files[i]));
  }
}

TEST_P(ModelTest, GivesTheSameOnThreads) {
  const Model model = Model::load(path_);
  const Model alone = model.on(Context().with(options::kThreads, std::int64_t{1}));
  std::vector<Prediction> found(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < found.size(); ++i)
    threads.emplace_back([&, i] { found[i] = model.decode(noise(i)); });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < found.size(); ++i) expect_equal(found[i], alone.decode(noise(i)));
}

TEST_P(ModelTest, ListsOtherSegmentations) {
  const Model model = Model::load(path_);
  const InferenceOptions options{.k_best = 3, .samples = 2, .seed = 7};
  if (is(learn::HeadKind::kSoftmax)) {
    EXPECT_THROW(model.decode(noise(1), options), UsageError);
    return;
  }
  const Prediction found = model.decode(noise(1), options);
  ASSERT_EQ(found.best.size(), 3U);
  ASSERT_EQ(found.samples.size(), 2U);
  EXPECT_NEAR(found.best[0].log_probability, found.log_probability, 1e-4);
  ASSERT_EQ(found.best[0].annotation.segments.size(), found.segments.size());
  for (std::size_t i = 0; i < found.segments.size(); ++i)
    EXPECT_EQ(found.best[0].annotation.segments[i].end, found.segments[i].end);
  EXPECT_GE(found.best[1].log_probability, found.best[2].log_probability);
}

template <class E, class Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

TEST_P(ModelTest, RefusesWhatIsNoRecording) {
  const Model model = Model::load(path_);
  const auto refusal = [&](const Audio& audio) {
    return message_of<DataError>([&] { model.decode(audio); });
  };
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Audio audio = noise(1);
    audio.samples[70] = value;
    EXPECT_THAT(refusal(audio), HasSubstr("noise: sample 70 is "));
  }
  Audio audio = noise(1);
  audio.samples.clear();
  EXPECT_THAT(refusal(audio), HasSubstr("no samples"));
  EXPECT_THAT(message_of<UsageError>([&] { model.decode(noise(1), {.k_best = -1}); }),
              HasSubstr("k-best is -1; expected 0 to 1000"));
}

TEST_P(ModelTest, APieceOfNoChannelsOrRateIsRefusedAndLeavesTheStreamAsItWas) {
  LiveDecoder decoder(Model::load(path_));
  for (const auto& [channels, rate] : {std::pair{0, 16000}, {-1, 16000}, {1, 0}, {1, -5}}) {
    Audio piece = noise(1);
    piece.stacked = channels;
    piece.sample_rate = rate;
    EXPECT_THAT(message_of<UsageError>([&] { decoder.push(piece); }),
                HasSubstr("expected at least one of each"));
  }
  Audio far = noise(1);
  far.sample_rate = 1 << 30;
  EXPECT_THROW(decoder.push(far), DataError);
  EXPECT_NO_THROW(decoder.push(noise(1)));
  EXPECT_FALSE(decoder.finish().empty());
}

TEST_P(ModelTest, AWeightThatOverflowsIsTheModelsFault) {
  learn::TrainedModel damaged = test::tiny_model(GetParam());
  for (Tensor& parameter : damaged.parameters)
    for (float& value : parameter.span<float>()) value = 3e38F;
  learn::write_model(path_, damaged);
  const Model model = Model::load(path_);
  const auto refusal = [&](const Audio& audio) {
    return message_of<DataError>([&] { model.decode(audio); });
  };
  EXPECT_THAT(refusal(noise(1)),
              AllOf(StartsWith(path_.string() + ": its score of frame 0 and label 0 of noise is "),
                    EndsWith("the training diverged or the model's file is damaged")));
  EXPECT_THAT(refusal(noise(1, 16000 * 210)), StartsWith(path_.string())) << "in pieces";
  // Of features beyond all measure nobody can say whose fault they are.
  damaged.normalisation.mean[0] = 1e300;
  learn::write_model(path_, damaged);
  EXPECT_THAT(message_of<DataError>([&] { Model::load(path_).decode(noise(1)); }),
              AllOf(StartsWith("noise: "), HasSubstr("of the model " + path_.string())));
}

TEST(Models, ThatAreNotThereAreNamed) {
  const test::TemporaryDirectory folder;
  EXPECT_THAT(message_of<Error>([&] { Model::load(folder.path()); }),
              HasSubstr("model.safetensors"));
  const auto file = folder.write("x.safetensors", "nothing");
  EXPECT_THAT(message_of<DataError>([&] { Model::load(file); }), HasSubstr("x.safetensors"));
}

}  // namespace
}  // namespace segfuse
