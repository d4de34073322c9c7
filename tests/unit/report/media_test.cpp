#include "learn/report/media.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string_view>

namespace segfuse::learn {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(ReportMedia, EnvelopeKeepsExtremesOfEveryColumn) {
  const std::vector<float> samples = {0, 1, -2, 0.5F, 2, 0, 0, 0};
  const Envelope e = make_envelope(samples, 4);
  EXPECT_EQ(e.columns, 4);
  EXPECT_EQ(e.peak, 2);
  EXPECT_THAT(e.bytes, ElementsAre(128, 192, 1, 160, 128, 255, 128, 128));
}

TEST(ReportMedia, EnvelopeOfFewSilentOrBrokenSamples) {
  EXPECT_EQ(make_envelope({}, 10).columns, 0);
  EXPECT_THAT(make_envelope(std::vector<float>{0, 0, 0}, 10).bytes, Each(128));
  const Envelope e = make_envelope(std::vector<float>{NAN, INFINITY, 1, -1}, 10);
  EXPECT_THAT(e.bytes, ElementsAre(128, 128, 128, 128, 255, 255, 1, 1));
}

TEST(ReportMedia, EnvelopeSeesEverySample) {
  for (std::size_t peak = 0; peak < 1003; peak += 59) {
    std::vector<float> samples(1003, 0.0F);
    samples[peak] = 1;
    const Envelope e = make_envelope(samples, 17);
    EXPECT_EQ(std::count(e.bytes.begin(), e.bytes.end(), 255), 1) << peak;
  }
}

TEST(ReportMedia, FeatureImageAveragesBlocks) {
  // 4 frames of 2 bins become 2 frames; the mean of a block ignores what is not finite.
  const std::vector<float> cells = {0, 10, 0, 20, 4, 30, NAN, 50};
  const FeatureImage f = make_feature_image(cells, 2, 80, 4);
  EXPECT_EQ(f.frames, 2);
  EXPECT_EQ(f.bins, 2);
  // means {0, 15, 4, 40}; black is the smallest, white the third of four (percentile 99.5 of 3)
  EXPECT_THAT(f.bytes, ElementsAre(0, 255, 68, 255));
}

TEST(ReportMedia, FeatureImageStaysInBounds) {
  const std::vector<float> cells(1000 * 200, 3.0F);
  const FeatureImage f = make_feature_image(cells, 200, 80, 8000);
  EXPECT_EQ(f.bins, 80);
  EXPECT_EQ(f.frames, 100);
  EXPECT_EQ(f.bytes.size(), 8000U);
  EXPECT_THAT(make_feature_image(std::vector<float>(20, NAN), 2, 80, 100).bytes, Each(0));
  EXPECT_TRUE(make_feature_image({}, 2, 80, 100).bytes.empty());
}

TEST(ReportMedia, ProbabilityCurveTakesTheLargest) {
  const std::vector<float> values = {0.1F, 1.0F, 0.2F, NAN, 7.0F, -1.0F};
  const ProbabilityCurve p = make_probability_curve(values, 3);
  EXPECT_THAT(p.bytes, ElementsAre(255, 51, 255));
  EXPECT_THAT(make_probability_curve(values, 100).bytes, ElementsAre(26, 255, 51, 0, 255, 0));
}

TEST(ReportMedia, Base64VectorsOfTheStandard) {
  const auto code = [](std::string_view s) { return base64(Bytes(s.begin(), s.end())); };
  EXPECT_EQ(code(""), "");
  EXPECT_EQ(code("f"), "Zg==");
  EXPECT_EQ(code("fo"), "Zm8=");
  EXPECT_EQ(code("foo"), "Zm9v");
  EXPECT_EQ(code("foob"), "Zm9vYg==");
  EXPECT_EQ(code("fooba"), "Zm9vYmE=");
  EXPECT_EQ(code("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64(Bytes{0xFB, 0xFF, 0xBF}), "+/+/");
}

}  // namespace
}  // namespace segfuse::learn
