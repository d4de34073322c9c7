// The table of label formats, and each of its readers on a sample of its own making.

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/os/file.h"
#include "base/text.h"
#include "learn/data/labels/mat.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"
#include "support/files.h"
#include "support/message_of.h"
#include "support/source_dir.h"

namespace segfuse {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// "start-end:label ..." in milliseconds.
std::string summary(const Annotation& annotation) {
  std::string out;
  for (const LabelSegment& segment : annotation.segments)
    out += fmt::format("{}-{}:{} ", std::llround(segment.start * 1000),
                       std::llround(segment.end * 1000), segment.label);
  return out;
}

LabelOptions filled(std::string recording = {}, double sample_rate = 0) {
  LabelOptions options;
  options.fill_label = "-";
  options.recording = std::move(recording);
  options.sample_rate = sample_rate;
  return options;
}

using test::message_of;

Annotation sample(const std::vector<std::string>& labels) {
  constexpr double kTimes[] = {0, 0.062, 0.1, 1.7, 2.5};
  Annotation out;
  for (std::size_t i = 0; i < labels.size(); ++i)
    out.segments.push_back({kTimes[i], kTimes[i + 1], labels[i], 0});
  out.duration = out.segments.back().end;
  return out;
}

// ----------------------------------------------------------------------------------- the table

TEST(LabelFormats, EveryOneThatIsWrittenIsRecognisedByNameAndContentAndReadsBack) {
  for (const LabelFormatInfo& info : label_formats()) {
    if (!info.written) {
      EXPECT_THROW(written_label_format(info.name), UsageError);
      LabelOutput output;
      output.format = info.format;
      EXPECT_THROW(format_labels(sample({"a"}), output), UsageError);
      continue;
    }
    EXPECT_EQ(written_label_format(info.name), info.format);
    const bool letters = info.format == LabelFormat::kNotMat;
    const Annotation annotation =
        letters ? sample({"h", "a", "b", "a"}) : sample({"h#", "a", "\xD1\x89<&'\x7F", "a"});
    LabelOutput output;
    output.format = info.format;
    output.sample_rate = 16000;
    output.recording = "x.wav";
    const std::string name = label_file_name("some/x.wav", info.format);
    const std::string text = format_labels(annotation, output);
    LabelOptions options;
    options.sample_rate = 16000;
    options.recording = "x.wav";
    EXPECT_EQ(inspect_label_text(text, name, options).format, info.format) << name << "\n" << text;
    const Annotation back = parse_labels(text, name, options);
    EXPECT_EQ(summary(back), summary(annotation)) << info.name << "\n" << text;
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(back.segments[i].end, annotation.segments[i].end, 1e-9) << info.name;
    EXPECT_TRUE(is_label_file(name));
    EXPECT_EQ(label_stem(name), "x") << name;
  }
}

std::string endings_of(const LabelFormatInfo& info) {
  std::vector<std::string> endings;
  for (const std::string_view ending : info.endings) endings.push_back(fmt::format("`{}`", ending));
  return fmt::format("{}", fmt::join(endings, ", "));
}

bool shares_an_ending(const LabelFormatInfo& info) {
  for (const LabelFormatInfo& other : label_formats())
    for (const std::string_view ending : other.endings)
      if (other.format != info.format &&
          std::ranges::find(info.endings, ending) != info.endings.end())
        return true;
  return false;
}

/// The tables of docs/data.md, as they have to be.
std::string documented_formats() {
  std::string out =
      "| `--format` | used by | files end in | times in | support |\n"
      "|---|---|---|---|---|\n";
  for (const LabelFormatInfo& info : label_formats())
    out += fmt::format("| {} | {} | {} | {} | {} |\n", info.name, info.program, endings_of(info),
                       info.times, info.written ? "read and write" : "read only");
  return out;
}

std::string documented_shared_endings() {
  std::string out = "| files end in | format | what the file contains |\n|---|---|---|\n";
  for (const LabelFormatInfo& info : label_formats())
    if (shares_an_ending(info))
      out += fmt::format("| {} | {} | {} |\n", endings_of(info), info.name,
                         info.recognised.empty() ? "anything else" : info.recognised);
  return out;
}

/// The formats in the first column of the table whose head begins so.
std::vector<std::string> formats_in_table(const std::string& docs, const std::string& head) {
  std::istringstream lines(docs.substr(std::min(docs.find(head), docs.size())));
  std::vector<std::string> names;
  std::string line;
  for (int row = 0; std::getline(lines, line) && !line.empty(); ++row) {
    std::istringstream cell(line.substr(2, line.find(" |", 2) - 2));
    for (std::string name; row > 1 && std::getline(cell >> std::ws, name, ',');)
      names.push_back(name);
  }
  return names;
}

std::vector<std::string> formats_with_tiers() {
  std::vector<std::string> names;
  for (const LabelFormatInfo& info : label_formats())
    if (!info.tiers.empty()) names.emplace_back(info.name);
  return names;
}

std::string documented_shared_files() {
  std::vector<std::string> names;
  for (const LabelFormatInfo& info : label_formats())
    if (info.shared) names.emplace_back(info.name);
  return fmt::format("in one file: {}.", fmt::join(names, ", "));
}

TEST(LabelFormats, TheTablesOfTheDocumentsAreTheTable) {
  const std::string docs = read_file(std::filesystem::path(SEGFUSE_SOURCE_DIR) / "docs/data.md");
  EXPECT_THAT(docs, HasSubstr(documented_formats()));
  EXPECT_THAT(docs, HasSubstr(documented_shared_endings()));
  EXPECT_THAT(formats_in_table(docs, "| format | what counts as a tier |"),
              ::testing::UnorderedElementsAreArray(formats_with_tiers()));
  const std::string audio = docs.substr(docs.find("\n## Audio\n"));
  for (const std::string_view ending : audio_endings())
    EXPECT_THAT(audio, HasSubstr(fmt::format("`{}`", ending)));
  std::string flat = docs;
  std::replace(flat.begin(), flat.end(), '\n', ' ');
  EXPECT_THAT(flat, HasSubstr(documented_shared_files()));
}

TEST(LabelFormats, UnknownNamesGetTheNearestOne) {
  EXPECT_EQ(message_of([] { written_label_format("textgird"); }),
            "there is no label format 'textgird' to write; did you mean 'textgrid'?");
  EXPECT_THAT(message_of([] { written_label_format("word"); }),
              HasSubstr("known are 'textgrid', "));
  EXPECT_THAT(message_of([] { parse_labels("", "x.doc"); }),
              HasSubstr("x.doc: the name does not say which label format this is; known are"));
}

TEST(LabelFormats, StemsOfLabelFilesAreThoseOfTheirRecordings) {
  for (const char* name :
       {"x.TextGrid", "x_annotations.csv", "x_annot.csv", "x_annotation.csv", "x_labels.txt",
        "x.cbin.not.mat", "x.not.mat", "x.wav.csv", "x.Table.1.selections.txt", "x.WAV.PHN",
        "x_annot.json", "x.selections.txt", "x.wav_annotations.csv"})
    EXPECT_EQ(label_stem(name), "x") << name;
  EXPECT_EQ(label_stem("x_annotated.csv"), "x_annotated");
}

/// crowsetta refuses columns of whole numbers where it expects times or frequencies.
TEST(LabelFormats, TimesOfCrowsettasFormatsHaveDecimals) {
  Annotation annotation;
  annotation.segments = {{0, 1, "a", 0}, {1, 20, "b", 0}};
  annotation.duration = 20;
  LabelOutput output;
  output.recording = "x.wav";
  output.sample_rate = 16000;
  const auto text = [&](LabelFormat format) {
    output.format = format;
    return format_labels(annotation, output);
  };
  EXPECT_EQ(text(LabelFormat::kAudacity), "0.0\t1.0\ta\n1.0\t20.0\tb\n");
  EXPECT_THAT(text(LabelFormat::kSimpleSeq), HasSubstr("\n0.0,1.0,a\n1.0,20.0,b\n"));
  EXPECT_THAT(text(LabelFormat::kGenericSeq), HasSubstr("\na,0.0,1.0,x.wav,"));
  EXPECT_THAT(text(LabelFormat::kRaven), HasSubstr("\t1\t1.0\t20.0\t0.0\t8000.0\tb\n"));
}

// -------------------------------------------------------------------------------------- tables

/// Spreadsheets separate fields by ';' where the comma is the decimal mark, and by tabs.
TEST(LabelTables, TheFirstLineShowsTheSeparator) {
  const std::string expected = "0-500:a 500-1000:b ";
  for (const char* text :
       {"start,end,label\n0,0.5,a\n0.5,1,b\n", "start;end;label\n0;0,5;a\n0,5;1;b\n",
        "start;end;label\r\n0;0.5;a\r\n0.5;1;b\r\n",
        "\xEF\xBB\xBFlabel;Start;End\na;0;0,5\nb;0,5;1\n",
        "start\tend\tlabel\n0\t0.5\ta\n0.5\t1\tb\n",
        "\"\";\"start\";\"end\";\"label\"\n1;0;0,5;\"a\"\n2;0,5;1;b\n",
        "onset_s;offset_s;label\n0;0,5;a\n0,5;1;b\n", "0;0,5;a\n0,5;1;b\n", "0,0;0,5;a\n0,5;1;b\n",
        "0\t0.5\ta\n0.5\t1\tb\n", "name;start_seconds;stop_seconds\na;0;0,5\nb;0,5;1\n"}) {
    EXPECT_EQ(summary(parse_labels(text, "x.csv")), expected) << text;
    EXPECT_EQ(summary(parse_labels(text, "x.tsv")), expected) << text;
  }
  // A label may have any of them.
  EXPECT_EQ(summary(parse_labels("0,0.5,a;b;c\n0.5,1,d\n", "x.csv")), "0-500:a;b;c 500-1000:d ");
  EXPECT_EQ(summary(parse_labels("start;end;label\n0;0,5;a,b\n0,5;1;\"c;d\"\n", "x.csv")),
            "0-500:a,b 500-1000:c;d ");
  EXPECT_EQ(summary(parse_labels("\"start\"\t\"end\"\t\"label\"\n0\t0.5\t\"a\"\n0.5\t1\t\"b\"\n",
                                 "x.tsv")),
            expected);
  // Nothing but ';' gives commas a meaning.
  EXPECT_EQ(message_of([] { parse_labels("start\tend\tlabel\n0\t0,5\ta\n", "x.tsv"); }),
            "x.tsv:2: the end is \"0,5\"; expected a number with a decimal point");
  EXPECT_EQ(message_of([] { parse_labels("start;end;label\n0;1,234.5;a\n", "x.csv"); }),
            "x.csv:2: the end is \"1,234.5\"; expected a number");
  EXPECT_EQ(
      message_of([] { parse_labels("start;end;label\n0;0,5;a\n0.5;1;b\n", "x.csv"); }),
      "x.csv:3: \"0.5\" has a '.' before its decimals, and numbers above have a ','; expected "
      "one of them");
}

TEST(LabelTables, EachProgramNamesItsColumnsItsOwnWay) {
  const std::string expected = "0-500:a 500-1000:b ";
  EXPECT_EQ(summary(parse_labels("onset_s,offset_s,label\n0,0.5,a\n0.5,1,b\n", "x.csv")), expected);
  EXPECT_EQ(summary(parse_labels("onset,offset,cluster,n\n0,0.5,a,1\n0.5,1,b,2\n", "x.csv")),
            expected);
  EXPECT_EQ(summary(parse_labels("label,onset_sample,offset_sample\na,0,4\nb,4,8\n", "x.csv",
                                 filled("", 8))),
            expected);
  EXPECT_THROW(parse_labels("label,onset_sample,offset_sample\na,0,4\n", "x.csv"), UsageError);
  EXPECT_EQ(message_of([] { parse_labels("onset_s,offset,label\n0,1,a\n", "x.csv"); }),
            "x.csv:1: no column \"offset_s\" in the header; expected onset_s, offset_s and label; "
            "it has \"onset_s\", \"offset\", \"label\"");
}

/// Each bird has a folder with a 1.wav.
TEST(LabelTables, FoldersTellRecordingsOfOneNameApart) {
  const auto of = [](const std::string& names, const std::string& recording) {
    std::string text = "label,onset_s,offset_s,notated_path\n";
    double at = 0;
    for (const std::string_view name : split(names, ' '))
      text += fmt::format("{},{},{},{}\n", name.substr(0, 1), at, at + 1, name), ++at;
    LabelOptions options = filled(recording);
    return message_of([&] { throw DataError(summary(parse_labels(text, "t.csv", options))); });
  };
  EXPECT_EQ(of("a/1.wav b/1.wav a/2.wav", "corpus/a/1.wav"), "0-1000:a ");
  EXPECT_EQ(of("a/1.wav b/1.wav a/2.wav", "corpus/b/1.wav"), "0-1000:- 1000-2000:b ");
  EXPECT_EQ(of("C:\\x\\a\\1.wav D:\\x\\b\\1.wav", "b/1.wav"), "0-1000:- 1000-2000:D ");
  EXPECT_EQ(of("1.flac b/1.wav", "c/1.wav"), "0-1000:- 1000-2000:b ") << "the same file name";
  EXPECT_EQ(of("x/1.wav", "c/1.wav"), "0-1000:x ") << "the only one";
  EXPECT_EQ(
      of("a/1.wav b/1.wav", "c/1.wav"),
      "t.csv: it has labels of \"a/1.wav\" and of \"b/1.wav\", and either may be the recording "
      "\"c/1.wav\"; give the recordings different names");
  EXPECT_EQ(of("a/1.wav b/1.wav", "2.wav"),
            "t.csv:3: it has no labels of the recording \"2.wav\", but of \"a/1.wav\" and others");
  // Formats whose rows are looked at one by one do not guess.
  const auto refusal = [](const std::string& text, const char* name) {
    return message_of([&] { parse_labels(text, name, filled("a/1.wav", 8)); });
  };
  EXPECT_EQ(refusal("1 1 0 1 a\n1.wav 1 1 1 b\n", "t.ctm"),
            "t.ctm: it has labels of \"1\" and of \"1.wav\", and either may be the recording "
            "\"a/1.wav\"; give the recordings different names");
}

/// What is kept of a table is not taken for another one, or for another rate.
TEST(LabelTables, ATableOfManyIsReadAnewWhenItChanged) {
  const std::string head = "label,onset_sample,offset_sample,notated_path\n";
  const std::string one = head + "a,0,8,x.wav\nb,0,8,y.wav\n";
  const std::string two = head + "c,0,8,x.wav\nd,0,8,y.wav\n";
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(summary(parse_labels(one, "t.csv", filled("x.wav", 8))), "0-1000:a ");
    EXPECT_EQ(summary(parse_labels(one, "t.csv", filled("y.wav", 16))), "0-500:b ");
    EXPECT_EQ(summary(parse_labels(two, "t.csv", filled("x.wav", 8))), "0-1000:c ");
    EXPECT_EQ(inspect_label_text(two, "t.csv").recordings,
              (std::vector<std::string>{"x.wav", "y.wav"}));
    EXPECT_THAT(message_of([&] { parse_labels(one, "t.csv", filled("z.wav", 8)); }),
                HasSubstr("no labels of the recording \"z.wav\""));
  }
}

TEST(LabelTables, DasDeclaresNamesWithoutSegments) {
  EXPECT_EQ(summary(parse_labels("name,start_seconds,stop_seconds\nsine,0.5,1\npulse,,\n"
                                 "vib,nan,0\nsine,0,0.5\n",
                                 "x_annotations.csv")),
            "0-500:sine 500-1000:sine ");
}

TEST(LabelTables, GenericSeqHoldsSeveralRecordings) {
  const std::string text =
      "label,onset_s,offset_s,notated_path,annot_path,sequence,annotation\n"
      "a,0,1,one/b1.wav,x.csv,0,0\nb,1,2,one/b1.wav,x.csv,0,0\nc,0,3,one\\b2.wav,x.csv,0,1\n";
  EXPECT_EQ(summary(parse_labels(text, "x.csv", filled("b1.wav"))), "0-1000:a 1000-2000:b ");
  EXPECT_EQ(summary(parse_labels(text, "x.csv", filled("folder/b2.cbin"))), "0-3000:c ");
  EXPECT_THAT(inspect_label_text(text, "x.csv").recordings,
              ElementsAre("one/b1.wav", "one\\b2.wav"));
  EXPECT_THAT(message_of([&] { parse_labels(text, "x.csv", filled("b3.wav")); }),
              HasSubstr("x.csv:4: it has no labels of the recording \"b3.wav\", but of "
                        "\"one/b1.wav\" and others"));
  EXPECT_THAT(message_of([&] { parse_labels(text, "x.csv"); }),
              HasSubstr("it has labels of 2 recordings, \"one/b1.wav\" and others; name"));
}

constexpr std::string_view kRaven =
    "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tNote\tSpecies\n"
    "1\tWaveform 1\t1\t1.0\t2.0\t0\tloud\tblue tit\n"
    "1\tSpectrogram 1\t1\t1.0\t2.0\t0\tloud\tblue tit\n"
    "2\tWaveform 1\t1\t0.25\t0.5\t0\t\twren\n"
    "2\tSpectrogram 1\t1\t0.25\t0.5\t0\t\twren\n";

TEST(Raven, TakesOneViewInTheOrderOfTimeAndTheColumnOfLabels) {
  EXPECT_EQ(summary(parse_labels(kRaven, "x.txt", filled())),
            "0-250:- 250-500:wren 500-1000:- 1000-2000:blue tit ");
  LabelOptions notes = filled();
  notes.tier = "Note";
  EXPECT_EQ(summary(parse_labels(kRaven, "x.txt", notes)), "0-1000:- 1000-2000:loud ");
  notes.tier = "Comment";
  EXPECT_THAT(message_of([&] { parse_labels(kRaven, "x.txt", notes); }),
              HasSubstr("no tier \"Comment\"; the file has \"Species\", \"Note\""));
  EXPECT_THROW(parse_labels(kRaven, "x.txt"), DataError) << "gaps need a label";
  EXPECT_THAT(message_of([] { parse_labels("Begin Time (s)\tEnd Time (s)\n1\t2\n", "x.txt"); }),
              HasSubstr("x.txt:1: no column with labels in the header"));
}

TEST(Raven, SeveralSoundFilesHaveTimesOfTheirOwn) {
  const std::string text =
      "Selection\tBegin Time (s)\tEnd Time (s)\tBegin File\tFile Offset (s)\tAnnotation\n"
      "1\t0\t1\ta.wav\t0\tx\n2\t60.5\t61\tb.wav\t0.5\ty\n";
  EXPECT_EQ(summary(parse_labels(text, "t.txt", filled("b.wav"))), "0-500:- 500-1000:y ");
}

TEST(Ctm, HasDurationsAndSeveralRecordings) {
  const std::string text = ";; comment\nr2 1 0.5 0.25 b 0.9\nr1 A 0 1 a\nr2 1 0 0.5 a 0.8\n";
  EXPECT_EQ(summary(parse_labels(text, "all.ctm", filled("r2.wav"))), "0-500:a 500-750:b ");
  EXPECT_THAT(inspect_label_text(text, "all.ctm").recordings, ElementsAre("r2", "r1"));
}

TEST(Genome, BedCountsFromZeroAndGff3FromOne) {
  const std::string bed = "track name=x\nchr1\t0\t10\texon\t5\t+\nchr2 0 5 intron\n";
  EXPECT_EQ(summary(parse_labels(bed, "x.bed", filled("chr1", 1))), "0-10000:exon ");
  EXPECT_EQ(summary(parse_labels(bed, "x.bed", filled("chr2", 1))), "0-5000:intron ");
  const std::string gff =
      "##gff-version 3\nchr1\t.\tgene\t1\t30\t.\t+\t.\tID=g\n"
      "chr1\t.\texon\t21\t30\t.\t+\t.\tParent=g\nchr1\t.\texon\t1\t10\t.\t+\t.\tParent=g\n"
      "##FASTA\n>chr1\nACGT\n";
  LabelOptions options = filled("chr1", 1);
  EXPECT_THAT(message_of([&] { parse_labels(gff, "x.gff3", options); }),
              HasSubstr("starts at 0 s, before the one above it ends"));
  options.tier = "exon";
  EXPECT_EQ(summary(parse_labels(gff, "x.gff3", options)),
            "0-10000:exon 10000-20000:- 20000-30000:exon ");
  const LabelContents contents = inspect_label_text(gff, "x.gff3");
  EXPECT_TRUE(contents.tiers_are_one);
  ASSERT_EQ(contents.tiers.size(), 2);
  EXPECT_EQ(contents.tiers[1].name, "exon");
  EXPECT_EQ(contents.tiers[1].labels.at("exon"), 2);
}

// ----------------------------------------------------------------------------------------- XML

constexpr std::string_view kEaf =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ANNOTATION_DOCUMENT>\n <TIME_ORDER>\n"
    "  <TIME_SLOT TIME_SLOT_ID=\"t1\" TIME_VALUE=\"100\"/>\n"
    "  <TIME_SLOT TIME_SLOT_ID=\"t2\"/>\n"
    "  <TIME_SLOT TIME_SLOT_ID=\"t3\" TIME_VALUE=\"500\"/>\n"
    "  <TIME_SLOT TIME_SLOT_ID=\"t4\" TIME_VALUE=\"900\"/>\n </TIME_ORDER>\n"
    " <TIER TIER_ID=\"words\">\n"
    "  <ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID=\"a1\" TIME_SLOT_REF1=\"t1\" "
    "TIME_SLOT_REF2=\"t3\"><ANNOTATION_VALUE> a &lt; b </ANNOTATION_VALUE></ALIGNABLE_ANNOTATION>"
    "</ANNOTATION>\n"
    "  <ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID=\"a2\" TIME_SLOT_REF1=\"t3\" "
    "TIME_SLOT_REF2=\"t4\"><ANNOTATION_VALUE/></ALIGNABLE_ANNOTATION></ANNOTATION>\n </TIER>\n"
    " <TIER TIER_ID=\"phones\" PARENT_REF=\"words\">\n"
    "  <ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID=\"a3\" TIME_SLOT_REF1=\"t1\" "
    "TIME_SLOT_REF2=\"t2\"><ANNOTATION_VALUE>p</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION>"
    "</ANNOTATION>\n"
    "  <ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID=\"a4\" TIME_SLOT_REF1=\"t2\" "
    "TIME_SLOT_REF2=\"t3\"><ANNOTATION_VALUE>q</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION>"
    "</ANNOTATION>\n </TIER>\n"
    " <TIER TIER_ID=\"tags\" PARENT_REF=\"words\">\n"
    "  <ANNOTATION><REF_ANNOTATION ANNOTATION_ID=\"a5\" ANNOTATION_REF=\"a1\">"
    "<ANNOTATION_VALUE>N</ANNOTATION_VALUE></REF_ANNOTATION></ANNOTATION>\n"
    "  <ANNOTATION><REF_ANNOTATION ANNOTATION_ID=\"a6\" ANNOTATION_REF=\"a1\" "
    "PREVIOUS_ANNOTATION=\"a5\"><ANNOTATION_VALUE>V</ANNOTATION_VALUE></REF_ANNOTATION>"
    "</ANNOTATION>\n </TIER>\n</ANNOTATION_DOCUMENT>\n";

std::string eaf_tier(const std::string& tier) {
  LabelOptions options = filled();
  options.tier = tier;
  return summary(parse_labels(kEaf, "x.eaf", options));
}

TEST(Eaf, TiersHaveTimesOfTheirOwnOrShareThoseOfOthers) {
  EXPECT_EQ(eaf_tier(""), "0-100:- 100-500:a < b ");
  EXPECT_EQ(eaf_tier("phones"), "0-100:- 100-300:p 300-500:q ");
  EXPECT_EQ(eaf_tier("tags"), "0-100:- 100-300:N 300-500:V ");
  const LabelContents contents = inspect_label_text(kEaf, "x.eaf");
  ASSERT_EQ(contents.tiers.size(), 3);
  EXPECT_EQ(contents.tiers[0].name, "words");
  EXPECT_EQ(contents.tiers[0].segments, 1) << "an empty text is a gap";
  EXPECT_NEAR(contents.tiers[2].labelled_seconds, 0.4, 1e-9);
}

std::string changed(std::string_view text, std::string_view from, std::string_view to) {
  std::string out(text);
  out.replace(out.find(from), from.size(), to);
  return out;
}

TEST(Eaf, WhatDoesNotHangTogetherIsRefused) {
  const auto refusal = [](const std::string& text) {
    return message_of([&] { parse_labels(text, "x.eaf", filled()); });
  };
  EXPECT_EQ(refusal(changed(kEaf, "TIME_SLOT_REF2=\"t4\"", "TIME_SLOT_REF2=\"t9\"")),
            "x.eaf:11: no time slot \"t9\"");
  EXPECT_EQ(refusal(changed(kEaf, "ANNOTATION_REF=\"a1\"", "ANNOTATION_REF=\"a5\"")),
            "x.eaf:18: the annotation \"a5\" refers to itself");
  EXPECT_EQ(refusal(changed(kEaf, "ANNOTATION_REF=\"a1\"", "ANNOTATION_REF=\"a0\"")),
            "x.eaf:18: no annotation \"a0\"");
  EXPECT_EQ(refusal(changed(kEaf, "TIME_VALUE=\"100\"", "TIME_VALUE=\"1e2\"")),
            "x.eaf:4: TIME_VALUE is \"1e2\"; expected a whole number");
  EXPECT_EQ(refusal(changed(kEaf, "TIME_VALUE=\"100\"", "")),
            "x.eaf:10: the annotation \"a1\" starts at no time");
  EXPECT_EQ(refusal(changed(kEaf, "\"a2\"", "\"a1\"")), "x.eaf:11: a second annotation \"a1\"");
  EXPECT_EQ(refusal(changed(kEaf, "</TIER>", "")).substr(0, 26), "x.eaf:21: this is not XML:");
  EXPECT_EQ(refusal("<x/>"),
            "x.eaf:1: the outermost element is \"x\"; expected \"ANNOTATION_DOCUMENT\"");
  EXPECT_EQ(refusal("").substr(0, 25), "x.eaf:1: this is not XML:");
}

TEST(Xml, EntitiesAreNotExpandedAndDepthDoesNoHarm) {
  std::string bomb = "<?xml version=\"1.0\"?><!DOCTYPE x [<!ENTITY a \"aaaaaaaaaa\">";
  for (char c = 'b'; c <= 'k'; ++c)
    bomb += fmt::format("<!ENTITY {0} \"&{1};&{1};&{1};&{1};&{1};&{1};&{1};&{1};\">", c,
                        static_cast<char>(c - 1));
  bomb += "]>";
  const std::string text = changed(kEaf, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>", bomb);
  EXPECT_EQ(summary(parse_labels(changed(text, "&lt;", "&k;"), "x.eaf", filled())),
            "0-100:- 100-500:a &k; b ");
  std::string deep;
  for (int i = 0; i < 200000; ++i) deep += "<a>";
  EXPECT_THROW(parse_labels(deep, "x.eaf"), DataError);
  for (int i = 0; i < 200000; ++i) deep += "</a>";
  EXPECT_THROW(parse_labels(deep, "x.eaf"), DataError);
}

TEST(BirdsongRec, PositionsCountSamplesFromTheirSequence) {
  const std::string text =
      "<Sequences><NumSequence>2</NumSequence>\n<Sequence><WaveFileName>0.wav</WaveFileName>"
      "<Position>1000</Position><Length>3000</Length>\n<Note><Position>0</Position>"
      "<Length>1000</Length><Label>0</Label></Note>\n<Note><Position>1500</Position>"
      "<Length>500</Length><Label>1</Label></Note></Sequence>\n<Sequence>"
      "<WaveFileName>1.wav</WaveFileName><Position>0</Position><Note><Position>-5</Position>"
      "<Length>10</Length><Label>2</Label></Note></Sequence></Sequences>";
  EXPECT_EQ(summary(parse_labels(text, "Annotation.xml", filled("Wave/0.wav", 1000))),
            "0-1000:- 1000-2000:0 2000-2500:- 2500-3000:1 ");
  EXPECT_THAT(message_of([&] { parse_labels(text, "Annotation.xml", filled("1.wav", 1000)); }),
              HasSubstr("Annotation.xml:5: Position is -5; expected 0 to"));
  EXPECT_THAT(message_of([&] { parse_labels(text, "Annotation.xml", filled("10.wav", 1000)); }),
              HasSubstr("it has no labels of the recording \"10.wav\""));
}

// ---------------------------------------------------------------------------------------- JSON

TEST(Emu, LevelsAreTiersAndTheLastSampleCounts) {
  const std::string text =
      R"({"name":"x","annotates":"x.wav","sampleRate":1000,"levels":[
      {"name":"Utterance","type":"ITEM","items":[
       {"id":9,"labels":[{"name":"Utterance","value":""}]}]},
      {"name":"Phonetic","type":"SEGMENT","items":[
       {"id":1,"sampleStart":0,"sampleDur":99,"labels":[{"name":"Phonetic","value":"V"}]},
       {"id":2,"sampleStart":100,"sampleDur":399,"labels":[{"name":"Phonetic","value":"m"}]}]},
      {"name":"Tone","type":"EVENT","items":[
       {"id":3,"samplePoint":50,"labels":[{"name":"Tone","value":"H*"}]}]}],"links":[]})";
  EXPECT_EQ(summary(parse_labels(text, "x_annot.json")), "0-100:V 100-500:m ");
  const LabelContents contents = inspect_label_text(text, "x_annot.json");
  ASSERT_EQ(contents.tiers.size(), 3);
  EXPECT_FALSE(contents.tiers[0].intervals);
  EXPECT_TRUE(contents.tiers[1].intervals);
  EXPECT_EQ(contents.tiers[2].labels.at("H*"), 1);
  LabelOptions options;
  options.tier = "Tone";
  EXPECT_THAT(message_of([&] { parse_labels(text, "x_annot.json", options); }),
              HasSubstr("tier \"Tone\" holds points; an interval tier is needed"));
  EXPECT_THAT(message_of([&] {
                parse_labels(changed(text, "\"sampleDur\":99", "\"sampleDur\":-1"), "x_annot.json");
              }),
              HasSubstr("sampleDur"));
  EXPECT_THAT(message_of([&] {
                parse_labels(changed(text, "\"sampleRate\":1000", "\"sampleRate\":0"),
                             "x_annot.json");
              }),
              HasSubstr("a rate above 0"));
}

// -------------------------------------------------------------------------------------- MATLAB

std::string notmat(const std::vector<double>& onsets, const std::vector<double>& offsets,
                   std::u16string_view labels) {
  data::MatWriter mat;
  mat.add("Fs", std::vector<double>{32000});
  mat.add("labels", labels);
  mat.add("onsets", onsets);
  mat.add("offsets", offsets);
  return mat.finish();
}

/// Every variable packed by zlib, as MATLAB and SciPy do it by themselves.
std::string compressed(const std::string& mat) {
  std::string out = mat.substr(0, 128);
  const auto little = [&](std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(mat[at + i]);
    return value;
  };
  for (std::size_t at = 128; at < mat.size();) {
    const std::size_t size = 8 + little(at + 4);
    uLongf length = compressBound(size);
    std::string packed(length, '\0');
    compress(reinterpret_cast<Bytef*>(packed.data()), &length,
             reinterpret_cast<const Bytef*>(mat.data() + at), size);
    packed.resize(length);
    for (const std::uint32_t word : {15U, static_cast<std::uint32_t>(length)})
      for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(word >> (8 * i) & 0xFF));
    out += packed;
    at += size;
  }
  return out;
}

TEST(NotMat, HoldsMillisecondsAndALetterForEachSyllable) {
  const std::string mat = notmat({100, 500}, {400, 900}, u"ab");
  const std::string expected = "0-100:- 100-400:a 400-500:- 500-900:b ";
  EXPECT_EQ(summary(parse_labels(mat, "x.cbin.not.mat", filled())), expected);
  EXPECT_EQ(summary(parse_labels(compressed(mat), "x.cbin.not.mat", filled())), expected);
  EXPECT_EQ(summary(parse_labels(notmat({0}, {1000}, u"\u0449"), "x.not.mat")), "0-1000:\xD1\x89 ");
}

TEST(NotMat, WhatDoesNotFitIsRefused) {
  const auto refusal = [](const std::string& bytes) {
    return message_of([&] { parse_labels(bytes, "x.not.mat", filled()); });
  };
  EXPECT_EQ(refusal(notmat({100, 500}, {400, 900}, u"abc")),
            "x.not.mat: 2 onsets, 2 offsets and 3 labels; expected as many of each");
  EXPECT_EQ(refusal(notmat({std::nan("")}, {400}, u"a")),
            "x.not.mat:1: the times of segment 1 are nan and 400; expected numbers");
  EXPECT_THAT(refusal(notmat({400}, {100}, u"a")), HasSubstr("ends at 0.1 s, not after its start"));
  EXPECT_THAT(refusal(notmat({-400}, {100}, u"a")), HasSubstr("times must lie between 0 and"));
  EXPECT_THAT(refusal("text"), HasSubstr("x.not.mat: byte 0: not a MAT-file of version 5"));
  data::MatWriter other;
  other.add("x", std::vector<double>{1});
  EXPECT_EQ(refusal(other.finish()), "x.not.mat: no variable 'labels'; the file has \"'x'\"");
  EXPECT_THAT(message_of([] {
                LabelOutput output;
                output.format = LabelFormat::kNotMat;
                format_labels(sample({"ab"}), output);
              }),
              HasSubstr("label \"ab\" cannot stand in a .not.mat file"));
}

TEST(NotMat, EveryCutIsRefused) {
  for (const std::string& whole :
       {notmat({100, 500}, {400, 900}, u"ab"), compressed(notmat({100, 500}, {400, 900}, u"ab"))})
    for (std::size_t size = 0; size + 8 < whole.size(); ++size)
      EXPECT_THROW(parse_labels(whole.substr(0, size), "x.not.mat", filled()), DataError) << size;
}

// --- arrays of a MAT-file by hand, in either byte order

struct Bytes {
  bool big = false;
  std::string number(std::uint64_t value, int count) const {
    std::string out;
    for (int i = 0; i < count; ++i)
      out.push_back(static_cast<char>(value >> (8 * (big ? count - 1 - i : i)) & 0xFF));
    return out;
  }
  std::string element(std::uint32_t type, std::string data) const {
    std::string out = number(type, 4) + number(data.size(), 4) + data;
    return out + std::string((8 - data.size() % 8) % 8, '\0');
  }
  std::string array(std::uint32_t kind, std::uint32_t rows, std::uint32_t columns,
                    const std::string& name, const std::string& content) const {
    return element(14, element(6, number(kind, 4) + number(0, 4)) +
                           element(5, number(rows, 4) + number(columns, 4)) + element(1, name) +
                           content);
  }
  std::string doubles(const std::string& name, const std::vector<double>& values) const {
    std::string data;
    for (const double value : values) data += number(std::bit_cast<std::uint64_t>(value), 8);
    return array(6, static_cast<std::uint32_t>(values.size()), 1, name, element(9, data));
  }
  std::string text(const std::string& name, const std::string& value) const {
    return array(4, 1, static_cast<std::uint32_t>(value.size()), name, element(16, value));
  }
  std::string header() const {
    std::string out(124, ' ');
    return out + number(0x0100, 2) + (big ? "MI" : "IM");
  }
  std::string annotation(const std::vector<double>& starts, const std::vector<double>& ends,
                         const std::vector<double>& types) const {
    std::string names;
    for (const char* name : {"segFileStartTimes", "segFileEndTimes", "segType"}) {
      std::string field(name);
      field.resize(32, '\0');
      names += field;
    }
    return array(2, 1, 1, "",
                 element(5, number(32, 4)) + element(1, names) + doubles("", starts) +
                     doubles("", ends) + doubles("", types));
  }
  std::string yarden() const {
    return header() + array(1, 1, 2, "keys", text("", "b1.wav") + text("", "b2.wav")) +
           array(1, 1, 2, "elements",
                 annotation({0.5}, {1}, {3}) + annotation({0, 1}, {1, 2}, {7, 8}));
  }
};

TEST(Yarden, HasACellForEveryRecordingInEitherByteOrder) {
  for (const bool big : {false, true}) {
    const std::string mat = Bytes{big}.yarden();
    EXPECT_EQ(summary(parse_labels(mat, "annotation.mat", filled("b2.wav"))),
              "0-1000:7 1000-2000:8 ");
    EXPECT_EQ(summary(parse_labels(mat, "annotation.mat", filled("b1.wav"))),
              "0-500:- 500-1000:3 ");
    const LabelContents contents = inspect_label_text(mat, "annotation.mat");
    EXPECT_EQ(contents.format, LabelFormat::kYarden);
    EXPECT_THAT(contents.recordings, ElementsAre("b1.wav", "b2.wav"));
  }
}

TEST(Yarden, WhatDoesNotFitIsRefused) {
  const Bytes bytes;
  LabelOptions options = filled("a.wav");
  options.format = LabelFormat::kYarden;
  const auto refusal = [&](const std::string& keys, const std::string& elements) {
    return message_of(
        [&] { parse_labels(bytes.header() + keys + elements, "annotation.mat", options); });
  };
  const std::string key = bytes.array(1, 1, 1, "keys", bytes.text("", "a.wav"));
  const auto elements = [&](const std::string& element) {
    return bytes.array(1, 1, 1, "elements", element);
  };
  EXPECT_EQ(refusal(key, ""), "annotation.mat: no variable 'elements'; the file has \"'keys'\"");
  EXPECT_EQ(refusal(key, bytes.doubles("elements", {1})),
            "annotation.mat: 'keys' and 'elements' are not two lists of cells of one length");
  EXPECT_EQ(refusal(bytes.array(1, 1, 1, "keys", bytes.doubles("", {1})),
                    elements(bytes.annotation({0}, {1}, {3}))),
            "annotation.mat: a key is not text");
  EXPECT_THAT(refusal(key, elements(bytes.doubles("", {1}))),
              HasSubstr("annotation.mat: an element has no field 'seg"));
  EXPECT_EQ(refusal(key, elements(bytes.annotation({0, 1}, {1}, {3}))),
            "annotation.mat: 2 onsets, 1 offsets and 1 labels; expected as many of each");
  EXPECT_THAT(refusal(key, elements(bytes.annotation({1}, {0}, {3}))),
              HasSubstr("annotation.mat:1: segment \"3\" ends at 0 s, not after its start at 1 s"));
  EXPECT_THAT(refusal(key, elements(bytes.annotation({std::nan("")}, {1}, {3}))),
              HasSubstr("annotation.mat:1: the times of segment 1 are nan and 1"));
  const std::string whole = bytes.yarden();
  for (std::size_t size = 0; size + 8 < whole.size(); ++size)
    EXPECT_THROW(parse_labels(whole.substr(0, size), "annotation.mat", filled("b2.wav")), DataError)
        << size;
}

TEST(Mat, ArraysInArraysHaveAnEnd) {
  const Bytes bytes;
  std::string nested = bytes.doubles("", {1});
  for (int i = 0; i < 40; ++i) nested = bytes.array(1, 1, 1, "", nested);
  EXPECT_THAT(message_of([&] { parse_labels(bytes.header() + nested, "x.not.mat"); }),
              HasSubstr("arrays in arrays, more than 16 deep"));
  const std::string huge = bytes.array(1, 0xFFFFFFFF, 0xFFFFFFFF, "keys", "");
  EXPECT_THAT(message_of([&] { parse_labels(bytes.header() + huge, "x.not.mat"); }),
              HasSubstr("an array of length"));
}

TEST(Mat, ABombOfZerosIsRefused) {
  std::string mat = notmat({0}, {1}, u"a").substr(0, 128);
  std::string zeros(std::size_t{300} << 20, '\0');
  uLongf length = compressBound(zeros.size());
  std::string packed(length, '\0');
  compress2(reinterpret_cast<Bytef*>(packed.data()), &length,
            reinterpret_cast<const Bytef*>(zeros.data()), zeros.size(), 1);
  for (const std::uint32_t word : {15U, static_cast<std::uint32_t>(length)})
    for (int i = 0; i < 4; ++i) mat.push_back(static_cast<char>(word >> (8 * i) & 0xFF));
  mat += packed.substr(0, length);
  EXPECT_THAT(message_of([&] { parse_labels(mat, "x.not.mat"); }),
              HasSubstr("compressed variables of more than 134217728 bytes"));
}

}  // namespace
}  // namespace segfuse
