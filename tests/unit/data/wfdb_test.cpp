// Records of WFDB, from bytes that a writer of the tests makes.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "learn/data/audio/parsers.h"
#include "learn/data/wfdb/wfdb.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"
#include "support/files.h"
#include "support/message_of.h"

namespace segfuse {
namespace {

using data::parse_wfdb_annotations;
using data::parse_wfdb_header;
using testing::ElementsAre;
using testing::HasSubstr;
using Files = std::map<std::string, std::string>;

using test::message_of;

// --------------------------------------------------------------------------------- a writer

void put(std::string& out, std::uint32_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

/// Samples of alternating signals in a format, as bytes; the last group may be cut.
std::string packed(int format, const std::vector<std::int32_t>& samples, int width = 1) {
  std::string out;
  const auto at = [&](std::size_t i) {
    return i < samples.size() ? static_cast<std::uint32_t>(samples[i]) : 0U;
  };
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::uint32_t x = at(i);
    const auto before = i < static_cast<std::size_t>(width) ? x : at(i - width);
    switch (format) {
      case 8: put(out, x - before, 1); break;
      case 80: put(out, x + 128, 1); break;
      case 16: put(out, x, 2); break;
      case 160: put(out, x + 32768, 2); break;
      case 24: put(out, x, 3); break;
      case 32: put(out, x, 4); break;
      case 61:
        put(out, x >> 8, 1);
        put(out, x, 1);
        break;
      case 212:
        if (i % 2 == 1) break;
        put(out, x, 1);
        put(out, (x >> 8 & 15) | (at(i + 1) >> 4 & 0xF0), 1);
        if (i + 1 < samples.size()) put(out, at(i + 1), 1);
        break;
      case 310:
        if (i % 3 > 0) break;
        put(out, (x & 1023) << 1 | (at(i + 2) & 31) << 11, 2);
        if (i + 1 < samples.size())
          put(out, (at(i + 1) & 1023) << 1 | (at(i + 2) >> 5 & 31) << 11, 2);
        break;
      default:  // 311
        if (i % 3 > 0) break;
        put(out, (x & 1023) | (at(i + 1) & 1023) << 10 | (at(i + 2) & 1023) << 20,
            i + 2 < samples.size()   ? 4
            : i + 1 < samples.size() ? 3
                                     : 2);
    }
  }
  return out;
}

/// Annotations in the MIT format.
class Annotator {
 public:
  Annotator& add(std::int64_t time, int code, const std::string& text = {}) {
    std::int64_t step = time - time_;
    if (step < 0 || step > 1023) {
      word(59, 0);
      put(bytes_, static_cast<std::uint32_t>(step) >> 16, 2);
      put(bytes_, static_cast<std::uint32_t>(step), 2);
      step = 0;
    }
    time_ = time;
    word(code, static_cast<unsigned>(step));
    if (text.empty()) return *this;
    word(63, static_cast<unsigned>(text.size()));
    bytes_ += text;
    if (text.size() % 2 == 1) bytes_.push_back('\0');
    return *this;
  }
  Annotator& field(int code, unsigned value) {
    word(code, value);
    return *this;
  }
  std::string bytes() const { return bytes_ + std::string(2, '\0'); }

 private:
  void word(int code, unsigned value) { put(bytes_, static_cast<unsigned>(code) << 10 | value, 2); }
  std::string bytes_;
  std::int64_t time_ = 0;
};

enum { kN = 1, kV = 5, kNote = 22, kP = 24, kT = 27, kRhythm = 28, kBegin = 39, kEnd = 40 };

Audio parsed(const std::string& header, const Files& files, int channel = AudioOptions::kStack) {
  AudioOptions options;
  options.channel = channel;
  return data::parse_wfdb(
      header, "r.hea", [&](const std::string& name) { return files.at(name); }, options);
}

std::string refusal(const std::string& header, const Files& files = {}, int channel = -3) {
  return message_of([&] { parsed(header, files, channel); });
}

// -------------------------------------------------------------------------------- the signals

TEST(WfdbSignals, EveryFormatReadsWhatWasWrittenAtEveryLength) {
  std::mt19937 random(7);
  const std::map<int, int> bits = {{8, 6},  {16, 16},  {24, 24},  {32, 31},  {61, 16},
                                   {80, 8}, {160, 16}, {212, 12}, {310, 10}, {311, 10}};
  for (const auto& [format, size] : bits)
    for (int width = 1; width <= 3; ++width)
      for (int frames = 1; frames < 8; ++frames) {
        std::vector<std::int32_t> samples;
        std::vector<std::uint32_t> sums(3);
        for (int i = 0; i < frames * width; ++i) {
          const auto half = std::int64_t{1} << (size - 1);
          const auto value = static_cast<std::int64_t>(random() % (2 * half - 1)) - half + 1;
          samples.push_back(static_cast<std::int32_t>(value));
          sums[i % width] += static_cast<std::uint32_t>(value);
        }
        std::string header = fmt::format("r {} 250 {}\n", width, frames);
        for (int i = 0; i < width; ++i)
          header += fmt::format("r.dat {} 1 12 0 {} {} 0 s{}\n", format, samples[i],
                                static_cast<std::int16_t>(sums[i]), i);
        const std::string bytes = packed(format, samples, width);
        const Audio audio = parsed(header, {{"r.dat", bytes}});
        ASSERT_EQ(audio.stacked, width);
        ASSERT_EQ(audio.samples.size(), samples.size());
        for (std::size_t i = 0; i < samples.size(); ++i)
          EXPECT_EQ(audio.samples[i], static_cast<float>(samples[i])) << format << " " << i;
        if (bytes.size() > 1) {
          EXPECT_THAT(refusal(header, {{"r.dat", bytes.substr(0, bytes.size() - 1)}}),
                      HasSubstr("it was cut off"))
              << format << " " << width << " " << frames;
        }
      }
}

// Longer than what is read at once, so that groups of samples and differences go over its ends.
TEST(WfdbSignals, LongRecordsAreReadInPieces) {
  std::mt19937 random(8);
  const test::TemporaryDirectory folder;
  for (const auto& [format, bits] : std::map<int, int>{{8, 6},
                                                       {16, 16},
                                                       {24, 24},
                                                       {32, 31},
                                                       {61, 16},
                                                       {80, 8},
                                                       {212, 12},
                                                       {310, 10},
                                                       {311, 10}})
    for (const int width : {1, 2, 3})
      for (const int frames : {16379, 16380, 16381, 40000}) {
        SCOPED_TRACE(fmt::format("format {}, {} signals, {} frames", format, width, frames));
        std::vector<std::int32_t> samples;
        std::vector<std::uint32_t> sums(3);
        for (int i = 0; i < frames * width; ++i) {
          const auto half = std::int64_t{1} << (bits - 1);
          samples.push_back(static_cast<std::int32_t>(
              static_cast<std::int64_t>(random() % (2 * half - 1)) - half + 1));
          sums[i % width] += static_cast<std::uint32_t>(samples.back());
        }
        const auto header_of = [&](std::uint32_t added) {
          std::string header = fmt::format("r {} 250 {}\n", width, frames);
          for (int i = 0; i < width; ++i)
            header += fmt::format("r.dat {} 1 12 0 {} {} 0 s{}\n", format, samples[i],
                                  static_cast<std::int16_t>(sums[i] + added), i);
          return header;
        };
        const std::string header = header_of(0);
        const std::string bytes = packed(format, samples, width);
        const Files files{{"r.dat", bytes}};
        const std::vector<float> expected(samples.begin(), samples.end());
        ASSERT_EQ(parsed(header, files).samples, expected);
        folder.write("r.dat", bytes);
        folder.write("r.hea", header);
        AudioOptions options;
        options.channel = AudioOptions::kStack;
        const auto reader =
            data::AudioReader::open(folder / "r.hea", (folder / "r.hea").string(), options);
        ASSERT_TRUE(reader);
        EXPECT_EQ(reader->announced(), frames);
        std::vector<float> found;
        std::size_t most = 0;
        while (reader->next()) {
          const std::vector<float>& block = reader->audio().samples;
          most = std::max(most, block.size());
          found.insert(found.end(), block.begin(), block.end());
        }
        EXPECT_LE(most, static_cast<std::size_t>(16380 * width));
        EXPECT_EQ(reader->frames(), frames);
        ASSERT_EQ(found, expected);
        // What is wrong behind the first piece is seen when it is read.
        folder.write("r.hea", header_of(1));
        const auto changed =
            data::AudioReader::open(folder / "r.hea", (folder / "r.hea").string(), options);
        EXPECT_THAT(message_of([&] {
                      while (changed->next()) {
                      }
                    }),
                    HasSubstr("the checksum of"));
      }
}

TEST(WfdbSignals, AFileThatIsCutShortMeanwhileIsNamed) {
  const test::TemporaryDirectory folder;
  folder.write("r.hea", "r 1 250 40000\nr.dat 16\n");
  folder.write("r.dat", std::string(80000, '\1'));
  const auto reader = data::open_wfdb(folder / "r.hea", "r.hea", {});
  EXPECT_TRUE(reader->next());
  std::filesystem::resize_file(folder / "r.dat", 50000);
  EXPECT_THAT(
      message_of([&] {
        while (reader->next()) {
        }
      }),
      HasSubstr("r.dat: 32760 bytes cannot be read at byte 32760; it had 80000 bytes when"));
}

TEST(WfdbSignals, HandMadeBytes) {
  // 212: 0x201 and -2 are 01 F2 FE; 310 and 311 from their bit fields.
  EXPECT_THAT(parsed("r 1 100 2\nr.dat 212 1\n", {{"r.dat", "\x01\xF2\xFE"}}).samples,
              ElementsAre(0x201, -2));
  EXPECT_THAT(
      parsed("r 1 100 3\nr.dat 310 1\n", {{"r.dat", std::string("\x03\x08\xFC\xFF", 4)}}).samples,
      ElementsAre(1, -2, -31));
  EXPECT_THAT(
      parsed("r 1 100 3\nr.dat 311 1\n", {{"r.dat", std::string("\x01\x08\xF0\x3F", 4)}}).samples,
      ElementsAre(1, 2, -1));
  EXPECT_THAT(
      parsed("r 1 100 2\nr.dat 61 1\n", {{"r.dat", std::string("\x01\x02\xFF\xFE", 4)}}).samples,
      ElementsAre(0x102, -2));
  EXPECT_THAT(
      parsed("r 1 100 2\nr.dat 160 1\n", {{"r.dat", std::string("\x00\x81\xFF\x7F", 4)}}).samples,
      ElementsAre(0x100, -1));
}

TEST(WfdbSignals, AreInPhysicalUnits) {
  const std::string bytes = packed(16, {100, -5, 300, 15, -100, 25}, 2);
  const Audio audio = parsed(
      "# a comment\r\nr 2 360/360(0) 3 12:00:00 1/1/2000\r\n"
      "r.dat 16+4 200(100)/mV 12 1024 100 300 0 lead  II\r\nr.dat 16+4 10\r\n# more\r\n",
      {{"r.dat", "head" + bytes}});
  EXPECT_EQ(audio.sample_rate, 360);
  EXPECT_EQ(audio.channels, 2);
  EXPECT_EQ(audio.full_scale, 1);
  EXPECT_THAT(audio.samples, ElementsAre(0, -0.5F, 1, 1.5F, -1, 2.5F));
  // No gain is 200, no baseline the zero of the converter, no length the whole file.
  EXPECT_THAT(parsed("r 1\nr.dat 16 0 12 50\n", {{"r.dat", packed(16, {50, 250})}}).samples,
              ElementsAre(0, 1));
  EXPECT_EQ(parsed("r 1\nr.dat 16\n", {{"r.dat", packed(16, {50})}}).sample_rate, 250);
  EXPECT_THAT(parsed("r 2 100 2\na.dat 16 1\nb.dat 80 1\n",
                     {{"a.dat", packed(16, {1, 2})}, {"b.dat", packed(80, {3, 4})}}, 1)
                  .samples,
              ElementsAre(3, 4));
}

TEST(WfdbSignals, SegmentsOfARecordFollowEachOther) {
  const Files files = {{"a.hea", "a 1 100 2\nx.dat 16 1 12 0 1 3 0 I\n"},
                       {"b.hea", "b 1 100\ny.dat 16 2 12 0 4 4 0 I\n"},
                       {"c.hea", "c 2 100 1\nx.dat 16\nx.dat 16\n"},
                       {"d.hea", "d 1 100 1\nx.dat 16 1 12 0 1 1 0 V1\n"},
                       {"e.hea", "e 1 99 2\nx.dat 16\n"},
                       {"n.hea", "n/1 1 100 2\na 2\n"},
                       {"x.dat", packed(16, {1, 2})},
                       {"y.dat", packed(16, {4})}};
  EXPECT_THAT(parsed("r/2 1 100 3\na 2\nb 1\n", files).samples, ElementsAre(1, 2, 2));
  EXPECT_EQ(refusal("r/2 1 100 4\na 2\nb 1\n", files),
            "r.hea: 4 samples are announced, the segments have 3");
  EXPECT_EQ(refusal("r/2 1 100\na 2\nc 1\n", files),
            "r.hea:3: the segment has 2 signals, the first one 1");
  EXPECT_EQ(refusal("r/2 1 100\na 2\nd 1\n", files),
            "r.hea:3: signal 0 of the segment is \"V1\", of the first one \"I\"");
  EXPECT_EQ(refusal("r/1 1 100\ne 2\n", files), "r.hea:2: the segment has 99 Hz, the record 100");
  EXPECT_EQ(refusal("r/1 1 100\na 1\n", files),
            "r.hea:2: the segment has 1 samples here, 2 in its header");
  EXPECT_EQ(refusal("r/1 1 100\nn 2\n", files), "r.hea:2: the segment has segments itself");
  EXPECT_EQ(refusal("r/2 1 100\na 2\na 2\n", files), "r.hea:3: the segment \"a\" comes twice");
  EXPECT_THAT(refusal("r/2 1 100\na 0\na 2\n", files),
              HasSubstr("r.hea:2: the record has a layout"));
  EXPECT_THAT(refusal("r/2 1 100\n~ 5\na 2\n", files),
              HasSubstr("r.hea:2: 5 samples of the record are missing here"));
}

TEST(WfdbSignals, WhatIsWrongIsSaid) {
  const Files files = {{"r.dat", packed(16, {1, 2, -32768})}};
  EXPECT_EQ(refusal(""),
            "r.hea: the header has no record line; expected NAME SIGNALS RATE SAMPLES");
  EXPECT_EQ(refusal("r\n"),
            "r.hea:1: the record line ends after the name; expected the number of signals");
  EXPECT_EQ(refusal("r 0\n"), "r.hea:1: the record has no signals; expected at least one");
  EXPECT_EQ(refusal("r two\n"),
            "r.hea:1: the number of signals is \"two\"; expected a whole number from 0 to 1024");
  EXPECT_EQ(refusal("r 1 fast\n"),
            "r.hea:1: the sampling frequency is \"fast\"; expected a number");
  EXPECT_THAT(refusal("r 1 0\n"), HasSubstr("expected more than 0, at most 1e8"));
  EXPECT_THAT(refusal("r 1 100 -1\n"), HasSubstr("r.hea:1: the number of samples is \"-1\""));
  EXPECT_EQ(refusal("r 2 100\nr.dat 16\n"), "r.hea:2: the header ends after 1 of 2 signals");
  EXPECT_EQ(refusal("r 1 100\nr.dat 16\nr.dat 16\n"),
            "r.hea:3: a line after those of 1 signals; expected only comments");
  EXPECT_EQ(refusal("r 1 100\nr.dat\n"), "r.hea:2: the line of a signal has no format");
  EXPECT_EQ(refusal("r 1 100\nr.dat 516\n"),
            "r.hea:2: the signal file has the format \"516\"; expected 8, 16, 24, 32, 61, 80, 160, "
            "212, 310 or 311");
  EXPECT_THAT(refusal("r 1 100\nr.dat 16x2\n"),
              HasSubstr("2 samples in a frame, which is not read"));
  EXPECT_THAT(refusal("r 1 100\nr.dat 16:3\n"),
              HasSubstr("skewed by 3 samples, which is not read"));
  EXPECT_THAT(refusal("r 1 100\nr.dat 16+x\n"), HasSubstr("r.hea:2: the byte offset is \"x\""));
  EXPECT_THAT(refusal("r 1 100\n../r.dat 16\n"),
              HasSubstr("the signal file is \"../r.dat\"; expected a file beside the header"));
  EXPECT_EQ(refusal("r 1 100\nr.dat 16 2(1\n"),
            "r.hea:2: the gain is \"2(1\"; expected GAIN(BASELINE)/UNITS");
  EXPECT_EQ(refusal("r 1 100\nr.dat 16 1(b)\n"),
            "r.hea:2: the baseline is \"b\"; expected a number");
  EXPECT_EQ(refusal("r 1 100.5\nr.dat 16\n", files),
            "r.hea: the sampling frequency is 100.5 Hz; expected a whole number; resample the "
            "record, as with WFDB's xform");
  EXPECT_EQ(refusal("r 1 100 2\nr.dat 16 1 16 0 7 3 0 I\n", files),
            "r.hea:2: the first value of \"I\" is 1 in \"r.dat\", and 7 here; one of the files was "
            "changed");
  EXPECT_EQ(refusal("r 1 100 2\nr.dat 16 1 16 0 1 4 0 I\n", files),
            "r.hea:2: the checksum of \"I\" is 3 in \"r.dat\", and 4 here; one of the files was "
            "changed");
  EXPECT_EQ(refusal("r 1 100 9\nr.dat 16\n", files),
            "r.hea:2: 9 samples of each signal are announced, \"r.dat\" has 3; it was cut off");
  EXPECT_EQ(refusal("r 1 100 3\nr.dat 16 1 16 0 1 -32765 0 I\n", files),
            "r.hea:2: sample 2 of \"I\" is marked as missing; expected whole signals");
  EXPECT_EQ(refusal("r 1 100 1\nr.dat 16+6\n", files),
            "r.hea:2: samples begin at byte 6 of \"r.dat\", which has 6");
  EXPECT_EQ(refusal("r 2 100 1\nr.dat 16\nr.dat 80\n", files),
            "r.hea:3: format 80; the signal before it has 16 in the same file");
  EXPECT_THAT(refusal("r 3 100\nr.dat 16\nq.dat 16\nr.dat 16\n", files),
              HasSubstr("r.hea:4: the signals of \"r.dat\" do not follow each other"));
  EXPECT_THAT(refusal("r 1 100 3\nr.dat 16\n", files, 2), HasSubstr("there is no channel 2"));
}

// ---------------------------------------------------------------------------- the annotations

TEST(WfdbAnnotations, HaveTimesCodesAndTexts) {
  const std::string bytes = Annotator()
                                .add(18, kRhythm, "(N")
                                .add(77, kN)
                                .field(60, 3)
                                .field(61, 1)
                                .field(62, 2)
                                .add(100'000, kV, std::string("odd\0", 3))
                                .bytes();
  const data::WfdbAnnotations read = parse_wfdb_annotations(bytes, "r.atr");
  ASSERT_EQ(read.all.size(), 3U);
  EXPECT_EQ(read.all[0].time, 18);
  EXPECT_EQ(read.all[0].text, "(N");
  EXPECT_EQ(read.all[1].time, 77);
  EXPECT_EQ(read.all[1].code, kN);
  EXPECT_EQ(read.all[2].time, 100'000);
  EXPECT_EQ(read.all[2].text, "odd");
  EXPECT_EQ(data::wfdb_symbol(kV), "V");
  EXPECT_EQ(data::wfdb_symbol(38), "f");
  EXPECT_EQ(data::wfdb_symbol(41), "r");
  EXPECT_EQ(data::wfdb_symbol(45), "[45]");
}

TEST(WfdbAnnotations, MayDefineTheirClockAndSymbols) {
  const std::string bytes = Annotator()
                                .add(0, kNote, "## time resolution: 1000")
                                .add(0, kNote, "## annotation type definitions")
                                .add(0, kNote, "42 X our own")
                                .add(0, kNote, "## end of definitions")
                                .add(5, 42)
                                .bytes();
  const data::WfdbAnnotations read = parse_wfdb_annotations(bytes, "r.atr");
  EXPECT_EQ(read.rate, 1000);
  ASSERT_EQ(read.all.size(), 1U);
  EXPECT_EQ(data::wfdb_symbol(42, read.symbols), "X");
}

TEST(WfdbAnnotations, WhatIsWrongIsSaid) {
  const auto refused = [](const std::string& bytes) {
    return message_of([&] { parse_wfdb_annotations(bytes, "r.atr"); });
  };
  const std::string whole = Annotator().add(5, kN, "text").add(5000, kV).bytes();
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(parse_wfdb_annotations(whole.substr(0, size), "r.atr"), DataError) << size;
  EXPECT_EQ(refused(""),
            "r.atr: byte 0: the file ends, and an annotation or the end mark was expected; it was "
            "cut off, or holds no annotations of WFDB");
  EXPECT_EQ(refused(whole + "x"),
            "r.atr: byte 18: there are bytes after the end of the annotations; expected none");
  EXPECT_EQ(refused(Annotator().field(60, 1).bytes()),
            "r.atr: byte 0: code 60, which belongs to the annotation before it, and there is none");
  EXPECT_THAT(refused(Annotator().add(1, 55).bytes()),
              HasSubstr("r.atr: byte 0: code 55; expected"));
  EXPECT_EQ(refused(Annotator().add(2000, kN).add(1999, kN).bytes()),
            "r.atr: byte 14: an annotation at tick 1999, before the one above it at 2000");
  EXPECT_THAT(refused(Annotator().add(-2000, kN).bytes()),
              HasSubstr("an annotation at tick -2000"));
  EXPECT_THAT(refused(Annotator().add(0, kNote, "## time resolution: x").bytes()),
              HasSubstr("the time resolution is \"x\""));
  EXPECT_THAT(refused(Annotator()
                          .add(0, kNote, "## annotation type definitions")
                          .add(0, kNote, "none")
                          .bytes()),
              HasSubstr("\"none\" defines no annotation"));
}

// ---------------------------------------------------------------------------------- the tiers

/// "start-end:label ..." in ticks of 10 ms.
std::string summary(const data::RawTier& tier) {
  std::string out = tier.name + ":";
  for (const LabelSegment& s : tier.raw.segments)
    out += fmt::format(" {:g}-{:g}:{}", s.start * 100, s.end * 100, s.label);
  return out;
}

std::vector<std::string> tiers(const Annotator& annotator, double seconds = 10) {
  std::vector<std::string> out;
  for (const data::RawTier& tier : data::wfdb_tiers(
           parse_wfdb_annotations(annotator.bytes(), "r.atr"), "atr", 100, seconds, "r.atr"))
    out.push_back(tier.intervals ? summary(tier) : tier.name + " has points");
  return out;
}

TEST(WfdbTiers, WavesReachFromBracketToBracket) {
  Annotator a;
  a.add(10, kBegin).add(12, kP).add(15, kEnd).add(20, kBegin).add(22, kV).add(25, kEnd);
  a.add(40, kBegin).add(43, kT).add(45, kT).add(50, kEnd);
  EXPECT_THAT(tiers(a), ElementsAre("atr: 10-15:p 15-20:- 20-25:V 25-40:- 40-50:t"));
}

TEST(WfdbTiers, WavesWithOneBracketBeginOrEndAtTheirPeak) {
  Annotator a;
  a.add(10, kBegin).add(12, kP).add(20, kBegin).add(22, kN).add(25, kEnd);
  a.add(40, kT).add(50, kEnd).add(60, kN).add(70, kEnd).add(80, kEnd).add(90, kBegin);
  a.add(95, kT);
  EXPECT_THAT(tiers(a), ElementsAre("atr: 10-12:p 12-20:- 20-25:N 25-40:- 40-50:t 50-60:- 60-70:N "
                                    "70-90:- 90-95:t"));
}

TEST(WfdbTiers, WhatNobodyLookedAtStaysWithoutLabels) {
  Annotator a;
  a.add(10, kBegin).add(12, kP).add(15, kEnd).add(300, kBegin).add(310, kP).add(320, kEnd);
  EXPECT_THAT(tiers(a), ElementsAre("atr: 10-15:p 300-320:p"));
}

TEST(WfdbTiers, BeatsAndRhythmsLastUntilTheNext) {
  Annotator a;
  a.add(5, kRhythm, "(N")
      .add(10, kN)
      .add(90, kV)
      .add(100, kRhythm, "(AFIB")
      .add(120, 14)
      .add(150, kN);
  EXPECT_THAT(tiers(a, 2),
              ElementsAre("atr: 10-90:N 90-150:V 150-200:N", "atr.rhythm: 5-100:N 100-200:AFIB"));
  EXPECT_THAT(tiers(Annotator().add(5, kNote, "hello")), ElementsAre("atr has points"));
}

TEST(WfdbTiers, AnnotationsBehindTheRecordAreRefused) {
  EXPECT_EQ(
      message_of([] { tiers(Annotator().add(300, kN), 2); }),
      "r.atr: byte 0: an annotation at 3 s; the record ends at 2 s: the annotations belong to "
      "another record, or count time otherwise");
}

// ---------------------------------------------------------------------------------- the folder

TEST(WfdbFolder, RecordsComeWithTheirAnnotators) {
  const test::TemporaryDirectory folder;
  const std::vector<std::int32_t> samples(400, 1);
  for (const char* name : {"a", "b"}) {
    folder.write(fmt::format("{}.hea", name),
                 fmt::format("{} 1 100 400\n{}.mat 16+2 1\n", name, name));
    folder.write(fmt::format("{}.mat", name), "xx" + packed(16, samples));
    folder.write(fmt::format("{}.q1c", name),
                 Annotator().add(10, kBegin).add(20, kP).add(30, kEnd).bytes());
    folder.write(fmt::format("{}.atr", name),
                 Annotator().add(10, kN).add(20, kRhythm, "(B").add(200, kV).bytes());
    folder.write(fmt::format("{}.xws", name), "not annotations\n");
    folder.write(fmt::format("{}.log", name), "nor these\n");
  }
  folder.write("c.hea", "c/2 1 100 800\na 400\nb 400\n");
  folder.write("RECORDS", "a\nb\n");
  ManifestOptions options;
  Unpaired unpaired;
  options.unpaired = &unpaired;
  // a and b are parts of c, which nobody has annotated.
  EXPECT_THAT(message_of([&] { load_manifest(folder.path(), options); }),
              HasSubstr("1 recordings and 0 label files, and none belong together"));
  std::filesystem::remove(folder / "c.hea");
  const std::vector<Recording> found = load_manifest(folder.path());
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].id, "a");
  EXPECT_EQ(found[0].labels, folder / "a.hea");
  EXPECT_EQ(read_audio(found[0].audio).frames(), 400);
  const LabelContents contents = inspect_labels(found[0].labels);
  EXPECT_EQ(contents.format, LabelFormat::kWfdb);
  std::vector<std::string> names;
  for (const LabelTier& tier : contents.tiers) names.push_back(tier.name);
  EXPECT_THAT(names, ElementsAre("atr", "atr.rhythm", "q1c"));
  LabelOptions how;
  how.fill_label = "gap";
  how.tier = "atr.rhythm";
  EXPECT_EQ(read_labels(found[0].labels, how).segments.back().label, "B");
  how.tier = "q1c";
  EXPECT_EQ(read_labels(found[0].labels, how).segments.back().label, "p");
  how.tier = "man";
  EXPECT_THAT(message_of([&] { read_labels(found[0].labels, how); }),
              HasSubstr("no tier \"man\"; the file has \"atr\", \"atr.rhythm\", \"q1c\""));
  // A binary file that is none of ours is named.
  folder.write("a.qrs", "\xFF\xFF\xFF");
  EXPECT_THAT(message_of([&] { inspect_labels(found[0].labels); }),
              HasSubstr("a.qrs: byte 0: code 63"));
  std::filesystem::remove(folder / "a.mat");
  EXPECT_THAT(message_of([&] { read_audio(found[0].audio); }), HasSubstr("a.hea:2: cannot open"));
}

TEST(WfdbFolder, AManifestNamesHeadersAndNotTheirParts) {
  const test::TemporaryDirectory folder;
  folder.write("r0.hea", "r0 1 100 4\nr0.dat 16 1\n");
  folder.write("r0.dat", packed(16, {1, 2, 3, 4}));
  folder.write("r0.qrs", Annotator().add(1, kN).bytes());
  const auto refusal = [&](const std::string& row) {
    return message_of([&] { load_manifest(folder.write("m.tsv", "audio\tlabels\n" + row)); });
  };
  const std::string place = (folder / "m.tsv").string() + ":2: " + folder.path().string();
  EXPECT_EQ(refusal("r0.hea\tr0.qrs\n"),
            place +
                "/r0.qrs is a part of a WFDB record; name its header r0.hea, and choose the "
                "annotator by the tier \"qrs\"");
  EXPECT_EQ(refusal("r0.dat\tr0.hea\n"),
            place + "/r0.dat is a part of a WFDB record; name its header r0.hea");
  EXPECT_EQ(refusal("r0.hea\tr0.hea\n"), "nothing was thrown");
}

}  // namespace
}  // namespace segfuse
