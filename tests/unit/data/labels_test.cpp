#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "segfuse/data/formats.h"
#include "segfuse/error.h"
#include "support/files.h"

namespace segfuse {
namespace {

using testing::HasSubstr;

/// "start-end:label ..." in milliseconds.
std::string brief(const Annotation& annotation) {
  std::string out;
  for (const LabelSegment& segment : annotation.segments)
    out += fmt::format("{}-{}:{} ", std::llround(segment.start * 1000),
                       std::llround(segment.end * 1000), segment.label);
  return out;
}

LabelOptions at_rate(double sample_rate) {
  LabelOptions options;
  options.sample_rate = sample_rate;
  return options;
}

LabelOptions filled_with(std::string label) {
  LabelOptions options;
  options.fill_label = std::move(label);
  return options;
}

constexpr std::string_view kLongTextGrid =
    "File type = \"ooTextFile\"\nObject class = \"TextGrid\"\n\nxmin = 0 \nxmax = 1.5 \n"
    "tiers? <exists> \nsize = 2 \nitem []: \n    item [1]:\n        class = \"TextTier\" \n"
    "        name = \"marks\" \n        xmin = 0 \n        xmax = 1.5 \n"
    "        points: size = 1 \n        points [1]:\n            number = 0.7 \n"
    "            mark = \"x\" \n    item [2]:\n        class = \"IntervalTier\" \n"
    "        name = \"phones\" \n        xmin = 0 \n        xmax = 1.5 \n"
    "        intervals: size = 2 \n        intervals [1]:\n            xmin = 0 \n"
    "            xmax = 0.5 \n            text = \"say \"\"a\"\"\" \n        intervals [2]:\n"
    "            xmin = 0.5 \n            xmax = 1.5 \n            text = \"\xD1\x89\" \n";

constexpr std::string_view kShortTextGrid =
    "File type = \"ooTextFile\"\nObject class = \"TextGrid\"\n\n0\n1.5\n<exists>\n1\n"
    "\"IntervalTier\"\n\"phones\"\n0\n1.5\n2\n0\n0.5\n\"a\"\n0.5\n1.5\n\"b\"\n";

std::string to_utf16(std::string_view ascii, bool big_endian) {
  std::string out = big_endian ? "\xFE\xFF" : "\xFF\xFE";
  for (const char c : ascii) {
    out.push_back(big_endian ? '\0' : c);
    out.push_back(big_endian ? c : '\0');
  }
  return out;
}

TEST(Labels, PhnCountsSamples) {
  EXPECT_EQ(brief(parse_labels("0 800 h#\r\n800 1600 sh\r\n", "A.PHN", at_rate(16000))),
            "0-50:h# 50-100:sh ");
  EXPECT_THROW(parse_labels("0 1 a\n", "a.phn"), UsageError);
}

TEST(Labels, FestvoxHeaderEndsAtTheHash) {
  EXPECT_EQ(brief(parse_labels("separator ;\nnfields 1\n#\n 0.34200 125 pau\n0.392 125 k ; x\n",
                               "x.lab")),
            "0-342:pau 342-392:k ");
}

TEST(Labels, ALabFileWithoutHashIsHtk) {
  EXPECT_EQ(brief(parse_labels("0 3000000 sil -12.5\n3000000 4000000 a\n", "x.lab")),
            "0-300:sil 300-400:a ");
}

TEST(Labels, AudacityAllowsBlanksInLabels) {
  EXPECT_EQ(brief(parse_labels("0.0\t0.25\tred bird\n\\\t100\t200\n0.25\t1\tb\n", "x.txt")),
            "0-250:red bird 250-1000:b ");
}

TEST(Labels, CsvFindsItsColumnsByName) {
  EXPECT_EQ(brief(parse_labels("Label,posterior,start,end\n\"a,b\",0.5,0,1\n\"\"\"\",0.1,1,2\n",
                               "x.csv")),
            "0-1000:a,b 1000-2000:\" ");
  EXPECT_EQ(brief(parse_labels("0\t1\ta\n1\t2\tb\n", "x.tsv")), "0-1000:a 1000-2000:b ");
}

TEST(Labels, TextGridLongFormTakesTheFirstIntervalTier) {
  EXPECT_EQ(brief(parse_labels(kLongTextGrid, "x.TextGrid")), "0-500:say \"a\" 500-1500:\xD1\x89 ");
}

TEST(Labels, TextGridShortFormAndAllEncodings) {
  const std::string expected = "0-500:a 500-1500:b ";
  EXPECT_EQ(brief(parse_labels(kShortTextGrid, "x.TextGrid")), expected);
  EXPECT_EQ(brief(parse_labels("\xEF\xBB\xBF" + std::string(kShortTextGrid), "x.TextGrid")),
            expected);
  EXPECT_EQ(brief(parse_labels(to_utf16(kShortTextGrid, true), "x.TextGrid")), expected);
  EXPECT_EQ(brief(parse_labels(to_utf16(kShortTextGrid, false), "x.TextGrid")), expected);
  std::string older(kShortTextGrid);
  older.replace(0, older.find("\n\n"), "File type = \"ooTextFile short\"\n\"TextGrid\"");
  EXPECT_EQ(brief(parse_labels(older, "x.TextGrid")), expected);
}

TEST(Labels, Utf16SurrogatePairs) {
  std::string bytes = to_utf16("0.0\t1\t", false);
  bytes += std::string("\x3D\xD8\x26\xDC", 4);  // U+1F426
  EXPECT_EQ(parse_labels(bytes, "x.txt").segments[0].label, "\xF0\x9F\x90\xA6");
}

TEST(Labels, TextGridTierByName) {
  LabelOptions options;
  options.tier = "phones";
  EXPECT_EQ(parse_labels(kLongTextGrid, "x.TextGrid", options).segments.size(), 2);
  options.tier = "words";
  try {
    parse_labels(kLongTextGrid, "x.TextGrid", options);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no tier \"words\"; the file has \"marks\", \"phones\""));
  }
}

TEST(Labels, GapsAreFilledOnlyWhenAskedFor) {
  const std::string text = "start,end,label\n0.5,1,a\n2,3,b\n";
  EXPECT_THROW(parse_labels(text, "x.csv"), DataError);
  EXPECT_EQ(brief(parse_labels(text, "x.csv", filled_with("-"))),
            "0-500:- 500-1000:a 1000-2000:- 2000-3000:b ");
}

TEST(Labels, EmptyTextGridIntervalsAreGaps) {
  std::string text(kShortTextGrid);
  text.replace(text.find("\"b\""), 3, "\"\"");
  EXPECT_THROW(parse_labels(text, "x.TextGrid"), DataError);
  EXPECT_EQ(brief(parse_labels(text, "x.TextGrid", filled_with("sil"))), "0-500:a 500-1500:sil ");
}

TEST(Labels, RoundingGapsAndOverlapsAreClosed) {
  const Annotation annotation =
      parse_labels("0.0\t0.3333333\ta\n0.333333\t0.6666667\tb\n0.6666671\t1\tc\n", "x.txt");
  EXPECT_EQ(annotation.segments[0].end, annotation.segments[1].start);
  EXPECT_EQ(annotation.segments[1].end, annotation.segments[2].start);
}

class RoundTrip : public testing::TestWithParam<LabelFormat> {};

TEST_P(RoundTrip, WhatIsWrittenReadsBackTheSame) {
  Annotation annotation;
  const double times[] = {0, 0.0625, 0.1, 1.7000625, 2.5};
  const char* labels[] = {"h#", "a", "\xD1\x89", "a"};
  for (int i = 0; i < 4; ++i) annotation.segments.push_back({times[i], times[i + 1], labels[i], 0});
  annotation.duration = 2.5;
  LabelOutput output;
  output.format = GetParam();
  output.sample_rate = 16000;
  LabelOptions options = at_rate(16000);
  options.format = GetParam();
  const Annotation back = parse_labels(format_labels(annotation, output), "x", options);
  ASSERT_EQ(back.segments.size(), 4);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(back.segments[i].start, annotation.segments[i].start, 1e-9);
    EXPECT_NEAR(back.segments[i].end, annotation.segments[i].end, 1e-9);
    EXPECT_EQ(back.segments[i].label, annotation.segments[i].label);
  }
  EXPECT_NEAR(back.duration, 2.5, 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Formats, RoundTrip,
                         testing::Values(LabelFormat::kPhn, LabelFormat::kFestvox,
                                         LabelFormat::kHtk, LabelFormat::kAudacity,
                                         LabelFormat::kTextGrid, LabelFormat::kCsv));

TEST(Labels, LabelsWithBlanksSurviveInCsvAndTextGridOnly) {
  Annotation annotation;
  annotation.segments = {{0, 1, "red \"bird\", again", 0}};
  annotation.duration = 1;
  for (const LabelFormat format : {LabelFormat::kCsv, LabelFormat::kTextGrid}) {
    LabelOutput output;
    output.format = format;
    LabelOptions options;
    options.format = format;
    EXPECT_EQ(parse_labels(format_labels(annotation, output), "x", options).segments[0].label,
              "red \"bird\", again");
  }
  LabelOutput output;
  output.format = LabelFormat::kFestvox;
  EXPECT_THROW(format_labels(annotation, output), UsageError);
}

TEST(Labels, BlanksAroundAQuotedLabelAreNoPartOfIt) {
  const Annotation read = parse_labels("label,start,end\n\" a\nb\r\",0,1\n\"c\t\",1,2\n", "x.csv");
  EXPECT_EQ(read.segments[0].label, "a\nb");
  EXPECT_EQ(read.segments[1].label, "c");
  EXPECT_THROW(parse_labels("label,start,end\n\" \r\",0,1\n", "x.csv"), DataError);
}

TEST(Labels, SpreadsheetsFindNoFormulaInCsvAndWeFindTheLabel) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"=cmd|'/C calc'!A0", "'=cmd|'/C calc'!A0"},
      {"=1+1", "'=1+1"},
      {"=HYPERLINK(\"http://x\",\"y\")", "\"'=HYPERLINK(\"\"http://x\"\",\"\"y\"\")\""},
      {"@SUM(A1)", "'@SUM(A1)"},
      {"+cmd|' /C x'!A0", "'+cmd|' /C x'!A0"},
      {"-2+cmd|' /C x'!A0", "'-2+cmd|' /C x'!A0"},
      {"'=1+1", "''=1+1"},
      {"''@SUM(A1)", "'''@SUM(A1)"},
      // Symbols of phone alphabets and words are as they were.
      {"@", "@"},
      {"@U", "@U"},
      {"-", "-"},
      {"+r", "+r"},
      {"=", "="},
      {"'a", "'a"},
      {"'", "'"},
      {"''", "''"},
      {"a=b(c)", "a=b(c)"}};
  Annotation annotation;
  std::string expected = "start,end,label\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto start = static_cast<double>(i);
    annotation.segments.push_back({start, start + 1, rows[i].first, 0});
    expected += fmt::format("{},{},{}\n", i, i + 1, rows[i].second);
  }
  LabelOutput output;
  output.format = LabelFormat::kCsv;
  const std::string text = format_labels(annotation, output);
  EXPECT_EQ(text, expected);
  const Annotation read = parse_labels(text, "x.csv");
  ASSERT_EQ(read.segments.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(read.segments[i].label, rows[i].first);
}

TEST(Labels, ColumnsGoToCsvAndToFurtherTiers) {
  Annotation annotation;
  annotation.segments = {{0, 1, "a", 0}, {1, 2, "b", 0}};
  annotation.duration = 2;
  LabelOutput output;
  output.format = LabelFormat::kCsv;
  output.columns = {{"posterior", {0.75, 0.5}}};
  EXPECT_EQ(format_labels(annotation, output),
            "start,end,label,posterior\n0,1,a,0.75\n1,2,b,0.5\n");
  output.format = LabelFormat::kTextGrid;
  LabelOptions options;
  options.format = LabelFormat::kTextGrid;
  options.tier = "posterior";
  EXPECT_EQ(brief(parse_labels(format_labels(annotation, output), "x", options)),
            "0-1000:0.75 1000-2000:0.5 ");
  output.columns[0].values.pop_back();
  EXPECT_THROW(format_labels(annotation, output), UsageError);
}

TEST(Labels, WritingChoosesTheFormatByExtension) {
  const test::TemporaryDirectory directory;
  Annotation annotation;
  annotation.segments = {{0, 0.5, "a", 0}};
  annotation.duration = 0.5;
  write_labels(directory / "x.TextGrid", annotation);
  EXPECT_EQ(brief(read_labels(directory / "x.TextGrid")), "0-500:a ");
  EXPECT_THROW(write_labels(directory / "x.doc", annotation), UsageError);
  EXPECT_THROW(write_labels(directory / "none" / "x.csv", annotation), DataError);
}

}  // namespace
}  // namespace segfuse
