#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sndfile.h>
#include <sys/stat.h>

#include <cmath>
#include <fstream>
#include <map>
#include <numbers>
#include <set>
#include <thread>

#include "base/os/file.h"
#include "learn/data/audio/parsers.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"
#include "support/files.h"

namespace segfuse {
namespace {

std::vector<float> wave(std::size_t size) {
  std::vector<float> out(size);
  for (std::size_t i = 0; i < size; ++i)
    out[i] = static_cast<float>(
        std::round(20000 * std::sin(0.01 * static_cast<double>(i * i % 977))) / 32768);
  return out;
}

std::string sphere(std::string_view fields, std::span<const std::int16_t> values, bool big_endian) {
  std::string out = "NIST_1A\n   1024\n" + std::string(fields) + "end_head\n";
  out.resize(1024, ' ');
  for (const std::int16_t value : values) {
    const auto word = static_cast<std::uint16_t>(value);
    const char high = static_cast<char>(word >> 8);
    const char low = static_cast<char>(word & 0xFF);
    out.push_back(big_endian ? high : low);
    out.push_back(big_endian ? low : high);
  }
  return out;
}

TEST(ReadAudio, WavComesBackExactly) {
  const test::TemporaryDirectory directory;
  const std::vector<float> samples = wave(40000);
  write_wav(directory / "x.wav", samples, 22050);
  const Audio audio = read_audio(directory / "x.wav");
  EXPECT_EQ(audio.sample_rate, 22050);
  EXPECT_EQ(audio.channels, 1);
  EXPECT_EQ(audio.full_scale, 32768);
  EXPECT_EQ(audio.samples, samples);
}

TEST(ReadAudio, StoredScaleGivesTheIntegers) {
  const test::TemporaryDirectory directory;
  const std::vector<float> samples = {0, 1.0F / 32768, -5.0F / 32768, -1, 2};
  write_wav(directory / "x.wav", samples, 500);
  AudioOptions options;
  options.stored_scale = true;
  EXPECT_EQ(read_audio(directory / "x.wav", options).samples,
            (std::vector<float>{0, 1, -5, -32768, 32767}));
}

/// A data chunk that announces half of the sound, as those of more than 4 GiB do with other
/// numbers.
TEST(ReadAudio, SoundBehindTheDataChunkIsRefused) {
  const test::TemporaryDirectory directory;
  const std::filesystem::path path = directory / "x.wav";
  write_wav(path, wave(20000), 8000);
  const std::string whole = read_file(path);
  const auto half_and = [&](const std::string& rest) {
    std::string bytes = whole.substr(0, 44 + 20000);
    bytes[40] = static_cast<char>(20000 & 0xFF);
    bytes[41] = static_cast<char>(20000 >> 8);
    bytes[42] = 0;
    write_file_atomically(path, bytes + rest);
    return read_audio(path).samples.size();
  };
  EXPECT_EQ(half_and(""), 10000);
  const std::string chunk = std::string("LIST") + std::string("\x10\x27\0\0", 4);  // 10000 bytes
  EXPECT_EQ(half_and(chunk + std::string(10000, 'x')), 10000);
  EXPECT_EQ(half_and("TAG" + std::string(125, 'x')), 10000) << "an ID3 tag";
  EXPECT_EQ(half_and(std::string(30000, '\0')), 10000) << "padding";
  for (const std::string& rest :
       {whole.substr(44 + 20000), chunk + std::string(10000, 'x') + std::string(5000, '\x80'),
        chunk + std::string(9999, 'x')}) {
    try {
      half_and(rest);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("x.wav: byte 36: the data chunk announces 20000 "
                                                   "bytes, and behind it are "));
    }
  }
}

void write_with_sndfile(const std::filesystem::path& path, int format, int channels,
                        const std::vector<float>& interleaved) {
  SF_INFO info{};
  info.samplerate = 8000;
  info.channels = channels;
  info.format = format;
  SNDFILE* file = sf_open(path.c_str(), SFM_WRITE, &info);
  ASSERT_NE(file, nullptr);
  const auto frames = static_cast<sf_count_t>(interleaved.size()) / channels;
  if ((format & SF_FORMAT_SUBMASK) == SF_FORMAT_FLOAT) {
    sf_writef_float(file, interleaved.data(), frames);
  } else {  // libsndfile scales floats by 32767, not 32768
    std::vector<short> words;
    for (const float x : interleaved) words.push_back(static_cast<short>(x * 32768));
    sf_writef_short(file, words.data(), frames);
  }
  sf_close(file);
}

TEST(ReadAudio, FlacAndChannels) {
  const test::TemporaryDirectory directory;
  write_with_sndfile(directory / "x.flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 2,
                     {0.5F, -0.25F, 0.25F, 0.75F});
  AudioOptions options;
  try {
    read_audio(directory / "x.flac", options);
    FAIL() << "two channels became one without a word";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("x.flac: the file has 2 channels; choose one"));
  }
  options.channel = AudioOptions::kMean;
  EXPECT_EQ(read_audio(directory / "x.flac", options).samples, (std::vector<float>{0.125F, 0.5F}));
  options.channel = 1;
  EXPECT_EQ(read_audio(directory / "x.flac", options).samples, (std::vector<float>{-0.25F, 0.75F}));
  options.channel = 2;
  EXPECT_THROW(read_audio(directory / "x.flac", options), DataError);
}

TEST(ReadAudio, WhateverLibsndfileReadsByTheEndingsOfTheTable) {
  const test::TemporaryDirectory directory;
  std::vector<float> tone(8000);
  for (std::size_t i = 0; i < tone.size(); ++i)
    tone[i] = static_cast<float>(0.5 * std::sin(0.3 * static_cast<double>(i)));
  const std::map<std::string, int> formats = {{".wav", SF_FORMAT_WAV | SF_FORMAT_PCM_24},
                                              {".flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16},
                                              {".ogg", SF_FORMAT_OGG | SF_FORMAT_VORBIS},
                                              {".oga", SF_FORMAT_OGG | SF_FORMAT_VORBIS},
                                              {".opus", SF_FORMAT_OGG | SF_FORMAT_OPUS},
                                              {".mp3", SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III},
                                              {".aiff", SF_FORMAT_AIFF | SF_FORMAT_PCM_16},
                                              {".aif", SF_FORMAT_AIFF | SF_FORMAT_PCM_16},
                                              {".caf", SF_FORMAT_CAF | SF_FORMAT_PCM_16},
                                              {".w64", SF_FORMAT_W64 | SF_FORMAT_PCM_16},
                                              {".rf64", SF_FORMAT_RF64 | SF_FORMAT_PCM_16},
                                              {".au", SF_FORMAT_AU | SF_FORMAT_PCM_16}};
  std::set<std::string> ours = {".sph", ".nist", ".cbin",
                                ".hea"};  // which libsndfile does not read
  for (const auto& [ending, format] : formats) ours.insert(ending);
  for (const std::string_view ending : audio_endings())
    EXPECT_TRUE(ours.contains(std::string(ending))) << ending << ": a sample is missing here";
  for (const auto& [ending, format] : formats) {
    const std::filesystem::path path = directory / ("x" + ending);
    EXPECT_TRUE(is_audio_file(path)) << ending;
    write_with_sndfile(path, format, 1, tone);
    const Audio audio = read_audio(path);
    EXPECT_EQ(audio.sample_rate, 8000) << ending;
    EXPECT_NEAR(static_cast<double>(audio.samples.size()), 8000, ending == ".mp3" ? 2400 : 0)
        << ending;
    const std::string bytes = read_file(path);
    for (const std::size_t size : {bytes.size() / 2, std::size_t{0}, std::size_t{3}}) {
      const std::filesystem::path cut = directory.write("cut" + ending, bytes.substr(0, size));
      try {
        (void)read_audio(cut);
        ADD_FAILURE() << ending << ": " << size << " bytes were taken";
      } catch (const DataError& error) {
        const std::string said = error.what();
        EXPECT_TRUE(said.starts_with(cut.string() + ": ")) << said;
        const auto no_audio = testing::HasSubstr("not an audio file that can be read");
        if (size == 0)
          EXPECT_THAT(said, testing::HasSubstr("byte 0: the file is empty"));
        else  // libsndfile may see that itself, and says little
          EXPECT_THAT(said, testing::AnyOf(testing::HasSubstr("cut off"), no_audio));
      }
    }
  }
}

TEST(ReadAudio, NotANumberInAFloatFileIsNamed) {
  const test::TemporaryDirectory directory;
  write_with_sndfile(directory / "x.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, 1,
                     {0, 1, std::nanf(""), 0});
  try {
    read_audio(directory / "x.wav");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("x.wav: sample 2 is nan"), std::string::npos)
        << error.what();
  }
}

TEST(ReadAudio, EveryCutOfAWavIsRefused) {
  const test::TemporaryDirectory directory;
  write_wav(directory / "x.wav", wave(20), 16000);
  std::ifstream file(directory / "x.wav", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  ASSERT_EQ(bytes.size(), 84);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(read_audio(directory.write("cut.wav", bytes.substr(0, size))), DataError) << size;
}

TEST(ReadAudio, WhatAFileSaysOfItselfIsCheckedBeforeItIsRead) {
  const test::TemporaryDirectory directory;
  write_wav(directory / "x.wav", wave(20), 16000);
  EXPECT_EQ(data::audio_info(directory / "x.wav").frames, 20);
  const auto cut = directory.write("cut.wav", read_file(directory / "x.wav").substr(0, 60));
  try {
    (void)data::audio_info(cut);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("cut.wav: byte 36: the data chunk announces 40"));
  }
}

TEST(ReadAudio, ACutFlacIsRefused) {
  const test::TemporaryDirectory directory;
  write_with_sndfile(directory / "x.flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 1, wave(60000));
  std::ifstream file(directory / "x.flac", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THROW(read_audio(directory.write("cut.flac", bytes.substr(0, bytes.size() / 2))),
               DataError);
}

constexpr std::string_view kFields =
    "sample_count -i 3\nsample_n_bytes -i 2\nchannel_count -i 1\nsample_rate -i 16000\n"
    "sample_coding -s3 pcm\n";

TEST(Sphere, BothByteOrders) {
  const std::vector<std::int16_t> values = {256, -1, 16384};
  const std::vector<float> expected = {256 / 32768.0F, -1 / 32768.0F, 0.5F};
  const std::string fields(kFields);
  EXPECT_EQ(
      parse_sphere(sphere(fields + "sample_byte_format -s2 01\n", values, false), "x").samples,
      expected);
  EXPECT_EQ(parse_sphere(sphere(fields + "sample_byte_format -s2 10\n", values, true), "x").samples,
            expected);
}

TEST(Sphere, IsFoundByItsMagicInAWavFile) {
  const test::TemporaryDirectory directory;
  const std::vector<std::int16_t> values = {1, 2, 3};
  const auto path = directory.write("SA1.WAV", sphere(kFields, values, false));
  const Audio audio = read_audio(path);
  EXPECT_EQ(audio.sample_rate, 16000);
  EXPECT_EQ(audio.samples.size(), 3);
}

// What encoders write that cannot go back to the header (into a pipe): 0 samples, no checksum.
TEST(ReadAudio, AFlacOfUnknownLengthIsReadToItsEnd) {
  const test::TemporaryDirectory directory;
  write_with_sndfile(directory / "x.flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 1, wave(60000));
  const std::vector<float> whole = read_audio(directory / "x.flac").samples;
  std::string bytes = read_file(directory / "x.flac");
  constexpr std::size_t kTotal = 4 + 4 + 13;  // behind the mark and the block's head
  bytes[kTotal] = static_cast<char>(bytes[kTotal] & 0xF0);
  for (std::size_t i = kTotal + 1; i < kTotal + 5 + 16; ++i) bytes[i] = 0;
  const auto streamed = directory.write("streamed.flac", bytes);
  EXPECT_EQ(read_audio(streamed).samples, whole);
  EXPECT_EQ(data::audio_info(streamed).frames, 60000);
}

/// Writes into a pipe of that name from a thread of its own.
class PipeWriter {
 public:
  PipeWriter(const std::filesystem::path& path, std::string bytes) {
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
    thread_ = std::thread(
        [path, bytes = std::move(bytes)] { std::ofstream(path, std::ios::binary) << bytes; });
  }
  ~PipeWriter() { thread_.join(); }

 private:
  std::thread thread_;
};

TEST(ReadAudio, APipeIsReadToItsEnd) {
  const test::TemporaryDirectory directory;
  write_with_sndfile(directory / "x.wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16, 1, wave(200'000));
  const std::vector<float> whole = read_audio(directory / "x.wav").samples;
  const PipeWriter writer(directory / "pipe", read_file(directory / "x.wav"));
  EXPECT_EQ(read_audio(directory / "pipe").samples, whole);
}

/// An MP3 without the frame that says how long it is.
std::string without_length(const std::filesystem::path& path) {
  std::string bytes = read_file(path);
  const std::size_t next = bytes.find(bytes.substr(0, 2), 40);
  EXPECT_TRUE(bytes.find("Info") < next || bytes.find("Xing") < next);
  return bytes.substr(next);
}

void expect_whole_or_refused(const std::filesystem::path& path, std::int64_t samples) {
  try {
    EXPECT_NEAR(static_cast<double>(read_audio(path).samples.size()), static_cast<double>(samples),
                4 * 1152);
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("no header says its length"));
  }
}

TEST(ReadAudio, AnMp3WithoutItsLengthIsReadWholeOrRefused) {
  const test::TemporaryDirectory directory;
  write_with_sndfile(directory / "x.mp3", SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 1,
                     wave(80'000));
  const auto whole = static_cast<double>(read_audio(directory / "x.mp3").samples.size());
  EXPECT_FALSE(data::mpeg_samples(directory / "x.mp3")) << "it says its length";
  const std::string bare = without_length(directory / "x.mp3");
  const std::string tag = std::string("ID3\x04\0\0\0\0\x08\0", 10) + std::string(1024, ' ');
  for (const std::string& bytes : {bare, tag + bare, bare + "TAG" + std::string(125, ' ')}) {
    const auto path = directory.write("bare.mp3", bytes);
    const std::optional<std::int64_t> counted = data::mpeg_samples(path);
    ASSERT_TRUE(counted);
    EXPECT_NEAR(static_cast<double>(*counted), whole, 4 * 1152);
    EXPECT_EQ(data::audio_info(path).frames, *counted);
    expect_whole_or_refused(path, *counted);
  }
  // MPEG 1, layer 3, 44.1 kHz, mono: silence at 32 kbit/s. After a frame at 320, libsndfile takes
  // the file for a tenth of its length.
  const auto silence = [](std::size_t bytes, const char* head) {
    std::string frame(bytes, '\0');
    std::copy_n(head, 4, frame.begin());
    return frame;
  };
  std::string even;
  for (int i = 0; i < 400; ++i) even += silence(104, "\xFF\xFB\x10\xC4");
  const auto path = directory.write("even.mp3", tag + even);
  EXPECT_EQ(data::mpeg_samples(path), 400 * 1152);
  EXPECT_NEAR(static_cast<double>(read_audio(path).samples.size()), 400 * 1152, 4 * 1152);
  const auto mixed = directory.write("mixed.mp3", silence(1044, "\xFF\xFB\xE0\xC4") + even);
  EXPECT_EQ(data::mpeg_samples(mixed), 401 * 1152);
  expect_whole_or_refused(mixed, 401 * 1152);
}

TEST(ReadAudio, OggThatIsCutOrChainedIsRefused) {
  const test::TemporaryDirectory directory;
  write_with_sndfile(directory / "x.ogg", SF_FORMAT_OGG | SF_FORMAT_VORBIS, 1, wave(80'000));
  const std::string whole = read_file(directory / "x.ogg");
  EXPECT_EQ(read_audio(directory / "x.ogg").samples.size(), 80'000U);
  std::string other = whole;  // of another stream
  for (std::size_t at = 0; (at = other.find("OggS", at)) != std::string::npos; at += 4)
    other[at + 14] = static_cast<char>(other[at + 14] + 1);
  for (const auto& [bytes, words] :
       {std::pair(whole.substr(0, whole.size() / 2), "the file was cut off"),
        std::pair(whole + other, "another stream begins here")}) {
    const auto path = directory.write("bad.ogg", bytes);
    try {
      (void)read_audio(path);
      FAIL() << words;
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(words));
    }
  }
}

TEST(ReadAudio, AWavWhoseHeaderWasNotFinishedIsSaidToBeSo) {
  const test::TemporaryDirectory directory;
  write_wav(directory / "x.wav", wave(100), 8000);
  std::string bytes = read_file(directory / "x.wav");
  bytes.replace(bytes.find("data") + 4, 4, std::string(4, '\0'));
  const auto path = directory.write("open.wav", bytes);
  try {
    (void)read_audio(path);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("did not finish its header"));
  }
}

}  // namespace
}  // namespace segfuse
