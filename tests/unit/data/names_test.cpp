// Label files that name their recording: whatever it is called, they read back or are refused.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "learn/data/text.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

Annotation two_segments() {
  Annotation out;
  out.segments = {{0, 0.5, "a", 0}, {0.5, 1, "b%41", 0}};
  out.duration = 1;
  return out;
}

/// The formats that refuse this name; all others have to read back what was written.
std::vector<std::string> refusing(const std::string& recording) {
  std::vector<std::string> out;
  for (const LabelFormatInfo& info : label_formats()) {
    if (!info.written || info.format == LabelFormat::kNotMat) continue;
    LabelOutput output;
    output.format = info.format;
    output.sample_rate = 100;
    output.recording = recording;
    std::string text;
    try {
      text = format_labels(two_segments(), output);
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("write a TextGrid or a CSV file instead"));
      out.push_back(std::string(info.name));
      continue;
    }
    LabelOptions options;
    options.recording = recording;
    options.sample_rate = 100;
    const std::string name = label_file_name("x.wav", info.format);
    try {
      const Annotation back = parse_labels(text, name, options);
      EXPECT_EQ(back.segments.size(), 2) << info.name << "\n" << text;
      for (std::size_t i = 0; i < back.segments.size(); ++i)
        EXPECT_EQ(back.segments[i].label, two_segments().segments[i].label) << info.name;
    } catch (const Error& error) {
      ADD_FAILURE() << info.name << ": " << error.what() << "\n" << text;
    }
  }
  return out;
}

TEST(NamesOfRecordings, OrdinaryOnesStandInEveryFormat) {
  for (const char* name : {"x.wav", "-x.wav", "a&b<c>\"q'.wav", "\xC3\xA9.wav", "%41.wav",
                           "a,b.wav", "x.y.wav", "track01.wav", "browser.wav2.wav"})
    EXPECT_THAT(refusing(name), UnorderedElementsAre()) << name;
}

TEST(NamesOfRecordings, WhatAFormatCannotHoldIsRefused) {
  EXPECT_THAT(refusing("a b.wav"), UnorderedElementsAre("ctm"));
  EXPECT_THAT(refusing("a\tb.wav"), UnorderedElementsAre("ctm", "bed"));
  EXPECT_THAT(refusing("a\nb.wav"), UnorderedElementsAre("ctm", "bed"));
  EXPECT_THAT(refusing("#a.wav"), UnorderedElementsAre("bed"));
  EXPECT_THAT(refusing("track.wav"), UnorderedElementsAre("bed"));
  EXPECT_THAT(refusing(" a .wav"), UnorderedElementsAre("ctm", "bed"));
  EXPECT_THAT(refusing(";;a.wav"), UnorderedElementsAre("ctm"));
  EXPECT_THAT(refusing(">a.wav"), UnorderedElementsAre());
  EXPECT_THAT(refusing("\xFF\xFE.wav"),
              UnorderedElementsAre("ctm", "bed", "gff3", "eaf", "birdsong-rec", "generic-seq"));
  EXPECT_THAT(refusing("a\x01.wav"), UnorderedElementsAre("eaf", "birdsong-rec"));
}

TEST(NamesOfRecordings, Gff3EscapesThem) {
  LabelOutput output;
  output.format = LabelFormat::kGff3;
  output.sample_rate = 100;
  output.recording = "my chr\t1%.fa";
  EXPECT_THAT(format_labels(two_segments(), output), HasSubstr("\nmy%20chr%091%25\tsegfuse\ta\t"));
  LabelOptions options;
  options.recording = "a b";
  options.sample_rate = 1;
  const Annotation read = parse_labels("a%20b\t.\tx%2Cy%\t1\t2\t.\t.\t.\t.\n", "x.gff3", options);
  EXPECT_EQ(read.segments.at(0).label, "x,y%");
}

TEST(LookAlikes, AreTextsThatOnlyTheirBytesTellApart) {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  const auto alike = [](const char* a, const char* b) {
    return data::look_alikes({a, "other", b}) == Pairs{{a, b}};
  };
  EXPECT_TRUE(alike("caf\u00e9", "cafe\u0301"));
  EXPECT_TRUE(alike("\u1ebf", "e\u0302\u0301"));
  EXPECT_TRUE(alike("\u1ebf", "\u00ea\u0301"));
  EXPECT_TRUE(alike("\u304c", "\u304b\u3099"));
  EXPECT_TRUE(alike("\ud55c", "\u1112\u1161\u11ab"));
  EXPECT_TRUE(alike("a b", "a\u00a0b"));
  EXPECT_TRUE(alike("ab", "a\u200bb"));
  EXPECT_TRUE(alike("\ufeffab", "ab"));
  EXPECT_FALSE(alike("e", "e\u0301"));
  EXPECT_FALSE(alike("\u00e8", "e\u0301"));
  EXPECT_FALSE(alike("\u025b\u0303", "\u00f8"));
  EXPECT_FALSE(alike("ab", "a b"));
  EXPECT_FALSE(alike("same", "same"));
  EXPECT_FALSE(alike("\xff", "\xfe"));
  EXPECT_EQ(data::byte_text("e\u0301"), "65 cc81");
}

}  // namespace
}  // namespace segfuse
