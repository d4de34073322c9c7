// A malformed sample of each label format, and of the recordings that libsndfile does not decode,
// with the sentence that it gets.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <set>

#include "segfuse/data/formats.h"
#include "segfuse/error.h"
#include "support/files.h"
#include "support/message_of.h"

namespace segfuse {
namespace {

using testing::HasSubstr;

using test::message_of;

struct Malformed {
  LabelFormat format;
  std::string_view name, bytes, sentence;
  std::string tier{};
};

constexpr std::string_view kEmu =
    R"({"name":"x","sampleRate":8,"levels":[{"name":"P","type":"SEGMENT","items":[)";

const std::vector<Malformed> kMalformed = {
    {LabelFormat::kTextGrid, "x.TextGrid", "File type = \"ooTextFile\"\nObject class = \"Pitch 1\"",
     "x.TextGrid:2: the object class is \"Pitch 1\"; expected \"TextGrid\""},
    {LabelFormat::kPhn, "x.phn", "0 4\n", "x.phn:1: 2 fields; expected \"start end label\""},
    {LabelFormat::kPhn, "x.WRD", "0 4 she\n4 4.5 had\n",
     "x.WRD:2: the end is \"4.5\"; expected a whole number"},
    {LabelFormat::kFestvox, "x.lab", "#\n0.5 a\n",
     "x.lab:2: 2 fields; expected \"end number label\""},
    {LabelFormat::kHtk, "x.lab", "0 1e7 a\n", "x.lab:1: the end is \"1e7\"; expected a whole"},
    {LabelFormat::kRaven, "x.txt", "Begin Time (s)\tNote\n0\ta\n",
     "x.txt:1: no column \"end time (s)\" in the header; is this a selection table of Raven?"},
    {LabelFormat::kRaven, "x.selections.txt",
     "Begin Time (s)\tEnd Time (s)\tNote\n0\t1\ta\none\t2\tb\n",
     "x.selections.txt:3: the begin time is \"one\"; expected a number"},
    {LabelFormat::kRaven, "x.txt", "Begin Time (s)\tEnd Time (s)\tNote\n0\t1\n",
     "x.txt:2: 2 fields; expected at least 3"},
    {LabelFormat::kAudacity, "x.txt", "0 1 a\n",
     "x.txt:1: 1 fields between tabs; expected start, end, label"},
    {LabelFormat::kAudacity, "x.txt", "0\t1\t \n", "x.txt:1: the label is empty"},
    {LabelFormat::kGenericSeq, "x.csv", "label,onset_s,offset_s,notated_path\na,0,x,b.wav\n",
     "x.csv:2: the end is \"x\"; expected a number"},
    {LabelFormat::kGenericSeq, "x.csv", "label,onset_s,notated_path\na,0,b.wav\n",
     "x.csv:1: no column \"offset_s\" in the header; expected onset_s, offset_s and label; "
     "it has \"label\", \"onset_s\", \"notated_path\""},
    {LabelFormat::kSimpleSeq, "x.csv", "onset_s,offset_s,label\n0,inf,a\n",
     "x.csv:2: the end is \"inf\"; expected a number"},
    {LabelFormat::kDas, "x_annotations.csv", "name,start_seconds,stop_seconds\nsine,0.5,\n",
     "x_annotations.csv:2: the end is \"\"; expected a number"},
    {LabelFormat::kDas, "x.csv", "start_seconds,stop_seconds\n0,1\n",
     "x.csv:1: no column \"name\" in the header; expected start_seconds, stop_seconds and name; "
     "it has \"start_seconds\", \"stop_seconds\""},
    {LabelFormat::kWhisperSeg, "x.csv", "onset,offset,cluster\n1,0.5,a\n",
     "x.csv:2: segment \"a\" ends at 0.5 s, not after its start at 1 s"},
    {LabelFormat::kWhisperSeg, "x.csv", "onset,offset,cluster\n0,1,\"a\nb",
     "x.csv:2: a quoted field is never closed; expected a closing \""},
    {LabelFormat::kCsv, "x.tsv", "start\tend\tlabel\n0\t1\ta\n0.5\t2\tb\n",
     "x.tsv:3: segment \"b\" starts at 0.5 s, before the one above it ends at 1 s"},
    {LabelFormat::kCsv, "x.csv", "0,1\n", "x.csv:1: 2 fields; expected at least 3"},
    {LabelFormat::kNotMat, "x.not.mat", "text", "x.not.mat: byte 0: not a MAT-file of version 5"},
    {LabelFormat::kBirdsongRec, "x.xml", "<Sequences><Sequence>", "x.xml:1: this is not XML: "},
    {LabelFormat::kBirdsongRec, "x.xml",
     "<Sequences><Sequence><WaveFileName>a.wav</WaveFileName>\n<Position>soon</Position>"
     "</Sequence></Sequences>",
     "x.xml:1: Position is \"soon\"; expected a whole number"},
    {LabelFormat::kEaf, "x.eaf", "<TIER/>",
     "x.eaf:1: the outermost element is \"TIER\"; expected \"ANNOTATION_DOCUMENT\""},
    {LabelFormat::kEmu, "x_annot.json",
     "{\"name\": ", "x_annot.json:1:10: the JSON ends too early; was it cut off?"},
    {LabelFormat::kEmu, "x_annot.json", "{\"name\":\"x\",\"sampleRate\":\"8\",\"levels\":[]}",
     "x_annot.json: at sampleRate: expected a number, found \"8\""},
    {LabelFormat::kCtm, "x.ctm", "a 1 0.5 b\n",
     "x.ctm:1: 4 fields; expected \"recording channel start duration label\""},
    {LabelFormat::kCtm, "x.ctm", "a 1 0 1 x\na 1 1 long y\n",
     "x.ctm:2: the duration is \"long\"; expected a number"},
    {LabelFormat::kCtm, "x.ctm", "a 1 0 -1 x\n",
     "x.ctm:1: segment \"x\" ends at -1 s, not after its start at 0 s"},
    {LabelFormat::kBed, "x.bed", "chr1\t0\t10\n",
     "x.bed:1: 3 fields; expected \"sequence start end name\", since the names are the labels"},
    {LabelFormat::kBed, "x.bed", "chr1\t0\t1.5\texon\n",
     "x.bed:1: the end is \"1.5\"; expected a whole number"},
    {LabelFormat::kBed, "x.bed", "chr1\t-8\t8\texon\n",
     "x.bed:1: segment from -1 s to 1 s; times must lie between 0 and"},
    {LabelFormat::kGff3, "x.gff3", "chr1\t.\texon\t1\t30\t.\t+\t.\n",
     "x.gff3:1: 8 fields between tabs; a GFF3 line has 9"},
    {LabelFormat::kGff3, "x.gff", "##gff-version 3\nchr1\t.\texon\t0\t30\t.\t+\t.\t.\n",
     "x.gff:2: the start is 0; positions count from 1"},
};

LabelOptions how(const Malformed& sample) {
  LabelOptions options;
  options.sample_rate = 8;
  options.fill_label = "-";
  options.tier = sample.tier;
  return options;
}

TEST(MalformedLabels, GetOneSentenceWithTheirNameAndPlace) {
  for (const Malformed& sample : kMalformed) {
    const std::string said =
        message_of([&] { parse_labels(sample.bytes, sample.name, how(sample)); });
    EXPECT_TRUE(said.starts_with(sample.sentence)) << said << "\nexpected " << sample.sentence;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  }
}

/// A new format has to bring a sample of what it refuses.
TEST(MalformedLabels, EveryFormatHasSome) {
  std::set<LabelFormat> seen = {
      LabelFormat::kYarden,  // formats_test.cpp, which writes MAT-files
      LabelFormat::kWfdb,    // wfdb_test.cpp
  };
  for (const Malformed& sample : kMalformed) seen.insert(sample.format);
  for (const LabelFormatInfo& info : label_formats())
    EXPECT_TRUE(seen.contains(info.format)) << info.name;
}

TEST(MalformedLabels, EmuItems) {
  const auto refusal = [](std::string_view items) {
    return message_of([&] { parse_labels(fmt::format("{}{}", kEmu, items), "x_annot.json"); });
  };
  constexpr std::string_view kLabels = R"("labels":[{"name":"P","value":"a"}]}]}]})";
  EXPECT_THAT(refusal(fmt::format(R"({{"sampleStart":0,{})", kLabels)),
              HasSubstr("x_annot.json: at levels[0].items[0]: there is no 'sampleDur'"));
  EXPECT_THAT(
      refusal(fmt::format(R"({{"sampleStart":1e300,"sampleDur":1,{})", kLabels)),
      HasSubstr("x_annot.json: at levels[0].items[0].sampleStart: expected a whole number"));
  std::string deep = R"({"name":"x","sampleRate":8,"levels":)";
  for (int i = 0; i < 100'000; ++i) deep += '[';
  EXPECT_THAT(message_of([&] { parse_labels(deep, "x_annot.json"); }),
              HasSubstr("x_annot.json: the JSON nests more than "));
}

TEST(ValueTables, OfTabs) {
  EXPECT_EQ(message_of([] { parse_values("a\tb\n1\t2\n3\n", "x.tsv"); }),
            "x.tsv:3: 1 fields; the first line has 2");
  EXPECT_EQ(message_of([] { parse_values("1,2\n", "x.tsv"); }),
            "x.tsv: there are no values; expected at least one row");
}

// ------------------------------------------------------------------------------------- archives

std::string little(std::size_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
  return out;
}

struct ZipFile {
  std::string name, packed;
  std::size_t size = 0;  ///< unpacked
  int method = 0;
};

/// A ZIP archive as numpy.savez and numpy.savez_compressed write it, but for the checksums.
std::string zip(const std::vector<ZipFile>& files) {
  std::string out, list;
  for (const ZipFile& file : files) {
    const std::string sizes = little(file.packed.size(), 4) + little(file.size, 4) +
                              little(file.name.size(), 2) + little(0, 2);
    const std::string start = little(20, 2) + little(0, 2) +
                              little(static_cast<std::size_t>(file.method), 2) + little(0, 8);
    list += "PK\x01\x02" + little(20, 2) + start + sizes + little(0, 10) + little(out.size(), 4) +
            file.name;
    out += "PK\x03\x04" + start + sizes + file.name + file.packed;
  }
  const std::size_t at = out.size();
  return out + list + "PK\x05\x06" + little(0, 4) + little(files.size(), 2) +
         little(files.size(), 2) + little(list.size(), 4) + little(at, 4) + little(0, 2);
}

std::string deflated(const std::string& bytes) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string npy(const std::string& shape, const std::string& data) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(117, ' ');
  header += '\n';
  return "\x93NUMPY" + little(1, 2) + little(header.size(), 2) + header + data;
}

TEST(Npz, HoldsArraysThatAreStoredOrPacked) {
  const std::string one = npy("(2, 1)", std::string("\0\0\x80\x3F\0\0\0\x40", 8));
  const std::string both =
      zip({{"a.npy", one, one.size()}, {"b.npy", deflated(one), one.size(), 8}});
  for (const char* part : {"a", "b"}) {
    const Tensor values = parse_values(both, "x.npz", part);
    EXPECT_EQ(values.shape(), (Shape{2, 1}));
    EXPECT_EQ(values.at(1), 2);
  }
  EXPECT_EQ(parse_values(zip({{"a.npy", one, one.size()}}), "x.npz").at(0), 1);
  const auto refusal = [](const std::string& bytes, const std::string& part = {}) {
    return message_of([&] { parse_values(bytes, "x.npz", part); });
  };
  EXPECT_THAT(refusal(both), HasSubstr("x.npz: 2 arrays ("));
  EXPECT_THAT(refusal(both, "c"), HasSubstr("expected one named 'c'"));
  EXPECT_EQ(refusal("PK"), "x.npz: this is not a ZIP file; expected an .npz file of NumPy");
  EXPECT_EQ(refusal(zip({{"a.npy", one, one.size(), 12}})),
            "x.npz: a file in it is neither stored nor deflated; expected an .npz file of NumPy");
  EXPECT_THAT(refusal(zip({{"a.npy", "text", 4}})), HasSubstr("x.npz: byte 0: not a .npy file"));
  for (std::size_t size = 0; size < both.size(); ++size)
    EXPECT_THROW(parse_values(both.substr(0, size), "x.npz", "b"), DataError) << size;
}

TEST(Npz, ABombIsRefusedBeforeItIsUnpacked) {
  const std::string zeros(std::size_t{64} << 20, '\0');
  const std::string packed = deflated(npy("(16777216, 1)", zeros));
  EXPECT_LT(packed.size(), 80'000);
  const auto refusal = [&](std::size_t size) {
    return message_of([&] { parse_values(zip({{"a.npy", packed, size, 8}}), "x.npz"); });
  };
  // What it announces and what comes out differ.
  EXPECT_THAT(refusal(1000), HasSubstr("x.npz: a compressed array is damaged or was cut off"));
  EXPECT_THAT(refusal(0xFFFFFFFF), HasSubstr("x.npz: a compressed array is damaged"));
}

}  // namespace
}  // namespace segfuse
