// Rows a second of recordings that are not audio, from what their labels say.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "learn/folder/rows.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

using ::testing::HasSubstr;

/// Recordings whose labels end in the middle of their last row.
std::vector<LabelledRows> recordings(double rate, std::initializer_list<std::int64_t> rows) {
  std::vector<LabelledRows> all;
  for (const std::int64_t count : rows)
    all.push_back({"r" + std::to_string(all.size()) + ".npy", count,
                   (static_cast<double>(count) - 0.5) / rate});
  return all;
}

FolderOptions folder() {
  FolderOptions options;
  options.folder = "steps";
  return options;
}

TEST(FrameRate, IsTheSimplestWithinARowOfAllRecordings) {
  for (const double rate : {1.0, 10.0, 12.5, 25.0, 30.0, 50.0, 100.0, 256.0, 500.0, 1000.0})
    EXPECT_EQ(find_frame_rate(folder(), recordings(rate, {600, 905, 4000})).rate, rate);
  EXPECT_EQ(find_frame_rate(folder(), recordings(29.97, {6000, 9050, 40000})).rate, 29.97);
  EXPECT_DOUBLE_EQ(find_frame_rate(folder(), recordings(1000.0 / 3, {6000, 9050})).rate,
                   1000.0 / 3);
  // Where it is none of these, it is off by less than a row at the end of the longest.
  const double odd = 22050.0 / 256;
  const double found = find_frame_rate(folder(), recordings(odd, {2000, 90000})).rate;
  EXPECT_LT(std::abs(found / odd - 1) * 90000, 1.5);
}

TEST(FrameRate, NumbersWithTheFewestDigits) {
  EXPECT_EQ(simplest_between(99.2, 100.9), 100);
  EXPECT_EQ(simplest_between(29.96, 29.98), 29.97);
  EXPECT_EQ(simplest_between(0.09, 0.11), 0.1);
  EXPECT_EQ(simplest_between(48.0, 48.0), 48);
  EXPECT_DOUBLE_EQ(simplest_between(333.2, 333.45), 1 / 0.003);
}

TEST(FrameRate, IsAskedForWhereRecordingsDisagree) {
  std::vector<LabelledRows> all = recordings(50, {600, 905});
  all.push_back({"early.npy", 1000, 12.0});
  try {
    static_cast<void>(find_frame_rate(folder(), all));
    FAIL() << "nothing was said";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("steps: rows over the end of the last label are 50"));
    EXPECT_THAT(error.what(), HasSubstr("83.3333 a second in early.npy (1000 rows, labels to 12"));
    EXPECT_THAT(error.what(), HasSubstr("with --frame-rate"));
  }
  FolderOptions said = folder();
  said.frame_rate = 50;
  EXPECT_EQ(find_frame_rate(said, all).rate, 50);
}

TEST(FrameRate, OfEquallyLongRecordingsIsSaidToBeAGuess) {
  EXPECT_THAT(find_frame_rate(folder(), recordings(50, {600, 600})).reason,
              HasSubstr("taken for the end of recordings that are all equally long"));
  EXPECT_THAT(find_frame_rate(folder(), recordings(50, {600, 700})).reason,
              HasSubstr("agree in all 2 recordings"));
}

TEST(FrameRate, LabelsThatCountHaveNone) {
  std::vector<LabelledRows> all = recordings(50, {600, 905});
  for (LabelledRows& recording : all) recording.end.reset();
  EXPECT_THROW(static_cast<void>(find_frame_rate(folder(), all)), UsageError);
  for (LabelledRows& recording : all) recording.labels_are_places = true;
  EXPECT_EQ(find_frame_rate(folder(), all).rate, 1);
  all[1].end = 18.1;  // one that says seconds says it for all
  EXPECT_EQ(find_frame_rate(folder(), all).rate, 50);
}

}  // namespace
}  // namespace segfuse::learn
