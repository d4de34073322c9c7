// Recordings that are numbers or letters, and how they find their labels.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "segfuse/data/formats.h"
#include "segfuse/error.h"
#include "support/files.h"
#include "support/message_of.h"

namespace segfuse {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using test::message_of;

std::string npy(std::string_view type, std::string_view shape, std::string_view data,
                bool fortran = false) {
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}", type,
                                   fortran ? "True" : "False", shape);
  header.resize((header.size() + 11 + 63) / 64 * 64 - 11, ' ');
  header += "\n";
  std::string out("\x93NUMPY\x01\x00", 8);
  out.push_back(static_cast<char>(header.size() & 0xFF));
  out.push_back(static_cast<char>(header.size() >> 8));
  return out + header + std::string(data);
}

template <class T>
std::string bytes_of(const std::vector<T>& values, bool big = false) {
  std::string out;
  for (const T value : values) {
    std::string raw(reinterpret_cast<const char*>(&value), sizeof(T));
    out += big ? std::string(raw.rbegin(), raw.rend()) : raw;
  }
  return out;
}

std::vector<float> all(const Tensor& tensor) {
  const auto values = tensor.span<float>();
  return {values.begin(), values.end()};
}

TEST(Npy, RowsFollowEachOtherInTimeWhateverTheTypeAndOrder) {
  const std::vector<float> expected = {1, 2, 3, 4, 5, 6};
  const std::string rows = bytes_of<float>({1, 2, 3, 4, 5, 6});
  const Tensor values = parse_values(npy("<f4", "(3, 2)", rows), "x.npy");
  EXPECT_EQ(values.shape(), (Shape{3, 2}));
  EXPECT_EQ(all(values), expected);
  EXPECT_EQ(
      all(parse_values(npy(">f4", "(3, 2)", bytes_of<float>({1, 2, 3, 4, 5, 6}, true)), "x.npy")),
      expected);
  EXPECT_EQ(
      all(parse_values(npy("<f8", "(3, 2)", bytes_of<double>({1, 3, 5, 2, 4, 6}), true), "x.npy")),
      expected);
  EXPECT_EQ(
      parse_values(npy("<i2", "(6,)", bytes_of<std::int16_t>({1, 2, 3, 4, 5, 6})), "x.npy").shape(),
      (Shape{6, 1}));
}

TEST(Npy, OthersAreRefusedInOneSentence) {
  const auto refusal = [](const std::string& bytes) {
    return message_of([&] { parse_values(bytes, "x.npy"); });
  };
  EXPECT_EQ(refusal(npy("<i8", "(1, 1)", bytes_of<std::int64_t>({1}))),
            "x.npy: the array has the type \"<i8\"; expected float32, float64 or int16 "
            "(numpy.float32(x))");
  EXPECT_THAT(refusal(npy("|O", "(1,)", "x")), HasSubstr("the type \"|O\""));
  EXPECT_EQ(refusal(npy("<f4", "(1, 1, 1)", bytes_of<float>({1}))),
            "x.npy: the array has 3 dimensions; expected T x D: rows that follow each other in "
            "time, and their values");
  EXPECT_THAT(refusal(npy("<f4", "(2, 2)", bytes_of<float>({1, 2, 3}))),
              HasSubstr("2 x 2 values are announced, 12 bytes follow; the file was cut off"));
  EXPECT_THAT(refusal(npy("<f4", "(1000000000000000000, 1)", "")), HasSubstr("the file was cut"));
  EXPECT_THAT(refusal(npy("<f4", "(0, 2)", "")), HasSubstr("there are no values"));
  EXPECT_THAT(refusal(npy("<f4", "(1, 0)", "")), HasSubstr("0 columns of values"));
  EXPECT_EQ(refusal(npy("<f4", "(2, 2)", bytes_of<float>({1, 2, NAN, 3}))),
            "x.npy: row 1, column 0 is nan; expected finite numbers");
  EXPECT_THAT(refusal(npy("<f8", "(1,)", bytes_of<double>({1e300}))), HasSubstr("is inf"));
  EXPECT_THAT(refusal("text"), HasSubstr("x.npy: byte 0: not a .npy file of NumPy"));
  const std::string whole = npy("<f4", "(3, 2)", bytes_of<float>({1, 2, 3, 4, 5, 6}));
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(parse_values(whole.substr(0, size), "x.npy"), DataError) << size;
}

TEST(Parquet, IsRefusedWithTheWayToGo) {
  EXPECT_THAT(message_of([] { parse_values("PAR1", "x.parquet"); }),
              HasSubstr("x.parquet: Parquet is not read; read it with pyarrow in Python"));
  const test::TemporaryDirectory folder;
  folder.write("a.parquet", "PAR1");
  EXPECT_THAT(message_of([&] { load_manifest(folder.path()); }),
              HasSubstr("a.parquet: Parquet is not read"));
}

TEST(ValueTables, AColumnThatCountsTheRowsIsNone) {
  const std::vector<float> values = {5, 6, 7, 8};
  for (const char* text : {",x,y\n0,5,6\n1,7,8\n", "\"\",\"x\",\"y\"\n\"1\",5,6\n\"2\",7,8\n"}) {
    EXPECT_EQ(all(parse_values(text, "x.csv")), values) << text;
    EXPECT_EQ(parse_values(text, "x.csv").shape(), (Shape{2, 2}));
  }
  for (const char* text :
       {"n,x,y\n0,5,6\n1,7,8\n", "0,5,6\n1,7,8\n", ",x,y\n2,5,6\n3,7,8\n", ",x,y\n0,5,6\n2,7,8\n"})
    EXPECT_EQ(parse_values(text, "x.csv").shape(), (Shape{2, 3})) << text;
  EXPECT_EQ(parse_values(",\n0,1\n", "x.csv").shape(), (Shape{1, 1}));
}

TEST(ValueTables, AreColumnsWithOrWithoutAHeader) {
  EXPECT_EQ(all(parse_values("ax,ay\n1,2\n-3,4e-1\n", "x.csv")),
            (std::vector<float>{1, 2, -3, 0.4F}));
  EXPECT_EQ(parse_values("1\t2\t3\n", "x.tsv").shape(), (Shape{1, 3}));
  EXPECT_EQ(message_of([] { parse_values("a,b\n1,2\n3\n", "x.csv"); }),
            "x.csv:3: 1 fields; the first line has 2");
  EXPECT_EQ(message_of([] { parse_values("a,b\n1,\n", "x.csv"); }),
            "x.csv:2: field 2 is \"\"; expected a number");
  EXPECT_EQ(message_of([] { parse_values("a,b\n1,nan\n", "x.csv"); }),
            "x.csv:2: field 2 is \"nan\"; expected a number");
  EXPECT_THAT(message_of([] { parse_values("", "x.csv"); }), HasSubstr("there are no values"));
}

TEST(Fasta, LettersAreOneHotAndAmbiguousOnesNone) {
  const std::string text = "; old comment\n";
  const std::string fasta = ">a first\nAC\ngT\n\n>b\nUN\n";
  EXPECT_EQ(all(parse_values(fasta, "x.fa", "a")),
            (std::vector<float>{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}));
  EXPECT_EQ(all(parse_values(fasta, "x.fa", "b")), (std::vector<float>{0, 0, 0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(message_of([&] { parse_values(fasta, "x.fa"); }),
            "x.fa: 2 sequences; name one of them");
  EXPECT_EQ(message_of([&] { parse_values(fasta, "x.fa", "c"); }),
            "x.fa: the sequence \"c\" is missing or empty");
  EXPECT_EQ(message_of([] { parse_values(">a\nAC-G\n", "x.fa"); }),
            "x.fa:2: \"-\" in a sequence; expected letters of DNA or RNA");
  EXPECT_THAT(message_of([&] { parse_values(text, "x.fa"); }), HasSubstr("expected FASTA"));
}

// -------------------------------------------------------------------------------------- corpora

std::vector<std::string> pairs_of(const std::filesystem::path& folder, bool values) {
  std::vector<std::string> out;
  for (const Recording& r : load_manifest(folder, {.values = values}))
    out.push_back(
        fmt::format("{} {} {}", r.id, r.audio.filename().string(), r.labels.filename().string()));
  return out;
}

TEST(ValueFolders, ArraysAreRecordingsAndTablesTheirLabels) {
  const test::TemporaryDirectory directory;
  const std::string one = npy("<f4", "(1,)", bytes_of<float>({1}));
  directory.write("a.npy", one);
  directory.write("a.csv", "start,end,label\n0,1,x\n");
  directory.write("b.npy", one);
  directory.write("b_annotations.csv", "name,start_seconds,stop_seconds\nx,0,1\n");
  EXPECT_THAT(pairs_of(directory.path(), true),
              ElementsAre("a a.npy a.csv", "b b.npy b_annotations.csv"));
  EXPECT_THAT(message_of([&] { load_manifest(directory.path()); }), HasSubstr("no audio file"));
}

TEST(ValueFolders, TablesAreRecordingsWhereThereIsNothingElse) {
  const test::TemporaryDirectory directory;
  directory.write("a.csv", "x\n1\n");
  directory.write("a_labels.csv", "start,end,label\n0,1,x\n");
  EXPECT_THAT(pairs_of(directory.path(), true), ElementsAre("a a.csv a_labels.csv"));
  directory.write("manifest.tsv", "id\taudio\na\ta.csv\n");
  EXPECT_THAT(pairs_of(directory.path(), true), ElementsAre("a a.csv a_labels.csv"));
}

TEST(ValueFolders, EverySequenceOfAFastaFileIsARecording) {
  const test::TemporaryDirectory directory;
  directory.write("g.fa", ">chr1\nACGTAC\n>chr2\nAAAA\n");
  directory.write("g.gff3",
                  "chr1\t.\texon\t1\t3\t.\t+\t.\t.\nchr1\t.\tintron\t4\t6\t.\t+\t.\t.\n"
                  "chr2\t.\texon\t1\t4\t.\t+\t.\t.\n");
  EXPECT_THAT(pairs_of(directory.path(), true),
              ElementsAre("g/chr1 g.fa g.gff3", "g/chr2 g.fa g.gff3"));
  FeatureConfig config;
  config.kind = FeatureKind::kValues;
  config.frame_rate = 1;
  const std::vector<Recording> recordings = load_manifest(directory.path(), {.values = true});
  const std::vector<Example> examples = load_examples(recordings, FeatureExtractor(config), {}, {});
  ASSERT_EQ(examples.size(), 2);
  EXPECT_EQ(examples[0].features.shape(), (Shape{6, 4}));
  ASSERT_EQ(examples[0].gold.segments.size(), 2);
  EXPECT_EQ(examples[0].gold.segments[0].end, 3);
  EXPECT_EQ(examples[1].gold.segments[0].label, "exon");
  EXPECT_EQ(examples[1].seconds, 4);
}

TEST(AudioFolders, KnownSuffixesPairAndAnExactNameWins) {
  const test::TemporaryDirectory directory;
  const std::vector<float> samples(160);
  for (const char* name : {"a", "b", "b_labels", "c"})
    write_wav(directory / (std::string(name) + ".wav"), samples, 16000);
  directory.write("a_annotations.csv", "name,start_seconds,stop_seconds\nx,0,0.01\n");
  directory.write("b.wav.csv", "start,end,label\n0,0.01,x\n");
  directory.write("b_labels.csv", "start,end,label\n0,0.01,x\n");
  directory.write("c.Table.1.selections.txt",
                  "Begin Time (s)\tEnd Time (s)\tAnnotation\n0\t0.01\tx\n");
  EXPECT_THAT(
      pairs_of(directory.path(), false),
      ElementsAre("a a.wav a_annotations.csv", "b b.wav b.wav.csv",
                  "b_labels b_labels.wav b_labels.csv", "c c.wav c.Table.1.selections.txt"));
  directory.write("a.csv", "start,end,label\n0,0.01,x\n");
  EXPECT_THAT(message_of([&] { load_manifest(directory.path()); }),
              HasSubstr("a second file for the recording \"a\", besides"));
}

TEST(AudioFolders, OneFileMayHoldTheLabelsOfSeveralRecordings) {
  const test::TemporaryDirectory directory;
  directory.write("bird/Wave/x", "");
  for (const char* name : {"0", "1"})
    write_wav(directory / fmt::format("bird/Wave/{}.wav", name), std::vector<float>(160), 16000);
  const std::string sequence =
      "<Sequence><WaveFileName>{}.wav</WaveFileName><Position>0</Position><Note><Position>0"
      "</Position><Length>160</Length><Label>{}</Label></Note></Sequence>";
  directory.write("bird/Annotation.xml",
                  "<Sequences>" + fmt::format(fmt::runtime(sequence), 0, "a") +
                      fmt::format(fmt::runtime(sequence), 1, "b") + "</Sequences>");
  EXPECT_THAT(pairs_of(directory / "bird", false),
              ElementsAre("Wave/0 0.wav Annotation.xml", "Wave/1 1.wav Annotation.xml"));
  const std::vector<Recording> recordings = load_manifest(directory / "bird");
  const std::vector<Example> examples =
      load_examples(recordings, FeatureExtractor(FeatureConfig()), {}, {});
  EXPECT_EQ(examples[0].gold.segments[0].label, "a");
  EXPECT_EQ(examples[1].gold.segments[0].label, "b");
}

// ---------------------------------------------------------------------------------------- evTAF

TEST(Cbin, HasItsSettingsInAFileBesideIt) {
  const test::TemporaryDirectory directory;
  directory.write("x.cbin", bytes_of<std::int16_t>({0, 256, -32768, 5}, true));
  EXPECT_THAT(message_of([&] { read_audio(directory / "x.cbin"); }),
              HasSubstr("x.cbin: no file x.rec beside it, which has the sample rate"));
  directory.write("x.rec", "File created\nADFREQ =  3.2000000E+4\nChans =  1\nSamples =  4\n");
  const Audio audio = read_audio(directory / "x.cbin");
  EXPECT_EQ(audio.sample_rate, 32000);
  EXPECT_EQ(audio.samples, (std::vector<float>{0, 256.0F / 32768, -1, 5.0F / 32768}));
  directory.write("x.rec", "ADFREQ = 32000\nChans = 2\n");
  EXPECT_EQ(read_audio(directory / "x.cbin", {.channel = 1}).samples,
            (std::vector<float>{256.0F / 32768, 5.0F / 32768}));
  directory.write("x.rec", "ADFREQ = 32000\nSamples = 9\n");
  EXPECT_THAT(message_of([&] { read_audio(directory / "x.cbin"); }),
              HasSubstr("announces 9 samples, the file has 4; it was cut off"));
  directory.write("x.rec", "ADFREQ = fast\n");
  EXPECT_THAT(message_of([&] { read_audio(directory / "x.cbin"); }),
              HasSubstr("line 1 of its .rec file: adfreq is \"fast\"; expected a whole number"));
  directory.write("x.rec", "Chans = 1\n");
  EXPECT_THAT(message_of([&] { read_audio(directory / "x.cbin"); }),
              HasSubstr("has no line \"ADFREQ = RATE\""));
}

}  // namespace
}  // namespace segfuse
